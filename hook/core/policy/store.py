"""The store of compiled policies.

Parsing YAML and checking it against the schema costs more than a whole container start. So a start reads the compiled
policy from the store, if its key still matches the policy file. If not, the first start after the change runs the
compiler (`hook.compile.compiler`) as a child. A policy file that is missing or has errors never replaces a good
policy: the last good one stays in force, and every start logs why (`Policy.warning`).
"""

from __future__ import annotations

import posix
import time
from typing import Any

from hook.core.base import child
from hook.core.base.errors import ReassertError, describe
from hook.core.base.jsontext import Malformed, decode, parse
from hook.core.base.system import Untrusted, is_file, make_directory, read_file, trusted
from hook.core.policy.model import ENFORCE, FAIL, HELD_BACK, Policy

SOURCE = "/etc/reassert/policy.yaml"
STORE = "/var/lib/reassert"
STORE_FORMAT = 10
"""Version of the compiled form. A store with another version is compiled again."""

SOURCE_LIMIT = 16 * 1024 * 1024
"""Maximum size of a policy file in bytes."""

_ERRORS = 2
"""How many errors of a policy file a message names: each event and each line of the operation log has the message."""

STORE_LIMIT = 64 * 1024 * 1024
"""Maximum size of a compiled policy in bytes."""


def store_path(source: str, store: str) -> str:
    """The store's file for a policy file; its name is made as by systemd-escape(1) --path.

    Each format has its own file: a version that reads another one keeps its last good policy (`last_good`).
    """
    name = source.strip("/").replace("\\", "\\x5c").replace("-", "\\x2d").replace("/", "-")
    return f"{store}/{name}.{STORE_FORMAT}.json"


def file_key(status: posix.stat_result) -> list[int]:
    """Inode, size, mtime and ctime of the policy file: with another key, the policy is compiled again."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def path_state(path: str) -> list[int]:
    """The key of a file that a policy names, or the error if it is missing, and which users may write above it."""
    state: list[int] = []
    try:
        state += file_key(posix.stat(path))
        while path := path.rpartition("/")[0]:
            above = posix.stat(path)
            state += [above.st_mode, above.st_uid]
    except OSError as error:
        state.append(-(error.errno or 0))
    return state


def load(source: str = SOURCE, store: str = STORE) -> Policy:
    """The policy in force, compiled if the policy file changed. Never raises for bad input. `source`: absolute path."""
    problem, key = source_key(source)
    stored = read_store(source, store)
    if not problem and (stored is None or not stored.has_compiled(key)):
        stored, problem = recompiled(source, store, key=key, old=stored)
    if stored is None:
        return NoPolicy(source, problem or f"{source} could not be compiled")
    return stored.policy(source, key, problem)


def source_key(source: str) -> tuple[str, list[int]]:
    """Why the policy file cannot be used, or "", and its key."""
    try:
        status = trusted(source)
    except (Untrusted, OSError) as error:
        return describe(error), []
    if not is_file(status):
        return f"{source} is not a regular file", []
    if status.st_size > SOURCE_LIMIT:
        return f"{source} is larger than the limit of {SOURCE_LIMIT} bytes", []
    return "", file_key(status)


class Stored:
    """A file of the store: its header, with the errors of a newer policy file, and its rules."""

    def __init__(self, text: str) -> None:
        """Raises Malformed for a text that is truncated or in another format."""
        lines = text.splitlines()
        header = parse(lines.pop(0)) if lines else None
        if not isinstance(header, dict) or header.get("format") != STORE_FORMAT:
            raise Malformed("not a compiled policy of this version")
        if header.get("rules") != len(lines) or not text.endswith("\n"):
            raise Malformed("the compiled policy is truncated")
        self._header = header
        self._lines = lines

    def has_compiled(self, key: list[int]) -> bool:
        """Whether the policy file with this key was compiled, with or without errors.

        One that is held back for files that the node lacks counts until one of them changes.
        """
        if key == self._header["key"]:
            return True
        lacking = self._header.get("heldFor", ())
        return key == self._header["heldKey"] and [path_state(path) for path, _ in lacking] == [
            was for _, was in lacking
        ]

    def policy(self, source: str, key: list[int], problem: str) -> Policy:
        """The policy, with a warning if the policy file is missing or has errors."""
        if not problem and key == self._header["heldKey"]:
            problem = first_of(self._header["heldErrors"])
        if not self._header["sha256"]:
            return NoPolicy(source, problem or "it was never compiled")
        warning = f"{HELD_BACK}: {problem}" if problem else ""
        return Policy(source, self._header, self._lines, warning)


def first_of(errors: list[str]) -> str:
    """The first errors of a policy file in one line, and how many follow: `policy check` shows all of them."""
    more = len(errors) - _ERRORS
    return "; ".join([*errors[:_ERRORS], *([f"and {more} more (reassert policy check)"] if more > 0 else [])])


def read_store(source: str, store: str) -> Stored | None:
    """The compiled policy in the store; None if there is none that this version can use."""
    path = store_path(source, store)
    try:
        trusted(path)
        return Stored(decode(read_file(path, STORE_LIMIT)))
    except (OSError, ReassertError, Malformed):
        return None


KUBELET_ROOT = "/var/lib/kubelet"


class NoPolicy(Policy):
    """In force until the policy file is valid for the first time: only containers of kube-system start (`plan`)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, NO_RULES, [])
        self.missing = reason


NO_RULES: dict[str, Any] = {
    "sha256": "",
    "mode": ENFORCE,
    "failurePolicy": FAIL,
    "onMissingFiles": "KeepLast",
    "excludedNamespaces": ["kube-system"],
    "excludedTypes": [],
    "kubeletRoot": KUBELET_ROOT,
    "eventLog": [],
    "asks": False,
    "allowedAnnotations": [],
    "nodePaths": {},
    "nodePathsInForce": {},
    "closes": True,
    "rules": 0,
    "trust": {},
    "index": {},
    "patterns": {},
}
"""Header of NoPolicy: containers of kube-system start, all others are refused."""


COMPILE_SECONDS = 20.0
"""How long a start waits for the compiler. CRI's timeout is two minutes."""


def recompiled(
    source: str, store: str, *, key: list[int], old: Stored | None, seconds: float = COMPILE_SECONDS
) -> tuple[Stored | None, str]:
    """Run the compiler. Under a lock: other starts wait for the result and use it.

    Half of the time is for the lock: a process that can read the lock's file can hold it for ever.
    """
    began = time.monotonic()
    deadline = began + seconds
    lock = _lock(store, began + seconds / 2)
    try:
        stored = read_store(source, store)
        if stored is not None and stored.has_compiled(key):
            return stored, ""
        command = ["policy", "compile", "--policy", source, "--store", store, "--output", "store"]
        return Stored(decode(child.output_of(command, deadline))), ""
    except (OSError, ReassertError, Malformed) as error:
        return old, f"{source} could not be compiled: {error}"
    finally:
        if lock >= 0:
            posix.close(lock)


def _lock(store: str, deadline: float) -> int:
    """A descriptor that holds the store's lock; -1 if it cannot be locked, and each start runs the compiler."""
    try:
        make_directory(store, 0o700)
        fd = posix.open(f"{store}/.lock", posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW, 0o600)
    except OSError:
        return -1
    while True:
        try:
            posix.lockf(fd, posix.F_TLOCK, 0)
            return fd
        except OSError:
            if time.monotonic() > deadline:
                posix.close(fd)
                return -1
            time.sleep(0.01)
