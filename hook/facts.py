"""What the matching rules need to know of the node, read before the decision. Start path: builtins only."""

import posix

from hook.container.model import Facts
from hook.errors import Undecided, describe
from hook.jsontext import Malformed, decode
from hook.policy.match import Match
from hook.system import Untrusted, is_file, read_fd, trusted

VALUE_LIMIT = 128 * 1024
"""Bytes of a `valueFrom.file`: Linux's MAX_ARG_STRLEN, beyond which no env entry can be."""


def gather(matches: "list[Match]") -> Facts:
    """Read the `valueFrom.file`s and look for the hostPaths of the rules that apply."""
    facts = Facts()
    for match in matches:
        if not match.applies:
            continue
        for env in match.rule.env:
            if env.file is not None and env.file not in facts.files:
                try:
                    facts.files[env.file] = first_line(env.file)
                except (Untrusted, Undecided) as error:
                    facts.unreadable[env.file] = str(error)
                except OSError as error:
                    facts.unreadable[env.file] = describe(error)
        for mount in match.rule.mounts:
            try:
                posix.stat(mount.source)
            except OSError:
                facts.absent_sources.add(mount.source)
    return facts


def first_line(path: str) -> str:
    """The first line of a file that only root can write. Raises Untrusted, Undecided, OSError."""
    if not is_file(trusted(path)):
        raise Undecided(f"{path} is not a regular file")
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        line = read_fd(fd, VALUE_LIMIT, path).split(b"\n", 1)[0].rstrip(b"\r")
    finally:
        posix.close(fd)
    if b"\0" in line:
        raise Undecided(f"{path}: its first line holds a NUL byte")
    try:
        return decode(line)
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
