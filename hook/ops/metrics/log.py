"""Counts the containers of every adapter from the event log: the resident process sees no cold start itself."""

from __future__ import annotations

import contextlib

from hook.core import events
from hook.core.policy.model import AUDIT
from hook.node import kept
from hook.node.kept import Kept
from hook.ops.events import select
from hook.ops.events.reader import Event, Tail
from hook.resident.metrics import APPLIED, ASKED, AUDITED, REFUSED, NoMetrics

ADAPTERS = ("runtime", "hook", "nri")

_NO_LOG = (0, 0, 0)
"""The place before the first event of a node: all that is logged counts."""

_OUTCOMES = {
    events.EDITED: "adjusted",
    events.DENIED: "refused",
    events.WOULD_DENY: "audited",
    events.ERROR: "failed",
    events.REMOUNTABLE: "unchanged",
    events.NODE_PATHS: "unchanged",
    events.INEXACT: "unchanged",
    events.HELD: "unchanged",
}


class LogCounter:
    """Counts what is appended to the event log. `own`: adapters of this process, which count for themselves."""

    def __init__(
        self,
        log: str,
        store: str,
        metrics: NoMetrics,
        own: tuple[str, ...] = (),
    ) -> None:
        self._metrics = metrics
        self._own = own
        self._store = store
        self._place = kept.read(store).place  # what is logged while no agent runs counts too
        self._tail = Tail(log, start=self._place)
        if self._place is None:
            self._tail.to_the_end()
            self._keep_place()

    def count(self) -> None:
        """Count the events since the last call."""
        for event in self._tail.new():
            self._event(event)
        self._keep_place()

    def _keep_place(self) -> None:
        place = self._tail.place() or _NO_LOG
        if place != self._place:
            self._place = place

            def change(now: Kept) -> None:
                now.place = place

            with contextlib.suppress(OSError):
                kept.change(change, self._store)

    def _event(self, event: Event) -> None:
        adapter = event.get("adapter")
        if event["event"] == events.DRIFTED:
            for each in select.entries(event, "differences"):
                self._metrics.drift(_text(each, "rule"), _text(each, "kind"))
            return
        if adapter not in ADAPTERS or adapter in self._own:
            return
        edits = select.entries(event, "edits")
        outcome = _OUTCOMES.get(event["event"])
        if outcome is None:
            return
        if outcome == "adjusted" and select.is_audited(event):
            outcome = "audited"
        if event.get("probe") is True:
            self._metrics.probe(outcome, adapter)
            return
        self._metrics.started(adapter, outcome, _text(event, "start"), _text(event, "cold"))
        for edit in edits:
            self._metrics.edit(_text(edit, "rule"), _text(edit, "kind"), _result(event, edit), adapter)
        reasons = [entry for key in ("denials", "errors") for entry in select.entries(event, key)]
        for reason in reasons if event["event"] in (events.DENIED, events.WOULD_DENY) else ():
            self._metrics.refusal(_text(reason, "rule"), _result(event, reason), adapter)
        if outcome == "failed":
            self._metrics.error("decision")


def _result(event: Event, entry: Event) -> str:
    """What became of an edit or a reason of an event."""
    if event.get("mode") == AUDIT or select.entry_is_audited(entry):
        return AUDITED
    if event["event"] == events.DENIED:
        return REFUSED
    return ASKED if event.get("asked") else APPLIED if event.get("applied") else AUDITED


def _text(entry: Event, key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""
