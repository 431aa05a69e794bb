"""The store of compiled policies. Part of the start path: builtins only.

Parsing YAML and checking it against the schema costs more than a whole container start. So a start reads the compiled
policy from the store, if its key still matches the policy file. If not, the first start after the change runs the
compiler (`hook.core.policy.compiler`) as a child. A policy file that is missing or has errors never replaces a good
policy: the last good one stays in force, and every start logs why (`Policy.warning`).
"""

import posix

from hook.core.base.errors import ReassertError, describe
from hook.core.base.jsontext import Malformed, decode, parse
from hook.core.base.system import Untrusted, is_file, read_file, trusted
from hook.core.policy.model import HELD, Policy

SOURCE = "/etc/reassert/policy.yaml"
STORE = "/var/lib/reassert"
FORMAT = 7
"""Version of the compiled form. A store with another version is compiled again."""

SOURCE_LIMIT = 16 * 1024 * 1024
"""Maximum size of a policy file in bytes."""

LIMIT = 64 * 1024 * 1024
"""Maximum size of a compiled policy in bytes."""


def store_path(source: str, store: str) -> str:
    """The store's file for a policy file; its name is made as by systemd-escape(1) --path."""
    return store + "/" + source.strip("/").replace("\\", "\\x5c").replace("-", "\\x2d").replace("/", "-") + ".json"


def file_key(status: posix.stat_result) -> "list[int]":
    """Inode, size, mtime and ctime of the policy file: with another key, the policy is compiled again."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def load(source: str = SOURCE, store: str = STORE) -> Policy:
    """The policy in force, compiled if the policy file changed. Never raises for bad input. `source`: absolute path."""
    problem, key = source_key(source)
    stored = read_store(source, store)
    if not problem and (stored is None or not stored.has_compiled(key)):
        from hook.core.policy.recompile import recompiled  # once for each change of the policy file

        stored, problem = recompiled(source, store, key, stored)
    if stored is None:
        from hook.core.policy.missing import NoPolicy

        return NoPolicy(source, problem or f"{source} could not be compiled")
    return stored.policy(source, key, problem)


def source_key(source: str) -> "tuple[str, list[int]]":
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
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise Malformed("not a compiled policy of this version")
        if header.get("rules") != len(lines) or not text.endswith("\n"):
            raise Malformed("the compiled policy is truncated")
        self._header = header
        self._lines = lines

    def has_compiled(self, key: "list[int]") -> bool:
        """Whether the policy file with this key was compiled, with or without errors."""
        return key in (self._header["key"], self._header["heldKey"])

    def policy(self, source: str, key: "list[int]", problem: str) -> Policy:
        """The policy, with a warning if the policy file is missing or has errors."""
        if not problem and key == self._header["heldKey"]:
            problem = "; ".join(self._header["heldErrors"])
        if not self._header["sha256"]:
            from hook.core.policy.missing import NoPolicy

            return NoPolicy(source, problem or "it was never compiled")
        warning = f"{HELD}: {problem}" if problem else ""
        return Policy(source, self._header, self._lines, warning)


def read_store(source: str, store: str) -> "Stored | None":
    """The compiled policy in the store; None if there is none that this version can use."""
    path = store_path(source, store)
    try:
        trusted(path)
        return Stored(decode(read_file(path, LIMIT)))
    except (OSError, ReassertError, Malformed):
        return None
