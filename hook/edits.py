"""What a Plan consists of: edits that can apply, describe and verify themselves. Start path: builtins only."""

from hook.container.paths import clean, is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class HasEnv(Protocol):
        """config.json or the process file of an exec."""

        env: list[str]

    class Target(HasEnv, Protocol):
        """What a container would start with."""

        mounts: list[dict[str, object]]
        annotations: dict[str, str]
        devices: list[dict[str, object]]
        device_rules: list[dict[str, object]]


def name_of(entry: str) -> str:
    """The name in an entry of process.env; an entry without `=` is a bare name (crun unsets it)."""
    return entry.partition("=")[0]


def values_of(env: "list[str]", name: str) -> "list[str | None]":
    """All values that a name has in process.env, in order; None for a bare entry."""
    prefix = name + "="
    return [
        entry[len(prefix) :] if entry != name else None
        for entry in env
        if name in entry and (entry.startswith(prefix) or entry == name)  # `in` first, it is by far the fastest
    ]


def without(env: "list[str]", name: str) -> "list[str]":
    """The entries of all other names."""
    prefix = name + "="
    return [entry for entry in env if not entry.startswith(prefix) and entry != name]


class SetEnv:
    """Exactly one entry `name=value`, where the name first stood, else at the end.

    `origin`: the allocation that the value comes from, "" for one of the policy's own.
    """

    __slots__ = ("before", "name", "origin", "rule", "value")
    kind = "env"

    def __init__(self, rule: str, name: str, value: str, before: "list[str | None]", origin: str = "") -> None:
        self.rule = rule
        self.origin = origin
        self.name = name
        self.value = value
        self.before = before

    def verify(self, target: "HasEnv") -> bool:
        """Whether it is so already."""
        return values_of(target.env, self.name) == [self.value]

    def apply(self, target: "HasEnv") -> None:
        """Make it so."""
        env = target.env
        first = next((at for at, entry in enumerate(env) if name_of(entry) == self.name), len(env))
        target.env = [*env[:first], f"{self.name}={self.value}", *without(env[first:], self.name)]

    def conflict(self) -> str:
        """What the container asked for that this overrides, or "". The value stays out of it."""
        if any(value != self.value for value in self.before):
            return f"env {self.name} is reserved and was set to something else"
        return ""

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        return _described(self, self.before, self.value)


class UnsetEnv:
    """No entry of that name."""

    __slots__ = ("before", "name", "rule")
    kind = "env"
    origin = ""

    def __init__(self, rule: str, name: str, before: "list[str | None]") -> None:
        self.rule = rule
        self.name = name
        self.before = before

    def verify(self, target: "HasEnv") -> bool:
        """Whether it is so already."""
        return not values_of(target.env, self.name)

    def apply(self, target: "HasEnv") -> None:
        """Make it so."""
        target.env = without(target.env, self.name)

    def conflict(self) -> str:
        """What the container asked for that this overrides, or ""."""
        return f"env {self.name} must be absent and was set" if self.before else ""

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        return _described(self, self.before, None)


class PlaceMount:
    """A reserved mount as the last thing mounted at its path, or nothing mounted there at all.

    `mount`: the OCI object, None where nothing may be mounted. `companions`: cleaned destinations that may come after
    it, those of the plan's other reserved mounts and of what `allowBelow` lets through. Everything else at the path
    or below it goes away; a mount above it stays, and ours lands on top.
    """

    __slots__ = ("before", "companions", "mount", "name", "origin", "rule")
    kind = "mount"

    def __init__(
        self,
        rule: str,
        path: str,
        mount: "dict[str, object] | None",
        companions: "frozenset[str]",
        before: "list[dict[str, object]]",
        origin: str = "",
    ) -> None:
        self.rule = rule
        self.name = path
        self.mount = mount
        self.origin = origin
        self.companions = companions
        self.before = before

    def _is_foreign(self, mount: "dict[str, object]") -> bool:
        path = clean(str(mount["destination"]))
        return path == self.name or (is_below(path, self.name) and path not in self.companions)

    def verify(self, target: "Target") -> bool:
        """Whether it is so already: there once, nothing foreign at or below it, only companions after it."""
        if self.mount is not None and self.mount not in target.mounts:
            return False
        here = [mount for mount in target.mounts if self._is_foreign(mount)]
        if self.mount is None or here != [self.mount]:
            return not here and self.mount is None
        after = [clean(str(m["destination"])) for m in target.mounts[target.mounts.index(self.mount) + 1 :]]
        return all(path in self.companions and not is_below(self.name, path) for path in after)

    def apply(self, target: "Target") -> None:
        """Make it so."""
        stay: list[dict[str, object]] = []
        on_top: list[dict[str, object]] = []
        for mount in target.mounts:
            if not self._is_foreign(mount):
                (on_top if is_below(clean(str(mount["destination"])), self.name) else stay).append(mount)
        target.mounts = [*stay, *([self.mount] if self.mount else []), *on_top]

    def conflict(self) -> str:
        """What the container asked for that this overrides, or ""."""
        if not self.before:
            return ""
        others = ", ".join(sorted({str(mount["destination"]) for mount in self.before}))
        return f"mount {self.name} is reserved and {others} was mounted"

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        before = [{"destination": mount["destination"], "source": mount.get("source")} for mount in self.before]
        after = self.mount and {"source": self.mount["source"], "options": self.mount["options"]}
        return _described(self, before, after)


