"""From a Plan to an NRI ContainerAdjustment, and what the runtime will make of it. No I/O but for a look at hostPaths.

NRI cannot say everything that a policy can. Under its rules (containerd/nri, pkg/adaptation/result.go and
pkg/runtime-tools/generate; the same from 0.6 to 0.9 but where said):

- env can be set, never removed: `-NAME` only takes back what another plugin set;
- of a name that stands there twice only the first is replaced, then the last of each name wins;
- a mount is replaced by the very text of its destination, the first of that text only; it is removed from 0.8 on;
- mounts are sorted by depth, then by text, so what lies deeper lands on top.

So the result is computed here, held against the policy, and what NRI cannot bring about is a reason to refuse.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from hook.adapters.nri import messages
from hook.container import paths
from hook.container.model import Container
from hook.container.paths import is_below
from hook.plan import Plan
from hook.reserve.annotations import DropAnnotation
from hook.reserve.devices import PlaceDevice
from hook.reserve.env import SetEnv
from hook.reserve.mounts import PlaceMount
from hook.reserve.outcome import Edit, Reason

Mount = dict[str, object]

clean = lru_cache(256)(paths.clean)
"""The same few destinations come with every container."""

_DEVICE_FIELDS = (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid"))


class Adjustment:
    """What is asked of the runtime. `env` by name; `mounts` that are set; `removed`: destinations of mounts that go."""

    def __init__(self) -> None:
        self.env: dict[str, str] = {}
        self.mounts: list[Mount] = []
        self.removed: list[str] = []
        self.devices: list[dict[str, Any]] = []
        self.annotations: list[str] = []

    def response(self) -> Any:
        """As NRI's CreateContainerResponse."""
        response = messages.get("CreateContainerResponse")()
        made = response.adjust
        for name, value in self.env.items():
            made.env.add(key=name, value=value)
        for mount in self.mounts:
            made.mounts.add(**mount)
        for destination in self.removed:
            made.mounts.add(destination="-" + destination)
        for key in self.annotations:
            made.annotations["-" + key] = ""
        for device in self.devices:
            added = made.linux.devices.add(**{key: device[key] for key in ("path", "type", "major", "minor")})
            for key, field in _DEVICE_FIELDS:
                getattr(added, field).value = device[key]
        return response


def adjust(plan: Plan, container: Container, removes_mounts: bool) -> tuple[Adjustment, list[Reason]]:
    """What to ask for so that the plan comes true, and what of it will not. `removes_mounts`: NRI 0.8 or later."""
    adjustment = Adjustment()
    if not plan.edits:
        return adjustment, []
    mounts: dict[str, Mount] = {}
    in_the_way = any(isinstance(edit, PlaceMount) and edit.before for edit in plan.edits)
    there = container.mounts if in_the_way else []  # else whatever is there stays, and does not matter
    for edit in plan.edits:
        if isinstance(edit, SetEnv):
            if edit.value is not None and not edit.name.startswith("-"):
                adjustment.env[edit.name] = edit.value
        elif isinstance(edit, PlaceMount):
            _ask_for_mount(edit, there, removes_mounts, mounts, adjustment.removed)
        elif isinstance(edit, PlaceDevice):
            adjustment.devices.append(edit.device)
        elif isinstance(edit, DropAnnotation):
            adjustment.annotations.append(edit.name)
    adjustment.mounts = list(mounts.values())
    adjustment.removed = [path for path in dict.fromkeys(adjustment.removed) if path not in mounts]
    final = predicted_mounts(there, adjustment)
    return adjustment, [denial for edit in plan.edits for denial in _denials(edit, adjustment, final)]


def _denials(edit: Edit, adjustment: Adjustment, final: list[Mount]) -> list[Reason]:
    """Why an edit does not come true, if it does not. `final`: `predicted_mounts`."""
    if isinstance(edit, SetEnv):
        return [] if _env_holds(edit, bool(adjustment.env)) else [_env_denial(edit)]
    if isinstance(edit, PlaceMount):
        why = f"is in the way of the reserved {edit.name}, and NRI cannot take it away"
        left = mount_leftovers(edit, final, adjustment.mounts)
        return [Reason(edit.rule, "mount", f"mount {destination} {why}") for destination in left]
    message = ""
    if isinstance(edit, PlaceDevice):
        if any(device.get("path") != edit.name for device in edit.before):
            message = f"device {edit.name} is there under another spelling"
        elif "m" in edit.access and edit.device["type"] == "c":
            message = f"NRI cannot give the mknod access that {edit.name} has"
    elif not isinstance(edit, DropAnnotation):
        message = f"{edit.kind} {edit.name} is not what the policy wants, and NRI cannot change it"
    return [Reason(edit.rule, edit.kind, message)] if message else []


# -- env


def _env_holds(edit: SetEnv, set_at_all: bool) -> bool:
    """What process.env will say (generate.AdjustEnv). `set_at_all`: whether any name is set; bare entries go then."""
    values = [value for value in edit.before if value is not None]
    if edit.value is None:
        return set_at_all and not values
    return not edit.name.startswith("-") and (len(values) < 2 or values[-1] == edit.value)


