"""One container at one adapter: load, identify, select, gather, plan; act; then one event that says what was done.

Every adapter and `explain` use it, and none has its own copy of a step. Part of the start path: builtins only.
"""

import posix
import time

from hook.core.base.errors import CAUSED_BY_THE_CONTAINER, describe
from hook.core.base.system import is_shortage, read_file, timestamp
from hook.core.container.identity import Identity
from hook.core.events import (
    DENIED,
    EDITED,
    ENTRIES,
    ERROR,
    HELD,
    INEXACT,
    NODE_PATHS,
    REMOUNTABLE,
    SETTINGS,
    WOULD_DENY,
    is_probe,
)
from hook.core.facts import Container
from hook.core.facts.gather import gather
from hook.core.plan import ALL, Plan, plan
from hook.core.policy.model import AUDIT, IGNORE, Match, Policy, select
from hook.core.reserve import Edit, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from hook.core.audited import AuditedRules
    from hook.core.container.start import Start
    from hook.core.facts.cri import Ask

    T = TypeVar("T", bound=Start)

CONFIG, CONTAINER, NOWHERE = "config.json", "container", ""
"""Where an adapter verified the result: in config.json as the runtime reads it, in the container's own mount namespace,
or nowhere, because the adapter only asked another program for the edits."""


class Done:
    """The result of an adapter's attempt to carry out a plan.

    `verified`: where the adapter verified the result: CONFIG, CONTAINER or NOWHERE. `denials`: why the container must
    not start, as the adapter found while it acted. `edits`: the edits that the event names; None: all of the plan's.
    `handed_on`: the event is made later, by a hook that verifies the result or by the adapter itself (`Case.event`).
    `draft`: the event that an earlier adapter left for this one to complete. `remountable`: the read-only reserved
    mounts that the container can make writable again, each with the reason. `node_paths`: as `Plan.node_paths`, seen in
    the container's mounts.
    """

    remountable: "Sequence[str]" = ()
    node_paths: "Sequence[str]" = ()

    def __init__(
        self,
        verified: str = NOWHERE,
        denials: "Sequence[Reason]" = (),
        edits: "Sequence[Edit] | None" = None,
        handed_on: bool = False,
        draft: "dict[str, object] | None" = None,
    ) -> None:
        self.verified = verified
        self.denials = denials
        self.edits = edits
        self.handed_on = handed_on
        self.draft = draft


class Verdict:
    """The result for one container.

    `refusal`: one line for the engine, or "". `event`: the event for the log, or None. `plan`: None if no decision was
    reached. `reasons`: why Enforce mode would refuse the container. `unchanged`: the case, if there was nothing to do.
    """

    def __init__(
        self,
        refusal: str,
        event: "dict[str, object] | None",
        plan: "Plan | None" = None,
        reasons: "Sequence[Reason]" = (),
        unchanged: "Case | None" = None,
    ) -> None:
        self.refusal = refusal
        self.event = event
        self.plan = plan
        self.reasons = reasons
        self.unchanged = unchanged


