"""Which devices of the node a container may have, and what cgroup rules let it use. Pure.

Loaded only for a container that a rule with `exclusive` applies to; builtins only.
"""

from hook.core.base.compare import clean, glob_match
from hook.core.base.errors import named
from hook.core.container.nodes import number_in, words
from hook.core.policy.entries import EXCLUSIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.nodes import Inode, Number
    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.facts.exclusive import Devices
    from hook.core.policy.model import Rule

    Json = dict[str, object]

EVERY_CONTAINERS = frozenset(
    [*(("c", 1, minor) for minor in (3, 5, 7, 8, 9)), ("c", 5, 0), ("c", 5, 1), ("c", 5, 2), ("c", 10, 200)]
)
"""null, zero, full, random, urandom, tty, console, ptmx and net/tun: each container may have them, whatever globs say.

runc and crun put rules for these behind those of config.json (`hook.core.policy.check` has their paths).
"""

PTYS = range(136, 144)
"""Major numbers of pseudo-terminals (Linux, Documentation/admin-guide/devices.txt)."""


class Closed:
    """Which devices one container must not have. Pure; the hook asks it about what it finds in the container.

    `nodes`: by number, the rule and the path on the node. `patterns`: (rule, glob of device paths). `directories`: the
    node's directories that hold such nodes.
    """

    def __init__(self, rules: "list[Rule]", facts: "Devices", container: "Container", ours: "list[Json]") -> None:
        """`ours`: mounts that the policy reserves."""
        self._facts = facts
        self._ours = ours
        self.directories = facts.directories
        self.nodes: dict[Number, tuple[Rule, str]] = {}
        self.patterns: list[tuple[Rule, str]] = []
        self._placed: dict[tuple[str, str], Rule] = {}
        for rule in sorted(rules, key=lambda rule: not rule.deny):  # rules that refuse come first
            for pattern in rule.raw_lists.get(EXCLUSIVE, []):
                if pattern.startswith("/"):
                    self.patterns.append((rule, pattern))
                for number, path in facts.nodes[pattern].items():
                    if not self._is_free(number):
                        self.nodes.setdefault(number, (rule, path))
                for pair in facts.placed.get(pattern, ()):
                    self._placed.setdefault(pair, rule)
        refused: dict[Number, tuple[Rule, str]] = {}
        kept = set(facts.allocated)
        for device in container.start.devices:
            node, path = number_in(device), clean(str(device.get("path", "")))
            against = self.rule_for(node, path) if node else None
            if node and against:
                refused.setdefault(node, (against, path))
            elif node:
                kept.add(node)
        self._kept = kept
        self._of_systemd = container.start.of_systemd
        self.nodes.update((number, refused[number]) for number in refused.keys() - kept - self.nodes.keys())

    def _is_free(self, number: "Number") -> bool:
        pty = number[0] == "c" and number[1] in PTYS
        return number in EVERY_CONTAINERS or number in self._facts.allocated or pty

    def rule_for(self, number: "Number", path: str) -> "Rule | None":
        """The rule against a device node at a cleaned path of the container; None if it may be there."""
        if number in self.nodes:
            return self.nodes[number][0]
        if self._is_free(number):
            return None
        return next((rule for rule, pattern in self.patterns if glob_match(pattern, path)), None)

    def device(self, device: "Json") -> "Rule | None":
        """The rule against an object of linux.devices."""
        number = number_in(device)
        return self.rule_for(number, clean(str(device.get("path", "")))) if number else None

    def mount(self, mount: "Json") -> "tuple[Rule, str] | None":
        """The rule against a mount, and what the mount shows; None if it may be there."""
        source, path = mount.get("source"), clean(str(mount["destination"]))
        if mount.get("type") == "devtmpfs":
            shown = {number for numbers in self.directories.values() for number in numbers}
            return self._first(shown, path)
        if not _is_bind(mount) or not isinstance(source, str) or mount in self._ours:
            return None
        if clean(source) in self._facts.allocated_mounts:
            return None
        if not source.startswith("/") and self.patterns:
            return self.patterns[0][0], "what a path that is relative to the bundle leads to"
        rule = self._placed.get((clean(source), path))
        return (rule, named(source)) if rule else self._first(self._facts.sources.get(source, set()), path)

    def _first(self, shown: "set[Number]", path: str) -> "tuple[Rule, str] | None":
        for number in sorted(shown):
            rule = self.rule_for(number, path)
            if rule:
                return rule, f"{self.path(number)} ({words(number)})"
        return None

    def is_ours(self, path: str) -> bool:
        """Whether the policy itself mounts something at a cleaned path."""
        return any(clean(str(mount["destination"])) == path for mount in self._ours)

    def directory(self, inode: "Inode", path: str) -> "tuple[Rule, str] | None":
        """The rule against a directory of the node, as a container has it mounted, and what is in it."""
        return self._first(self.directories.get(inode, set()), path)

    def path(self, number: "Number") -> str:
        """The place of a device on the node, or else in the container, as a message quotes it."""
        return named(self.nodes[number][1]) if number in self.nodes else "a device"

    # -- cgroup rules

    def usable(self, rules: "list[Json]") -> "list[Number]":
        """The devices that cgroup rules let the container read or write, though it must not have them."""
        said = _Said(rules)
        return [number for number in sorted(self.nodes) if said.opens(number)]

    def giving(self, rules: "list[Json]", usable: "list[Number]") -> "list[Json]":
        """The rules that give access to any of these devices."""
        against = {scope for number in usable for scope in _scopes(number)}
        return [rule for rule in rules if rule.get("allow") and (_is_everything(rule) or _scope(rule) in against)]

    def narrowed(self, rules: "list[Json]") -> "list[Json]":
        """The rules without that access.

        If everything is allowed first (a privileged container; crun also without any rule), each device is denied.
        systemd has no rules that deny: there, everything else is allowed. If not, nothing is denied: cgroup v1 cannot
        take one device out of a rule for many (runc refuses such a rule, crun ignores it). There the rules that open a
        closed device are left out, and each device of the container that it may have gets a rule of its own.
        """
        usable = self.usable(rules)
        if not usable:
            return rules
        said = _Said(rules)
        if said.everything:
            if self._of_systemd and said.start and all(rule.get("allow") for rule in rules[said.start :]):
                return self._all_else()
            return rules + [{"allow": False, **_numbers(number), "access": "rw"} for number in usable]
        against = {scope for number in usable for scope in _scopes(number)}
        gone = {
            at
            for at, rule in enumerate(rules)
            if at >= said.start and rule.get("allow") and _access(rule) and _scope(rule) in against
        }
        given = []
        for number in sorted(self._kept):
            decided = [(letter, *said.last(number, letter)) for letter in "rwm"]
            letters = "".join([letter for letter, at, allows in decided if allows and at in gone])
            if letters:
                given.append({"allow": True, **_numbers(number), "access": letters})
        last = max(gone)
        before = [rule for at, rule in enumerate(rules[:last]) if at not in gone]
        return before + given + rules[last + 1 :]

    def _all_else(self) -> "list[Json]":
        """The rules that allow what a privileged container has, without denying anything after the first one.

        runc gives systemd DevicePolicy=strict and no device at all where rules deny after one that allows everything:
        `daemon-reload` then takes all devices away (libcontainer's systemdProperties). crun refuses such rules. All
        devices of a type or driver without a closed one are allowed; of other drivers, those that every container or
        this one may have.
        """
        closed = {(kind, major) for kind, major, _ in self.nodes}
        rules: list[Json] = [{"allow": False, "access": "rwm"}]
        whole: set[tuple[str, int]] = set()
        for kind in "cb":
            if not any(of == kind for of, _ in closed):
                rules.append({"allow": True, "type": kind, "access": "rwm"})
                continue
            majors = {(of, major) for of, major in self._facts.majors if of == kind} - closed
            whole |= majors
            rules += [{"allow": True, "type": kind, "major": major, "access": "rwm"} for _, major in sorted(majors)]
        single = [number for number in sorted(self._kept | EVERY_CONTAINERS) if number not in self.nodes]
        kinds = {kind for kind, _ in closed}
        single = [number for number in single if number[0] in kinds and number[:2] not in whole]
        return rules + [{"allow": True, **_numbers(number), "access": "rwm"} for number in single]

    def apply(self, target: "Start") -> None:
        """Remove everything from `target` that must not be there."""
        target.devices = [device for device in target.devices if not self.device(device)]
        target.mounts = [mount for mount in target.mounts if not self.mount(mount)]
        target.device_rules = self.narrowed(target.device_rules)


