"""One container at one adapter: load, identify, select, gather, plan; act; then one event that says what was done.

Every adapter and `explain` use it, and none has its own copy of a step. Part of the start path: builtins only.
"""

import posix
import time

from hook.core import events
from hook.core.base.system import is_directory, read_file
from hook.core.container.identity import Identity
from hook.core.plan import ALL, Container, Facts, Plan, plan
from hook.core.policy.model import AUDIT, Policy, select
from hook.core.reserve import Edit, Reason
from hook.core.reserve.env import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from hook.core.audited_rules import Trial
    from hook.core.policy.model import Match
    from hook.core.reserve.target import Target

    T = TypeVar("T", bound=Target)

CONFIG, CONTAINER, NOWHERE = "config.json", "container", ""
"""Where an adapter verified the result: in config.json as the runtime reads it, in the container's own mount namespace,
or nowhere, because the adapter only asked another program for the edits."""


class Done:
    """The result of an adapter's attempt to carry out a plan.

    `verified`: where the adapter verified the result: CONFIG, CONTAINER or NOWHERE. `denials`: why the container must
    not start, as the adapter found while it acted. `edits`: the edits that the event names; None: all of the plan's.
    `handed_on`: the event is made later, by a hook that verifies the result or by the adapter itself (`Case.event`).
    `draft`: the event that an earlier adapter left for this one to complete. `remountable`: the read-only reserved
    mounts that the container can make writable again, each with the reason.
    """

    remountable: "Sequence[str]" = ()

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
    (docs/agent.md); none where the adapter is a process that stays. `where`: the file that an OSError without a path
    is about. `began`: nanoseconds of the wall clock and of the monotonic clock. `reads_node`: whether the decision is
    reading the policy or files of the node (`gather`); such a read may hang. `who`: the container's identity, None
    until it is known. `trial`: what rules would do that are only tried. `still_waits`: called between two steps, and
    may raise.
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
        self.where = ""
        self.began = time.time_ns(), time.monotonic_ns()
        self.reads_node, self.tries = False, True  # `tries`: whether to make a `trial`
        self.policy: Policy | None = None
        self.who: Identity | None = None
        self.trial: Trial | None = None
        self.trying: Plan | None = None  # what was decided, while `trial` is made

    def decide(self, who: Identity, target: "Target", kinds: "frozenset[str]" = ALL) -> Plan:
        """The plan for a container under the policy in force.

        Raises Undecided; Unacceptable for what a pod author can cause.
        """
        self.who = who
        self.reads_node = True
        self.policy = self.load()
        matches = select(self.policy, who)
        self.container = self.contain(self.policy, who, target, matches)
        decided = plan(self.policy, self.container, matches, kinds)
        if self.tries and any(match.tried for match in decided.matches):
            from hook.core.audited_rules import attempt  # few policies try a rule while others are in force

            self.trial = attempt(self, decided, target, kinds)
        return decided

    def contain(self, policy: Policy, who: Identity, of: "Target", matches: "list[Match]") -> Container:
        """The container with the facts of the node that the matching rules need."""
        facts = gather(policy, who, matches, self.read)
        self.reads_node = False
        if facts.devices is not None:
            facts.devices.add_sources(of.mounts)  # the pod's author chose them, also one that hangs
        container = Container(who, of.env, of.mounts, facts, of.annotations, of.devices, of.device_rules)
        container.pod_annotations = getattr(of, "pod_annotations", {})
        container.shared_processes = of.shared_processes
        return container

    def settle(
        self, read: "Callable[[], tuple[Identity, T]]", act: "Callable[[Plan, T], Done]", kinds: "frozenset[str]" = ALL
    ) -> Verdict:
        """Run the whole pipeline for one container. Raises nothing but a shortage in the agent (hook.core.failure).

        `read`: returns the container's identity and what it would start with. `act`: carries out the plan and verifies
        the result; not called for a container that the plan refuses.
        """
        try:
            who, target = read()
            self.still_waits()
            decided = self.decide(who, target, kinds)
            self.still_waits()
            done = Done() if decided.refusal() else act(decided, target)
        except Exception as error:  # of any type: `failed` applies the failure policy
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
        other = done.draft or done.denials or self.trial or decided.policy.warning
        if not (made or decided.denials or decided.errors or other):
            return None
        event = events.draft_event(self) if is_draft else events.container_event(self)
        events.plan_event(event, decided, done, made)
        if self.trial or "tried" in (done.draft or ()):
            from hook.core.audited_rules import tell

            tell(event, decided, self.trial, done.draft, bool(made))
        return event

    def failed(self, error: Exception) -> Verdict:
        """The verdict when reassert could not decide or act, by `failurePolicy`."""
        from hook.core.failure import verdict

        return verdict(self, error)

    def milliseconds(self) -> float:
        """The time since the adapter began with this container."""
        return round((time.monotonic_ns() - self.began[1]) / 1e6, 3)

    def refused(self, reasons: str) -> str:
        """The line for the engine."""
        from hook.core.base.errors import named

        return f"refused {named(str(self.who or self.container_id or 'a container'), 1024)}: {reasons}"


def gather(
    policy: Policy, identity: Identity, matches: "list[Match]", read: "Callable[[str, int], bytes]" = read_file
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `read`: reads kubelet's device checkpoint, and its record of resource claims.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if True in [rule.uses_allocations for rule in rules]:
        from hook.core.facts.allocated import gather_allocated

        gather_allocated(facts, policy, identity, rules, read)
    skipped: dict[str, str] = {}
    if policy.mode == AUDIT or True in [rule.tried for rule in rules]:
        from hook.core.facts.network_filesystems import untouched

        skipped = untouched(rules, facts)
    for rule in rules:
        for env in rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files | skipped:
                from hook.core.facts.valuefile import read_value

                read_value(facts, env.text)
        for mount in rule.mounts:
            if mount.source and mount.source not in skipped:
                check_source(facts, mount.source)
    return facts


def check_source(facts: Facts, source: str) -> None:
    """Note whether a hostPath is a directory, or not there. Raises OSError for a shortage."""
    try:
        if is_directory(posix.stat(source)):
            facts.directories.add(source)
    except OSError as error:
        from hook.core.facts.valuefile import not_there  # few nodes lack one

        not_there(facts, source, error)