class Case:
    """One container at one adapter. `load`: the function that returns the policy in force.

    `read`: reads a file of kubelet, up to a size limit. `start`: fields of the event, whether the start is warm or cold
    (docs/agent.md); none where the adapter is a process that stays. `error_path`: the file of an OSError without a
    path. `began`: nanoseconds of the wall clock and of the monotonic clock. `reads_node`: whether the decision is
    reading the policy or files of the node (`gather`); such a read may hang. `identity`: the container's identity, None
    until it is known. `audited_rules`: what the rules in mode Audit would do. `still_waits`: called between two steps,
    and may raise. `before_mounting`: called before a tmpfs is mounted on the node, and may raise. `status`: of a file
    of the node whose path the pod's author may have chosen; raises OSError.
    `in_sentry`: the runtime is gVisor's, which has no mount option `rro`: its `ro` counts for submounts too.
    `asks`: where the engine can be asked about a Spec's container: the directory of the store, and None or a function
    that asks in place of hook.core.facts.cri. None: no engine is asked. `inexact_claims`: as in Facts.
    """

    def __init__(
        self,
        adapter: str,
        container_id: str,
        load: "Callable[[], Policy]",
        read: "Callable[[str, int], bytes]" = read_file,
        start: "dict[str, str] | None" = None,
    ) -> None:
        self.adapter = adapter
        self.container_id = container_id
        self.load = load
        self.read = read
        self.start = start or {}
        self.still_waits: Callable[[], None] = lambda: None
        self.before_mounting: Callable[[], None] = lambda: None
        self.status: Callable[[str], posix.stat_result] = posix.stat
        self.asks: tuple[str, Ask | None] | None = None
        self.error_path = self.inexact_claims = ""
        self.began = time.time_ns(), time.monotonic_ns()
        self.in_sentry = False
        self.reads_node, self.decides_audited = False, True  # whether to decide `audited_rules` as well
        self.policy: Policy | None = None
        self.identity: Identity | None = None
        self.audited_rules: AuditedRules | None = None
        self.enforced: Plan | None = None  # the decision, while `audited_rules` is computed

    def decide(self, identity: Identity, target: "Start", kinds: "frozenset[str]" = ALL) -> Plan:
        """The plan for a container under the policy in force.

        Raises Undecided; Unacceptable for what a pod author can cause.
        """
        self.identity = identity
        self.reads_node = True
        self.policy = self.load()
        if identity.unproven:
            from hook.core.container.dockershim import prove  # only docker's containers in a pod's cgroup load it

            asks = any("podSelector" in rule.conditions for rule in self.policy.candidates(None))
            self.identity = identity = prove(identity, self.policy.kubelet_root, asks)
        if self.policy.asks and self.asks:
            from hook.core.facts.cri import learn  # few policies need it

            learn(self.policy, identity, target, self.container_id, *self.asks)
        matches = select(self.policy, identity)
        self.container = self.contain(self.policy, identity, target, matches)
        decided = plan(self.policy, self.container, matches, kinds)
        if self.decides_audited and any(match.is_audited for match in decided.matches):
            self.audited_rules = self._attempt(decided, target, kinds)
        return decided

    def _attempt(self, decided: Plan, target: "Start", kinds: "frozenset[str]") -> "AuditedRules":
        """What all rules would do, in addition to the decision. Never raises."""
        from hook.core.audited import attempt

        self.enforced, self.reads_node = decided, True
        try:
            who = self.container.identity
            return attempt(lambda matches: self.contain(decided.policy, who, target, matches), decided, kinds)
        finally:
            self.enforced = None

    def contain(self, policy: Policy, identity: Identity, start: "Start", matches: "list[Match]") -> Container:
        """The container with the facts of the node that the matching rules need."""
        facts = gather(policy, identity, matches, self.read, self.asks or ("", None), self.container_id)
        self.reads_node = False
        self.inexact_claims = facts.inexact_claims or self.inexact_claims
        if self.in_sentry:
            facts.directories = set()
        if facts.devices is not None:
            facts.devices.add_sources(start.mounts, self.status)  # the pod's author chose them, also one that hangs
        return Container(identity, start, facts)

    def run(
        self, read: "Callable[[], tuple[Identity, T]]", act: "Callable[[Plan, T], Done]", kinds: "frozenset[str]" = ALL
    ) -> Verdict:
        """Run the whole pipeline for one container. Raises only for a shortage in the agent (hook.core.decide).

        `read`: returns the container's identity and what it would start with. `act`: carries out the plan and verifies
        the result; not called for a container that the plan refuses.
        """
        try:
            identity, target = read()
            self.still_waits()
            decided = self.decide(identity, target, kinds)
            self.still_waits()
            refused = decided.refusal()
            volumes = [edit for edit in decided.mounts if edit.volume]
            if volumes and not refused and not decided.audit_only():
                from hook.core.linux.volumes import make  # few policies have one

                make(volumes, self.before_mounting, is_probe(self.adapter, self.container_id, self.identity))
            done = Done() if refused else act(decided, target)
        except Exception as error:  # an error of any type: `failed` applies the failure policy
            return self.failed(error)
        reasons = [*decided.reasons(), *done.denials]
        if reasons and not decided.audit_only():
            from hook.core.base.text import joined

            return Verdict(self.refused(joined(reasons)), self.event(decided, done), decided, reasons)
        event = None if done.handed_on else self.event(decided, done)
        return Verdict("", event, decided, reasons, None if event or done.handed_on else self)

    def event(self, decided: Plan, done: Done, is_draft: bool = False) -> "dict[str, object] | None":
        """The event for a decision and for what was done; None if there was nothing to do or to report."""
        made = decided.edits if done.edits is None else done.edits
        other = done.draft or done.denials or done.remountable or self.audited_rules or decided.policy.warning
        other = other or self.inexact_claims or decided.node_paths or done.node_paths
        if not (made or decided.denials or decided.errors or other):
            return None
        # A later adapter completes a draft, and knows the rest itself.
        draft: dict[str, object] = {"began": self.began[0], "adapter": self.adapter, **self.start}
        event = draft if is_draft else container_event(self)
        if self.inexact_claims:
            event["claims"] = self.inexact_claims
        plan_event(event, decided, done, made)
        if self.audited_rules or "tried" in (done.draft or ()):
            from hook.core.audited import tell

            tell(event, decided, self.audited_rules, done.draft, bool(made))
        return event

    def failed(self, error: Exception) -> Verdict:
        """The verdict when reassert could not decide or act. `failurePolicy` says whether the container starts.

        The exceptions are two kinds of errors, for which Enforce mode refuses the container.

        A pod, an image or a CLI user can cause one kind (CAUSED_BY_THE_CONTAINER). Other containers can cause the
        other kind, a shortage (`is_shortage`). In the agent this raises `error` for one: the agent then answers "start
        cold", and that process has descriptors of its own.
        """
        short = is_shortage(error)
        if short and self.start.get("start") == "warm":
            raise error
        text = describe(error)
        if isinstance(error, OSError) and self.error_path not in text:
            text = f"{self.error_path}: {text}"
        if self.policy is None:  # it failed before the policy was loaded
            self.policy = self.load()
        audit = self.policy.mode == AUDIT
        if isinstance(error, CAUSED_BY_THE_CONTAINER) and not short:
            name, key, starts = WOULD_DENY if audit else DENIED, "denials", audit
        else:
            ignored = self.policy.failure_policy == IGNORE and not short
            name, key, starts = WOULD_DENY if audit and not ignored else ERROR, "errors", audit or ignored
        event = container_event(self)
        event.update(event=name, level="warning" if starts else "error", applied=False)
        event[key] = [{"rule": "", "message": text}]
        return Verdict("" if starts else self.refused(text), event)

    def milliseconds(self) -> float:
        """The time since the adapter began with this container."""
        return round((time.monotonic_ns() - self.began[1]) / 1e6, 3)

    def refused(self, reasons: str) -> str:
        """The line for the engine."""
        from hook.core.base.errors import named

        return f"refused {named(str(self.identity or self.container_id or 'a container'), 1024)}: {reasons}"


