"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O. Part of the start path: builtins only.

Every adapter asks this one function and none has an opinion of its own.
"""

from hook.base.text import joined
from hook.container.model import Container
from hook.policy.match import Match, excluded, select
from hook.policy.model import AUDIT, FAIL, Policy
from hook.reserve import annotations, devices, env, mounts
from hook.reserve.env import Reserved
from hook.reserve.outcome import Outcome, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.reserve.outcome import Target

KINDS = (env, mounts, devices, annotations)
"""What can be reserved, in the order in which edits are made. Each has `KIND`, `want` and `apply`."""

ALL = frozenset(kind.KIND for kind in KINDS)


class Plan:
    """What is to be done about a container. Nobody changes it after `plan` returned it.

    `edits`: what differs from what the policy wants. `denials`: what the policy forbids. `errors`: what reassert could
    not find out. `env`: the env that the container's every process gets. `mounts`: every reserved mount, also those
    that need no edit. `excluded`: why the policy leaves the container alone, or "". `matches`: every candidate rule
    with its conditions.
    """

    __slots__ = ("_outcome", "denials", "edits", "env", "errors", "excluded", "matches", "mounts", "policy")

    def __init__(self, policy: Policy, matches: "list[Match]", outcome: Outcome, excluded: str = "") -> None:
        self._outcome = outcome
        self.policy = policy
        self.matches = matches
        self.edits = tuple(outcome.edits)
        self.denials = tuple(outcome.denials)
        self.errors = tuple(outcome.errors)
        self.env = outcome.env
        self.mounts = tuple(outcome.mounts)
        self.excluded = excluded

    def audit_only(self) -> bool:
        """Whether to log what would be done, and do nothing."""
        return self.policy.mode == AUDIT

    def reasons(self) -> "tuple[Reason, ...]":
        """Why Enforce mode would not let the container start."""
        return self.denials + (self.errors if self.policy.failure_policy == FAIL else ())

    def refusal(self) -> str:
        """Why the container must not start, or "" where it may."""
        return "" if self.audit_only() else joined(self.reasons())

    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to say."""
        return not (self.edits or self.denials or self.errors)

    def apply(self, target: "Target") -> None:
        """Make the edits."""
        if self.edits:
            for kind in KINDS:
                kind.apply(self._outcome, target)


def plan(
    policy: Policy, container: Container, matches: "list[Match] | None" = None, kinds: "frozenset[str]" = ALL
) -> Plan:
    """Decide. `matches` spares a second `select` to whoever had to know them to gather the container's facts.

    `kinds`: of ALL, those that the adapter is there for.
    """
    outcome = Outcome(Reserved({}, []))
    who = container.identity
    reason = excluded(policy, who)
    if reason:
        return Plan(policy, [], outcome, reason)
    if policy.missing:
        outcome.deny("", "", f"no node policy: {policy.missing}")
        return Plan(policy, [], outcome)
    if matches is None:
        matches = select(policy, who)
    rules = [match.rule for match in matches if match.applies]
    problem = container.facts.allocation_problem
    for rule in rules:
        if problem and rule.uses_allocations():
            outcome.cannot_tell(rule.name, "", problem)
    for kind in KINDS:
        if kind.KIND in kinds:
            kind.want(rules, container, outcome)
    return Plan(policy, matches, outcome)
