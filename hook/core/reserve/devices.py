"""Reserved device nodes: those that device plugins allocated, and no other of those that `exclusive` names.

Part of the start path: builtins only.
"""

from hook.core.base.compare import clean
from hook.core.base.errors import named
from hook.core.policy.entries import EXCLUSIVE
from hook.core.reserve import SHOWN, Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.policy.model import Rule

    Device = dict[str, object]

KIND = "device"
PART = "devices"
"""The part of `deviceAllocations` that reserves a device plugin's devices."""

RULES = "linux.resources.devices"
"""Name of the edit of cgroup rules."""


class PlaceDevice(Edit):
    """An allocated device node as the only one at its path, with the cgroup access that was allocated.

    `device`: the object for OCI's linux.devices. `access`: letters of `rwm`. `before`: the container's devices at that
    path.
    """

    kind = KIND

    def __init__(
        self, rule: str, name: str, device: "Device", access: str, before: "list[Device]", origin: str
    ) -> None:
        super().__init__(rule, name, origin)
        self.device = device
        self.access = access
        self.before = before

    def is_same_node(self, device: "Device") -> bool:
        """Whether a device of the container is the allocated one."""
        return all(device.get(key) == self.device[key] for key in ("type", "major", "minor"))

    def may_be_used(self, rules: "list[Device]") -> bool:
        """Whether the cgroup rules give the access. A later rule overrides earlier ones.

        See runtime-spec, "Allowed Device list".
        """
        granted: set[str] = set()
        for rule in rules:
            if rule.get("type", "a") in ("a", self.device["type"]) and all(
                rule.get(key) in (None, -1, self.device[key]) for key in ("major", "minor")
            ):
                access = set(str(rule.get("access") or "rwm"))
                granted = granted | access if rule.get("allow") else granted - access
        return set(self.access) <= granted

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or ""."""
        if all(map(self.is_same_node, self.before)):
            return ""
        return f"device {named(self.name)} is allocated and another node was put there"

    def before_and_after(self) -> "tuple[object, object]":
        """OCI device objects."""
        return self.before, self.device


class Drop(Edit):
    """A device, a mount or cgroup access that the container must not have.

    `what`: the same as text. `before`: its OCI objects.
    """

    kind = KIND

    def __init__(self, rule: str, name: str, what: str, before: "list[Device]") -> None:
        super().__init__(rule, name)
        self.what = what
        self.before = before

    def conflict(self) -> str:
        """What the container asked for that this edit overrides."""
        return f"not allocated: {self.what}"

    def before_and_after(self) -> "tuple[object, object]":
        """OCI objects, and None: they are removed, or in cgroup rules the access is."""
        return self.before, None


class DropMount(Drop):
    """A mount of a device node, of a directory that holds one, or one that a CDI spec places."""


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Compare the devices that device plugins allocated with those of the container."""
    facts = container.facts
    wanted: dict[str, PlaceDevice] = {}
    for rule in rules:
        for allocation in facts.given() if PART in rule.allocations else []:
            for host, inside, access in allocation.devices:
                if host in facts.absent_sources:
                    outcome.deny(rule.name, KIND, f"allocated device {host} does not exist on this node")
                    continue
                node = facts.device_nodes.get(host)
                if node is None:
                    continue  # a directory of devices, which the engine expands
                path = clean(inside)
                device: Device = {"path": path, **node}
                before = [d for d in container.start.devices if clean(str(d.get("path", ""))) == path]
                edit = PlaceDevice(rule.name, path, device, access or "rwm", before, str(allocation))
                first = wanted.setdefault(path, edit)
                if first.device != device:
                    outcome.deny(rule.name, KIND, f"{allocation} and {first.origin} differ in {path}")
                first.access = "".join(letter for letter in "rwm" if letter in first.access + edit.access)
                if rule.deny and edit.conflict():
                    outcome.deny(rule.name, KIND, edit.conflict())
    for edit in wanted.values():
        in_place = edit.before and all(map(edit.is_same_node, edit.before))
        if not (in_place and edit.may_be_used(container.start.device_rules)):
            outcome.edits.append(edit)
    if facts.devices is not None:
        _want_closed(rules, container, outcome)


def _want_closed(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Find the devices, mounts and cgroup rules that give more than was allocated. The mounts' edits come before."""
    facts = container.facts.devices
    if facts is None or not any(rule.raw_lists.get(EXCLUSIVE) for rule in rules):
        return
    from hook.core.container.nodes import number_in, words  # only a policy that uses it loads these
    from hook.core.reserve.exclusive import Closed

    ours = [edit.mount for edit in outcome.mounts if edit.mount]
    closed = Closed(rules, facts, container, ours)
    outcome.closed = closed
    for device in container.start.devices:
        rule = closed.device(device)
        if rule:
            path, number = clean(str(device.get("path", ""))), number_in(device)
            what = f"device {named(path)} ({words(number) if number else '-'}) is in the container"
            if not _add(outcome, rule, Drop(rule.name, path, what, [device])):
                return
    for mount in container.start.mounts:
        found = closed.mount(mount)
        if found and not _add(outcome, found[0], _of_mount(*found, mount)):
            return
    usable = closed.usable(container.start.device_rules)
    if usable:
        rule = min((closed.nodes[number][0] for number in usable), key=lambda rule: not rule.deny)
        names = ", ".join(f"{closed.path(number)} ({words(number)})" for number in usable[:SHOWN])
        what = f"cgroup rules let the container use {names}"
        _add(outcome, rule, Drop(rule.name, RULES, what, closed.giving(container.start.device_rules, usable)[:SHOWN]))


def _add(outcome: Outcome, rule: "Rule", edit: Drop) -> bool:
    if not outcome.count(KIND, rule.name):
        return False
    outcome.edits.append(edit)
    if rule.deny:
        outcome.deny(rule.name, KIND, edit.conflict())
    return True


def _of_mount(rule: "Rule", shown: str, mount: "Device") -> DropMount:
    path = clean(str(mount["destination"]))
    what = f"mount {named(path)} from {named(str(mount.get('source')))} shows {shown}"
    return DropMount(rule.name, path, what, [mount])


def apply(outcome: Outcome, target: "Start") -> None:
    """Make the allocated device the only one at its path in `target`, and add cgroup access if it is missing."""
    for edit in outcome.edits:
        if isinstance(edit, PlaceDevice):
            rest = [device for device in target.devices if clean(str(device.get("path", ""))) != edit.name]
            same = [device for device in edit.before if edit.is_same_node(device)]
            target.devices = rest + (same or [edit.device])[:1]
            if not edit.may_be_used(target.device_rules):
                node = {key: edit.device[key] for key in ("type", "major", "minor")}
                target.device_rules = [*target.device_rules, {"allow": True, **node, "access": edit.access}]
    if outcome.closed is not None:
        outcome.closed.apply(target)
