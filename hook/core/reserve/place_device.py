"""The edits of devices: a node that was allocated, and what the container must not have."""

from __future__ import annotations

from hook.core.base.errors import named
from hook.core.container import oci
from hook.core.container.oci import Device, DeviceRule, Json
from hook.core.reserve.edits import Edit

KIND = "device"


class PlaceDevice(Edit):
    """An allocated device node as the only one at its path, with the cgroup access that was allocated."""

    kind = KIND
    may_be_secret = False  # paths and numbers

    def __init__(self, rule: str, name: str, device: Device, *, access: str, before: list[Device], origin: str) -> None:
        super().__init__(rule, name, origin)
        self.device = device
        """The object for linux.devices."""
        self.access = access
        """The allowed access: letters of `rwm`."""
        self.before = before
        """The container's devices at that path."""

    def is_same_node(self, device: Device) -> bool:
        """Whether a device of the container is the allocated one."""
        return all(device.oci.get(key) == self.device.oci[key] for key in ("type", "major", "minor"))

    def may_be_used(self, rules: list[DeviceRule]) -> bool:
        """Whether the cgroup rules give the access. A later rule overrides earlier ones.

        See runtime-spec, "Allowed Device list".
        """
        granted: set[str] = set()
        node = self.device.oci
        for rule in rules:
            if rule.oci.get("type", "a") in ("a", node["type"]) and all(
                rule.oci.get(key) in (None, -1, node[key]) for key in ("major", "minor")
            ):
                granted = granted | rule.letters if rule.allows else granted - rule.letters
        return set(self.access) <= granted

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or ""."""
        if all(map(self.is_same_node, self.before)):
            return ""
        return f"device {named(self.name)} is allocated and another node was put there"

    def before_and_after(self) -> tuple[object, object]:
        """OCI device objects."""
        return oci.objects(self.before), self.device.oci


class Drop(Edit):
    """A device, a mount or cgroup access that the container must not have."""

    kind = KIND
    may_be_secret = False  # paths and numbers

    def __init__(self, rule: str, name: str, text: str, before: list[Json]) -> None:
        super().__init__(rule, name)
        self.text = text
        """What the container must not have, for a message."""
        self.before = before
        """The OCI objects."""

    def conflict(self) -> str:
        """What the container asked for that this edit overrides."""
        return f"not allocated: {self.text}"

    def before_and_after(self) -> tuple[object, object]:
        """OCI objects, and None: they are removed, or in cgroup rules the access is."""
        return self.before, None


class DropMount(Drop):
    """A mount of a device node, of a directory that holds one, or one that a CDI spec places."""

    def __init__(self, rule: str, text: str, mount: oci.Mount) -> None:
        super().__init__(rule, mount.path, text, [mount.shown()])
        self.mount = mount
