"""Whether the runtime would make a device inside a reserved mount. Looked at before the runtime runs.

Runtimes make devices after the mounts of config.json and before createRuntime hooks. crun makes a mount read-only only
after those, so a link of the image could let it make device nodes in the node's own directory (hook.linux.look comes
too late for that).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from hook.base.compare import clean, is_below, parents
from hook.base.errors import Unacceptable, named
from hook.base.files import is_shortage
from hook.base.system import is_link
from hook.container.spec import Spec
from hook.linux.walk import DIRECTORIES, Misled, walk
from hook.reserve import Reason
from hook.reserve.mounts import KIND, PlaceMount

_EMPTY = ("tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2")
"""File systems without links of a pod, but for tmpfs with `tmpcopyup`, whose links are the image's."""


def astray(rootfs: str, directories: Sequence[str], reserved: Sequence[PlaceMount], spec: Spec) -> list[Reason]:
    """Why devices in some directories of the container must not be made. Raises Unacceptable, OSError."""
    if len(directories) > DIRECTORIES:
        return [Reason("", KIND, f"devices are in more than {DIRECTORIES} directories of the container")]
    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ours = {edit.name: edit.rule for edit in reserved if edit.mount}
        for name, rule in list(ours.items()):
            ours.setdefault(_walked(root, name)[0], rule)
        volumes, unknown, led = _volumes(root, spec, set(ours))
        found = []
        for directory in directories:
            path, through = _walked(root, directory)
            at = next((name for name in ours if path == name or is_below(path, name)), "")
            volume = next((v for v in volumes if any(way == v or is_below(way, v) for way in through)), "")
            if at:
                found.append(
                    Reason(ours[at], KIND, f"{named(directory)}, in which devices are made, leads into {named(at)}")
                )
                continue
            if path != "/dev" and not path.startswith("/dev/"):
                volume = volume or unknown
            volume = volume or led
            if volume and volume == led and is_below(led, "/proc"):
                message = (
                    f"mount {named(led)} goes through the links of a process, which can lead devices of the container"
                )
                return [*found, Reason("", KIND, f"{message} into a reserved mount")]
            if volume:
                message = f"{named(directory)}, in which devices are made, may be in the volume {named(volume)}"
                found.append(Reason("", KIND, f"{message}, in which a link can lead it to a reserved mount"))
        return found
    finally:
        os.close(root)


def _walked(root: int, path: str) -> tuple[str, set[str]]:
    """Where a path leads by the image's links, and the directories in which a name of it was looked up."""
    try:
        place = walk(root, path, everywhere=True)
    except (Misled, OSError) as error:
        if isinstance(error, OSError) and (is_shortage(error) or error.errno == errno.ELOOP):  # runc follows 255 links
            raise Unacceptable(f"{named(path)} of the container cannot be followed: {error.strerror}") from error
        return path, set()  # the runtime has no way there either
    place.close()
    return place.path, {way for _, way in place.crossed}.union(parents(place.path))


def _volumes(root: int, spec: Spec, ours: set[str]) -> tuple[list[str], str, str]:
    """The volumes in which a container can make links; one in another volume; one that a link of that one leads on.

    One in another volume does not count for directories in /dev: pods with such volumes and devices there are usual.
    """
    found: dict[str, str] = {}
    unknown = led = ""
    for mount in spec.mounts:
        at = clean(str(mount["destination"]))
        options = mount.get("options")
        is_bind = isinstance(options, list) and ("bind" in options or "rbind" in options)
        if at in ours or mount.get("source") == "/dev" or (mount.get("type") in _EMPTY and not is_bind):
            continue
        path, through = _walked(root, at)
        above = [volume for volume in found if any(way == volume or is_below(way, volume) for way in through)]
        if above:
            unknown = at
            led = led or (at if any(_leads_on(volume, found[volume], {at, path}) for volume in above) else "")
        found[path] = str(mount.get("source", ""))
    return list(found), unknown, led


def _is_a_process(name: str) -> bool:
    return name in ("self", "thread-self") or name.isdigit()


def _leads_on(volume: str, source: str, paths: set[str]) -> bool:
    """Whether a volume has a symbolic link on one of these paths. A process that shares it can make one later."""
    inside = [path[len(volume) :] for path in paths if is_below(path, volume)]
    if not source.startswith("/"):  # a file system of the kernel; of these, /proc has links, those of processes
        return volume == "/proc" and any(_is_a_process(path.split("/")[1]) for path in inside)
    ways = [source + way for path in inside for way in [path, *parents(path)[:-1]]]
    return not inside or any(map(is_link, ways))
