"""What the steps of plan() give to a Plan: edits, and reasons to refuse the container."""

from __future__ import annotations

from hook.core.base import concealed, urls

SHOWN = 64
"""How many of the container's own entries one edit describes. The rest is only counted."""

EDITS = 1000
"""How many edits of one kind a container may need: each costs time and memory, and no honest pod needs so many."""


class Reason:
    """Why a container must not start, or why reassert cannot tell."""

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        """The name of the rule, "" if no rule is the reason."""
        self.kind = kind
        """The reserved kind, "" for all."""
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message

    def describe(self) -> dict[str, object]:
        """Returns the entry for events. A reason of no rule has its kind."""
        of = {} if self.rule or not self.kind else {"kind": self.kind}
        return {"rule": self.rule, **of, "message": self.message}


def _shown(value: object) -> object:
    if isinstance(value, str) and "@" in value:
        return urls.without_credentials(value)
    return [_shown(item) for item in value] if isinstance(value, list) else value


class Edit:
    """One difference between what a container would start with (`before`) and what the policy wants."""

    kind = ""
    may_be_secret = True
    """Whether `before` can hold a secret of the container, so that no log has it."""
    keeps_own = False
    """Whether the container gets a value of its own, which the policy file does not have."""

    def __init__(self, rule: str, name: str, origin: str = "") -> None:
        self.rule = rule
        """The name of the rule that wants the edit."""
        self.name = name
        """The env name, mount path, device path or annotation key."""
        self.origin = origin
        """The allocation that the wanted value comes from, "" if it comes from the policy."""

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or "". It never includes an env value."""
        raise NotImplementedError

    def before_and_after(self) -> tuple[object, object]:
        """What the container would have started with and what it gets, as JSON; None: absent."""
        raise NotImplementedError

    def shown(self) -> tuple[object, object]:
        """Returns the same for root's terminal: without the user and password of a URL."""
        before, after = self.before_and_after()
        return _shown(before), _shown(after)

    def describe(self, store: str = "") -> dict[str, object]:
        """Returns the entry for events. It has the length and hash of a value of the container, not the value.

        `store`: the directory that has the key of the hash; "" for lengths alone.
        """
        before, after = self.before_and_after()
        values = before if isinstance(before, list) else [before]
        if self.keeps_own:
            before, after = concealed.concealed([before, after], None, store)
        elif self.may_be_secret and any(value is not None and value != after for value in values):
            before = concealed.concealed(before, after, store)
        before, after = _shown(before), _shown(after)
        described = {"rule": self.rule, "kind": self.kind, "name": self.name, "before": before, "after": after}
        if self.origin:
            described["from"] = self.origin
        return described
