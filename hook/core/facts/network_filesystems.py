"""Files of rules in Audit mode that may never answer: those on a network or FUSE file system. They are not touched.

A rule that is only tried must not delay a container. No such file system is accessed: the kernel's list of mounts says
where one begins.
"""

from __future__ import annotations

import posix

from hook.core.base.mountinfo import LOCAL, mount_table
from hook.core.base.system import SYMLINK_LIMIT, is_link
from hook.core.facts import Facts
from hook.core.policy.model import Rule


def untouched(rules: list[Rule], facts: Facts) -> dict[str, str]:
    """The hostPaths and value files of rules that are not to be touched, each with the reason. Raises OSError.

    Those of the rules that are tried; of all rules, if none is enforced. The files are noted as unreadable. A hostPath
    counts as there.
    """
    audited = [rule for rule in rules if rule.is_audited]
    paths = _paths(audited) - _paths([rule for rule in rules if not rule.is_audited]) if audited else _paths(rules)
    if not paths:
        return {}
    on = [(row.point, row.filesystem) for row in mount_table("thread-self").values()]
    mounts = {point: "" if kind in LOCAL else kind for point, kind in on}
    kinds = {path: _remote(path, mounts) for path in sorted(paths)}
    reasons = {p: f"{p} is on {kind}, which may hang: not read in Audit mode" for p, kind in kinds.items() if kind}
    facts.unreadable.update(reasons)
    return reasons


def _paths(rules: list[Rule]) -> set[str]:
    files = {path for rule in rules for env in rule.env for path in env.files}
    return files | {mount.source for rule in rules for mount in rule.mounts if mount.source}


def _remote(path: str, mounts: dict[str, str]) -> str:
    """The type of the first file system on the way to a path that may hang, or ""; symbolic links are followed.

    `mounts`: the type of what is mounted at each path, "" if it is local. Raises OSError.
    """
    pending = path.split("/")[::-1]
    current, links = "", 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        above, current = current, current.rpartition("/")[0] if part == ".." else f"{current}/{part}"
        if mounts.get(current):
            return mounts[current]
        if part != ".." and is_link(current):
            links += 1
            if links > SYMLINK_LIMIT:
                return ""
            target = posix.readlink(current)
            pending += target.split("/")[::-1]
            current = "" if target.startswith("/") else above
    return ""
