"""Turns a Plan into an NRI ContainerAdjustment, and predicts its result. The only I/O: it resolves paths of the node.

NRI cannot express every edit. Its rules (containerd/nri, pkg/adaptation/result.go and pkg/runtime-tools/generate; the
same from 0.6 to 0.9 unless a version is given):

- env can be set, but not removed: `-NAME` only undoes what another plugin set;
- of an env name that occurs twice only the first entry is replaced; then the last entry of each name is used;
- a mount replaces the first mount whose destination is the same text, and no other;
- a mount can be removed by the text of its destination, from 0.8 on;
- mounts are sorted by depth, then by text, so a deeper mount comes later.

So the result is computed here and compared with the policy. An edit that NRI cannot make is a reason to refuse.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache

from hook.core.base import compare
from hook.core.base.compare import is_below
from hook.core.base.errors import named
from hook.core.container.oci import Device, Mount
from hook.core.facts import Container
from hook.core.plan import Plan
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.listed_annotations import DropAnnotation
from hook.core.reserve.place_device import Drop, DropMount, PlaceDevice
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.nri import ttrpc

clean = lru_cache(256)(compare.clean)
"""Cached, since most containers have the same few destinations."""

_ContainerAdjustment = ttrpc.get("ContainerAdjustment")
_ADJUST = ttrpc.get("CreateContainerResponse").DESCRIPTOR.fields_by_name["adjust"].number

_DEVICE_FIELDS = (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid"))


class Adjustment:
    """What the plugin asks the runtime for."""

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        """The values, by name."""
        self.mounts: list[Mount] = []
        """The mounts to set."""
        self.removed: list[str] = []
        """The destinations of mounts to remove."""
        self.devices: list[Device] = []
        """The devices to add."""
        self.annotations: list[str] = []
        """The keys of annotations to remove."""

    def payload(self) -> bytes:
        """The adjustment as the bytes of NRI's CreateContainerResponse."""
        parts = [_mount_bytes(m.destination, m.type, m.source, tuple(m.options)) for m in self.mounts]
        parts += [_env_bytes(name, value) for name, value in self.env.items()]
        if self.removed or self.annotations or self.devices:
            parts.append(self._others())
        return ttrpc.field(_ADJUST, b"".join(parts))

    def _others(self) -> bytes:
        made = _ContainerAdjustment()
        for key in self.annotations:
            made.annotations["-" + key] = ""
        for destination in self.removed:
            made.mounts.add(destination="-" + destination)
        for device in self.devices:
            added = made.linux.devices.add(**{key: device.oci[key] for key in ("path", "type", "major", "minor")})
            for key, field in _DEVICE_FIELDS:
                getattr(added, field).value = device.oci[key]
        return bytes(made.SerializeToString())


# Concatenated encoded messages of one type are one message with the entries of all (protobuf, Encoding).
# The policy has few different entries, so each is encoded once.


@lru_cache(256)
def _mount_bytes(destination: str, kind: str, source: str, options: tuple[str, ...]) -> bytes:
    mount = {"destination": destination, "type": kind, "source": source, "options": options}
    return bytes(_ContainerAdjustment(mounts=[mount]).SerializeToString())


@lru_cache(256)
def _env_bytes(name: str, value: str) -> bytes:
    return bytes(_ContainerAdjustment(env=[{"key": name, "value": value}]).SerializeToString())


