"""One container at one adapter: identify, select, gather, plan; act; then one event that says what was done.

Every adapter and `explain` use it, and none has its own copy of a step.
"""

from __future__ import annotations

import posix
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hook.core import audited, report
from hook.core.audited import AuditedRules
from hook.core.base.errors import CAUSED_BY_THE_CONTAINER, describe, named
from hook.core.base.system import is_shortage, read_file
from hook.core.base.text import WHERE_TO_LOOK, joined
from hook.core.container import dockershim
from hook.core.container.identity import Identity
from hook.core.container.oci import Mount
from hook.core.container.start import Start
from hook.core.events import is_probe
from hook.core.facts import Container, Facts, cri, mount_points
from hook.core.facts.gather import gather
from hook.core.linux import volumes
from hook.core.plan import ALL, Plan, plan
from hook.core.policy.model import AUDIT, IGNORE, Match, Policy, Rule, select
from hook.core.reserve.edits import Reason
from hook.core.verdict import Verdict

T = TypeVar("T", bound=Start)


class Adapter:
    """What an adapter of reassert gives to decisions about containers: the policy, and how it reads, asks and waits.

    The defaults are those of a process of one container that asks no engine. Subclasses: hook.entry.caller.Caller (the
    runtime wrapper, the hook, and the agent for both), hook.nri.creation.Question, hook.ops.adapter.Command.
    """

    name = ""
    """The adapter, in events."""
    kinds = ALL
    """The kinds that the adapter enforces (hook.core.plan.STEPS)."""
    started: Mapping[str, str] = {}
    """Fields of the event, whether the start is warm or cold (internals/agent.md); none for a process that stays."""
    store = ""
    """The directory of the store, which has the key of the hashes in events; "" for none."""
    sockets = ""
    """The directory of the store, which names the engines' sockets (hook.core.facts.cri); "": no engine is asked."""
    learns = False
    """Whether the engine and kubelet are asked for what the policy needs of them (`Policy.asks`)."""
    is_gvisor = False
    """Whether the runtime is gVisor's, which has no mount option `rro`: its `ro` counts for submounts too."""
    decides_audited = True
    """Whether what rules in mode Audit would do is decided as well."""
    file = ""
    """The file that is read or written: that of an OSError without a path."""

    def policy(self) -> Policy:
        """The policy in force. Raises Undecided."""
        raise NotImplementedError

    def read(self, path: str, limit: int) -> bytes:
        """A record of kubelet, such as its device checkpoint. Raises Undecided, OSError."""
        return read_file(path, limit)

    def status(self, path: str) -> posix.stat_result:
        """Of a file of the node whose path the pod's author may have chosen. Raises OSError."""
        return posix.stat(path)

    def ask(self, directory: str, method: str, asked_id: str, identity: Identity) -> dict[str, str] | None:
        """An answer of the engine or of kubelet (hook.core.facts.cri.asked); None without one in time."""
        return cri.ask_in_time(directory, method, asked_id, identity)

    def still_waits(self) -> None:
        """Called between two steps and in long loops. May raise: the answer is of no use any more."""

    def before_mounting(self) -> None:
        """Called before a tmpfs is mounted on the node. May raise."""

    def facts(self, policy: Policy, identity: Identity, matches: list[Match], container_id: str) -> Facts:
        """What the node has of what the matching rules need. Raises OSError, Unacceptable."""
        return gather(self, policy, identity, matches, container_id=container_id)

    def add_mounted(self, facts: Facts, rules: list[Rule], mounts: list[Mount]) -> None:
        """Add to the facts what a container's mounts show of the node, as far as the rules need it. Raises OSError."""
        reserved = [mount for rule in rules for mount in rule.mounts]
        paths = {mount.destination for mount in reserved}
        if True in [bool(mount.allow_below) or len(mount.around & paths) > 1 for mount in reserved]:
            mount_points.add_without_place(facts, rules, mounts)
        if facts.devices is not None:
            facts.devices.add_sources(mounts, self.status)  # the pod's author chose them, also one that hangs


