"""What the rules in Audit mode would have done beside enforced ones. hook.core.report tells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hook.core.base.errors import CAUSED_BY_THE_CONTAINER, describe
from hook.core.facts import Container
from hook.core.plan import Plan, plan
from hook.core.policy.model import Match
from hook.core.reserve.edits import Edit, Reason


class AuditedRules:
    """What the tried rules would have done with one container."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        """The edits that the enforced rules do not make."""
        self.denials: list[Reason] = []
        """The denials that the enforced rules do not cause."""
        self.errors: list[Reason] = []
        """The errors that the enforced rules do not cause."""
        self.plan: Plan | None = None
        """The plan with all rules; None if there is none because of an error."""
        self.container: Container | None = None
        """The container of that plan, None likewise."""

    def would_refuse(self, reasons: Iterable[Reason], enforced: Iterable[Reason] = ()) -> None:
        """Add reasons that the adapter found; not those that the enforced rules have too."""
        known = {str(reason) for reason in enforced}
        self.denials += [reason for reason in reasons if str(reason) not in known]

    def __bool__(self) -> bool:
        """Whether the tried rules would have changed anything."""
        return bool(self.edits or self.denials or self.errors)


def attempt(contain: Callable[[list[Match]], Container], decided: Plan, kinds: frozenset[str]) -> AuditedRules:
    """Plan with all rules, the enforced ones first, and compare with what was decided. Never raises.

    `contain`: returns the container with the facts that matches need.
    """
    audited = AuditedRules()
    matches = [match for match in decided.matches if match.applies]
    matches += [_switched_on(match) for match in decided.matches if match.is_audited]
    try:
        container = contain(matches)
        whole = plan(decided.policy, container, matches, kinds)
    except Exception as error:  # an error of a tried rule does not change how the container starts
        reason = [Reason("", "", describe(error))]
        if isinstance(error, CAUSED_BY_THE_CONTAINER):
            audited.denials = reason
        else:
            audited.errors = reason
        return audited
    audited.plan, audited.container = whole, container
    known = [_wanted(edit) for edit in decided.edits]
    names = {match.rule.name for match in decided.matches if match.is_audited}
    audited.edits = [edit for edit in whole.edits if edit.rule in names and _wanted(edit) not in known]
    audited.would_refuse(whole.denials, decided.denials)
    errors = {str(error) for error in decided.errors}
    audited.errors = [error for error in whole.errors if str(error) not in errors]
    return audited


def _switched_on(match: Match) -> Match:
    switched = Match(match.rule, match.identity)
    switched.applies = True
    return switched


def _wanted(edit: Edit) -> tuple[object, ...]:
    return edit.kind, edit.name, edit.before_and_after()[1]
