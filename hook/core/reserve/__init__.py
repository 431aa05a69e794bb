"""What can be reserved, one file for each kind: it reads the rule, compares, applies and describes.

Here is what each kind gives to plan(): edits, and reasons to refuse the container. Start path: builtins only.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.reserve.env import Reserved
    from hook.core.reserve.exclusive import Closed
    from hook.core.reserve.mounts import PlaceMount
    from hook.core.reserve.target import Entries, Places

SHOWN = 64
"""How many of the container's own entries one edit describes. The rest is only counted."""

STEERING = ("run.oci.", "krun.", "module.wasm.image/", "org.criu.", "org.systemd.property.", "bundle", "dev.gvisor.")
"""How annotations begin that tell a runtime to do something beside the spec (hook.core.reserve.annotations.STEER)."""

OF_HOOKS = "run.oci.hooks."
"""How those of STEERING begin that are about all hooks, also those of a node (crun.1)."""

EDITS = 1000
"""How many edits of one kind a container may need: each costs time and memory, and no honest pod needs so many."""


class Reason:
    """Why a container must not start, or why reassert cannot tell.

    `rule`: name of the rule, "" if no rule is the reason. `kind`: the reserved kind, "" for all.
    """

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message

    def describe(self) -> "dict[str, object]":
        """Returns the entry for events."""
        return {"rule": self.rule, "message": self.message}


class Edit:
    """One difference between what a container would start with and what the policy wants.

    `rule`: name of the rule that wants the edit. `name`: env name, mount path, device path or annotation key. `before`:
    what the container would start with. `origin`: the allocation that the wanted value comes from, "" if it comes from
    the policy.
    """

    kind = ""

    def __init__(self, rule: str, name: str, origin: str = "") -> None:
        self.rule = rule
        self.name = name
        self.origin = origin

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or "". It never includes an env value."""
        raise NotImplementedError

    def before_and_after(self) -> "tuple[object, object]":
        """What the container would have started with and what it gets, as JSON; None: absent."""
        raise NotImplementedError

    def describe(self) -> "dict[str, object]":
        """Returns the entry for events."""
        before, after = self.before_and_after()
        described = {"rule": self.rule, "kind": self.kind, "name": self.name, "before": before, "after": after}
        if self.origin:
            described["from"] = self.origin
        return described


class Outcome:
    """The results of all kinds. `env` and `mounts`: all reserved env and mounts, whether or not they need an edit.

    `closed`: the devices that the container must not have, None without a rule with `exclusive`.
    """

    def __init__(self, env: "Reserved") -> None:
        self.edits: list[Edit] = []
        self.denials: list[Reason] = []
        self.errors: list[Reason] = []
        self.env = env
        self.searched: tuple[Entries, tuple[Entries, Places]] = ([], ([], []))  # an env, and what `search` gives for it
        self.mounts: list[PlaceMount] = []
        self.closed: Closed | None = None

    def deny(self, rule: str, kind: str, message: str) -> None:
        """Add a reason to refuse the container: the policy forbids something that it has or lacks."""
        self.denials.append(Reason(rule, kind, message))

    def cannot_tell(self, rule: str, kind: str, message: str) -> None:
        """Add an error: reassert could not find something out. `failurePolicy` says whether the container starts."""
        self.errors.append(Reason(rule, kind, message))

    def count(self, kind: str, rule: str) -> bool:
        """Whether one more edit of a kind is within EDITS; if not, adds one reason to refuse the container."""
        number = sum(edit.kind == kind for edit in self.edits) if len(self.edits) >= EDITS else 0
        if number >= EDITS and not any(d.kind == kind and d.message.startswith("more than") for d in self.denials):
            self.deny(rule, kind, f"more than {EDITS} {kind} entries of the container are reserved or must be absent")
        return number < EDITS
