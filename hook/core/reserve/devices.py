"""Reserved device nodes: those that device plugins allocated, and no other of those that `exclusive` names."""

from __future__ import annotations

from hook.core.base.compare import clean
from hook.core.base.errors import named
from hook.core.container import nodes, oci
from hook.core.container.oci import Device, DeviceRule
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.policy.entries import ALLOCATED_DEVICES, EXCLUSIVE
from hook.core.policy.model import Rule
from hook.core.reserve import exclusive, place_device
from hook.core.reserve.edits import SHOWN
from hook.core.reserve.plan import Plan

KIND = "device"

RULES = "linux.resources.devices"
"""Name of the edit of cgroup rules."""


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether a rule reserves device nodes, or keeps others away."""
    return True in [ALLOCATED_DEVICES in rule.allocations or EXCLUSIVE in rule.raw for rule in rules]


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Compare the devices that device plugins allocated with those of the container."""
    facts = container.facts
    wanted: dict[str, place_device.PlaceDevice] = {}
    for rule in rules:
        for allocation in facts.given() if ALLOCATED_DEVICES in rule.allocations else []:
            for host, inside, access in allocation.devices:
                if host in facts.absent_sources:
                    plan.deny(rule.name, KIND, f"allocated device {host} does not exist on this node")
                    continue
                node = facts.device_nodes.get(host)
                if node is None:
                    continue  # a directory of devices, which the engine expands
                path = clean(inside)
                device = Device({"path": path, **node})
                before = [each for each in container.start.devices if each.path == path]
                edit = place_device.PlaceDevice(
                    rule.name, path, device, access=access or "rwm", before=before, origin=str(allocation)
                )
                first = wanted.setdefault(path, edit)
                if first.device != device:
                    plan.deny(rule.name, KIND, f"{allocation} and {first.origin} differ in {path}")
                first.access = "".join(letter for letter in "rwm" if letter in first.access + edit.access)
                if rule.deny and edit.conflict():
                    plan.deny(rule.name, KIND, edit.conflict())
    for edit in wanted.values():
        in_place = edit.before and all(map(edit.is_same_node, edit.before))
        if not (in_place and edit.may_be_used(container.start.device_rules)):
            plan.edits.append(edit)
    if facts.devices is not None:
        _want_closed(rules, container, plan)


def _want_closed(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Find the devices, mounts and cgroup rules that give more than was allocated. The mounts' edits come before."""
    facts = container.facts.devices
    if facts is None or not any(rule.raw.get(EXCLUSIVE) for rule in rules):
        return

    ours = [edit.mount for edit in plan.mounts if edit.mount]
    devices = exclusive.Closed(rules, facts, container, ours)
    plan.exclusive = devices
    if devices.unread:
        asks = devices.asks_for_unread(container.start)
        if asks:
            plan.cannot_tell(devices.unread[0].name, KIND, f"{devices.unread[1]}; {asks} may be for a device of it")
            return
    for device in container.start.devices:
        rule = devices.device(device)
        if rule:
            number = nodes.words(device.number) if device.number else "-"
            text = f"device {named(device.path)} ({number}) is in the container"
            if not _add(plan, rule, place_device.Drop(rule.name, device.path, text, [device.oci])):
                return
    for mount in container.start.mounts:
        reason = devices.mount(mount)
        if reason and not _add(plan, reason[0], _of_mount(*reason, mount)):
            return
    usable = devices.usable(container.start.device_rules)
    if usable:
        rule = min((devices.nodes[number][0] for number in usable), key=lambda rule: not rule.deny)
        names = ", ".join(f"{devices.path(number)} ({nodes.words(number)})" for number in usable[:SHOWN])
        text = f"cgroup rules let the container use {names}"
        giving = devices.giving(container.start.device_rules, usable)[:SHOWN]
        _add(plan, rule, place_device.Drop(rule.name, RULES, text, oci.objects(giving)))


def _add(plan: Plan, rule: Rule, edit: place_device.Drop) -> bool:
    if not plan.count(KIND, rule.name):
        return False
    plan.edits.append(edit)
    if rule.deny:
        plan.deny(rule.name, KIND, edit.conflict())
    return True


def _of_mount(rule: Rule, shown: str, mount: oci.Mount) -> place_device.DropMount:
    return place_device.DropMount(
        rule.name, f"mount {named(mount.path)} from {named(mount.source)} shows {shown}", mount
    )


def apply(plan: Plan, target: Start) -> None:
    """Make the allocated device the only one at its path in `target`, and add cgroup access if it is missing."""
    for edit in plan.edits:
        if isinstance(edit, place_device.PlaceDevice):
            rest = [device for device in target.devices if device.path != edit.name]
            same = [device for device in edit.before if edit.is_same_node(device)]
            target.devices = rest + (same or [edit.device])[:1]
            if not edit.may_be_used(target.device_rules):
                node = {key: edit.device.oci[key] for key in ("type", "major", "minor")}
                allowed = DeviceRule({"allow": True, **node, "access": edit.access})
                target.device_rules = [*target.device_rules, allowed]
    if plan.exclusive is not None:
        plan.exclusive.apply(target)
