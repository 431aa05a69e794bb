"""What CDI specs and NVIDIA's hook place in a container. For `deviceAllocations.exclusive`; builtins only."""

import posix

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.errors import Undecided
from hook.core.base.mountinfo import status_of
from hook.core.base.system import read_file
from hook.core.container.cdi import DIRECTORIES, read_spec, spec_files
from hook.core.container.nodes import number_in, number_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.nodes import Number

GPUS = "/proc/driver/nvidia/gpus"
"""A directory for each GPU; the file `information` has its UUID and the minor number of /dev/nvidia*."""

DEV = "/dev"

EVERY_GPUS = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""The nodes that NVIDIA's hook adds to each container with a GPU."""

_GPU_LIMIT = 64 * 1024


class Placed:
    """What devices of CDI specs place. `nodes`: path on the node by number. `mounts`: (source, destination)."""

    def __init__(self) -> None:
        self.nodes: dict[Number, str] = {}
        self.mounts: set[tuple[str, str]] = set()

    def add(self, other: "Placed") -> None:
        """Add what another one places."""
        self.nodes.update(other.nodes)
        self.mounts |= other.mounts


class Specs:
    """The node's CDI devices of some kinds. Of two specs that define a device, the first directory's counts.

    `devices`: by fully qualified name, with what a device places together with its spec's own edits. Raises Undecided
    for a spec that cannot be read, or that a user other than root can write to.
    """

    def __init__(self, kinds: "list[str]", directories: "tuple[str, ...]" = DIRECTORIES) -> None:
        """`kinds`: globs of `vendor/class`."""
        self.devices: dict[str, Placed] = {}
        starts = [literal_start(kind) for kind in kinds]
        for directory in directories if kinds else ():
            defined: dict[str, Placed] = {}
            for path in spec_files(directory):
                spec = read_spec(path, starts)
                kind = spec.get("kind") if isinstance(spec, dict) else None
                if isinstance(spec, dict) and isinstance(kind, str) and any(glob_match(k, kind) for k in kinds):
                    for name, placed in _devices(path, spec):
                        defined.setdefault(f"{kind}={name}", Placed()).add(placed)
            self.devices = {**defined, **self.devices}

    def of_kind(self, kind: str) -> Placed:
        """Everything that the devices of the kinds that a glob matches place."""
        return self.of([name for name in self.devices if glob_match(kind, name.partition("=")[0])])

    def of(self, names: "list[str]") -> Placed:
        """What these devices place. A name that no spec defines places nothing."""
        placed = Placed()
        for name in names:
            if name in self.devices:
                placed.add(self.devices[name])
        return placed


def _devices(path: str, spec: "dict[str, object]") -> "list[tuple[str, Placed]]":
    """Each device of a spec, by its name. Raises Undecided for a spec that is not as CDI defines it."""
    found = []
    common = _placed(path, spec)
    devices = spec.get("devices")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict) or not isinstance(device.get("name"), str):
            raise Undecided(f"CDI spec {path}: a device has no name; correct or remove the file")
        placed = _placed(path, device)
        placed.add(common)
        found.append((str(device["name"]), placed))
    return found


def _placed(path: str, holder: "dict[str, object]") -> Placed:
    placed = Placed()
    edits = holder.get("containerEdits") or {}
    for node in _objects(path, edits, "deviceNodes"):
        where = str(node.get("hostPath") or node.get("path"))
        try:
            number = number_of(status_of(where))
        except OSError:
            number = number_in(node) if "major" in node else None
        if number:
            placed.nodes[number] = where
    for mount in _objects(path, edits, "mounts"):
        placed.mounts.add((str(mount.get("hostPath")), str(mount.get("containerPath"))))
    return placed


def _objects(path: str, edits: object, member: str) -> "list[dict[str, object]]":
    value = edits.get(member) if isinstance(edits, dict) else ()
    if value is None:
        return []
    if (
        not isinstance(edits, dict)
        or not isinstance(value, list)
        or not all(isinstance(entry, dict) for entry in value)
    ):
        raise Undecided(
            f"CDI spec {path}: containerEdits.{member} is not a list of objects; correct or remove the file"
        )
    return value


def nodes_of(names: "set[str]") -> "list[str]":
    """The paths of the nodes of the NVIDIA GPUs that have these UUIDs. A MIG device's is not in the driver's files.

    NVIDIA's device plugin with `deviceListStrategy: envvar` answers with env and no device nodes, as HAMi's does too;
    NVIDIA's hook then makes the nodes. Which node a GPU has is in the driver's own files.
    """
    found = []
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
        if fields.get("GPU UUID") in names and fields.get("Device Minor", "").isdigit():
            found.append(f"nvidia{fields['Device Minor']}")
    return [f"{DEV}/{name}" for name in (*found, *EVERY_GPUS)] if found else []
