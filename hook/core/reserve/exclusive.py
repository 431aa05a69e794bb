"""Which devices of the node a container may have, and what cgroup rules let it use. Pure."""

from __future__ import annotations

from hook.core.base.compare import clean, glob_match
from hook.core.base.errors import named
from hook.core.container import oci
from hook.core.container.nodes import Inode, words
from hook.core.container.oci import Device, DeviceRule, Mount, Number
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.facts.exclusive import Devices
from hook.core.policy.entries import EXCLUSIVE
from hook.core.policy.model import Rule

EVERY_CONTAINERS_NUMBERS = frozenset(
    [*(("c", 1, minor) for minor in (3, 5, 7, 8, 9)), ("c", 5, 0), ("c", 5, 1), ("c", 5, 2), ("c", 10, 200)]
)
"""null, zero, full, random, urandom, tty, console, ptmx and net/tun: each container may have them, whatever globs say.

runc and crun put rules for these behind those of config.json (`hook.compile.check` has their paths).
"""

PTYS = range(136, 144)
"""Major numbers of pseudo-terminals (Linux, Documentation/admin-guide/devices.txt)."""


class Closed:
    """Which devices one container must not have. Pure; the hook asks it about what it finds in the container."""

    def __init__(self, rules: list[Rule], facts: Devices, container: Container, ours: list[Mount]) -> None:
        """`ours`: mounts that the policy reserves."""
        self._facts = facts
        self._ours = ours
        self.directories = facts.directories
        """The node's directories that hold such devices."""
        self.nodes: dict[Number, tuple[Rule, str]] = {}
        """By the number of a device, the rule and the path on the node."""
        self.patterns: list[tuple[Rule, str]] = []
        """Each rule with a glob of device paths."""
        self.unread: tuple[Rule, str] | None = None
        """A rule with a CDI kind, and why the devices of that kind are not all known: then every device that no
        container has by itself may be one."""
        self._placed: dict[tuple[str, str], Rule] = {}
        for rule in sorted(rules, key=lambda rule: not rule.deny):  # rules that refuse come first
            for pattern in rule.raw.get(EXCLUSIVE, []):
                if pattern.startswith("/"):
                    self.patterns.append((rule, pattern))
                for number, path in facts.nodes[pattern].items():
                    if not self._is_free(number):
                        self.nodes.setdefault(number, (rule, path))
                for pair in facts.placed.get(pattern, ()):
                    self._placed.setdefault(pair, rule)
                if pattern in facts.unread and self.unread is None:
                    self.unread = rule, facts.unread[pattern]
        self._inert: set[Number] = set()
        refused: dict[Number, tuple[Rule, str]] = {}
        kept = set(facts.allocated)
        for device in container.start.devices:
            node, path = device.number, device.path
            against = self.rule_for(node, path) if node else None
            if node and against:
                refused.setdefault(node, (against, path))
            elif node:
                kept.add(node)
        self._kept = kept
        self._listed = frozenset(self.nodes)
        self._of_systemd = container.start.of_systemd
        self.nodes.update((number, refused[number]) for number in refused.keys() - kept - self.nodes.keys())

    def leave_inert(self, rules: list[DeviceRule]) -> None:
        """From now on, let a running container have nodes at their places on the node that its cgroup rules close.

        NVIDIA's library makes those of /dev/nvidia-caps in each container that uses it, and opens none.
        """
        self._inert = self.nodes.keys() - set(self.usable(rules))

    def _is_free(self, number: Number) -> bool:
        pty = number[0] == "c" and number[1] in PTYS
        return number in EVERY_CONTAINERS_NUMBERS or number in self._facts.allocated or pty

    def rule_for(self, number: Number, path: str) -> Rule | None:
        """The rule against a device node at a cleaned path of the container; None if it may be there."""
        if number in self.nodes:
            rule, place = self.nodes[number]
            return None if path == place and number in self._inert else rule
        if self._is_free(number):
            return None
        by_name = next((rule for rule, pattern in self.patterns if glob_match(pattern, path)), None)
        return by_name or (self.unread[0] if self.unread else None)

    def device(self, device: Device) -> Rule | None:
        """The rule against an object of linux.devices."""
        return self.rule_for(device.number, device.path) if device.number else None

    def mount(self, mount: Mount) -> tuple[Rule, str] | None:
        """The rule against a mount, and what the mount shows; None if it may be there."""
        source, path = mount.source, mount.path
        if mount.type == "devtmpfs":
            shown = {number for numbers in self.directories.values() for number in numbers}
            return self._first(shown, path)
        if not mount.is_bind or mount in self._ours:
            return None
        if clean(source) in self._facts.allocated_mounts:
            return None
        if not source.startswith("/") and self.patterns:
            return self.patterns[0][0], "what a path that is relative to the bundle leads to"
        rule = self._placed.get((clean(source), path))
        return (rule, named(source)) if rule else self._first(self._facts.sources.get(source, set()), path)

    def _first(self, shown: set[Number], path: str) -> tuple[Rule, str] | None:
        for number in sorted(shown):
            rule = self.rule_for(number, path)
            if rule:
                return rule, f"{self.path(number)} ({words(number)})"
        return None

    def is_ours(self, path: str) -> bool:
        """Whether the policy itself mounts something at a cleaned path."""
        return any(mount.path == path for mount in self._ours)

    def directory(self, inode: Inode, path: str) -> tuple[Rule, str] | None:
        """The rule against a directory of the node, as a container has it mounted, and what is in it."""
        return self._first(self.directories.get(inode, set()), path)

    def path(self, number: Number) -> str:
        """The place of a device on the node, or else in the container, as a message quotes it."""
        if number in self.nodes:
            return named(self.nodes[number][1])
        return f"a device, of which nothing is known ({self.unread[1]})" if self.unread else "a device"

    def asks_for_unread(self, start: Start) -> str:
        """What of a container may be a device of a spec that cannot be read, or ask for one; "" without any."""
        for device in start.devices:
            number = device.number
            if number and not self._is_free(number) and number not in self._listed:
                return f"device {named(device.written)}"
        state = _CgroupRules(start.device_rules)
        if state.everything or any(self._may_be_unread(rule) for rule in start.device_rules[state.start :]):
            return "its cgroup rules"
        for key, value in {**start.annotations, **(start.pod_annotations or {})}.items():
            kinds = [name.partition("=")[0] for name in value.split(",")] if "cdi.k8s.io/" in key else []
            if any(glob_match(pattern, kind) for pattern in self._facts.unread for kind in kinds):
                return f"annotation {named(key)}"
        return ""

    def _may_be_unread(self, rule: DeviceRule) -> bool:
        """Whether a cgroup rule lets a container read or write devices that are not known."""
        kind, major, minor = rule.oci.get("type"), rule.oci.get("major"), rule.oci.get("minor")
        if not rule.allows or not _opens(rule) or (kind == "c" and major in PTYS):
            return False
        number = (str(kind), major, minor)
        return not (isinstance(major, int) and isinstance(minor, int)) or not (
            self._is_free(number) or number in self._listed  # type: ignore[arg-type]  # mypy narrows no tuple
        )

    # -- cgroup rules

    def usable(self, rules: list[DeviceRule]) -> list[Number]:
        """The devices that cgroup rules let the container read or write, though it must not have them."""
        state = _CgroupRules(rules)
        return [number for number in sorted(self.nodes) if state.opens(number)]

    def giving(self, rules: list[DeviceRule], usable: list[Number]) -> list[DeviceRule]:
        """The rules that give access to any of these devices."""
        against = {scope for number in usable for scope in _scopes(number)}
        return [rule for rule in rules if rule.allows and (rule.is_for_all or rule.scope in against)]

    def narrowed(self, rules: list[DeviceRule]) -> list[DeviceRule]:
        """The rules without that access.

        If everything is allowed first (a privileged container; crun also without any rule), each device is denied.
        systemd has no rules that deny: there, everything else is allowed. If not, nothing is denied: cgroup v1 cannot
        take one device out of a rule for many (runc refuses such a rule, crun ignores it). There the rules that open a
        closed device are left out. In their place each device of the container that it may have gets a rule of its own.
        """
        usable = self.usable(rules)
        if not usable:
            return rules
        state = _CgroupRules(rules)
        if state.everything:
            if self._of_systemd and state.start and all(rule.allows for rule in rules[state.start :]):
                return self._all_else()
            return rules + [_rule(number, "rw", allow=False) for number in usable]
        against = {scope for number in usable for scope in _scopes(number)}
        gone = {
            position
            for position, rule in enumerate(rules)
            if position >= state.start and rule.allows and _opens(rule) and rule.scope in against
        }
        given: dict[int, list[DeviceRule]] = {}
        for number in sorted(self._kept):
            letters: dict[int, str] = {}
            for letter in "rwm":
                position = state.given_at(number, letter, gone)
                if position >= 0:
                    letters[position] = letters.get(position, "") + letter
            for position, access in letters.items():
                given.setdefault(position, []).append(_rule(number, access))
        rest: list[DeviceRule] = []
        for position, rule in enumerate(rules):
            rest += given.get(position, ()) if position in gone else (rule,)
        return rest

    def _all_else(self) -> list[DeviceRule]:
        """The rules that allow what a privileged container has, without denying anything after the first one.

        runc gives systemd DevicePolicy=strict and no device at all where rules deny after one that allows everything:
        `daemon-reload` then takes all devices away (libcontainer's systemdProperties). crun refuses such rules. All
        devices of a type or driver without a closed one are allowed; of other drivers, those that every container or
        this one may have.
        """
        drivers = {(kind, major) for kind, major, _ in self.nodes}
        rules: list[oci.Json] = [{"allow": False, "access": "rwm"}]
        whole: set[tuple[str, int]] = set()
        for kind in "cb":
            if not any(of == kind for of, _ in drivers):
                rules.append({"allow": True, "type": kind, "access": "rwm"})
                continue
            majors = {(of, major) for of, major in self._facts.majors if of == kind} - drivers
            whole |= majors
            rules += [{"allow": True, "type": kind, "major": major, "access": "rwm"} for _, major in sorted(majors)]
        single = [number for number in sorted(self._kept | EVERY_CONTAINERS_NUMBERS) if number not in self.nodes]
        kinds = {kind for kind, _ in drivers}
        single = [number for number in single if number[0] in kinds and number[:2] not in whole]
        return oci.device_rules(rules) + [_rule(number, "rwm") for number in single]

    def apply(self, target: Start) -> None:
        """Remove everything from `target` that must not be there."""
        target.devices = [device for device in target.devices if not self.device(device)]
        target.mounts = [mount for mount in target.mounts if not self.mount(mount)]
        target.device_rules = self.narrowed(target.device_rules)


