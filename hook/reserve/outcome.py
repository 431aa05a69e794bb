"""What the reserved kinds hand to plan(): edits, and reasons against the container. Start path: builtins only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from hook.reserve.env import Reserved
    from hook.reserve.mounts import PlaceMount

    class Target(Protocol):
        """What a container would start with; `hook.container.model.Container` says what each is."""

        env: list[str]
        mounts: list[dict[str, object]]
        annotations: dict[str, str]
        devices: list[dict[str, object]]
        device_rules: list[dict[str, object]]


SHOWN = 64
"""How many entries of what a container came with one edit describes. The rest is counted."""

EDITS = 1000
"""How many edits of one kind a container may need. Nobody's mistake needs more, and each costs time and memory."""


class Reason:
    """Why a container must not start, or why nobody can tell. `rule`: whose, "" for no rule's. `kind`: "" for all."""

    __slots__ = ("kind", "message", "rule")

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message

    def describe(self) -> "dict[str, object]":
        """For events."""
        return {"rule": self.rule, "message": self.message}


class Edit:
    """One difference between what a container would start with and what the policy wants.

    `rule`: who wants it. `name`: of the env entry, mount path, device path or annotation. `before`: what the container
    came with. `origin`: the allocation that the wanted value comes from, "" for the policy's own.
    """

    __slots__ = ("name", "origin", "rule")
    kind = ""

    def __init__(self, rule: str, name: str, origin: str = "") -> None:
        self.rule = rule
        self.name = name
        self.origin = origin

    def conflict(self) -> str:
        """What the container asked for that this overrides, or ""; never the value itself."""
        raise NotImplementedError

    def before_and_after(self) -> "tuple[object, object]":
        """What the container came with and what it gets, as JSON; None is absent."""
        raise NotImplementedError

    def words(self) -> "tuple[str, str]":
        """The same for a table."""
        raise NotImplementedError

    def describe(self) -> "dict[str, object]":
        """For events."""
        before, after = self.before_and_after()
        described = {"rule": self.rule, "kind": self.kind, "name": self.name, "before": before, "after": after}
        if self.origin:
            described["from"] = self.origin
        return described


class Outcome:
    """What all kinds found. `env` and `mounts`: everything reserved of these, whether or not it needs an edit."""

    __slots__ = ("denials", "edits", "env", "errors", "mounts")

    def __init__(self, env: "Reserved") -> None:
        self.edits: list[Edit] = []
        self.denials: list[Reason] = []
        self.errors: list[Reason] = []
        self.env = env
        self.mounts: list[PlaceMount] = []

    def deny(self, rule: str, kind: str, message: str) -> None:
        """The policy forbids it."""
        self.denials.append(Reason(rule, kind, message))

    def cannot_tell(self, rule: str, kind: str, message: str) -> None:
        """Reassert could not find out; `failurePolicy` says what the container gets."""
        self.errors.append(Reason(rule, kind, message))

    def count(self, kind: str, rule: str) -> bool:
        """Whether one more edit of a kind is within the limit; beyond it the container is refused, once."""
        number = sum(edit.kind == kind for edit in self.edits) if len(self.edits) >= EDITS else 0
        if number >= EDITS and not any(d.kind == kind and d.message.startswith("more than") for d in self.denials):
            self.deny(rule, kind, f"more than {EDITS} {kind} entries of the container are reserved or must be absent")
        return number < EDITS