def container_event(case: Case) -> "dict[str, object]":
    """The fields of every event about a container. The caller adds `event`, `level` and the outcome."""
    policy = case.policy
    SETTINGS[:] = policy.event_log if policy else ()
    event: dict[str, object] = {
        "timestamp": timestamp(case.began[0]),
        "adapter": case.adapter,
        "id": case.container_id,
        "container": case.identity.as_dict() if case.identity else {},
        "mode": policy.mode if policy else "",
        "policy": {"path": policy.path, "sha256": policy.fingerprint} if policy else {},
        "durationMs": case.milliseconds(),
    }
    if is_probe(case.adapter, case.container_id, case.identity):
        event["probe"] = True
    event.update(case.start)
    return event


def plan_event(
    event: "dict[str, Any]", plan: Plan, done: Done, edits: "Sequence[Edit | dict[str, object]]"
) -> "dict[str, Any]":
    """The event about a plan and what the adapter did about it. `edits`: those that the adapter made."""
    reasons = [*plan.reasons(), *done.denials]
    acts = done.draft if plan.audit_only() else not reasons
    if done.draft is not None:
        edits = _complete(done.draft, event, edits)
    paths = done.node_paths or plan.node_paths
    kind = HELD if plan.policy.warning else NODE_PATHS if paths else INEXACT if "claims" in event else HELD
    kind = ERROR if plan.errors else EDITED if edits else REMOUNTABLE if done.remountable else kind
    if reasons:
        kind = WOULD_DENY if plan.audit_only() else DENIED
    event["event"] = kind
    event["level"] = "error" if kind == DENIED else "info" if kind in (EDITED, INEXACT) else "warning"
    event["applied"] = bool(acts and done.verified)
    event["verified"] = done.verified if acts else ""
    if acts and edits and not done.verified:
        event["asked"] = True
    for key, items in (("edits", edits), ("denials", [*plan.denials, *done.denials]), ("errors", plan.errors)):
        event[key] = [item if isinstance(item, dict) else item.describe() for item in items[:ENTRIES]]
        if len(items) > ENTRIES:
            omitted = event.setdefault("omitted", {})  # a draft already has this member
            omitted["/" + key] = omitted.get("/" + key, 0) + len(items) - ENTRIES
    for edit in event["edits"]:
        edit["applied"] = event["applied"]
    if done.remountable:
        event["remountable"] = done.remountable[:ENTRIES]
    if paths:
        event["nodePaths"] = [*paths[:ENTRIES]]
    if plan.policy.warning:
        event["warning"] = plan.policy.warning
    return event


def _complete(draft: "dict[str, object]", event: "dict[str, object]", edits: "Sequence[Any]") -> "list[Any]":
    """Give an event what its draft has. Returns the edits of both, those of the draft first, as dictionaries."""
    earlier = draft.get("edits")
    drafted = [edit for edit in earlier if isinstance(edit, dict)] if isinstance(earlier, list) else []
    names = {(edit.get("kind"), edit.get("name")) for edit in drafted if "mode" not in edit}
    event.update((key, draft[key]) for key in ("adapter", "truncated", "omitted") if key in draft)
    if isinstance(began := draft.get("began"), int):
        event["timestamp"] = timestamp(began)
    if draft.get("start") == "cold":  # a container's start is warm if all of its calls were
        event.update((key, draft[key]) for key in ("start", "cold") if key in draft)
    return drafted + [edit for edit in edits if (edit.kind, edit.name) not in names]
