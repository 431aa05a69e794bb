"""What CDI specs and NVIDIA's hook place in a container. For `deviceAllocations.exclusive`."""

from __future__ import annotations

import posix

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.mountinfo import status_of
from hook.core.base.system import read_file
from hook.core.container.cdi import CDI_DIRECTORIES, Unread, read_spec, spec_files
from hook.core.container.nodes import matching, number_of
from hook.core.container.oci import Device, Number

GPUS = "/proc/driver/nvidia/gpus"
"""A directory for each GPU; the file `information` has its UUID and the minor number of /dev/nvidia*."""

DEV = "/dev"

EVERY_GPUS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""The nodes that NVIDIA's hook adds to each container with a GPU."""

PCI = "/sys/bus/pci/devices"
"""A directory for each PCI device. That of a GPU has the names of its DRM nodes in `drm`."""

BY_ENV = {
    "NVIDIA_GDS": ("nvidia-fs*",),
    "NVIDIA_MOFED": ("infiniband/uverbs*", "infiniband/rdma_cm"),
    "NVIDIA_NVSWITCH": ("nvidia-nvswitch*",),
    "NVIDIA_GDRCOPY": ("gdrdrv",),
}
"""The nodes in DEV that NVIDIA's runtime adds where such an env is `enabled`."""

IMEX = "NVIDIA_IMEX_CHANNELS", "nvidia-caps-imex-channels/channel"
"""The env with the numbers of channels, and the beginning of the names of their nodes."""

_GPU_LIMIT = 64 * 1024


class Placed:
    """What devices of CDI specs place."""

    def __init__(self) -> None:
        self.nodes: dict[Number, str] = {}
        """The path on the node, by number."""
        self.mounts: set[tuple[str, str]] = set()
        """(source, destination) of each mount."""

    def add(self, other: Placed) -> None:
        """Add what another one places."""
        self.nodes.update(other.nodes)
        self.mounts |= other.mounts


class Specs:
    """The node's CDI devices of some kinds. Of two specs that define a device, the first directory's counts."""

    def __init__(self, kinds: list[str], directories: tuple[str, ...] = CDI_DIRECTORIES) -> None:
        """`kinds`: globs of `vendor/class`. Raises Undecided for a directory that cannot be read."""
        self.devices: dict[str, Placed] = {}
        """What each device places together with its spec's own edits, by fully qualified name."""
        self.unread: list[Unread] = []
        """The specs that cannot be read, or that a user other than root can write to."""
        starts = [literal_start(kind) for kind in kinds]
        for directory in directories if kinds else ():
            defined: dict[str, Placed] = {}
            for path in spec_files(directory):
                try:
                    spec = read_spec(path, starts)
                    kind = spec.get("kind") if isinstance(spec, dict) else None
                    if isinstance(spec, dict) and isinstance(kind, str) and any(glob_match(k, kind) for k in kinds):
                        for name, placed in _devices(path, spec, kind):
                            defined.setdefault(f"{kind}={name}", Placed()).add(placed)
                except Unread as error:
                    self.unread.append(error)
            self.devices = {**defined, **self.devices}

    def unread_of(self, kind: str) -> Unread | None:
        """The first spec that cannot be read and may be of a kind, or of one that a glob matches."""
        start = literal_start(kind)
        return next((error for error in self.unread if not error.text or start in error.text), None)

    def of_kind(self, kind: str) -> Placed:
        """Everything that the devices of the kinds that a glob matches place."""
        return self.of([name for name in self.devices if glob_match(kind, name.partition("=")[0])])

    def of(self, names: list[str]) -> Placed:
        """What these devices place. A name that no spec defines places nothing."""
        placed = Placed()
        for name in names:
            if name in self.devices:
                placed.add(self.devices[name])
        return placed


def _devices(path: str, spec: dict[str, object], kind: str) -> list[tuple[str, Placed]]:
    """Each device of a spec, by its name. Raises Unread for a spec that is not as CDI defines it."""
    named = []
    common = _placed(path, spec, kind)
    devices = spec.get("devices")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict) or not isinstance(device.get("name"), str):
            raise Unread(path, "a device has no name", kind)
        placed = _placed(path, device, kind)
        placed.add(common)
        named.append((str(device["name"]), placed))
    return named


def _placed(path: str, holder: dict[str, object], kind: str) -> Placed:
    placed = Placed()
    edits = holder.get("containerEdits") or {}
    for node in _objects(path, edits, "deviceNodes", kind):
        where = str(node.get("hostPath") or node.get("path"))
        try:
            number = number_of(status_of(where))
        except OSError:
            number = Device(node).number if "major" in node else None
        if number:
            placed.nodes[number] = where
    for mount in _objects(path, edits, "mounts", kind):
        placed.mounts.add((str(mount.get("hostPath")), str(mount.get("containerPath"))))
    return placed


def _objects(path: str, edits: object, member: str, kind: str) -> list[dict[str, object]]:
    value = edits.get(member) if isinstance(edits, dict) else ()
    if value is None:
        return []
    if (
        not isinstance(edits, dict)
        or not isinstance(value, list)
        or not all(isinstance(entry, dict) for entry in value)
    ):
        raise Unread(path, f"containerEdits.{member} is not a list of objects", kind)
    return value


def nodes_of(names: set[str]) -> list[str]:
    """The paths of the nodes of the NVIDIA GPUs that have these UUIDs. A MIG device's is not in the driver's files.

    NVIDIA's device plugin with `deviceListStrategy: envvar` answers with env and no device nodes, as HAMi's does too;
    NVIDIA's hook then makes the nodes. Which node a GPU has is in the driver's own files.
    """
    nodes = [f"nvidia{minor}" for _, minor in _gpus(names) if minor.isdigit()]
    return [f"{DEV}/{name}" for name in (*nodes, *EVERY_GPUS)] if nodes else []


def nodes_beside(env: dict[str, str]) -> list[str]:
    """The paths of the nodes that NVIDIA's runtime adds to those of the GPUs, by the env that a device plugin set.

    These are a GPU's own DRM nodes, if the image or the pod asks for graphics (NVIDIA_DRIVER_CAPABILITIES); and what
    the plugin is configured to ask for, whether or not its answer names device nodes.
    """
    nodes = []
    for bus, _ in _gpus({name for value in env.values() for name in value.split(",")}):
        try:
            nodes += [f"{DEV}/dri/{name}" for name in posix.listdir(f"{PCI}/{bus}/drm")]
        except OSError:  # no DRM driver has the GPU
            continue
    for name, patterns in BY_ENV.items():
        if env.get(name) == "enabled":
            nodes += [path for pattern in patterns for path in matching(f"{DEV}/{pattern}").values()]
    name, start = IMEX
    return nodes + [f"{DEV}/{start}{number}" for number in env.get(name, "").split(",") if number.isdigit()]


def _gpus(names: set[str]) -> list[tuple[str, str]]:
    """Bus location and minor number of each NVIDIA GPU that has one of these UUIDs."""
    numbered = []
    try:
        gpus = posix.listdir(GPUS)
    except OSError:  # no driver of NVIDIA
        return []
    for gpu in gpus:
        try:
            text = read_file(f"{GPUS}/{gpu}/information", _GPU_LIMIT).decode("ascii", "replace")
        except OSError:
            continue
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))}
        if fields.get("GPU UUID") in names:
            numbered.append((gpu, fields.get("Device Minor", "")))
    return numbered
