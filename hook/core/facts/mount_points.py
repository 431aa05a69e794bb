"""Which mounts have no mount point: in a read-only reserved directory, no runtime can make one."""

from __future__ import annotations

import posix

from hook.core.base.compare import parents
from hook.core.base.system import is_directory, is_shortage
from hook.core.container import oci
from hook.core.facts import Facts
from hook.core.policy.entries import Mount, is_let_through
from hook.core.policy.model import Rule

MOUNT_POINTS = 64
"""How many mounts without a mount point are noted. An event shows no more."""


def add_without_place(facts: Facts, rules: list[Rule], mounts: list[oci.Mount]) -> None:
    """Note the mounts below a read-only reserved directory that has no file or directory to mount them on.

    `mounts`: the container's. A path that another mount is between, or a link, is the runtime's business.
    """
    reserved = [(rule.name, mount) for rule in rules for mount in rule.mounts if mount.source]
    known = {mount.destination: (rule, mount) for rule, mount in reserved}
    ours = [mount for _, mount in reserved]
    let_through = [mount.path for mount in mounts if is_let_through(mount.path, ours)]
    all_paths = {*known, *let_through}
    for path in [*known, *let_through]:
        nearest = next((above for above in parents(path) if above in all_paths), "")
        if nearest in known and _is_read_only_directory(known[nearest][1], facts):
            rule, mount = known[nearest]
            if lacks(mount.source, path[len(mount.destination) :]):
                facts.without_place.setdefault(path, (rule, mount.destination, mount.source))
                if len(facts.without_place) == MOUNT_POINTS:
                    return


def _is_read_only_directory(mount: Mount, facts: Facts) -> bool:
    return mount.source in facts.directories and "ro" in mount.options


def lacks(source: str, below: str) -> bool:
    """Whether a directory of the node has nothing at a path below it. Unknown behind a link: False.

    `below`: begins with a slash. Raises OSError for a shortage.
    """
    path = source.rstrip("/")
    names = below.strip("/").split("/")
    try:
        for name in names[:-1]:
            path += f"/{name}"
            if not is_directory(posix.lstat(path)):
                return False
        posix.lstat(f"{path}/{names[-1]}")
    except FileNotFoundError:
        return True
    except OSError as error:
        if is_shortage(error):
            raise
    return False