def _scopes(number: Number) -> list[tuple[object, ...]]:
    """The scopes of all rules that are about a device."""
    kind, major, minor = number
    return [(kind, major, minor), (kind, major, None), (kind, None, minor), (kind, None, None)]


def _opens(rule: DeviceRule) -> bool:
    """Whether a rule is about `r` or `w`. `m` does not count: runtimes let each container make nodes of any device."""
    return not rule.letters.isdisjoint("rw")


def _rule(number: Number, access: str, *, allow: bool = True) -> DeviceRule:
    """The rule for one device."""
    return DeviceRule({"allow": allow, "type": number[0], "major": number[1], "minor": number[2], "access": access})


class _CgroupRules:
    """What cgroup rules say about devices. Of all rules for one scope, only the last one for a letter counts.

    So the time for all devices grows with the number of rules plus that of devices.
    """

    def __init__(self, rules: list[DeviceRule]) -> None:
        last = max((position for position, rule in enumerate(rules) if rule.is_for_all), default=-1)
        self.start = last + 1
        """The index of the first rule after the last one about every device."""
        self.everything = last < 0 or rules[last].allows
        """Whether every device is allowed before that rule. Without a rule about every device, crun leaves all allowed
        and runc none."""
        self._last: dict[tuple[object, ...], dict[str, tuple[int, bool]]] = {}
        for position in range(self.start, len(rules)):
            rule = rules[position]
            letters = self._last.setdefault(rule.scope, {})
            for letter in rule.letters & {"r", "w", "m"}:
                letters[letter] = position, rule.allows

    def last(self, number: Number, letter: str) -> tuple[int, bool]:
        """The position of the last rule about a letter of a device, -1 without one, and whether it is allowed then."""
        rules = [self._last.get(scope, {}).get(letter) for scope in _scopes(number)]
        return max([one for one in rules if one], default=(-1, self.everything))

    def given_at(self, number: Number, letter: str, positions: set[int]) -> int:
        """The position of the last of these rules that allows a letter of a device; -1 without one.

        A rule that a later one for the same numbers denies is none: under cgroup v1 only such a rule withdraws it. What
        other rules deny after it, they deny still.
        """
        rules = [self._last.get(scope, {}).get(letter) for scope in _scopes(number)]
        return max([one[0] for one in rules if one and one[1] and one[0] in positions], default=-1)

    def opens(self, number: Number) -> bool:
        """Whether some runtime on some cgroup version would let a container open the device.

        If nothing is allowed first, a rule that denies only withdraws what a rule for the same numbers gave.
        """
        if self.everything:
            return self.last(number, "r")[1] or self.last(number, "w")[1]
        letters_of = [self._last.get(scope, {}) for scope in _scopes(number)]
        return any(letters[letter][1] for letters in letters_of for letter in "rw" if letter in letters)