def _env_denial(edit: SetEnv) -> Reason:
    if edit.value is None:
        return Reason(edit.rule, "env", f"{edit.conflict()}, and NRI cannot remove env")
    name = edit.name
    why = f"env {name} is there more than once, of which NRI replaces the first only"
    if name.startswith("-"):
        why = f"NRI cannot set env {name}, whose name it takes for a removal"
    return Reason(edit.rule, "env", f"{why}; put {name} into base_runtime_spec's env (docs/nri.md)")


# -- mounts


def _ask_for_mount(
    edit: PlaceMount, there: list[Mount], removes_mounts: bool, mounts: dict[str, Mount], removed: list[str]
) -> None:
    """Ours at its path; what else is at it or below it goes, or is replaced by ours at the same text."""
    own = str(edit.mount["destination"]) if edit.mount else ""  # an allocated one may be spelled as the engine wrote it
    if edit.mount:
        mounts[own] = edit.mount
    for mount in there:
        destination = str(mount["destination"])
        if destination == own or not edit.displaces(clean(destination)):
            continue
        if removes_mounts:
            removed.append(destination)
        elif edit.mount:
            source = _part(edit.source(), clean(destination)[len(edit.name) :])
            if source:
                mounts[destination] = {**edit.mount, "destination": destination, "source": source}


def _part(source: str, below: str) -> str:
    """The path of our own hostPath below it, "" where there is none or a symbolic link leads elsewhere.

    `below` comes from the pod: without this look it would choose which link of the node's to follow.
    """
    path = source + below
    real = os.path.realpath(source) + below
    return path if os.path.realpath(path) == real and os.path.exists(real) else ""


def predicted_mounts(mounts: list[Mount], adjustment: Adjustment) -> list[Mount]:
    """The OCI mounts after the adjustment (generate.AdjustMounts)."""
    if not adjustment.mounts and not adjustment.removed:
        return list(mounts)
    gone = {str(mount["destination"]) for mount in adjustment.mounts}.union(adjustment.removed)
    final: list[Mount] = []
    for mount in mounts:
        if mount["destination"] in gone:
            gone.discard(str(mount["destination"]))  # the first of a text, and no other
        else:
            final.append(mount)
    return sorted(final + adjustment.mounts, key=_order)


def _order(mount: Mount) -> tuple[int, bytes]:
    return _place(str(mount["destination"]))


@lru_cache(256)
def _place(destination: str) -> tuple[int, bytes]:
    path = clean(destination) if destination.startswith("/") else clean(destination)[1:]
    return path.count("/"), destination.encode("utf-8", "surrogateescape")


def mount_leftovers(edit: PlaceMount, mounts: list[Mount], ours: list[Mount]) -> list[str]:
    """Destinations that keep a reserved mount from being what it should be; its own where it is missing.

    Unlike `PlaceMount.verify` this takes an unrelated mount after it, since NRI sorts them.
    """
    if mounts == [edit.mount]:
        return []  # nothing of the container's is near, as a rule
    wanted = {mount["destination"]: mount for mount in ([*ours, edit.mount] if edit.mount else ours)}
    wrong: list[str] = []
    for mount in mounts:
        destination = str(mount["destination"])
        if edit.displaces(clean(destination)) and not _same(mount, wanted.get(destination, {})):
            wrong.append(destination)
    if edit.mount:
        first = next((at for at, mount in enumerate(mounts) if _same(mount, edit.mount)), None)
        if first is None:
            return wrong or [edit.name]
        wrong += [
            str(m["destination"]) for m in mounts[first + 1 :] if is_below(edit.name, clean(str(m["destination"])))
        ]
    return wrong


def _same(one: Mount, other: Mount) -> bool:
    """The same but for the order of options."""
    if one["destination"] != other.get("destination") or one.get("source") != other.get("source"):
        return False
    return one.get("type") == other.get("type") and set(_options(one)) == set(_options(other))


def _options(mount: Mount) -> list[str]:
    options = mount.get("options")
    return [str(option) for option in options] if isinstance(options, list) else []


def still_wrong(plan: Plan, container: Container) -> list[Edit]:
    """Of a running container's plan, the edits that NRI's own order and spelling do not explain: drift."""
    found: list[Edit] = []
    for edit in plan.edits:
        if isinstance(edit, PlaceMount):
            if mount_leftovers(edit, container.mounts, _own_parts(edit, container)):
                found.append(edit)
        elif not (isinstance(edit, SetEnv) and edit.value is not None and set(edit.before) == {edit.value}):
            found.append(edit)
    return found


def _own_parts(edit: PlaceMount, container: Container) -> list[Mount]:
    """Parts of our own hostPath that an earlier answer put in the place of a pod's mounts."""
    if not edit.mount:
        return []
    parts = []
    for mount in container.mounts:
        path = clean(str(mount["destination"]))
        source = edit.source() + path[len(edit.name) :]
        if (path == edit.name or is_below(path, edit.name)) and mount.get("source") == source:
            parts.append({**edit.mount, "destination": mount["destination"], "source": source})
    return parts
