"""The decision about one container that a runtime asks about: reads NRI's request and makes the reply."""

from __future__ import annotations

import posix
import re
from collections import Counter
from typing import Any

from hook.core.base.errors import TooLarge, Unacceptable, Undecided
from hook.core.container.identity import APP_TYPES, CRIO, Identity, crio_image
from hook.core.decide import Adapter, Case
from hook.core.facts.cri import NOT_THE_PODS
from hook.core.linux.mountns import status_at_once
from hook.core.plan import ALL, Plan
from hook.core.policy.model import Policy
from hook.core.reserve import node_paths, unsafe_annotations
from hook.core.reserve.edits import Reason
from hook.core.verdict import NOWHERE, Verdict
from hook.nri import ttrpc
from hook.nri.adjust import adjust
from hook.nri.report import ADAPTER, Report
from hook.nri.request import VALIDATE, PendingEvents, Reply, Request
from hook.nri.requested import RequestedContainer
from hook.nri.validation import Merged, holds, left_reason
from hook.resident.policy import Resident

_IMAGE = "io.kubernetes.cri.image-name"
"""The image name that containerd records first for the image's id. containerd overwrites a value that a pod set."""


def identify(pod: Any, container: Any, engine: str, sends_cdi: bool = False) -> Identity:
    """The container's identity.

    Names and UID are the runtime's own record of what kubelet asked for. The image comes from the annotation that
    hook.core.container.identity trusts too. The type is unknown to a runtime: kubelet is asked for it
    (hook.core.facts.cri).

    `sends_cdi`: whether the runtime hands over CRI's CDI devices, which kubelet alone sets (SENDS_CDI).
    """
    notes = container.annotations
    labels = pod.labels
    identity = Identity(
        engine,
        True,
        namespace=pod.namespace or None,
        pod=pod.name or None,
        uid=pod.uid or None,
        container=container.name or None,
        types=APP_TYPES,
        image=crio_image(notes) if engine == CRIO else notes.get(_IMAGE) or None,
        labels={key: labels[key] for key in labels if not key.startswith(NOT_THE_PODS)},
    )
    if container.image.digest and identity.image:
        identity.digest = f"{_repository(identity.image)}@{container.image.digest}"
    if sends_cdi:
        identity.cdi = [device.name for device in container.CDI_devices]
    return identity


def _repository(image: str) -> str:
    """An image's name without tag and digest (distribution/reference)."""
    name = image.partition("@")[0]
    return name if "/" in name.rpartition(":")[2] else name.rpartition(":")[0] or name


class Question(Adapter):
    """A runtime's question about a container that is being created."""

    name = ADAPTER
    kinds = ALL - {node_paths.KIND}  # the hook behind the plugin sees what the container's mounts are
    learns = True

    def __init__(self, resident: Resident, is_gvisor: bool = False) -> None:
        self.store = resident.store
        self.is_gvisor = is_gvisor
        self.reads_node = False
        """Whether the question itself is being read with the help of files of the node, which may hang."""
        self._resident = resident

    def policy(self) -> Policy:
        """The policy in force."""
        return self._resident.get()

    def status(self, path: str) -> posix.stat_result:
        """See Adapter. A thread that waits for a pod's volume would read no more requests."""
        return status_at_once(path)

    def before_mounting(self) -> None:
        """Raises Undecided."""
        raise Undecided("an emptyDir with medium: Memory cannot be mounted by the NRI plugin; use the runtime wrapper")


class _Validation(Question):
    """A runtime's question about what all plugins ask for."""

    kinds = ALL
    decides_audited = False  # the event at the container's creation says so

    def __init__(self, resident: Resident, is_gvisor: bool, decided: Plan | None) -> None:
        """`decided`: at the container's creation. A policy that was changed since would refuse our own adjustment."""
        super().__init__(resident, is_gvisor)
        self._decided = decided

    def policy(self) -> Policy:
        """The policy by which the container was corrected."""
        return self._decided.policy if self._decided else super().policy()

    def merged(self, asked: Any) -> Merged:
        """The container as all plugins together ask for it."""
        self.reads_node = bool(asked.adjust.CDI_devices)
        merged = Merged(asked)
        self.reads_node = False
        return merged


