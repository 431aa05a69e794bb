"""The decision about one container that a runtime asks about: reads NRI's request and makes the reply."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hook.core.base.errors import TooLarge, Unacceptable, Undecided
from hook.core.container.identity import APP_TYPES, CRIO, Identity, crio_image
from hook.core.decide import NOWHERE, Case, Done
from hook.core.facts.cri import NOT_THE_PODS
from hook.core.facts.cri import TYPE as _TYPE
from hook.core.linux import volumes
from hook.core.linux.mountns import status_at_once
from hook.core.plan import ALL, NODE_PATHS, Plan
from hook.core.policy.resident import Resident
from hook.core.reserve import STEERING, Outcome, Reason, Reserved
from hook.core.reserve.annotations import want_unsteered
from hook.nri import ttrpc
from hook.nri.adjust import adjust
from hook.nri.report import ADAPTER, Report
from hook.nri.request import VALIDATE, PendingEvents, Reply, Request
from hook.nri.requested import RequestedContainer
from hook.nri.validation import Merged, holds, left_reason

_IMAGE = "io.kubernetes.cri.image-name"
"""The image name that containerd records first for the image's id. containerd overwrites a value that a pod set."""
LOADED = volumes
"""Loaded before the first request."""


def identify(pod: Any, container: Any, engine: str, sends_cdi: bool = False) -> Identity:
    """The container's identity.

    Names and UID are the runtime's own record of what kubelet asked for. The image comes from the annotation that
    hook.core.container.identity trusts too. The type is kubelet's annotation on the container. Some engines copy a
    pod's own annotations into the spec, so the type is trusted only if the pod has no annotation of that name (NRI
    lists all annotations of a pod).

    `sends_cdi`: whether the runtime hands over CRI's CDI devices, which kubelet alone sets (SENDS_CDI).
    """
    notes = container.annotations
    kind = notes.get(_TYPE, "") if _TYPE not in pod.annotations else ""
    labels = pod.labels
    identity = Identity(
        engine,
        True,
        namespace=pod.namespace or None,
        pod=pod.name or None,
        uid=pod.uid or None,
        container=container.name or None,
        types=(kind,) if kind in APP_TYPES else APP_TYPES,
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


class _Decided(Case):
    """A case whose plan is known, without what tried rules would do."""

    def __init__(self, case: Case, decided: Plan) -> None:
        super().__init__(case.adapter, case.container_id, case.load)
        self.began, self.policy, self.container = case.began, case.policy, case.container
        self.before_mounting = case.before_mounting
        self._decided = decided

    def decide(self, identity: Identity, target: object, kinds: frozenset[str] = ALL) -> Plan:
        self.identity = identity
        return self._decided


class Decider:
    """Decides for one runtime. `engine`: the runtime's name.

    `removes_mounts`: whether its NRI can remove mounts. `sends_cdi`: whether it hands over CRI's CDI devices. `gvisor`:
    its handlers that call gVisor's runsc, which does not know the mount option `rro`. `validates`: whether the runtime
    asks again about the adjustment of all plugins; the event about a container is then written after that question.
    `unwanted`: how many connections in a row a runtime ended right after the plugin subscribed to it.
    """

    def __init__(self, resident: Resident, report: Report) -> None:
        self.resident = resident
        self.report = report
        self.pending = PendingEvents(report)
        self.engine = "containerd"
        self.removes_mounts = False
        self.sends_cdi = False
        self.gvisor: frozenset[str] = frozenset()
        self.validates = False
        self.unwanted: Counter[str] = Counter()

    def identify(self, pod: Any, container: Any) -> Identity:
        """The container's identity (`identify`)."""
        return identify(pod, container, self.engine, self.sends_cdi)

    def create(self, request: Request, pod: Any, container: Any) -> Reply:
        """The decision about a container that is being created."""
        case = request.case = self._case(container.id, pod)
        reply = Reply(case)

        def read() -> tuple[Identity, RequestedContainer]:
            case.identity = self.identify(pod, container)
            return case.identity, RequestedContainer(pod, container)

        kinds = ALL - {NODE_PATHS}  # the hook behind the plugin sees what the container's mounts are
        return reply.settle(case.run(read, lambda decided, _: self._adjusted(reply, decided), kinds))

    def _adjusted(self, reply: Reply, decided: Plan) -> Done:
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
        reply.done = Done(NOWHERE, denials, handed_on=True)
        return reply.done

    def _case(self, container_id: str, pod: Any) -> Case:
        case = Case(ADAPTER, container_id, self.resident.get)
        case.in_sentry = pod.runtime_handler in self.gvisor
        case.before_mounting = _mounts_nothing
        case.status = status_at_once  # a thread that waits for a pod's volume would read no more requests
        return case

    def validate(self, request: Request, asked: Any) -> Reply:
        """The decision about what all plugins together ask for. It refuses what leaves the reserved state.

        `asked`: the runtime's question. Where the event at the container's creation says all, there is no second one.
        """
        case = request.case = self._case(asked.container.id, asked.pod)
        case.decides_audited = False  # the first event says so
        reply, first = Reply(case), self.pending.held(asked.container.id)
        reply.is_repeated = True
        before = first.verdict if first else None
        if before and before.plan is None:  # `failurePolicy` let it start undecided
            return reply
        if before and before.plan:  # a policy that was changed since would refuse our own adjustment
            in_force = before.plan.policy
            case.load = lambda: in_force
        known = {(edit.kind, edit.name) for edit in before.plan.edits} if before and before.plan else set()
        reasons = {str(each) for each in before.reasons} if before else set()

        def read() -> tuple[Identity, Merged]:
            case.identity = self.identify(asked.pod, asked.container)
            case.reads_node = bool(asked.adjust.CDI_devices)
            merged = Merged(asked)
            case.reads_node = False
            return case.identity, merged

        def act(decided: Plan, merged: Merged) -> Done:
            if merged.problem and any(match.applies for match in decided.matches):
                raise Undecided(merged.problem)
            wrong = [edit for edit in decided.edits if not holds(edit, case.container)]
            audit = decided.audit_only()  # then nothing was corrected, and the first event names it
            said = [edit for edit in wrong if not (audit and (edit.kind, edit.name) in known)]
            reply.is_repeated = not said and all(str(each) in reasons for each in decided.reasons())
            return Done(NOWHERE, [left_reason(edit, case.container, merged.owners) for edit in said], wrong)

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
        late = Case(ADAPTER, request.container, lambda: self.resident.last)
        why: Exception = Unacceptable("no decision in time for the runtime")
        if case:
            late.identity = case.identity
            if case.reads_node:
                why = Undecided("no decision in time for the runtime: the node's files or the policy take too long")
        return Reply(late, "deadline").settle(late.failed(why), is_repeated=request.method == VALIDATE)

    def unread(self, why: str) -> Reply:
        """The reply for a container whose request is too large to be read; the pod's author caused that size."""
        case = Case(ADAPTER, "", lambda: self.resident.last)
        return Reply(case).settle(case.failed(TooLarge(why)))


def _of_the_sandbox(case: Case, decided: Plan) -> list[Reason]:
    """Why annotations of a pod refuse its container in gVisor, which takes the sandbox's. NRI asks about no sandbox."""
    outcome = Outcome(Reserved({}, []))
    if case.in_sentry and any(match.applies for match in decided.matches):
        annotations = case.container.start.pod_annotations or {}
        want_unsteered(STEERING[-1], decided.policy.allowed_annotations, dict(annotations), outcome)
    return [
        Reason("", edit.kind, f"{edit.conflict()} on the pod, where NRI cannot remove it") for edit in outcome.edits
    ]


def _mounts_nothing() -> None:
    raise Undecided("an emptyDir with medium: Memory cannot be mounted by the NRI plugin; use the runtime wrapper")


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
