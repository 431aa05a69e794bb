"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O. Part of the start path: builtins only.

Every adapter asks this one function and none has an opinion of its own.
"""

from hook.container.model import Container
from hook.edits import Edit
from hook.policy.match import Match, excluded, select
from hook.policy.model import AUDIT, FAIL, Policy
from hook.reserved import Reserved
from hook.wants import Denial, Wants


class Plan:
    """What is to be done about a container.

    `edits`: in the order in which they apply. `denials`: what the policy forbids. `errors`: what reassert could not
    find out. `reserved`: the env that this container's every process gets, as `Reserved`. `excluded`: why the policy
    leaves it alone, or "". `matches`: every candidate rule with its verdicts.
    """

    __slots__ = ("denials", "edits", "errors", "excluded", "matches", "policy", "reserved")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.matches: list[Match] = []
        self.edits: list[Edit] = []
        self.denials: list[Denial] = []
        self.errors: list[Denial] = []
        self.reserved = Reserved({}, [])
        self.excluded = ""

    def audit_only(self) -> bool:
        """Whether to log what would be done, and do nothing."""
        return self.policy.mode == AUDIT

    def refusal(self) -> str:
        """Why the container must not start, or "" where it may."""
        if not (self.denials or self.errors) or self.audit_only():
            return ""
        reasons = self.denials + (self.errors if self.policy.failure_policy == FAIL else [])
        return "; ".join(str(reason) for reason in reasons)

    def narrow(self, kinds: "tuple[str, ...]") -> None:
        """Keep what concerns env, or mounts, only."""
        self.edits = [edit for edit in self.edits if edit.kind in kinds]
        self.denials = [denial for denial in self.denials if denial.kind in ("", *kinds)]
        self.errors = [error for error in self.errors if error.kind in ("", *kinds)]

    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to say."""
        return not (self.edits or self.denials or self.errors)


def plan(policy: Policy, container: Container, matches: "list[Match] | None" = None) -> Plan:
    """Decide. `matches` spares a second `select` to whoever had to know them to gather the container's facts."""
    decided = Plan(policy)
    who = container.identity
    decided.excluded = excluded(policy, who)
    if decided.excluded:
        return decided
    if policy.missing:
        decided.denials.append(Denial("", "", f"no node policy: {policy.missing}"))
        return decided
    decided.matches = select(policy, who) if matches is None else matches
    wants = Wants([match.rule for match in decided.matches if match.applies], container)
    decided.reserved = wants.reserved
    decided.edits = wants.edits
    decided.denials = wants.denials
    decided.errors = wants.errors
    return decided
