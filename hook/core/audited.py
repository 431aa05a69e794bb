"""What the rules in Audit mode would have done beside enforced ones, and how an event says it.

Few policies have both, so a container start without such rules does not load this module. Builtins only.
"""

from hook.core.base.errors import CAUSED_BY_THE_CONTAINER, describe
from hook.core.events import EDITED, ENTRIES, HELD, INEXACT, WOULD_DENY
from hook.core.plan import Plan, plan
from hook.core.policy.model import AUDIT, FAIL, Match
from hook.core.reserve import Edit, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from hook.core.facts import Container

MARK = "tried"
"""A member of an event: some of its entries have `mode: Audit` and say what a rule in Audit mode would have done."""


class AuditedRules:
    """What the tried rules would have done with one container.

    `edits`, `denials`, `errors`: as in Plan, those that the enforced rules do not cause. `plan` and `container`: the
    plan with all rules, None if there is none because of an error.
    """

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.denials: list[Reason] = []
        self.errors: list[Reason] = []
        self.plan: Plan | None = None
        self.container: Container | None = None

    def would_refuse(self, reasons: "Iterable[Reason]", enforced: "Iterable[Reason]" = ()) -> None:
        """Add reasons that the adapter found; not those that the enforced rules have too."""
        known = {str(reason) for reason in enforced}
        self.denials += [reason for reason in reasons if str(reason) not in known]

    def __bool__(self) -> bool:
        """Whether the tried rules would have changed anything."""
        return bool(self.edits or self.denials or self.errors)


def tell(
    event: "dict[str, Any]", decided: "Plan", audited: "AuditedRules | None", draft: "dict[str, Any] | None", made: bool
) -> None:
    """Add to an event what the tried rules would have done, each entry with `mode: Audit`.

    `draft`: the event of an earlier adapter, which saw the container before its env and mounts were corrected. `made`:
    whether this adapter made edits of enforced rules; the event may have no room for them behind those of the draft.
    """
    event[MARK] = True
    for edit in event["edits"]:
        edit["applied"] = edit["applied"] and edit.get("mode") != AUDIT  # these include the edits of a draft
    known = {(edit.get("kind"), edit.get("name")) for edit in event["edits"] if edit.get("mode") == AUDIT}
    cut = (draft or {}).get("omitted") or {}  # the draft already counted what it cut from this list
    own = [e for e in audited.edits if (e.kind, e.name) not in known] if audited and "/edits" not in cut else []
    _add(event, "edits", [], [{**edit.describe(), "applied": False} for edit in own])
    for key, reasons in (("denials", audited.denials), ("errors", audited.errors)) if audited else ():
        _add(event, key, _drafted(draft, key), [reason.describe() for reason in reasons if "/" + key not in cut])
    enforced = [edit for edit in event["edits"] if edit.get("mode") != AUDIT]
    if not enforced and not made:
        event.update(applied=False, verified="")
        event.pop("asked", None)
    if event["event"] in (EDITED, HELD, INEXACT):
        reasons = event["denials"] + (event["errors"] if decided.policy.failure_policy == FAIL else [])
        if reasons:
            event.update(event=WOULD_DENY, level="warning")
        elif event["edits"]:
            event.update(event=EDITED, level="info")


def _drafted(draft: "dict[str, Any] | None", key: str) -> "list[Any]":
    entries = (draft or {}).get(key)
    return [e for e in entries if isinstance(e, dict) and e.get("mode") == AUDIT] if isinstance(entries, list) else []


def _add(event: "dict[str, Any]", key: str, drafted: "list[Any]", own: "list[dict[str, object]]") -> None:
    """Add entries to a list of the event. Those of a draft come first, since its `truncated` has their indices."""
    for entry in own:
        entry["mode"] = AUDIT
    entries = [*drafted, *event[key], *[entry for entry in own if entry not in drafted]]
    event[key] = entries[:ENTRIES]
    if len(entries) > ENTRIES:
        omitted = event.setdefault("omitted", {})
        omitted["/" + key] = omitted.get("/" + key, 0) + len(entries) - ENTRIES


def attempt(contain: "Callable[[list[Match]], Container]", decided: Plan, kinds: "frozenset[str]") -> AuditedRules:
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
    switched = Match(match.rule, match.conditions)
    switched.applies = True
    return switched


def _wanted(edit: Edit) -> "tuple[object, ...]":
    return edit.kind, edit.name, edit.before_and_after()[1]