def _is_bind(mount: "Json") -> bool:
    options = mount.get("options")
    return mount.get("type") == "bind" or (isinstance(options, list) and ("bind" in options or "rbind" in options))


def _is_everything(rule: "Json") -> bool:
    """Whether a cgroup rule is for all devices: type `a`, with which the kernel ignores numbers and access."""
    return rule.get("type") in (None, "", "a")


def _scope(rule: "Json") -> "tuple[object, ...]":
    """What a cgroup rule is about: type, major and minor number, None for any number."""
    values = (rule.get("type"), *[None if rule.get(key) == -1 else rule.get(key) for key in ("major", "minor")])
    return tuple([value if isinstance(value, (str, int, float, type(None))) else repr(value) for value in values])


def _scopes(number: "Number") -> "list[tuple[object, ...]]":
    """The scopes of all rules that are about a device."""
    kind, major, minor = number
    return [(kind, major, minor), (kind, major, None), (kind, None, minor), (kind, None, None)]


def _access(rule: "Json") -> "set[str]":
    """`r` and `w` of what a rule is about. `m` does not count: runtimes let each container make nodes of any device."""
    return set(str(rule.get("access") or "rwm")) & {"r", "w"}


def _numbers(number: "Number") -> "Json":
    return {"type": number[0], "major": number[1], "minor": number[2]}