class _Unread(Question):
    """A question that is answered without reading a file of the node."""

    def policy(self) -> Policy:
        """The last policy that was read."""
        return self._resident.last


class _Decided(Case):
    """A case whose plan is known, without what tried rules would do."""

    def __init__(self, case: Case, decided: Plan) -> None:
        super().__init__(case.adapter, case.container_id)
        self.began, self.policy, self.container = case.began, case.policy, case.container
        self._decided = decided

    def decide(self, identity: Identity, target: object) -> Plan:
        self.identity = identity
        return self._decided


class Decider:
    """Decides for one runtime."""

    def __init__(self, resident: Resident, report: Report) -> None:
        self.resident = resident
        self.report = report
        self.pending = PendingEvents(report)
        self.engine = "containerd"
        """The runtime's name."""
        self.removes_mounts = False
        """Whether the runtime's NRI can remove mounts."""
        self.sends_cdi = False
        """Whether the runtime hands over CRI's CDI devices."""
        self.gvisor: frozenset[str] = frozenset()
        """The handlers of the runtime that call gVisor's runsc, which does not know the mount option `rro`."""
        self.validates = False
        """Whether the runtime asks again about the adjustment of all plugins; the event about a container is then
        written after that question."""
        self.unwanted: Counter[str] = Counter()
        """How many connections in a row the runtime ended right after the plugin subscribed to it."""

    def tell(self, event: str, level: str, message: str, **more: object) -> None:
        """Write an event about the plugin itself."""
        self.report.plugin(event, level, message, self.resident.last.event_log, **more)

    def identify(self, pod: Any, container: Any) -> Identity:
        """The container's identity (`identify`)."""
        return identify(pod, container, self.engine, self.sends_cdi)

    def create(self, request: Request, pod: Any, container: Any) -> Reply:
        """The decision about a container that is being created."""
        question = Question(self.resident, pod.runtime_handler in self.gvisor)
        case = request.case = Case(question, container.id)
        reply = Reply(case)

        def read() -> tuple[Identity, RequestedContainer]:
            identity = self.identify(pod, container)
            case.is_about(identity=identity)
            return identity, RequestedContainer(pod, container)

        return reply.settle(case.run(read, lambda decided, _: self._adjusted(reply, decided)))

    def _adjusted(self, reply: Reply, decided: Plan) -> Verdict:
        """What can be done about a plan, and the bytes that ask the runtime for it. The event is made later."""
        denials: list[Reason] = []
        if not decided.reasons():  # only in Audit mode: Enforce mode would refuse the container
            case = reply.case
            adjustment, denials = adjust(decided, case.container, self.removes_mounts)
            denials += _of_the_sandbox(case, decided)
            if case.audited_rules and case.audited_rules.plan and case.audited_rules.container:
                _, audited = adjust(case.audited_rules.plan, case.audited_rules.container, self.removes_mounts)
                case.audited_rules.would_refuse(audited, denials)
            if decided.edits and not denials and not decided.audit_only():
                reply.payload = ttrpc.bounded(adjustment.payload())
        return Verdict(NOWHERE, denials, handed_on=True)

    def validate(self, request: Request, asked: Any) -> Reply:
        """The decision about what all plugins together ask for. It refuses what leaves the reserved state.

        `asked`: the runtime's question. Where the event at the container's creation says all, there is no second one.
        """
        first = self.pending.held(asked.container.id)
        before = first.verdict if first else None
        question = _Validation(self.resident, asked.pod.runtime_handler in self.gvisor, before.plan if before else None)
        case = request.case = Case(question, asked.container.id)
        reply = Reply(case)
        reply.is_repeated = True
        if before and before.plan is None:  # `failurePolicy` let it start undecided
            return reply
        known = {(edit.kind, edit.name) for edit in before.plan.edits} if before and before.plan else set()
        reasons = {str(each) for each in before.reasons} if before else set()

        def read() -> tuple[Identity, Merged]:
            identity = self.identify(asked.pod, asked.container)
            if first and first.case.identity:  # kubelet's answer counts for both questions
                identity.types = first.case.identity.types
            case.is_about(identity=identity)
            return identity, question.merged(asked)

        def act(decided: Plan, merged: Merged) -> Verdict:
            if merged.problem and any(match.applies for match in decided.matches):
                raise Undecided(merged.problem)
            wrong = [edit for edit in decided.edits if not holds(edit, case.container)]
            audit = decided.audit_only()  # then nothing was corrected, and the first event names it
            said = [edit for edit in wrong if not (audit and (edit.kind, edit.name) in known)]
            reply.is_repeated = not said and all(str(each) in reasons for each in decided.reasons())
            return Verdict(NOWHERE, [left_reason(edit, case.container, merged.owners) for edit in said], wrong)

        return reply.settle(case.run(read, act))

    def too_late(self, request: Request) -> Reply:
        """The reply to a request whose decision takes too long. It reads no file of the node: such a read may hang.

        If the decision was reading the policy or the node's files, the pod did not cause the delay, so `failurePolicy`
        decides. Any other delay was caused by the pod's author: Enforce mode refuses the container with any
        `failurePolicy`. If only what tried rules would do takes too long, the reply is made without that.
        """
        case = request.case
        decided = case.enforced if case else None
        if case and case.identity and decided:
            identity, container = case.identity, case.container
            reply = Reply(_Decided(case, decided))
            verdict = reply.case.run(lambda: (identity, container.start), lambda plan, _: self._adjusted(reply, plan))
            return reply.settle(verdict, is_repeated=request.method == VALIDATE)
        late = Case(_Unread(self.resident), request.container)
        why: Exception = Unacceptable("no decision in time for the runtime")
        if case:
            late.is_about(identity=case.identity)
            if case.reads_node or (isinstance(case.adapter, Question) and case.adapter.reads_node):
                why = Undecided("no decision in time for the runtime: the node's files or the policy take too long")
        return Reply(late, "deadline").settle(late.failed(why), is_repeated=request.method == VALIDATE)

    def unread(self, why: str) -> Reply:
        """The reply for a container whose request is too large to be read; the pod's author caused that size."""
        case = Case(_Unread(self.resident), "")
        return Reply(case).settle(case.failed(TooLarge(why)))


