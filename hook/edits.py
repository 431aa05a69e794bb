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


def name_of(entry: str) -> str:
    """The name in an entry of process.env; an entry without `=` is a bare name (crun unsets it)."""
    return entry.partition("=")[0]


def values_of(env: "list[str]", name: str) -> "list[str | None]":
    """All values that a name has in process.env, in order; None for a bare entry."""
    prefix = name + "="
    return [
        entry[len(prefix) :] if entry != name else None for entry in env if entry.startswith(prefix) or entry == name
    ]


def without(env: "list[str]", name: str) -> "list[str]":
    """The entries of all other names."""
    prefix = name + "="
    return [entry for entry in env if not entry.startswith(prefix) and entry != name]


class SetEnv:
    """Exactly one entry `name=value`, where the name first stood, else at the end."""

    __slots__ = ("before", "name", "rule", "value")
    kind = "env"

    def __init__(self, rule: str, name: str, value: str, before: "list[str | None]") -> None:
        self.rule = rule
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
        return {"rule": self.rule, "kind": "env", "name": self.name, "before": self.before, "after": self.value}


class UnsetEnv:
    """No entry of that name."""

    __slots__ = ("before", "name", "rule")
    kind = "env"

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
        return {"rule": self.rule, "kind": "env", "name": self.name, "before": self.before, "after": None}


class PlaceMount:
    """A reserved mount as the last thing mounted at its path.

    `mount`: the OCI object. `companions`: cleaned destinations that may come after it, those of the plan's other
    reserved mounts and of what `allowBelow` lets through. Everything else at the path or below it goes away;
    a mount above it stays, and ours lands on top.
    """

    __slots__ = ("before", "companions", "mount", "path", "rule")
    kind = "mount"

    def __init__(
        self,
        rule: str,
        mount: "dict[str, object]",
        companions: "frozenset[str]",
        before: "list[dict[str, object]]",
    ) -> None:
        self.rule = rule
        self.mount = mount
        self.path = str(mount["destination"])
        self.companions = companions
        self.before = before

    def _is_foreign(self, mount: "dict[str, object]") -> bool:
        path = clean(str(mount["destination"]))
        return path == self.path or (is_below(path, self.path) and path not in self.companions)

    def verify(self, target: "Target") -> bool:
        """Whether it is so already: there once, nothing foreign at or below it, only companions after it."""
        here = [mount for mount in target.mounts if self._is_foreign(mount)]
        if here != [self.mount]:
            return False
        after = [clean(str(m["destination"])) for m in target.mounts[target.mounts.index(self.mount) + 1 :]]
        return all(path in self.companions and not is_below(self.path, path) for path in after)

    def apply(self, target: "Target") -> None:
        """Make it so."""
        stay: list[dict[str, object]] = []
        on_top: list[dict[str, object]] = []
        for mount in target.mounts:
            if not self._is_foreign(mount):
                (on_top if is_below(clean(str(mount["destination"])), self.path) else stay).append(mount)
        target.mounts = [*stay, self.mount, *on_top]

    def conflict(self) -> str:
        """What the container asked for that this overrides, or ""."""
        if not self.before:
            return ""
        others = ", ".join(sorted({str(mount["destination"]) for mount in self.before}))
        return f"mount {self.path} is reserved and {others} was mounted"

    def describe(self) -> "dict[str, object]":
        """For events and tables."""
        return {
            "rule": self.rule,
            "kind": "mount",
            "name": self.path,
            "before": [{"destination": m["destination"], "source": m.get("source")} for m in self.before],
            "after": {"source": self.mount["source"], "options": self.mount["options"]},
        }


Edit = SetEnv | UnsetEnv | PlaceMount