def adjust(plan: Plan, container: Container, removes_mounts: bool) -> tuple[Adjustment, list[Reason]]:
    """The adjustment for a plan, and the reasons to refuse the container for edits that NRI cannot make.

    `removes_mounts`: whether the runtime's NRI can remove mounts (0.8 or later).
    """
    adjustment = Adjustment()
    if not plan.edits:
        return adjustment, []
    mounts: dict[str, Mount] = {}
    in_the_way = any(isinstance(edit, (PlaceMount, DropMount)) and edit.before for edit in plan.edits)
    there = container.start.mounts if in_the_way else []  # without a conflict no mount of the container matters
    for edit in plan.edits:
        if isinstance(edit, SetEnv):
            if edit.value is not None and not edit.name.startswith("-"):
                adjustment.env[edit.name] = edit.value
        elif isinstance(edit, PlaceMount):
            _ask_for_mount(edit, there=there, removes_mounts=removes_mounts, mounts=mounts, removed=adjustment.removed)
        elif isinstance(edit, PlaceDevice):
            adjustment.devices.append(edit.device)
        elif isinstance(edit, DropAnnotation):
            adjustment.annotations.append(edit.name)
        elif isinstance(edit, DropMount) and removes_mounts:
            adjustment.removed.append(edit.mount.destination)
    adjustment.mounts = list(mounts.values())
    adjustment.removed = [path for path in dict.fromkeys(adjustment.removed) if path not in mounts]
    final = predicted_mounts(there, adjustment)
    return adjustment, [denial for edit in plan.edits for denial in _denials(edit, adjustment, final)]


def _denials(edit: Edit, adjustment: Adjustment, final: list[Mount]) -> list[Reason]:
    """Why NRI cannot make an edit; empty if it can. `final`: the result of `predicted_mounts`."""
    if isinstance(edit, SetEnv):
        return [] if _env_holds(edit, bool(adjustment.env)) else [_env_denial(edit)]
    if isinstance(edit, PlaceMount):
        why = f"conflicts with the reserved mount {named(edit.name)}, and NRI cannot remove it"
        left = mount_leftovers(edit, final, adjustment.mounts)
        return [Reason(edit.rule, "mount", f"mount {named(destination)} {why}") for destination in left]
    message = ""
    if isinstance(edit, PlaceDevice):
        if any(device.written != edit.name for device in edit.before):
            message = f"the container has device {named(edit.name)} under another spelling of its path"
        elif "m" in edit.access and edit.device.oci["type"] == "c":
            message = f"NRI cannot give the mknod access that {named(edit.name)} has"
    elif isinstance(edit, Drop):
        if not isinstance(edit, DropMount) or edit.mount in final:
            message = f"{edit.conflict()}; NRI cannot remove it, the runtime wrapper (reassert runtime) can"
    elif not isinstance(edit, DropAnnotation):
        message = f"{edit.kind} {named(edit.name)} is not what the policy wants, and NRI cannot change it"
    return [Reason(edit.rule, edit.kind, message)] if message else []


# -- env


def _env_holds(edit: SetEnv, set_at_all: bool) -> bool:
    """Whether process.env will be as the edit wants it (generate.AdjustEnv).

    `set_at_all`: whether the adjustment sets any name; then NRI also removes entries without `=`.
    """
    values = [value for value in edit.before if value is not None]
    if edit.value is None:
        return set_at_all and not values
    return not edit.name.startswith("-") and (len(values) < 2 or values[-1] == edit.value)


def _env_denial(edit: SetEnv) -> Reason:
    if edit.value is None:
        wrong = edit.conflict() or f"env {named(edit.name)} has an entry without a value"
        return Reason(edit.rule, "env", f"{wrong}, and NRI cannot remove env")
    name = named(edit.name)
    why = f"env {name} occurs more than once, and NRI replaces only the first entry"
    if edit.name.startswith("-"):
        why = f"NRI cannot set env {name}: it takes a name that begins with - for a removal"
    return Reason(edit.rule, "env", f"{why}; put {name} into base_runtime_spec's env (docs/internals/nri.md)")


# -- mounts