def _of_the_sandbox(case: Case, decided: Plan) -> list[Reason]:
    """Why annotations of a pod refuse its container in gVisor, which takes the sandbox's. NRI asks about no sandbox."""
    dropped = Plan(decided.policy)
    if case.adapter.is_gvisor and any(match.applies for match in decided.matches):
        annotations = case.container.start.pod_annotations or {}
        unsafe_annotations.drop((unsafe_annotations.OF_SANDBOX,), annotations, dropped)
    return [
        Reason("", edit.kind, f"{edit.conflict()} on the pod, where NRI cannot remove it") for edit in dropped.edits
    ]


REMOVES_MOUNTS = {"containerd": (2, 0)}
"""The engines, by `version_at_least`, that remove mounts at a plugin's request. No other is known to."""

SENDS_CDI = {"containerd": (2, 3)}
"""Those that hand over the CDI devices of CRI, with NRI 0.10 or later."""

VALIDATES = {"containerd": (2, 2), "cri-o": (1, 34)}
"""Those that ask plugins to validate: they have NRI 0.10."""


def version_at_least(engine: str, version: str, wanted: dict[str, tuple[int, int]]) -> bool:
    """Whether a runtime has at least the version (major, minor) that is wanted of its engine."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and engine in wanted and (int(found[1]), int(found[2])) >= wanted[engine]
