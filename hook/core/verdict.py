"""Verdict: what became of one container."""

from __future__ import annotations

from collections.abc import Sequence

from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.node_paths import LOG_DIRECTORY
from hook.core.reserve.plan import Plan

CONFIG, CONTAINER, ADJUSTMENT, NOWHERE = "config.json", "container", "adjustment", ""
"""Where an adapter verified the result: in config.json as the runtime reads it, in the container's own mount namespace,
in what all NRI plugins asked the runtime for, or nowhere, because it only asked another program for the edits."""


class Verdict:
    """What became of one container: first what the adapter did about a plan, then what follows (`Case.run`)."""

    def __init__(
        self,
        verified: str = NOWHERE,
        denials: Sequence[Reason] = (),
        edits: Sequence[Edit] | None = None,
        *,
        handed_on: bool = False,
        draft: dict[str, object] | None = None,
    ) -> None:
        self.verified = verified
        """Where the adapter verified the result: CONFIG, CONTAINER, ADJUSTMENT or NOWHERE."""
        self.denials = denials
        """Why the container must not start, as the adapter found while it acted."""
        self.edits = edits
        """The edits that the event names; None: all of the plan's."""
        self.handed_on = handed_on
        """Whether the event is made later: by a hook that verifies the result, or by the adapter (`Case.event`)."""
        self.draft = draft
        """The event that an earlier adapter left for this one to complete."""
        self.remountable: Sequence[str] = ()
        """The read-only reserved mounts that the container can make writable again, each with the reason."""
        self.node_paths: Sequence[str] = ()
        """As `Plan.node_paths`, seen in the container's mounts."""
        self.read_only: Sequence[str] = ()
        """What of its volumes was made read-only, or would be in Enforce mode."""
        self.hides: Sequence[str] = ()
        """Files of the image that reserved mounts hide, each as a sentence of `loses`."""

        self.plan: Plan | None = None
        """The decision; None if none was reached."""
        self.reasons: Sequence[Reason] = ()
        """Why Enforce mode would refuse the container."""
        self.refusal = ""
        """One line for the engine, or ""."""
        self.event: dict[str, object] | None = None
        """The event for the log; None if there is nothing to tell, or if it is made later."""

    def with_logs(self, decided: Plan) -> Verdict:
        """The same, where no hook can cover reassert's log: the volumes that reach it are reported."""
        if decided.node_logs:
            self.node_paths = [*decided.node_paths, *[f"{path}: {LOG_DIRECTORY[:-1]}" for path in decided.node_logs]]
        return self
