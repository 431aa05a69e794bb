"""Whether two rules can, or must, meet in one container. Read at compile time only."""

from __future__ import annotations

from functools import cache
from typing import Any

from hook.base.glob import glob_match
from hook.policy.model import Rule

_NAMES = ("namespaces", "containerNames", "images")
_UNSEEN = ("podSelector", "containerTypes")
"""Conditions that an adapter may not see; unless a rule says Skip, it then counts as met."""


@cache
def globs_meet(one: str, other: str) -> bool:
    """Whether some text matches both globs."""
    if not one or not other:
        return set(one + other) <= {"*"}
    if one[0] == "*":
        return globs_meet(one[1:], other) or globs_meet(one, other[1:])
    if other[0] == "*":
        return globs_meet(other, one)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and globs_meet(one[1:], other[1:])


def may_meet(one: Rule, other: Rule) -> bool:
    """Whether some container could match both."""
    for field in one.conditions.keys() & other.conditions.keys():
        mine, theirs = one.conditions[field], other.conditions[field]
        if field in _NAMES and not any(globs_meet(str(a), str(b)) for a in mine for b in theirs):
            return False
        if field == "containerTypes" and not set(mine) & set(theirs) and _is_seen(one, other, field):
            return False
        if field == "podSelector" and _labels_differ(mine, theirs) and _is_seen(one, other, field):
            return False
    return True


def always_meet(one: Rule, other: Rule) -> bool:
    """Whether every container that matches one of the two matches the other as well."""
    return _covers(one, other) or _covers(other, one)


def _is_seen(one: Rule, other: Rule, field: str) -> bool:
    """Whether unequal conditions keep two rules apart even where an adapter cannot see them."""
    if field == "containerTypes" and ("sandbox" in one.conditions[field]) != ("sandbox" in other.conditions[field]):
        return True
    return one.skip_unknown or other.skip_unknown


def _labels_differ(mine: list[Any], theirs: list[Any]) -> bool:
    """Whether two selectors ask one label for values that have nothing in common."""
    wanted = {key: set(values) for key, operator, values in mine if operator == "In"}
    return any(operator == "In" and key in wanted and not wanted[key] & set(values) for key, operator, values in theirs)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether the wide rule's conditions all follow from the narrow one's."""
    for field, mine in wide.conditions.items():
        theirs = narrow.conditions.get(field)
        if field in _NAMES and "*" in mine and field != "namespaces":
            continue
        if theirs is None or (wide.skip_unknown and not narrow.skip_unknown and field in _UNSEEN):
            return False
        if field in _NAMES:
            if not all(any(_glob_covers(str(a), str(b)) for a in mine) for b in theirs):
                return False
        elif field == "containerTypes":
            if not set(theirs) <= set(mine):
                return False
        elif not all(requirement in theirs for requirement in mine):
            return False
    return True


def _glob_covers(wide: str, narrow: str) -> bool:
    """Whether the wide glob matches what the narrow one matches, tried with nothing and with much for each `*`."""
    return wide == narrow or all(glob_match(wide, narrow.replace("*", text)) for text in ("", "\0\0\0"))
