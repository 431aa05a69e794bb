"""The decision about one container that a runtime asks about: reads NRI's request and makes the reply."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hook.core import events
from hook.core.base.errors import TooLarge, Unacceptable, Undecided
from hook.core.container.identity import APP_TYPES, CRIO, Identity, crio_image
from hook.core.decide import NOWHERE, Case, Done, Verdict
from hook.core.metrics import ASKED, AUDITED, REFUSED
from hook.core.plan import ALL, Plan
from hook.core.policy.model import Policy
from hook.core.policy.resident import Resident
from hook.core.reserve import Edit
from hook.nri import ttrpc
from hook.nri.adjust import adjust, still_wrong
from hook.nri.asked import Asked
from hook.nri.pending import PendingEvents
from hook.nri.report import ADAPTER, ADJUSTMENT, DRIFTED, Report

_NOT_THE_PODS = ("io.kubernetes.", "io.cri-containerd.")
"""Prefixes of labels that kubelet and containerd add to the pod's own."""

_TYPE = "io.kubernetes.container.type"
_IMAGE = "io.kubernetes.cri.image-name"
"""The image name that containerd records first for the image's id. containerd overwrites a value that a pod set."""
_RUNNING = (2, 3)
"""CONTAINER_PAUSED, CONTAINER_RUNNING."""


def identify(pod: Any, container: Any, engine: str, sends_cdi: bool = False) -> Identity:
    """The container's identity.

    Names and UID are the runtime's own record of what kubelet asked for. The image comes from the annotation that
    hook.core.container.identity trusts too. The type is kubelet's annotation on the container. Some engines copy a
    pod's own annotations into the spec, so the type is trusted only if the pod has no annotation of that name (NRI
    lists all annotations of a pod).

    `sends_cdi`: whether the runtime hands over CRI's CDI devices, which kubelet alone sets (`sends_cdi_devices`).
    """
    notes = container.annotations
    kind = notes.get(_TYPE, "") if _TYPE not in pod.annotations else ""
    labels = pod.labels
    who = Identity(
        engine,
        True,
        namespace=pod.namespace or None,
        pod=pod.name or None,
        uid=pod.uid or None,
        container=container.name or None,
        types=(kind,) if kind in APP_TYPES else APP_TYPES,
        image=crio_image(notes) if engine == CRIO else notes.get(_IMAGE) or None,
        labels={key: labels[key] for key in labels if not key.startswith(_NOT_THE_PODS)},
    )
    if sends_cdi:
        who.cdi = [device.name for device in container.CDI_devices]
    return who


class _Decided(Case):
    """A case whose plan is known, without what tried rules would do."""

    def __init__(self, case: Case, decided: Plan) -> None:
        super().__init__(case.adapter, case.container_id, case.load)
        self.began, self.policy, self.container = case.began, case.policy, case.container
        self._decided = decided

    def decide(self, who: Identity, target: object, kinds: frozenset[str] = ALL) -> Plan:
        self.who = who
        return self._decided


class Reply(NamedTuple):
    """The reply to the runtime about one container.

    `payload`: bytes of a CreateContainerResponse. `refusal`: why the container is refused, or "". `tell`: writes the
    event and counts the container; with `checked`, after `validate` found nothing wrong. `verdict`: what was decided.
    `event`: makes the event, once. Both are called only after the reply was sent: the runtime does not wait for them,
    and the log never says that an edit was made that the runtime was not asked for.
    """

    payload: bytes
    refusal: str
    tell: Callable[..., None]
    verdict: Verdict | None = None
    event: Callable[[], object] = lambda: None


Comparison = Callable[[str, Callable[[Any], Plan]], "set[tuple[str, str]] | None"]
"""Kinds and names of what a running container really has wrong, None where that cannot be looked at. Its arguments: the
container's id, and the plan for what the container really has (a Start)."""


