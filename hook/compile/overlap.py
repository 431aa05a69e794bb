"""Whether two rules can match the same container, or always do. Used by the compiler only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

from hook.core.base.compare import glob_match, literal_start
from hook.core.container.identity import NOT_LISTED
from hook.core.policy.model import Rule

_NAMES = ("namespaces", "containerNames", "images")
_MAY_BE_UNKNOWN = ("podSelector", "containerTypes")
"""Conditions that some adapters do not know. Unless the rule has `ifUnknown: Skip`, they count as met there."""


@cache
def globs_overlap(one: str, other: str) -> bool:
    """Whether there is a text that matches both globs."""
    if not one or not other:
        return set(one + other) <= {"*"}
    if one[0] == "*":
        return globs_overlap(one[1:], other) or globs_overlap(one, other[1:])
    if other[0] == "*":
        return globs_overlap(other, one)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and globs_overlap(one[1:], other[1:])


def may_overlap(one: Rule, other: Rule) -> bool:
    """Whether a container could match both rules."""
    for field in one.conditions.keys() & other.conditions.keys():
        mine, theirs = one.conditions[field], other.conditions[field]
        if field in _NAMES and not any(globs_overlap(str(a), str(b)) for a in mine for b in theirs):
            return False
        if (
            field == "containerTypes"
            and not matched_types(one) & matched_types(other)
            and _separates(one, other, field)
        ):
            return False
        if field == "podSelector" and _labels_differ(mine, theirs) and _separates(one, other, field):
            return False
    return True


def contradicting(wants: list[tuple[Rule, Hashable]]) -> Iterator[tuple[int, int]]:
    """The pairs of rules, by number, that want different things and that one container could match.

    Of a thousand rules, almost no two can match the same container. So two rules are compared only if a name or pattern
    of one begins with the literal start of one of the other's, in the condition that separates the rules best. In the
    order of the text, what begins with a text follows it.
    """
    if len({wanted for _, wanted in wants}) < 2:
        return
    rules = [rule for rule, _ in wants]
    conditions = [_names(rules, field) for field in _NAMES] + [_labels(rules)]
    terms = max(conditions, key=lambda terms: len({literal_start(term) for each in terms for term in each}))
    starts = sorted((literal_start(term), number) for number, each in enumerate(terms) for term in each)
    beginnings: list[tuple[str, int]] = []
    pairs: set[tuple[int, int]] = set()
    for start, number in starts:
        while beginnings and not start.startswith(beginnings[-1][0]):
            beginnings.pop()
        rule, wanted = wants[number]
        for other in {other for _, other in beginnings if wants[other][1] != wanted and wants[other][0] is not rule}:
            pair = min(number, other), max(number, other)
            if pair not in pairs and may_overlap(wants[other][0], rule):
                pairs.add(pair)
                yield pair
        beginnings.append((start, number))


def _names(rules: list[Rule], field: str) -> list[list[str]]:
    return [[str(term) for term in rule.conditions.get(field, ["*"])] for rule in rules]


def _labels(rules: list[Rule]) -> list[list[str]]:
    """The values of the label that most rules require, where a missing label means that a rule does not match."""
    wanted = [
        {str(key): values for key, operator, values in rule.conditions.get("podSelector", []) if operator == "In"}
        if rule.skip_unknown
        else {}
        for rule in rules
    ]
    ((most, _),) = Counter(key for keys in wanted for key in keys).most_common(1) or [("", 0)]
    return [keys.get(most, ["*"]) for keys in wanted]


def always_overlap(one: Rule, other: Rule) -> bool:
    """Whether every container that matches one of the rules matches the other one too."""
    return _covers(one, other) or _covers(other, one)


def matched_types(rule: Rule) -> set[str]:
    """The types of containers that a rule applies to. Init and ephemeral containers cannot be distinguished.

    So a rule for one of them applies to both, and with `ifUnknown: Skip` to neither.
    """
    types = {str(kind) for kind in rule.conditions["containerTypes"]}
    if types.isdisjoint(NOT_LISTED):
        return types
    return types - {*NOT_LISTED} if rule.skip_unknown and not types.issuperset(NOT_LISTED) else types | {*NOT_LISTED}


def _separates(one: Rule, other: Rule, field: str) -> bool:
    """Whether different conditions separate two rules also at an adapter that does not know the field."""
    if field == "containerTypes" and ("sandbox" in one.conditions[field]) != ("sandbox" in other.conditions[field]):
        return True
    return one.skip_unknown or other.skip_unknown


def _labels_differ(mine: list[Any], theirs: list[Any]) -> bool:
    """Whether two selectors require values of one label that have none in common."""
    wanted = {key: set(values) for key, operator, values in mine if operator == "In"}
    return any(operator == "In" and key in wanted and not wanted[key] & set(values) for key, operator, values in theirs)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether every container that matches the narrow rule matches the wide one."""
    for field, mine in wide.conditions.items():
        theirs = narrow.conditions.get(field)
        if field in _NAMES and "*" in mine and field != "namespaces":
            continue
        if theirs is None or (wide.skip_unknown and not narrow.skip_unknown and field in _MAY_BE_UNKNOWN):
            return False
        if field in _NAMES:
            if not all(any(glob_covers(str(a), str(b)) for a in mine) for b in theirs):
                return False
        elif field == "containerTypes":
            if not matched_types(narrow) <= matched_types(wide):
                return False
        elif not all(requirement in theirs for requirement in mine):
            return False
    return True


def glob_covers(wide: str, narrow: str) -> bool:
    """Whether the wide glob matches all texts of the narrow one, tested with two texts in place of each `*`."""
    return wide == narrow or all(glob_match(wide, narrow.replace("*", text)) for text in ("", "\0\0\0"))
