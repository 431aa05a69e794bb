"""The check of what all NRI plugins together ask for (ValidateContainerAdjustment, NRI 0.10 and later).

The runtime shows the container as it was before all plugins, and the merged adjustment with the plugin that owns each
part. The result of that adjustment is computed here and compared with the policy like any container. The rules are
those of `hook.nri.adjust`; the steps come in the runtime's order (containerd/nri,
pkg/runtime-tools/generate): annotations, env, CDI devices, devices, mounts.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from hook.core.base.compare import clean
from hook.core.base.errors import Undecided, named
from hook.core.container.cdi import CDI_DIRECTORIES, edits_of_devices, items
from hook.core.container.oci import Device, DeviceRule, Json, Mount
from hook.core.facts import Container
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.place_device import Drop, DropMount
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.nri.adjust import in_order, mount_leftovers, own_parts
from hook.nri.requested import RequestedContainer, oci_mount

_ANNOTATIONS, _MOUNTS, _DEVICES, _CDI_DEVICES, _ENV = 1, 2, 4, 5, 6
"""Numbers of the fields that plugins own (NRI's enum Field)."""

T = TypeVar("T")

_FIELDS = {"annotation": _ANNOTATIONS, "mount": _MOUNTS, "device": _DEVICES, "env": _ENV}


class _Keyed(Generic[T]):
    """A list of objects, of which the first one with a key can be removed without a search in all of them."""

    def __init__(self, objects: Iterable[tuple[str, T]]) -> None:
        """`objects`: each with its key."""
        self._objects: list[T | None] = []
        self._places: dict[str, deque[int]] = {}
        for key, each in objects:
            self.add(key, each)

    def add(self, key: str, each: T) -> None:
        """Append an object."""
        self._places.setdefault(key, deque()).append(len(self._objects))
        self._objects.append(each)

    def remove(self, key: str) -> None:
        """Remove the first object with a key, and no other."""
        places = self._places.get(key)
        if places:
            self._objects[places.popleft()] = None

    def objects(self) -> list[T]:
        """The objects that are left."""
        return [each for each in self._objects if each is not None]


class Merged(RequestedContainer):
    """What a container would start with after the merged adjustment. Raises Unacceptable, TooLarge."""

    def __init__(self, request: Any) -> None:
        super().__init__(request.pod, request.container)
        adjust = request.adjust
        self.owners: dict[tuple[str, str], str] = {}
        """By kind and name, the plugin that asked for the entry."""
        self._owned = {
            field.key: field.value.owners
            for container in request.owners.owners
            if container.key == request.container.id
            for field in container.value.compound
        }
        for kind, number in _FIELDS.items():
            for name, owner in self._owned.get(number, {}).items():
                self.owners[kind, _path(name) if kind in ("mount", "device") else name] = _plugin(owner)
        self._devices = _Keyed((device.written, device) for device in self.devices)
        self._mounts = _Keyed((mount.destination, mount) for mount in self.mounts)
        self._annotate({key: adjust.annotations[key] for key in adjust.annotations})
        self.env = _env(self.env, {entry.key: entry.value for entry in adjust.env})
        self.problem = ""
        """Why the result is not known, or ""."""
        if adjust.CDI_devices:
            try:
                self._inject([device.name for device in adjust.CDI_devices])
            except Undecided as error:
                self.problem = str(error)
        for device in adjust.linux.devices:
            self._place(
                device.path,
                device.type,
                major=device.major,
                minor=device.minor,
                access="rwm" if device.type == "b" else "rw",
            )
        for mount in adjust.mounts:
            destination = mount.destination.removeprefix("-")
            self._mounts.remove(destination)
            if destination == mount.destination:
                self._mounts.add(destination, Mount(oci_mount(mount)))
        self.devices, self.mounts = self._devices.objects(), self._mounts.objects()
        if adjust.mounts:
            self.mounts = in_order(self.mounts)
        self.check(adjust.args[:], self.mounts)

    def _annotate(self, asked: dict[str, str]) -> None:
        """Removals come first: the runtime applies a removal and an addition of one key in no fixed order."""
        for key in asked:
            if key.startswith("-"):
                self.annotations.pop(key[1:], None)
        self.annotations.update((key, value) for key, value in asked.items() if not key.startswith("-"))

    def _place(self, path: str, kind: str, *, major: int, minor: int, access: str) -> None:
        path, removed = path.removeprefix("-"), path.startswith("-")
        self._devices.remove(path)
        if not removed:
            node: dict[str, object] = {"type": kind, "major": major, "minor": minor}
            self._devices.add(path, Device({"path": path, **node}))
            self.device_rules.append(DeviceRule({"allow": True, **node, "access": access}))

    def _inject(self, names: list[str]) -> None:
        """Make the edits of the CDI devices that plugins asked for. Raises Undecided.

        Env is appended. Versions of CDI that replace a value in place give the container one of the same values.
        """
        asked = self._owned.get(_CDI_DEVICES, {})
        found = edits_of_devices(names)
        unknown = [name for name in names if name not in [of for of, _ in found]]
        if unknown:
            where = " or ".join(CDI_DIRECTORIES)
            raise Undecided(f"CDI device {named(unknown[0])}, which an NRI plugin injects, is in no spec in {where}")
        for name, edits in found:
            owner = f"CDI device {name}, which {_plugin(asked.get(name, ''))} injected"
            for entry in items(edits, "env", str):
                self.env.append(entry)
                self.owners["env", entry.partition("=")[0]] = owner
            for node in items(edits, "deviceNodes", dict):
                self._inject_node(node, owner)
            for mount in items(edits, "mounts", dict):
                destination, options = str(mount.get("containerPath")), mount.get("options")
                self._mounts.remove(destination)
                added: Json = {
                    "destination": destination,
                    "type": str(mount.get("type") or ""),
                    "source": str(mount.get("hostPath")),
                    "options": [str(option) for option in options] if isinstance(options, list) else [],
                }
                self._mounts.add(destination, Mount(added))
                self.owners["mount", _path(destination)] = owner

    def _inject_node(self, node: dict[str, Any], owner: str) -> None:
        path = str(node.get("path"))
        kind, major, minor = node.get("type"), node.get("major"), node.get("minor")
        if not kind or not major:  # the runtime looks at the node's own
            try:
                status = os.stat(str(node.get("hostPath") or path))
            except OSError:
                return  # the runtime refuses the container
            kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        self._place(
            path, str(kind), major=int(major or 0), minor=int(minor or 0), access=str(node.get("permissions") or "rwm")
        )
        self.owners["device", _path(path)] = owner


def left_reason(edit: Edit, container: Container, owners: dict[tuple[str, str], str]) -> Reason:
    """Why the container is refused: what is wrong after all plugins, and which of them asked for it."""
    names = {edit.name}
    if isinstance(edit, PlaceMount):
        names.update(map(clean, mount_leftovers(edit, container.start.mounts, own_parts(edit, container))))
    kind = "mount" if isinstance(edit, DropMount) else edit.kind
    found = sorted({named(owners[kind, name], 256) for name in names if (kind, name) in owners})
    by = f", because of {' and '.join(found)}" if found else ""
    wrong = edit.conflict() if isinstance(edit, Drop) else f"{edit.kind} {named(edit.name)} is not as reserved"
    return Reason(edit.rule, edit.kind, f"{wrong} after the changes of all NRI plugins{by}")


def holds(edit: Edit, container: Container) -> bool:
    """Whether NRI's order and spelling explain an edit of the plan for the merged result."""
    if isinstance(edit, PlaceMount):
        return not mount_leftovers(edit, container.start.mounts, own_parts(edit, container))
    return isinstance(edit, SetEnv) and edit.value is not None and set(edit.before) == {edit.value}


def _env(env: list[str], asked: dict[str, str]) -> list[str]:
    """process.env after the adjustment: the first entry of a name is replaced, then the last entry of each name counts.

    Without any adjustment of env it stays as it is, with entries that occur twice or have no `=`.
    """
    if not asked:
        return env
    final: dict[str, str] = {}
    for entry in env:
        name, equals, value = entry.partition("=")
        if equals and name:
            final[name] = asked.pop(name, value)
    final.update((name, value) for name, value in asked.items() if not name.startswith("-"))
    return [f"{name}={value}" for name, value in final.items()]


def _path(text: str) -> str:
    return clean(text) if text.startswith("/") else text


def _plugin(owner: str) -> str:
    """A plugin, in words; NRI marks one that removed what it owns by a leading `-`."""
    return f"plugin {owner.removeprefix('-') or 'unknown'}"
