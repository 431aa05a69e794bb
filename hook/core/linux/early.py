"""Whether the runtime would make a device inside a reserved mount. Looked at before the runtime runs.

Runtimes make devices after the mounts of config.json and before createRuntime hooks, so hook.core.linux.look comes too
late for a device that a link of the image or of a volume leads into the node's own directory. crun makes a mount
read-only only after those; runc follows a link at the end of a device's path too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from hook.core.base.compare import clean, is_below
from hook.core.base.errors import Unacceptable, named
from hook.core.base.system import is_shortage
from hook.core.base.text import REASONS
from hook.core.container.spec import Spec
from hook.core.linux.walk import Node, PathEscapes, Place, Steps, Walks, made_at
from hook.core.reserve import PlaceMount, Reason
from hook.core.reserve.mounts import KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.allocation import Allocation
    from hook.core.plan import Plan

_EMPTY = ("tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2")
"""File systems without links of a pod, but for tmpfs with `tmpcopyup`, whose links are the image's."""


class _Volumes:
    """The volumes in which a container can make links, by the node of each, with the node's path that is mounted there.

    `nested`: the destination of a mount inside another volume, or "". `led`: of one that is behind a link there.
    """

    def __init__(self) -> None:
        self.sources: dict[Node, str] = {}
        self.nested = self.led = ""

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
    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    walks = Walks(root, Steps(still_waits))
    try:
        ours: dict[Node, PlaceMount] = {}
        for edit in reserved:
            place = _walked(walks, edit.name) if edit.mount else None
            if place:
                ours.setdefault(place.node, edit)
        volumes = _volumes(walks, spec, {edit.name for edit in reserved if edit.mount})
        paths = made_at(spec)
        made_in = sorted({path.rpartition("/")[0] or "/" for path in paths})
        ways = [(path, f"{named(path)}, in which devices are made,") for path in made_in]
        if any(edit.can_be_written() for edit in reserved):
            ways += [(path, f"device {named(path)}") for path in paths]
        found: list[Reason] = []
        for path, what in ways:
            reason = _reason(_walked(walks, path), what, ours, volumes)
            if reason and reason.message not in [other.message for other in found]:
                found.append(reason)
                if len(found) == REASONS:
                    break
        return found
    finally:
        walks.close()
        os.close(root)


_IN_EACH_SENTRY = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108  # of the container
"""The places at which gVisor mounts something of its own if config.json does not (runsc/boot/vfs.go)."""

_GPUS = "NVIDIA_VISIBLE_DEVICES"


def in_sentry_astray(
    rootfs: str,
    decided: Plan,
    allocations: list[Allocation],
    spec: Spec,
    still_waits: Callable[[], None] = lambda: None,
) -> list[Reason]:
    """Why a container must not start in gVisor's sentry, into which no hook can look.

    In the sentry, the last mount of config.json is not the one on top. The gofer resolves the links of bind mounts; the
    sentry makes all mounts by the length of their paths, the shortest first, and resolves the links of others by then
    (runsc/cmd/gofer.go, boot/vfs.go). So a mount is refused if a link leads it to a reserved one, or if it is in a
    volume, where another process can make such a link; with `volumesAbove`, only if the volume has one now.

    `allocations`: the container's: runsc --nvproxy and NVIDIA's hook give the GPUs that env asks for
    (runsc/specutils/nvidia.go). Raises Unacceptable, OSError.
    """
    if decided.closed is not None and not decided.env.owner(_GPUS):
        entries = [entry.partition("=")[2] for entry in spec.env if entry.partition("=")[0] == _GPUS]
        given = ["", "void", "none", *[allocation.env.get(_GPUS, "") for allocation in allocations]]
        exclusive = [*decided.closed.nodes.values(), *decided.closed.patterns]
        rules = [rule.name for rule, path in exclusive if path.startswith("/dev/nvidia")]
        if rules and not set(entries) <= set(given):
            message = f"env {_GPUS} asks for devices that are exclusive, which gVisor or NVIDIA's hook would give"
            return [Reason(rules[0], "device", message)]
    if decided.closed is not None:
        from hook.core.linux.lookdevices import image_devices

        found = image_devices(rootfs, decided.closed, still_waits)  # runsc drops `nodev` of a read-only root
        if found:
            return found
    if not decided.mounts:
        return []
    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    walks = Walks(root, Steps(still_waits))
    try:
        ours = {edit: _walked(walks, edit.name) for edit in decided.mounts}
        names = {edit.name for edit in ours if edit.mount}
        volumes = _volumes(walks, spec, names, in_sentry=True)
        found = []
        paths = {clean(str(mount["destination"])) for mount in spec.mounts}
        implied: list[dict[str, object]] = [{"destination": path} for path in _IN_EACH_SENTRY if path not in paths]
        for mount in [*spec.mounts, *implied]:
            written = str(mount["destination"])
            place = _walked(walks, clean(written))
            reason = _in_sentry(written, place, ours, volumes, walks)
            if reason:
                found.append(reason)
                if len(found) == REASONS:
                    break
        return found
    finally:
        walks.close()
        os.close(root)


