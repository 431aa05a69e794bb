"""One call of a runtime: decided, answered, perhaps held, told; and the events of answered calls to be written.

The runtime does not wait for an event: it is made and written after the answer. So the log never says that an edit was
made that the runtime was not asked for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from hook.core import events
from hook.core.base.errors import describe
from hook.core.decide import Case
from hook.core.verdict import ADJUSTMENT, Verdict
from hook.nri.report import Report
from hook.resident import oplog
from hook.resident.metrics import ASKED, AUDITED, REFUSED
from hook.resident.service import tell_undecided

CREATE, VALIDATE = "CreateContainer", "ValidateContainerAdjustment"
"""The calls that are about a container."""

MOST = 8
"""Events that may wait for a pause. With more, they are written before the next request is read."""

QUIET = 1
"""Milliseconds without a request that are a pause. The kernel rounds them up to its clock's ticks (SO_RCVTIMEO)."""

LIMIT = 1000
"""Events that may wait for an event log that hangs. Further ones are lost, and counted as errors."""


class Reply:
    """A decision about one container.

    `refusal`: why the container is refused, or "".
    """

    def __init__(self, case: Case, failure: str = "decision") -> None:
        """`failure`: the kind of error where there is no decision."""
        self.case = case
        self.payload = b""
        """The bytes of a CreateContainerResponse."""
        self.verdict: Verdict | None = None
        self.first: Reply | None = None
        self.is_repeated = False
        """Whether the event at the container's creation, `first`, says the same; then this one is told only if it is an
        error or a refusal."""
        self._failure = failure
        self._took = 0.0

    def settle(self, verdict: Verdict, is_repeated: bool = False) -> Reply:
        """The reply itself, with its verdict."""
        self.is_repeated |= is_repeated
        self.verdict, self._took = verdict, self.case.stop()
        if verdict.refusal:
            self.payload = b""
        return self

    @property
    def refusal(self) -> str:
        """What the runtime is told, "" unless the container is refused."""
        return f"reassert: {self.verdict.refusal}" if self.verdict and self.verdict.refusal else ""

    def is_decided(self) -> bool:
        """Whether there was no error."""
        return self.verdict is not None and self.verdict.plan is not None

    def tell(self, report: Report, is_checked: bool = False) -> None:
        """Write the event and count the container. `is_checked`: `validate` found nothing wrong."""
        if self.first:
            self.first.tell(report, self.is_decided())
        verdict = self.verdict
        if verdict is None or (self.is_repeated and self.is_decided() and not verdict.refusal):
            return
        event = verdict.event
        if event is None and verdict.handed_on and verdict.plan:
            verdict.verified = ADJUSTMENT if is_checked else verdict.verified
            event = self.case.event(verdict.plan, verdict)
        self._count(report, verdict, event)
        if event:
            policy = self.case.policy
            report.line(events.line(event), policy.event_log if policy else ())
            tell_undecided(event)

    def _count(self, report: Report, verdict: Verdict, event: dict[str, object] | None) -> None:
        metrics, decided, audited = report.metrics, verdict.plan, self.case.audited_rules
        if decided is None:
            metrics.error(self._failure)
            outcome = "failed"
        elif (decided.audit_only() and not decided.is_empty()) or (audited and decided.is_empty()):
            outcome = "audited"
        else:
            outcome = "refused" if verdict.refusal else "adjusted" if decided.edits else "unchanged"
        if event.get("probe") if event else self.case.is_probe():
            metrics.probe(outcome)
            return
        metrics.container(outcome, self._took / 1000)
        result = REFUSED if verdict.refusal else AUDITED if decided and decided.audit_only() else ASKED
        for edit in decided.edits if decided else ():
            metrics.edit(edit.rule, edit.kind, result)
        for reason in verdict.reasons:
            metrics.refusal(reason.rule, result)
        if decided and audited:
            for edit in audited.edits:
                metrics.edit(edit.rule, edit.kind, AUDITED)
            for reason in audited.denials:
                metrics.refusal(reason.rule, AUDITED)


