"""Files of rules in Audit mode that may never answer: those on a network or FUSE file system. They are not touched.

A rule that is only tried must not delay a container. Nothing here reaches such a file system: the kernel's list of
mounts says where one begins. Loaded only for rules in Audit mode; builtins only.
"""

import posix

from hook.core.base.system import SYMLINK_LIMIT, is_link, read_file
from hook.core.policy.entries import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.facts import Facts
    from hook.core.policy.model import Rule

_LOCAL = frozenset(
    b"bcachefs bpf btrfs cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs erofs ext2 ext3 ext4 f2fs "
    b"hugetlbfs iso9660 jfs mqueue nsfs overlay proc pstore ramfs reiserfs rootfs securityfs squashfs sysfs tmpfs "
    b"tracefs udf vfat xfs zfs".split()
)
"""File systems that answer from this machine. Any other, such as nfs4, ceph, fuse and autofs, may wait for another
machine or for a process."""

_LIMIT = 1 << 28


def untouched(rules: "list[Rule]", facts: "Facts") -> "dict[str, str]":
    """The hostPaths and value files of rules that are not to be touched, each with the reason. Raises OSError.

    Those of the rules that are tried; of all rules, if none is enforced. The files are noted as unreadable. A hostPath
    counts as there.
    """
    tried = [rule for rule in rules if rule.tried]
    paths = _paths(tried) - _paths([rule for rule in rules if not rule.tried]) if tried else _paths(rules)
    if not paths:
        return {}
    mounts = _mounts()
    kinds = {path: _remote(path, mounts) for path in sorted(paths)}
    found = {p: f"{p} is on {kind}, which may hang: not read in Audit mode" for p, kind in kinds.items() if kind}
    facts.unreadable.update(found)
    return found


def _paths(rules: "list[Rule]") -> "set[str]":
    files = {env.text for rule in rules for env in rule.env if env.source == FILE and env.text}
    return files | {mount.source for rule in rules for mount in rule.mounts if mount.source}


def _mounts() -> "dict[str, str]":
    """The type of the file system that is mounted at each path, "" if it is local. Raises OSError."""
    mounts = {}
    lines = read_file("/proc/thread-self/mountinfo", _LIMIT).split(b"\n")
    for line in filter(None, lines):  # a path may hold any other separator: the kernel does not escape them
        fields, _, rest = line.partition(b" - ")
        kind = rest.split(b" ", 1)[0]
        parts = fields.split(b" ")[4].split(b"\\")
        path = parts[0] + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts[1:])
        mounts[path.decode("utf-8", "surrogateescape")] = "" if kind in _LOCAL else kind.decode("ascii", "replace")
    return mounts


def _remote(path: str, mounts: "dict[str, str]") -> str:
    """The type of the first file system on the way to a path that may hang, or ""; symbolic links are followed."""
    pending = path.split("/")[::-1]
    at, links = "/", 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        above, at = at, at.rpartition("/")[0] or "/" if part == ".." else f"{at.rstrip('/')}/{part}"
        if mounts.get(at):
            return mounts[at]
        if part != ".." and is_link(at):
            links += 1
            if links > SYMLINK_LIMIT:
                return ""
            target = posix.readlink(at)
            pending += target.split("/")[::-1]
            at = "/" if target.startswith("/") else above
    return ""