def _in_sentry(
    written: str, place: Place | None, ours: dict[PlaceMount, Place | None], volumes: _Volumes, walks: Walks
) -> Reason | None:
    """Why a mount makes it uncertain what the sentry has at a reserved path. `written`: its place in config.json."""
    at, first = clean(written), next(iter(ours))
    if place is None or ".." in written.split("/"):
        return Reason(first.rule, KIND, f"it is uncertain where mount {named(written)} leads in gVisor")
    for link in place.links:  # the gofer takes `..` out of the text of a target, and the sentry follows links first
        names = [name for name in (link.target or "").split("/") if name not in ("", ".")]
        if ".." in names[names.count("..") :]:  # behind another name
            message = (
                f"mount {named(at)} leads over a link to {named(str(link.target))}, which gVisor reads in two ways"
            )
            return Reason(first.rule, KIND, message)
    own = next((edit for edit in ours if edit.name == at), first)
    crossed = volumes.on(place)
    if crossed:
        has_link = _leads_on(crossed, volumes, place, at, walks.steps)
        if has_link or not all(edit.volumes_above for edit in ours):
            message = (
                f"mount {named(at)} is in the volume {named(str(crossed[0]))}, in which a link can lead it elsewhere"
            )
            advice = "" if has_link else "; volumesAbove: Allow permits it"
            return Reason(own.rule, KIND, f"{message}, and no hook can look into gVisor{advice}")
    directory, _, name = at.rpartition("/")
    upper = _walked(walks, directory or "/")
    ends = {place.node, upper.node.below.get(name, place.node) if upper else place.node}  # Linux mounts on no link
    for edit, reserved in ours.items():
        if edit.name == at or reserved is None:
            continue
        if any(reserved.node in end.upwards() for end in ends):
            if at not in edit.companions or not is_below(at, edit.name):
                return Reason(edit.rule, KIND, f"mount {named(at)} leads into the reserved mount {named(edit.name)}")
        elif (edit.mount and (reserved.links or not is_below(edit.name, at))) and any(
            end in reserved.crossed or end in reserved.node.upwards() for end in ends
        ):
            return Reason(edit.rule, KIND, f"mount {named(at)} may hide the reserved mount {named(edit.name)}")
    return None


def _reason(place: Place | None, what: str, ours: dict[Node, PlaceMount], volumes: _Volumes) -> Reason | None:
    """Why no device may be made at a place."""
    if place is None:
        return None
    upwards = place.node.upwards()
    edit = next((ours[node] for node in upwards if node in ours), None)
    if edit:
        return Reason(edit.rule, KIND, f"{what} leads into {named(edit.name)}")
    volume = next(map(str, volumes.on(place)), "")
    if [node.name for node in upwards[-2:-1]] != ["dev"]:
        volume = volume or volumes.nested
    volume = volume or volumes.led
    if volume and volume == volumes.led and is_below(volume, "/proc"):
        message = f"mount {named(volume)} goes through the links of a process, which can lead devices of the container"
        return Reason("", KIND, f"{message} into a reserved mount")
    if volume:
        message = f"{what} may be in the volume {named(volume)}"
        return Reason("", KIND, f"{message}, in which a link can lead it to a reserved mount")
    return None


def _walked(walks: Walks, path: str) -> Place | None:
    """Where a path leads by the image's links; None if the runtime has no way there either."""
    try:
        return walks.to(path, everywhere=True)
    except (PathEscapes, OSError) as error:
        if isinstance(error, OSError) and (is_shortage(error) or error.errno == errno.ELOOP):  # runc follows 255 links
            raise Unacceptable(f"{named(path)} of the container cannot be followed: {error.strerror}") from error
        return None


def _volumes(walks: Walks, spec: Spec, ours: set[str], in_sentry: bool = False) -> _Volumes:
    """The volumes of a config.json.

    A volume in another one does not count for devices in /dev: pods with such volumes and devices are usual. The node's
    own /dev does not count either, except for gVisor.
    """
    found = _Volumes()
    for mount in spec.mounts:
        at = clean(str(mount["destination"]))
        if at in ours or not _is_volume(mount) or (mount.get("source") == "/dev" and not in_sentry):
            continue
        place = _walked(walks, at)
        if place is None:
            continue
        above = found.on(place)
        if above:
            found.nested = at
            if not found.led and _leads_on(above, found, place, at, walks.steps):
                found.led = at
        found.sources[place.node] = str(mount.get("source", ""))
    return found


def _is_volume(mount: dict[str, object]) -> bool:
    options = mount.get("options")
    is_bind = isinstance(options, list) and ("bind" in options or "rbind" in options)
    return mount.get("type") not in _EMPTY or is_bind


def _leads_on(above: list[Node], found: _Volumes, place: Place, at: str, steps: Steps) -> bool:
    """Whether a volume on the way to a place has a symbolic link there. A process that shares it can make one later.

    The names of the path up to the next volume are looked up in each volume.
    """
    for volume, after in zip(above, [*above[1:], place.node], strict=True):
        ways = [_between(volume, after)]
        if after is place.node or ways == [""]:
            ways = [_between(volume, place.node), at[len(str(volume)) :] if is_below(at, str(volume)) else ""]
        if not any(ways) or any(way and _has_link(found.sources[volume], str(volume), way, steps) for way in ways):
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


def _has_link(source: str, volume: str, way: str, steps: Steps) -> bool:
    """Whether one of the names of a path in a volume is a link, by what the node has now."""
    if not source.startswith("/"):  # a file system of the kernel; of these, /proc has links, those of processes
        name = way.split("/")[1]
        return volume == "/proc" and (name in ("self", "thread-self") or name.isdigit())
    try:
        fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if is_shortage(error):
            raise
        return False
    walks = Walks(fd, steps)
    try:
        place = _walked(walks, way)
        return place is not None and bool(place.links)
    finally:
        walks.close()
        os.close(fd)
