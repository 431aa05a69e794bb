"""Whether the runtime would make a device inside a reserved mount. Looked at before the runtime runs.

Runtimes make devices after the mounts of config.json and before createRuntime hooks, so hook.core.linux.look comes too
late for a device that a link of the image or of a volume leads into the node's own directory. crun makes a mount
read-only only after those; runc follows a link at the end of a device's path too.
"""

from __future__ import annotations

import errno
import posix
from collections.abc import Callable, Sequence

from hook.core.base.compare import is_below
from hook.core.base.errors import Unacceptable, named
from hook.core.base.system import is_shortage
from hook.core.base.text import REASONS_LISTED
from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.linux.walk import Node, PathEscapes, Place, Steps, Walks, made_at
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND
from hook.core.reserve.place_mount import PlaceMount

_EMPTY = ("tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2")
"""File systems without links of a pod, but for tmpfs with `tmpcopyup`, whose links are the image's."""


class Volumes:
    """The volumes in which a container can make links."""

    def __init__(self) -> None:
        self.sources: dict[Node, str] = {}
        """By the place of a volume in the container, the path of the node that is mounted there."""
        self.nested = ""
        """The destination of a mount inside another volume, or ""."""
        self.behind_link = ""
        """The destination of a mount behind a link in another volume, or ""."""

    def on(self, place: Place) -> list[Node]:
        """The volumes that a path leads through, in order. The image may lack the directory of a volume."""
        missing = [node for node in place.node.upwards()[:0:-1] if node.missing]
        return [node for node in [*place.crossed, *missing] if node in self.sources]


def astray(
    rootfs: str, reserved: Sequence[PlaceMount], spec: Spec, still_waits: Callable[[], None] = lambda: None
) -> list[Reason]:
    """Why devices of the container must not be made. Raises Unacceptable, OSError.

    In read-only mounts, no runtime makes a device by a link at the end of its path, so only directories count there.
    `still_waits`: called now and then, and may raise.
    """
    root = posix.open(rootfs, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    walks = Walks(root, Steps(still_waits))
    try:
        ours: dict[Node, PlaceMount] = {}
        for edit in reserved:
            place = walked(walks, edit.name) if edit.mount else None
            if place:
                ours.setdefault(place.node, edit)
        volumes = volumes_of(walks, spec, {edit.name for edit in reserved if edit.mount})
        paths = made_at(spec)
        made_in = sorted({path.rpartition("/")[0] or "/" for path in paths})
        described = [(path, f"{named(path)}, in which devices are made,") for path in made_in]
        if any(edit.can_be_written() for edit in reserved):
            described += [(path, f"device {named(path)}") for path in paths]
        reasons: list[Reason] = []
        for path, description in described:
            reason = _reason(walked(walks, path), description, ours, volumes)
            if reason and reason.message not in [other.message for other in reasons]:
                reasons.append(reason)
                if len(reasons) == REASONS_LISTED:
                    break
        return reasons
    finally:
        walks.close()
        posix.close(root)


def _reason(place: Place | None, description: str, ours: dict[Node, PlaceMount], volumes: Volumes) -> Reason | None:
    """Why no device may be made at a place."""
    if place is None:
        return None
    upwards = place.node.upwards()
    edit = next((ours[node] for node in upwards if node in ours), None)
    if edit:
        return Reason(edit.rule, KIND, f"{description} leads into {named(edit.name)}")
    volume = next(map(str, volumes.on(place)), "")
    if [node.name for node in upwards[-2:-1]] != ["dev"]:
        volume = volume or volumes.nested
    volume = volume or volumes.behind_link
    if volume and volume == volumes.behind_link and is_below(volume, "/proc"):
        message = f"mount {named(volume)} goes through the links of a process, which can lead devices of the container"
        return Reason("", KIND, f"{message} into a reserved mount")
    if volume:
        message = f"{description} may be in the volume {named(volume)}"
        return Reason("", KIND, f"{message}, in which a link can lead it to a reserved mount")
    return None


def walked(walks: Walks, path: str) -> Place | None:
    """Where a path leads by the image's links; None if the runtime has no way there either."""
    try:
        return walks.to(path, everywhere=True)
    except (PathEscapes, OSError) as error:
        if isinstance(error, OSError) and (is_shortage(error) or error.errno == errno.ELOOP):  # runc follows 255 links
            raise Unacceptable(f"{named(path)} of the container cannot be followed: {error.strerror}") from error
        return None


def volumes_of(walks: Walks, spec: Spec, ours: set[str], has_nodes_dev: bool = False) -> Volumes:
    """The volumes of a config.json.

    A volume in another one does not count for devices in /dev: pods with such volumes and devices are usual.
    `has_nodes_dev`: whether the node's own /dev counts, as for gVisor.
    """
    volumes = Volumes()
    for mount in spec.mounts:
        path = mount.path
        if path in ours or not _is_volume(mount) or (mount.source == "/dev" and not has_nodes_dev):
            continue
        place = walked(walks, path)
        if place is None:
            continue
        above = volumes.on(place)
        if above:
            volumes.nested = path
            if not volumes.behind_link and leads_on(above, volumes, place=place, path=path, steps=walks.steps):
                volumes.behind_link = path
        volumes.sources[place.node] = mount.source
    return volumes


def _is_volume(mount: Mount) -> bool:
    return mount.type not in _EMPTY or mount.is_bind


def leads_on(above: list[Node], volumes: Volumes, *, place: Place, path: str, steps: Steps) -> bool:
    """Whether a volume on the way to a place has a symbolic link there. A process that shares it can make one later.

    The names of the path up to the next volume are looked up in each volume.
    """
    for volume, after in zip(above, [*above[1:], place.node], strict=True):
        parts = [_between(volume, after)]
        if after is place.node or parts == [""]:
            parts = [_between(volume, place.node), path[len(str(volume)) :] if is_below(path, str(volume)) else ""]
        if not any(parts) or any(
            part and _has_link(volumes.sources[volume], str(volume), part, steps) for part in parts
        ):
            return True
    return False


def _between(above: Node, below: Node) -> str:
    """The path from one node to another below it; "" if it is not below."""
    names: list[str] = []
    node: Node | None = below
    while node is not above:
        if node is None:
            return ""
        names.append(node.name)
        node = node.above
    return "".join(f"/{name}" for name in reversed(names))


def _has_link(source: str, volume: str, path: str, steps: Steps) -> bool:
    """Whether one of the names of a path in a volume is a link, by what the node has now."""
    if not source.startswith("/"):  # a file system of the kernel; of these, /proc has links, those of processes
        name = path.split("/")[1]
        return volume == "/proc" and (name in ("self", "thread-self") or name.isdigit())
    try:
        fd = posix.open(source, posix.O_PATH | posix.O_CLOEXEC)
    except OSError as error:
        if is_shortage(error):
            raise
        return False
    walks = Walks(fd, steps)
    try:
        place = walked(walks, path)
        return place is not None and bool(place.links)
    finally:
        walks.close()
        posix.close(fd)
