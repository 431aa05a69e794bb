"""One container that a runtime asks about: from NRI's words to the decision and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hook import events
from hook.adapters.nri import ttrpc
from hook.adapters.nri.adjust import adjust, clean, near, still_wrong
from hook.adapters.nri.report import ADAPTER, Report
from hook.adapters.nri.resident import Resident
from hook.base.errors import describe
from hook.container.identity import APP_TYPES, Identity
from hook.container.model import Container, Facts
from hook.facts import gather
from hook.plan import Plan, plan
from hook.policy.match import Match, select
from hook.policy.model import AUDIT, IGNORE, MOUNTS, Policy

_NOT_THE_PODS = ("io.kubernetes.", "io.cri-containerd.")
"""Labels that kubelet and containerd put beside the pod's own."""

_TYPE = "io.kubernetes.container.type"
_IMAGE = {"containerd": "io.kubernetes.cri.image-name", "cri-o": "io.kubernetes.cri-o.ImageName"}
_RUNNING = (2, 3)
"""CONTAINER_PAUSED, CONTAINER_RUNNING."""


def identify(pod: Any, container: Any, engine: str) -> Identity:
    """Who the container is. Names and UID are the runtime's own record of what kubelet asked for.

    The image is what the runtime itself annotates last, over what a pod may have brought. The type is kubelet's
    annotation on the container; where a pod's own annotations travel into the spec it could be the pod's, so it is
    believed only if the pod has none of that name (NRI lists all annotations of a pod).
    """
    kind = container.annotations.get(_TYPE, "") if _TYPE not in pod.annotations else ""
    labels = pod.labels
    return Identity(
        engine,
        True,
        namespace=pod.namespace or None,
        pod=pod.name or None,
        uid=pod.uid or None,
        container=container.name or None,
        types=(kind,) if kind in APP_TYPES else APP_TYPES,
        image=container.annotations.get(_IMAGE.get(engine, ""), "") or None,
        labels={key: labels[key] for key in labels if not key.startswith(_NOT_THE_PODS)},
    )


class Reply(NamedTuple):
    """What a runtime is told about one container.

    `payload`: bytes of a CreateContainerResponse; `refusal`: why there is none, or "". `tell` logs and counts it, to be
    called once it has been sent: what nobody was told is not to stand in a log as done.
    """

    payload: bytes
    refusal: str
    tell: Callable[[], None]