class Request:
    """A call of the runtime, from its arrival until its event is written.

    Its states, in this order:

    - deciding: `case` is what is known so far, for the thread that answers just before the deadline;
    - decided and answered: `reply`. The first thread that claims the answer gives it, and no other does;
    - held: its event waits for the runtime's question about all plugins, `since` (monotonic) then;
    - told: the event is written, and the container is counted.
    """

    def __init__(self, method: str, stream: int = 0, limit: float = 0.0) -> None:
        self.method = method
        self.stream = stream
        self.started = time.monotonic()
        self.deadline = self.started + limit
        self.container = ""
        self.case: Case | None = None
        self.reply: Reply | None = None
        self.since = 0.0
        self._answered = threading.Lock()

    def claim(self, reply: Reply | None = None) -> bool:
        """Claim the right to answer, with `reply` about a container. False if another thread has it already."""
        claimed = self._answered.acquire(blocking=False)
        if claimed:
            self.reply = reply
        return claimed

    def is_answered(self) -> bool:
        """Whether a thread has claimed the answer."""
        return self._answered.locked()


class PendingEvents:
    """The events of answered requests, in the order of the answers.

    They are written while the runtime asks for nothing, so that no container waits for the event of another. One thread
    writes at a time: if the event log hangs, it keeps that thread only.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._waiting: deque[Request] = deque()
        self._held: dict[str, Request] = {}
        self._writing = threading.Lock()

    def add(self, request: Request) -> None:
        """Have the event of a request written soon."""
        if len(self._waiting) < LIMIT:
            self._waiting.append(request)
        else:
            self._failed(request.container, "the event log hangs")

    def hold(self, request: Request) -> None:
        """Hold a request until the runtime's question about all plugins, and log those that wait for another question.

        The runtime asks about one container at a time, and not again if another plugin refused the container.
        """
        self.release()
        request.since = time.monotonic()
        self._held[request.container] = request

    def held(self, container_id: str) -> Reply | None:
        """The reply at a container's creation, if it is held."""
        request = self._held.get(container_id)
        return request.reply if request else None

    def take(self, container_id: str) -> Reply | None:
        """The same, and the request is held no longer."""
        request = self._held.pop(container_id, None)
        return request.reply if request else None

    def release(self, age: float = 0.0) -> bool:
        """Log the requests that were held for `age` seconds; returns whether there are any."""
        now, released = time.monotonic(), False
        for container_id, request in list(self._held.items()):
            if now - request.since >= age and self._held.pop(container_id, None) is not None:
                self.add(request)
                released = True
        return released

    def count(self) -> int:
        """How many events wait; 0 while a thread writes them."""
        return 0 if self._writing.locked() else len(self._waiting)

    def write(self) -> None:
        """Write all events, unless another thread does. This may hang. Never raises."""
        while self._waiting and self._writing.acquire(blocking=False):
            try:
                while self._waiting:
                    request = self._waiting.popleft()
                    try:
                        if request.reply:
                            request.reply.tell(self._report)
                    except Exception as error:  # no reason to disconnect from the runtime
                        self._failed(request.container, describe(error))
            finally:
                self._writing.release()

    def write_aside(self) -> None:
        """Write all events in a thread of its own. If none can be started, the thread that reads requests does it."""
        with suppress(RuntimeError):
            threading.Thread(target=self.write, name="held", daemon=True).start()

    def finish(self, seconds: float) -> None:
        """Write all events, also those that are held. Waits at most so long for it."""
        self.release()
        self.write_aside()
        deadline = time.monotonic() + seconds
        while (self._waiting or self._writing.locked()) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _failed(self, container_id: str, why: str) -> None:
        self._report.metrics.error("log")
        oplog.error("event.lost", key=why, id=container_id, error=why)