class _Said:
    """What cgroup rules say about devices. Of all rules for one scope, only the last one for a letter counts.

    So the time for all devices grows with the number of rules plus that of devices. `start`: after which rule the
    exceptions begin. `everything`: whether all is allowed before them; without a rule for everything crun leaves all
    devices allowed, runc none.
    """

    def __init__(self, rules: "list[Json]") -> None:
        last = max((at for at, rule in enumerate(rules) if _is_everything(rule)), default=-1)
        self.start, self.everything = last + 1, last < 0 or bool(rules[last].get("allow"))
        self._last: dict[tuple[object, ...], dict[str, tuple[int, bool]]] = {}
        for at in range(self.start, len(rules)):
            letters = self._last.setdefault(_scope(rules[at]), {})
            for letter in set(str(rules[at].get("access") or "rwm")) & {"r", "w", "m"}:
                letters[letter] = at, bool(rules[at].get("allow"))

    def last(self, number: "Number", letter: str) -> "tuple[int, bool]":
        """The position of the last rule about a letter of a device, -1 without one, and whether it is allowed then."""
        said = [self._last.get(scope, {}).get(letter) for scope in _scopes(number)]
        return max([one for one in said if one], default=(-1, self.everything))

    def opens(self, number: "Number") -> bool:
        """Whether some runtime on some cgroup version would let a container open the device.

        If nothing is allowed first, a rule that denies only withdraws what a rule for the same numbers gave.
        """
        if self.everything:
            return self.last(number, "r")[1] or self.last(number, "w")[1]
        said = [self._last.get(scope, {}) for scope in _scopes(number)]
        return any(letters[letter][1] for letters in said for letter in "rw" if letter in letters)