class Decider:
    """Decides for one runtime. `engine`: the runtime's name.

    `removes_mounts`: whether its NRI can remove mounts. `sends_cdi`: whether it hands over CRI's CDI devices.
    """

    def __init__(self, resident: Resident, report: Report) -> None:
        self.resident = resident
        self.report = report
        self.pending = PendingEvents(report)
        self.engine = "containerd"
        self.removes_mounts = False
        self.sends_cdi = False
        self.compare: Comparison = lambda *_: None
        self._deciding: dict[str, Case] = {}
        self._shown: Policy | None = None

    def identify(self, pod: Any, container: Any) -> Identity:
        """The container's identity (`identify`)."""
        return identify(pod, container, self.engine, self.sends_cdi)

    def create(self, pod: Any, container: Any) -> Reply:
        """The decision about a container that is being created."""
        case = self._case(container.id)
        payload, done = b"", None

        def read() -> tuple[Identity, Asked]:
            case.who = self.identify(pod, container)
            return case.who, Asked(pod, container)

        def act(decided: Plan, asked: Asked) -> Done:
            nonlocal payload, done
            done, payload = self._adjusted(case, decided)
            return done

        verdict = self._settle(case, read, act)
        return self._reply(case, verdict, payload, done=done)

    def _adjusted(self, case: Case, decided: Plan) -> tuple[Done, bytes]:
        """What can be done about a plan, and the bytes that ask the runtime for it. The event is made later."""
        if decided.reasons():  # only in Audit mode: Enforce mode would refuse the container
            return Done(NOWHERE, handed_on=True), b""
        adjustment, denials = adjust(decided, case.container, self.removes_mounts)
        if case.trial and case.trial.plan and case.trial.container:
            _, tried = adjust(case.trial.plan, case.trial.container, self.removes_mounts)
            case.trial.would_refuse(tried, denials)
        asks = decided.edits and not denials and not decided.audit_only()
        return Done(NOWHERE, denials, handed_on=True), ttrpc.bounded(adjustment.payload()) if asks else b""

    def _settle(
        self, case: Case, read: Callable[[], tuple[Identity, Asked]], act: Callable[[Plan, Any], Done]
    ) -> Verdict:
        self._deciding[case.container_id] = case
        try:
            return case.run(read, act)
        finally:
            if self._deciding.get(case.container_id) is case:
                del self._deciding[case.container_id]

    def _case(self, container_id: str) -> Case:
        return Case(ADAPTER, container_id, self._policy)

    def _policy(self) -> Policy:
        policy = self.resident.get()
        if policy is not self._shown:
            self._shown = policy
            self.report.metrics.policy(policy, self.resident.loaded_at)
        return policy

    def _reply(
        self, case: Case, verdict: Verdict, payload: bytes = b"", failure: str = "decision", done: Done | None = None
    ) -> Reply:
        """The reply for a verdict. `done`: what was done, if the event about it is still to be made."""
        text = f"reassert: {verdict.refusal}" if verdict.refusal else ""
        took = case.milliseconds()
        pending = None if verdict.event else done

        def event() -> dict[str, object] | None:
            nonlocal pending
            if pending and verdict.plan:
                verdict.event, pending = case.event(verdict.plan, pending), None
                if verdict.event:
                    verdict.event["durationMs"] = took
            return verdict.event

        def tell(checked: bool = False) -> None:
            made = event()
            if checked and made and made.get("asked"):
                made["verified"] = ADJUSTMENT
            self._tell(case, verdict, failure, took / 1000)

        return Reply(b"" if text else payload, text, tell, verdict, event)

    def _tell(self, case: Case, verdict: Verdict, failure: str, took: float) -> None:
        metrics, decided = self.report.metrics, verdict.plan
        if decided is None:
            metrics.error(failure)
            outcome = "failed"
        elif (decided.audit_only() and not decided.is_empty()) or (case.trial and decided.is_empty()):
            outcome = "audited"
        else:
            outcome = "refused" if verdict.refusal else "adjusted" if decided.edits else "unchanged"
        event = verdict.event
        if event.get("probe") if event else events.is_probe(ADAPTER, case.container_id, case.who):
            metrics.probe(outcome)
        else:
            metrics.container(outcome, took)
            tried = case.trial if decided else None
            result = REFUSED if verdict.refusal else AUDITED if decided and decided.audit_only() else ASKED
            for edit in decided.edits if decided else ():
                metrics.edit(edit.rule, edit.kind, result)
            for reason in verdict.reasons:
                metrics.refusal(reason.rule, result)
            for edit in tried.edits if tried else ():
                metrics.edit(edit.rule, edit.kind, AUDITED)
            for reason in tried.denials if tried else ():
                metrics.refusal(reason.rule, AUDITED)
        if verdict.event:
            self.report.container(verdict.event)

    def too_late(self, container_id: str) -> Reply:
        """The reply to a request whose decision takes too long. It reads no file of the node: such a read may hang.

        If the decision was reading the policy or the node's files, the pod did not cause the delay, so `failurePolicy`
        decides. Any other delay was caused by the pod's author: Enforce mode refuses the container with any
        `failurePolicy`. If only what tried rules would do takes too long, the reply is made without that.
        """
        late = Case(ADAPTER, container_id, lambda: self.resident.last)
        case = self._deciding.get(container_id)
        decided = case.trying if case else None
        if case and case.who and decided:
            return self._untried(_Decided(case, decided), case.who)
        why: Exception = Unacceptable("no decision in time for the runtime")
        if case:
            late.who = case.who
            if case.reads_node:
                why = Undecided("no decision in time for the runtime: the node's files or the policy take too long")
        return self._reply(late, late.failed(why), failure="deadline")

    def _untried(self, case: _Decided, who: Identity) -> Reply:
        payload, done = b"", None

        def act(decided: Plan, _: object) -> Done:
            nonlocal payload, done
            done, payload = self._adjusted(case, decided)
            return done

        verdict = case.run(lambda: (who, case.container.start), act)
        return self._reply(case, verdict, payload, done=done)

    def unread(self, why: str) -> Reply:
        """The reply for a container whose request is too large to be read; the pod's author caused that size."""
        case = Case(ADAPTER, "", lambda: self.resident.last)
        return self._reply(case, case.failed(TooLarge(why)))

    def look_at_running(self, pods: list[Any], containers: list[Any]) -> int:
        """Report how running containers differ from the policy, and return how many do. Changes nothing."""
        by_id = {pod.id: pod for pod in pods}
        drifted = 0
        for container in containers:
            if container.state not in _RUNNING or container.pod_sandbox_id not in by_id:
                continue
            case = self._case(container.id)
            try:
                who = self.identify(by_id[container.pod_sandbox_id], container)
                asked = Asked(by_id[container.pod_sandbox_id], container)
                decided = case.decide(who, asked)
                wrong = still_wrong(decided, case.container)
                wrong = self._really(wrong, case, who, asked) if wrong else wrong
                event = case.event(decided, Done(NOWHERE, edits=wrong)) or {}
            except Exception as error:  # one unreadable container must not hide the others
                self.report.metrics.error("decision")
                self.report.container(case.failed(error).event or {})
                continue
            if not wrong:
                continue
            drifted += 1
            for edit in wrong:
                self.report.metrics.drift(edit.rule, edit.kind)
            event.update(event=DRIFTED, level="warning", applied=False)
            self.report.container(event)
        self.report.metrics.drifted(drifted)
        return drifted

    def _really(self, wrong: list[Edit], case: Case, who: Identity, asked: Asked) -> list[Edit]:
        """Those edits that the running container needs in fact: the wrapper may have made some after the record.

        All of them if this process cannot look at the container.
        """

        def decide(actual: Any) -> Plan:
            actual.pod_annotations = asked.pod_annotations
            return case.decide(who, actual)

        found = self.compare(case.container_id, decide)
        return wrong if found is None else [edit for edit in wrong if (edit.kind, edit.name) in found]


def removes_mounts(engine: str, version: str) -> bool:
    """Whether the runtime removes mounts at a plugin's request. containerd does from 2.0 on; no other is known to."""
    return version_at_least(engine, version, {"containerd": (2, 0)})


def sends_cdi_devices(engine: str, version: str) -> bool:
    """Whether the runtime hands over the CDI devices of CRI: containerd from 2.3 on, with NRI 0.10 or later."""
    return version_at_least(engine, version, {"containerd": (2, 3)})


def version_at_least(engine: str, version: str, wanted: dict[str, tuple[int, int]]) -> bool:
    """Whether a runtime has at least the version (major, minor) that is wanted of its engine."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and engine in wanted and (int(found[1]), int(found[2])) >= wanted[engine]