def _ask_for_mount(
    edit: PlaceMount, *, there: list[Mount], removes_mounts: bool, mounts: dict[str, Mount], removed: list[str]
) -> None:
    """Ask for the reserved mount, and for the removal of the container's mounts that conflict with it.

    If NRI cannot remove mounts, each of them is replaced by the part of the reserved hostPath at the same place.
    """
    own = edit.mount.destination if edit.mount else ""  # for an allocated mount, in the engine's spelling
    if edit.mount:
        mounts[own] = edit.mount
    for mount in there:
        if mount.destination == own or not edit.displaces(mount.path):
            continue
        if removes_mounts:
            removed.append(mount.destination)
        elif edit.mount and not edit.is_shared():  # otherwise the runtime would follow a link that a container makes
            source = _part(edit.source(), mount.path[len(edit.name) :])
            if source:
                mounts[mount.destination] = _as_part(edit.mount, mount.destination, source)


def _as_part(reserved: Mount, destination: str, source: str) -> Mount:
    return Mount({**reserved.oci, "destination": destination, "source": source})


def _part(source: str, below: str) -> str:
    """The path `below` the reserved hostPath; "" if it does not exist or a symbolic link is part of `below`.

    `below` comes from the pod. Without this check a pod author could choose which symbolic link of the node is
    followed.
    """
    path = source
    for name in below.split("/")[1:]:
        path += "/" + name
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                return ""
        except OSError:  # the first missing name ends it: a pod may ask for very long paths
            return ""
    return path


def predicted_mounts(mounts: list[Mount], adjustment: Adjustment) -> list[Mount]:
    """The OCI mounts that the runtime will have after the adjustment (generate.AdjustMounts)."""
    if not adjustment.mounts and not adjustment.removed:
        return list(mounts)
    gone = {mount.destination for mount in adjustment.mounts}.union(adjustment.removed)
    final: list[Mount] = []
    for mount in mounts:
        if mount.destination in gone:
            gone.discard(mount.destination)  # NRI replaces or removes only the first mount of the same text
        else:
            final.append(mount)
    return in_order(final + adjustment.mounts)


def in_order(mounts: list[Mount]) -> list[Mount]:
    """Mounts as the runtime sorts them after an adjustment of mounts."""
    return sorted(mounts, key=lambda mount: _place(mount.destination))


@lru_cache(256)
def _place(destination: str) -> tuple[int, bytes]:
    path = clean(destination) if destination.startswith("/") else clean(destination)[1:]
    return path.count("/"), destination.encode("utf-8", "surrogateescape")


def mount_leftovers(edit: PlaceMount, mounts: list[Mount], ours: list[Mount]) -> list[str]:
    """Destinations of mounts that conflict with a reserved mount; its own destination if it is missing.

    Unlike `PlaceMount.in_place` this accepts an unrelated mount after the reserved one, since NRI sorts mounts.
    """
    if mounts == [edit.mount]:
        return []  # the usual case: no mount of the container conflicts
    wanted = {mount.destination: mount for mount in ([*ours, edit.mount] if edit.mount else ours)}
    wrong = [
        mount.destination
        for mount in mounts
        if edit.displaces(mount.path) and not _same(mount, wanted.get(mount.destination))
    ]
    if edit.mount:
        first = next((at for at, mount in enumerate(mounts) if _same(mount, edit.mount)), None)
        if first is None:
            return wrong or [edit.name]
        wrong += [mount.destination for mount in mounts[first:] if is_below(edit.name, mount.path)]
    return wrong


def _same(one: Mount, other: Mount | None) -> bool:
    """Whether two mounts are the same, apart from the order of options."""
    if other is None or (one.destination, one.source, one.type) != (other.destination, other.source, other.type):
        return False
    return {*one.options} == {*other.options}


def own_parts(edit: PlaceMount, container: Container) -> list[Mount]:
    """Parts of the reserved hostPath that an earlier adjustment mounted in place of a pod's mounts."""
    if not edit.mount:
        return []
    parts = []
    for mount in container.start.mounts:
        source = edit.source() + mount.path[len(edit.name) :]
        if (mount.path == edit.name or is_below(mount.path, edit.name)) and mount.source == source:
            parts.append(_as_part(edit.mount, mount.destination, source))
    return parts