class PlaceDevice:
    """An allocated device node, alone at its path, with the cgroup access that goes with it.

    `device`: the object for OCI's linux.devices. `access`: of `rwm`.
    """

    __slots__ = ("access", "before", "device", "name", "origin", "rule")
    kind = "device"

    def __init__(
        self, rule: str, device: "dict[str, object]", access: str, before: "list[dict[str, object]]", origin: str
    ) -> None:
        self.rule = rule
        self.device = device
        self.name = str(device["path"])
        self.access = access
        self.before = before
        self.origin = origin

    def _is_here(self, device: "dict[str, object]") -> bool:
        return clean(str(device.get("path", ""))) == self.name

    def _same_node(self, device: "dict[str, object]") -> bool:
        return all(device.get(key) == self.device[key] for key in ("type", "major", "minor"))

    def verify(self, target: "Target") -> bool:
        """Whether it is so already."""
        here = [device for device in target.devices if self._is_here(device)]
        return bool(here) and all(map(self._same_node, here)) and self._may(target.device_rules)

    def _may(self, rules: "list[dict[str, object]]") -> bool:
        """Whether the cgroup rules, the later over the earlier (runtime-spec, Allowed Device list), give the access."""
        granted: set[str] = set()
        for rule in rules:
            if rule.get("type", "a") in ("a", self.device["type"]) and all(
                rule.get(key) in (None, -1, self.device[key]) for key in ("major", "minor")
            ):
                access = set(str(rule.get("access") or "rwm"))
                granted = granted | access if rule.get("allow") else granted - access
        return set(self.access) <= granted

    def apply(self, target: "Target") -> None:
        """Make it so."""
        here = [device for device in target.devices if self._is_here(device)]
        same = [device for device in here if self._same_node(device)]
        target.devices = [device for device in target.devices if device not in here] + (same or [self.device])[:1]
        if not self._may(target.device_rules):
            node = {key: self.device[key] for key in ("type", "major", "minor")}
            target.device_rules = [*target.device_rules, {"allow": True, **node, "access": self.access}]

    def conflict(self) -> str:
        """What the container asked for that this overrides, or ""."""
        if all(self._same_node(device) for device in self.before):
            return ""
        return f"device {self.name} is allocated and another node was put there"

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        return _described(self, self.before, self.device)


class DropAnnotation:
    """No annotation of that key: only a device plugin may set it."""

    __slots__ = ("before", "name", "rule")
    kind = "annotation"
    origin = ""

    def __init__(self, rule: str, name: str, before: str) -> None:
        self.rule = rule
        self.name = name
        self.before = before

    def verify(self, target: "Target") -> bool:
        """Whether it is so already."""
        return self.name not in target.annotations

    def apply(self, target: "Target") -> None:
        """Make it so."""
        target.annotations = {key: value for key, value in target.annotations.items() if key != self.name}

    def conflict(self) -> str:
        """What the container asked for that this overrides."""
        return f"annotation {self.name} must be absent and was set"

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        return _described(self, self.before, None)


Edit = SetEnv | UnsetEnv | PlaceMount | PlaceDevice | DropAnnotation


def _described(edit: "Edit", before: object, after: object) -> "dict[str, object]":
    described = {"rule": edit.rule, "kind": edit.kind, "name": edit.name, "before": before, "after": after}
    if edit.origin:
        described["from"] = edit.origin
    return described
