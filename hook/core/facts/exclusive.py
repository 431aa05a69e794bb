"""Read what `deviceAllocations.exclusive` needs of the node: its devices, CDI specs, and sources of mounts."""

from __future__ import annotations

import posix
from collections.abc import Callable, Sequence

from hook.core.base.compare import clean
from hook.core.base.mountinfo import status_of
from hook.core.base.system import read_file
from hook.core.container.allocation import Allocation
from hook.core.container.claims import Claim
from hook.core.container.injections import Specs, nodes_beside, nodes_of
from hook.core.container.nodes import Inode, directories_above, inode, matching, number_of, within
from hook.core.container.oci import Mount, Number

_LIMIT = 1 << 20
"""Bytes of /proc/devices: at most 1,024 lines."""


class Devices:
    """The node's devices that rules with `exclusive` name, and what the container was allocated of them."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[Number, str]] = {}
        """By pattern of a rule, the path of each device node by its number."""
        self.placed: dict[str, set[tuple[str, str]]] = {}
        """By pattern of CDI kinds, the (source, destination) of the mounts that CDI specs place."""
        self.allocated: set[Number] = set()
        """The numbers of the allocated devices."""
        self.allocated_mounts: set[str] = set()
        """The sources of the allocated mounts."""
        self.directories: dict[Inode, set[Number]] = {}
        """The directories of the node that hold such nodes, with the numbers of these."""
        self.sources: dict[str, set[Number]] = {}
        """What a mount of a source shows: the number of the device node that it is, or those of the nodes in the
        directory that it is."""
        self.majors: set[tuple[str, int]] = set()
        """The type and the major number of each driver."""
        self.unread: dict[str, str] = {}
        """By pattern of CDI kinds, why its devices are not all known."""

    def add_sources(self, mounts: Sequence[Mount], status: Callable[[str], posix.stat_result] = posix.stat) -> None:
        """Look at the sources of a container's mounts. `status`: of a path, which the pod's author chose."""
        for mount in mounts:
            if mount.source and mount.source not in self.sources:
                self.sources[mount.source] = _shown(self, mount.source, status)


def gather_devices(
    patterns: list[str],
    allocations: list[Allocation],
    claims: list[Claim],
) -> Devices:
    """Read it, but for the container's mounts. `patterns`: of all rules that apply.

    Raises Undecided, also for a spec of the container's own devices that cannot be read; Unacceptable, OSError.
    """
    devices = Devices()
    devices.majors = _majors(read_file("/proc/devices", _LIMIT))
    names = [name for allocation in allocations for name in cdi_names(allocation)]
    names += [name for claim in claims for name in claim.cdi]
    kinds = [pattern for pattern in patterns if not pattern.startswith("/")]
    specs = Specs(list(dict.fromkeys([*kinds, *(name.partition("=")[0] for name in names)])))
    for name in names:
        own = specs.unread_of(name.partition("=")[0])
        if own:
            raise own
    for pattern in dict.fromkeys(patterns):
        if pattern.startswith("/"):
            devices.nodes[pattern] = matching(pattern)
        else:
            placed = specs.of_kind(pattern)
            devices.nodes[pattern] = placed.nodes
            devices.placed[pattern] = placed.mounts
            unread = specs.unread_of(pattern)
            if unread:
                devices.unread[pattern] = str(unread)
    _account(devices, allocations, names, specs)
    above: dict[str, list[Inode]] = {}
    for nodes in devices.nodes.values():
        for number, path in nodes.items():
            parent = path.rpartition("/")[0]
            if parent not in above:
                above[parent] = directories_above(path)
            for directory in above[parent]:
                devices.directories.setdefault(directory, set()).add(number)
    return devices


def _majors(table: bytes) -> set[tuple[str, int]]:
    """What /proc/devices lists (proc(5)): character devices, an empty line, block devices; each with a headline."""
    majors = set()
    for kind, part in zip("cb", table.decode("utf-8", "replace").split("\n\n"), strict=False):
        numbers = [line.split()[0] for line in part.splitlines() if line.strip()]
        majors |= {(kind, int(number)) for number in numbers if number.isdigit()}
    return majors


def cdi_names(allocation: Allocation) -> list[str]:
    """The CDI devices of a device plugin's answer.

    A plugin that only sets env names its devices there, in the vendor's own form. By convention a resource is named as
    the CDI kind of its devices, and a device by its id; an id of a shared device ends in `::` and a number.
    """
    names = allocation.cdi_devices()
    if not (names or allocation.devices or allocation.mounts):
        names = [f"{allocation.resource}={device.partition('::')[0]}" for device in allocation.device_ids]
    return names


def _account(devices: Devices, allocations: list[Allocation], names: list[str], specs: Specs) -> None:
    injected = specs.of(names)
    devices.allocated.update(injected.nodes)
    devices.allocated_mounts.update(clean(source) for source, _ in injected.mounts)
    for allocation in allocations:
        for path, _, _ in allocation.devices:
            devices.allocated.update(within(path))
        if allocation.env and not allocation.devices:
            named = {name for value in allocation.env.values() for name in value.split(",")}
            devices.allocated.update(n for path in nodes_of(named) for n in within(path))
        devices.allocated.update(n for path in nodes_beside(allocation.env) for n in within(path))
        for source, _, _ in allocation.mounts:
            devices.allocated_mounts.add(clean(source))
    for source in devices.allocated_mounts:
        devices.allocated.update(_of_mount(devices, source))


def _of_mount(devices: Devices, source: str) -> set[Number]:
    """The devices that an allocated mount gives: itself, or the devices below it that rules name."""
    number = _number(source)
    if number:
        return {number}
    start = source.rstrip("/") + "/"
    return {n for nodes in devices.nodes.values() for n, path in nodes.items() if path.startswith(start)}


def _shown(devices: Devices, source: str, status: Callable[[str], posix.stat_result]) -> set[Number]:
    try:
        of_source = status(source)
    except OSError:  # the runtime reports it; or the source appears later, and the hook looks at the mount
        return set()
    number = number_of(of_source)
    return {number} if number else devices.directories.get(inode(of_source), set())


def _number(path: str) -> Number | None:
    try:
        return number_of(status_of(path))
    except OSError:
        return None