class Decider:
    """Answers for one runtime. `engine`: its name; `removes_mounts`: whether its NRI can."""

    def __init__(self, resident: Resident, report: Report) -> None:
        self.resident = resident
        self.report = report
        self.engine = "containerd"
        self.removes_mounts = False

    def create(self, pod: Any, container: Any) -> Reply:
        """The decision about a container that is being created."""
        case = _Case(container.id)
        try:
            decided, what = self._decide(case, pod, container)
            adjustment, denials = adjust(decided, what, self.removes_mounts)
            decided.denials += denials
            refusal = decided.refusal()
            payload = b""
            if decided.edits and not refusal and not decided.audit_only():
                payload = ttrpc.serialize(adjustment.response())
        except Exception as error:  # whatever it is, the policy says what a container gets then
            return self._failed(case, describe(error))
        text = f"reassert: refused {case.who}: {refusal}" if refusal else ""
        return Reply(payload, text, lambda: self._tell(case, decided))

    def _decide(self, case: _Case, pod: Any, container: Any) -> tuple[Plan, Container]:
        case.policy = policy = self.resident.get()
        self.report.metrics.policy(policy, self.resident.loaded_at)
        case.who = who = identify(pod, container, self.engine)
        matches = select(policy, who)
        facts = gather(policy, who, matches)
        mounts = _mounts(container.mounts, matches, facts)
        notes = container.annotations
        annotations = {key: notes[key] for key in notes}
        devices, rules = _devices(container.linux) if facts.allocations else ([], [])  # only those are reserved
        what = Container(who, container.env[:], mounts, facts, annotations, devices, rules)
        return plan(policy, what, matches), what

    def _tell(self, case: _Case, decided: Plan) -> None:
        metrics = self.report.metrics
        refused = bool(decided.refusal())
        outcome = "refused" if refused else "adjusted" if decided.edits else "unchanged"
        if decided.audit_only() and not decided.is_empty():
            outcome = "audited"
        if case.is_probe():
            metrics.probe(outcome)
        else:
            metrics.container(outcome, case.clock.milliseconds() / 1000)
            for edit in decided.edits:
                metrics.edit(edit.rule, edit.kind)
            for reason in [*decided.denials, *decided.errors]:
                metrics.refusal(reason.rule)
        if not decided.is_empty() or decided.policy.warning:
            self.report.container(events.plan_event(case.event(), decided))

    def _failed(self, case: _Case, message: str, kind: str = "decision") -> Reply:
        """Nobody could decide: `failurePolicy` says what the container gets."""
        policy = case.policy or self.resident.last
        let_through = not policy.missing and (policy.failure_policy == IGNORE or policy.mode == AUDIT)

        def tell() -> None:
            self.report.metrics.error(kind)
            self.report.metrics.container("failed", case.clock.milliseconds() / 1000)
            self.report.container(events.error_event(case.event(), message, let_through))

        text = "" if let_through else f"reassert: refused {case.who or case.container_id or 'a container'}: {message}"
        return Reply(b"", text, tell)

    def too_late(self, container_id: str) -> Reply:
        """The answer for a request whose decision takes too long. Asks nothing of the node, which may hang."""
        return self._failed(_Case(container_id), "no decision in time for the runtime", "deadline")

    def unread(self, why: str) -> Reply:
        """The answer for a container of whom the runtime says more than is read."""
        return self._failed(_Case(""), why)

    def look_at_running(self, pods: list[Any], containers: list[Any]) -> int:
        """Report how running containers differ from what the policy wants; how many do. Changes nothing."""
        by_id = {pod.id: pod for pod in pods}
        drifted = 0
        for container in containers:
            if container.state not in _RUNNING or container.pod_sandbox_id not in by_id:
                continue
            case = _Case(container.id)
            try:
                decided, what = self._decide(case, by_id[container.pod_sandbox_id], container)
                decided.edits = still_wrong(decided, what)
            except Exception as error:  # one that cannot be read must not hide the others
                self.report.metrics.error("decision")
                self.report.container(events.error_event(case.event(), describe(error), True))
                continue
            if not decided.edits:
                continue
            drifted += 1
            for edit in decided.edits:
                self.report.metrics.drift(edit.rule, edit.kind)
            event = events.plan_event(case.event(), decided)
            event.update(event=events.DRIFTED, level="warning", applied=False)
            self.report.container(event)
        self.report.metrics.drifted(drifted)
        return drifted


class _Case:
    """What is known so far about one container, for its event."""

    def __init__(self, container_id: str) -> None:
        self.clock = events.Clock()
        self.container_id = container_id
        self.policy: Policy | None = None
        self.who: Identity | None = None

    def is_probe(self) -> bool:
        """See hook.events."""
        return events.is_probe(ADAPTER, self.container_id, self.who)

    def event(self) -> dict[str, Any]:
        return events.container_event(self.clock, ADAPTER, self.container_id, self.who, self.policy)


def _mounts(mounts: Any, matches: list[Match], facts: Facts) -> list[dict[str, object]]:
    """Those that a reserved mount could meet, in OCI's spelling."""
    rules = [match.rule for match in matches if match.applies]
    reserved = [mount.destination for rule in rules for mount in rule.mounts]
    if facts.allocations and any(MOUNTS in rule.allocations for rule in rules):
        reserved += [clean(path) for allocation in facts.allocations for _, path, _ in allocation.mounts]
    is_near = near(tuple(reserved))
    return [
        {"destination": mount.destination, "type": mount.type, "source": mount.source, "options": mount.options[:]}
        for mount in mounts[:]  # protobuf iterates over its own containers by index, in Python
        if is_near(mount.destination)
    ]


def _devices(linux: Any) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """linux.devices and linux.resources.devices in OCI's spelling."""
    devices: list[dict[str, object]] = [
        {"path": device.path, "type": device.type, "major": device.major, "minor": device.minor}
        for device in linux.devices
    ]
    rules: list[dict[str, object]] = []
    for rule in linux.resources.devices:
        found: dict[str, object] = {"allow": rule.allow, "type": rule.type or "a", "access": rule.access}
        for key in ("major", "minor"):
            if rule.HasField(key):
                found[key] = getattr(rule, key).value
        rules.append(found)
    return devices, rules


def removes_mounts(engine: str, version: str) -> bool:
    """Whether the runtime passes the removal of a mount on: containerd does from 2.0 on; of others it is not known."""
    major = version.lstrip("v").partition(".")[0]
    return engine == "containerd" and major.isdigit() and int(major) >= 2
