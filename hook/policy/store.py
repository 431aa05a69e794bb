"""The policy in force: compiled once per change, kept beside a fingerprint of its source. Builtins only.

Reading YAML and checking it against the schema costs more than a whole container start, so a start reads what the
compiler left in the store, if the source is still the file that was compiled. If not, whoever sees it first starts
the compiler (`hook.policy.compiler`) as a child. A broken or vanished source never replaces a good policy: the last
good one stays in force and every start says why (`Policy.warning`).
"""

import posix
import time

from hook.base.child import ask
from hook.base.errors import ReassertError, describe
from hook.base.jsontext import Malformed, decode, parse
from hook.base.system import Untrusted, is_file, make_directory, read_file, trusted
from hook.policy.model import NoPolicy, Policy

SOURCE = "/etc/reassert/policy.yaml"
STORE = "/var/lib/reassert"
FORMAT = 4
"""Raised whenever the compiled form changes; an older store is compiled again."""

SOURCE_LIMIT = 16 * 1024 * 1024
"""Bytes of a policy file."""

LIMIT = 64 * 1024 * 1024
"""Bytes of a compiled policy."""

COMPILE_SECONDS = 20.0
"""How long a start waits for a compilation, its own or another's. CRI gives a container start two minutes."""


def store_path(source: str, store: str) -> str:
    """The store's file for a source, named as systemd-escape(1) --path would."""
    return store + "/" + source.strip("/").replace("\\", "\\x5c").replace("-", "\\x2d").replace("/", "-") + ".json"


def file_key(status: posix.stat_result) -> "list[int]":
    """What tells one state of the source from another, for the price of a stat(2)."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def load(source: str = SOURCE, store: str = STORE) -> Policy:
    """The policy in force for an absolute source path; compiles it if it changed. Never raises for bad input."""
    problem, key = look(source)
    stored = read_store(source, store)
    if not problem and (stored is None or not stored.knows(key)):
        stored, problem = _recompiled(source, store, key, stored)
    if stored is None:
        return NoPolicy(source, problem or f"{source} could not be compiled")
    return stored.policy(source, key, problem)


def look(source: str) -> "tuple[str, list[int]]":
    """Why the source cannot be used as it is, or "", and its key."""
    try:
        status = trusted(source)
    except Untrusted as error:
        return str(error), []
    except OSError as error:
        return describe(error), []
    if not is_file(status):
        return f"{source} is not a regular file", []
    if status.st_size > SOURCE_LIMIT:
        return f"{source} is larger than the limit of {SOURCE_LIMIT} bytes", []
    return "", file_key(status)


class Stored:
    """A file of the store: header, rules, and what is held back."""

    __slots__ = ("_header", "_lines")

    def __init__(self, text: str) -> None:
        """Raises Malformed for what this version did not write."""
        lines = text.splitlines()
        header = parse(lines.pop(0)) if lines else None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise Malformed("not a compiled policy of this version")
        if header.get("rules") != len(lines) or not text.endswith("\n"):
            raise Malformed("a compiled policy that was cut off")
        self._header = header
        self._lines = lines

    def knows(self, key: "list[int]") -> bool:
        """Whether this state of the source was compiled, for good or bad."""
        return key in (self._header["key"], self._header["heldKey"])

    def policy(self, source: str, key: "list[int]", problem: str) -> Policy:
        """The policy, warning of a source that is broken or gone."""
        if not problem and key == self._header["heldKey"]:
            problem = "; ".join(self._header["heldErrors"])
        if not self._header["sha256"]:
            return NoPolicy(source, problem or "it was never compiled")
        warning = f"the last good policy stays in force: {problem}" if problem else ""
        return Policy(source, self._header, self._lines, warning)


def read_store(source: str, store: str) -> "Stored | None":
    """What was compiled of a source; None where this version finds nothing that it can use."""
    path = store_path(source, store)
    try:
        trusted(path)
        return Stored(decode(read_file(path, LIMIT)))
    except (OSError, ReassertError, Malformed):
        return None


def _recompiled(source: str, store: str, key: "list[int]", old: "Stored | None") -> "tuple[Stored | None, str]":
    """One start compiles; those that come meanwhile wait for it and find it done."""
    deadline = time.monotonic() + COMPILE_SECONDS
    lock = _lock(store, deadline)
    try:
        stored = read_store(source, store) if lock >= 0 else None
        if stored is not None and stored.knows(key):
            return stored, ""
        return Stored(decode(ask(["policy", "compile", "--policy", source, "--store", store], deadline))), ""
    except (OSError, ReassertError, Malformed) as error:
        return old, f"{source} could not be compiled: {error}"
    finally:
        if lock >= 0:
            posix.close(lock)


def _lock(store: str, deadline: float) -> int:
    """A descriptor that holds the store's lock, -1 where there can be none (each then compiles for itself)."""
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