class Case:
    """One container at one adapter. Nothing outside sets an attribute of it."""

    container: Container
    """The container with the node's facts, once it was decided about."""

    def __init__(self, adapter: Adapter, container_id: str) -> None:
        """`container_id`: "" if it is known later (`is_about`)."""
        self.adapter = adapter
        self.container_id = container_id
        self.began = time.time_ns(), time.monotonic_ns()
        """Nanoseconds of the wall clock and of the monotonic clock."""
        self.policy: Policy | None = None
        """The policy in force, None until it is read."""
        self.identity: Identity | None = None
        """The container's identity, None until it is known."""
        self.inexact_claims = ""
        """As in Facts."""
        self.audited_rules: AuditedRules | None = None
        """What the rules in mode Audit would do, None if there are none."""
        self.reads_node = False
        """Whether the decision is reading the policy or files of the node, which may hang."""
        self._took = 0.0
        self.enforced: Plan | None = None
        """The decision, while `audited_rules` is computed."""

    def is_about(self, container_id: str = "", identity: Identity | None = None) -> None:
        """Tell what the adapter has found out: an event about a decision that fails names it."""
        self.container_id = container_id or self.container_id
        self.identity = identity or self.identity

    def decide(self, identity: Identity, target: Start) -> Plan:
        """The plan for a container under the policy in force.

        Raises Undecided; Unacceptable for what a pod author can cause.
        """
        self.identity = identity
        self.reads_node = True
        self.policy = self.adapter.policy()
        if identity.unproven:
            asks = any("podSelector" in rule.conditions for rule in self.policy.candidates(None))
            self.identity = identity = dockershim.prove(identity, self.policy.kubelet_root, asks=asks)
        if self.policy.asks and self.adapter.learns:
            asked = self.adapter, self.policy, identity, target
            matches = cri.learn(*asked, container_id=self.container_id, is_probe=self.is_probe)
        else:
            matches = select(self.policy, identity)
        self.container = self._contain(self.policy, identity, target, matches)
        decided = plan(self.policy, self.container, matches, self.adapter.kinds)
        if self.adapter.decides_audited and any(match.is_audited for match in decided.matches):
            self.audited_rules = self._attempt(decided, target)
        self.would_refuse(decided.audited)
        return decided

    def would_refuse(self, reasons: Sequence[Reason]) -> None:
        """Keep what is on trial besides rules: `nodePaths`. For the event it is as what tried rules would do."""
        if reasons and self.adapter.decides_audited:
            self.audited_rules = self.audited_rules or audited.AuditedRules()
            self.audited_rules.would_refuse(reasons, self.audited_rules.denials)

    def _attempt(self, decided: Plan, target: Start) -> AuditedRules:
        """What all rules would do, in addition to the decision. Never raises."""
        self.enforced, self.reads_node = decided, True
        try:
            policy, identity, kinds = decided.policy, self.container.identity, self.adapter.kinds
            return audited.attempt(lambda matches: self._contain(policy, identity, target, matches), decided, kinds)
        finally:
            self.enforced = None

    def _contain(self, policy: Policy, identity: Identity, start: Start, matches: list[Match]) -> Container:
        """The container with the facts of the node that the matching rules need."""
        facts = self.adapter.facts(policy, identity, matches, self.container_id)
        self.reads_node = False
        self.inexact_claims = facts.inexact_claims or self.inexact_claims
        if self.adapter.is_gvisor:
            facts.directories = set()
        self.adapter.add_mounted(facts, [match.rule for match in matches if match.applies], start.mounts)
        return Container(identity, start, facts)

    def run(self, read: Callable[[], tuple[Identity, T]], act: Callable[[Plan, T], Verdict]) -> Verdict:
        """Run the whole pipeline for one container. Raises only for a shortage in the agent (`failed`).

        `read`: returns the container's identity and what it would start with. `act`: carries out the plan and verifies
        the result; not called for a container that the plan refuses.
        """
        try:
            identity, target = read()
            self.adapter.still_waits()
            decided = self.decide(identity, target)
            self.adapter.still_waits()
            refused = decided.refusal()
            tmpfs = [edit for edit in decided.mounts if edit.volume]
            if tmpfs and not refused and not decided.audit_only():
                volumes.make(tmpfs, self.adapter.before_mounting, self.is_probe())
            verdict = Verdict() if refused else act(decided, target)
        except Exception as error:  # an error of any type: `failed` applies the failure policy
            return self.failed(error)
        verdict.plan, verdict.reasons = decided, [*decided.reasons(), *verdict.denials]
        if verdict.reasons and not decided.audit_only():
            verdict.refusal = self.refused(joined(verdict.reasons))
        if verdict.refusal or not verdict.handed_on:
            verdict.event = self.event(decided, verdict)
        return verdict

    def event(self, decided: Plan, done: Verdict) -> report.Event | None:
        """The event for a decision and for what was done; None if there was nothing to do or to report."""
        return report.of_plan(self, decided, done)

    def draft(self, decided: Plan, done: Verdict) -> report.Event | None:
        """The same, for a later adapter to complete."""
        return report.draft_of_plan(self, decided, done)

    def failed(self, error: Exception) -> Verdict:
        """The verdict when reassert could not decide or act. `failurePolicy` says whether the container starts.

        The exceptions are two kinds of errors, for which Enforce mode refuses the container.

        A pod, an image or a CLI user can cause one kind (CAUSED_BY_THE_CONTAINER). Other containers can cause the
        other kind, a shortage (`is_shortage`). In the agent this raises `error` for one: the agent then answers "start
        cold", and that process has descriptors of its own.
        """
        short = is_shortage(error)
        if short and self.adapter.started.get("start") == "warm":
            raise error
        text = describe(error)
        if isinstance(error, OSError) and self.adapter.file not in text:
            text = f"{self.adapter.file}: {text}"
        if self.policy is None:  # it failed before the policy was loaded
            self.policy = self.adapter.policy()
        refuses = isinstance(error, CAUSED_BY_THE_CONTAINER) and not short
        ignored = self.policy.failure_policy == IGNORE and not refuses and not short
        starts = ignored or self.policy.mode == AUDIT
        verdict = Verdict()
        verdict.event = report.of_failure(self, text, refuses=refuses, ignored=ignored, starts=starts)
        verdict.refusal = "" if starts else self.refused(text)
        return verdict

    def stop(self) -> float:
        """Take the time: an event that is made after the answer has that of the answer. Returns it in milliseconds."""
        self._took = self.milliseconds()
        return self._took

    def milliseconds(self) -> float:
        """The time since the adapter began with this container, until `stop`."""
        return self._took or round((time.monotonic_ns() - self.began[1]) / 1e6, 3)

    def is_probe(self) -> bool:
        """Whether the container is one of `verify` (hook.core.events.is_probe)."""
        return is_probe(self.adapter.name, self.container_id, self.identity)

    def refused(self, reasons: str) -> str:
        """The line for the engine."""
        name = named(str(self.identity or self.container_id or "a container"), 1024)
        return f"refused {name}: {reasons}{WHERE_TO_LOOK}"
