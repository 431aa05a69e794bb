"""Whether two rules may match the same container, never do, or always do."""

from __future__ import annotations

import itertools
from typing import Any

import marks
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook.compile.overlap import always_overlap, contradicting, glob_covers, globs_overlap, may_overlap
from hook.core.base.compare import glob_match
from unit.support import examples, rule

pytestmark = marks.promise(
    "Rules that contradict each other for every match are an error of the policy; others refuse the "
    "container, and both are named",
    about="Decision",
)

TEXTS = ["".join(letters) for length in range(7) for letters in itertools.product("ab", repeat=length)]
"""Every text that two globs of three characters each could need for a common match."""

globs = st.text("ab*?", max_size=3)

WEB = {"podSelector": {"matchLabels": {"tier": "web"}}}
DB = {"podSelector": {"matchLabels": {"tier": "db"}}}
SKIP = {"ifUnknown": "Skip"}
NOT_DB = {"podSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db"]}]}, **SKIP}


@given(globs, globs)
def test_globs_overlap_exactly_where_a_text_matches_both(one: str, other: str) -> None:
    assert globs_overlap(one, other) == any(glob_match(one, text) and glob_match(other, text) for text in TEXTS)


@given(globs, globs)
def test_glob_that_covers_another_matches_all_that_the_other_matches(wide: str, narrow: str) -> None:
    if glob_covers(wide, narrow):
        assert all(glob_match(wide, text) for text in TEXTS if glob_match(narrow, text))


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ({}, {}, True),
        ({"namespaces": ["a"]}, {"namespaces": ["b"]}, False),
        ({"namespaces": ["a", "b"]}, {"namespaces": ["b"]}, True),
        ({"namespaces": ["a"]}, {"containerNames": ["b"]}, True),
        ({"images": ["r/*"]}, {"images": ["s/*"]}, False),
        (WEB, DB, True),  # under containerd nobody sees the labels: both count as met
        ({**WEB, **SKIP}, DB, False),
        (NOT_DB, WEB, True),
        (NOT_DB, {**WEB, **SKIP}, True),
        ({"containerTypes": ["init"]}, {"containerTypes": ["container"]}, True),
        ({"containerTypes": ["init"], **SKIP}, {"containerTypes": ["container"]}, False),
        ({"containerTypes": ["init"]}, {"containerTypes": ["ephemeral"]}, True),  # nobody distinguishes them
        ({"containerTypes": ["init"], **SKIP}, {"containerTypes": ["ephemeral"]}, False),  # the first matches none
        ({"containerTypes": ["init", "ephemeral"], **SKIP}, {"containerTypes": ["ephemeral"]}, True),
        ({"containerTypes": ["sandbox"]}, {"containerTypes": ["container"]}, False),
    ],
)
def test_rules_may_overlap_unless_what_every_adapter_sees_keeps_them_apart(
    one: dict[str, Any], other: dict[str, Any], meet: bool
) -> None:
    assert may_overlap(rule(match=one), rule(match=other)) is meet
    assert may_overlap(rule(match=other), rule(match=one)) is meet


@pytest.mark.parametrize(
    ("one", "other", "always"),
    [
        ({}, {"namespaces": ["a"], "images": ["x"]}, True),
        ({"namespaces": ["*"]}, {}, True),
        ({"namespaces": ["a*"]}, {"namespaces": ["ab", "ac*"]}, True),
        ({"namespaces": ["a*"]}, {"namespaces": ["ab", "b"]}, False),
        ({"containerNames": ["*"]}, {"images": ["x"]}, True),
        ({"containerNames": ["y"]}, {"images": ["x"]}, False),
        (WEB, WEB, True),
        (WEB, DB, False),
        ({**WEB, **SKIP}, WEB, True),  # the second holds wherever the first does
        ({"containerTypes": ["init", "container"]}, {"containerTypes": ["init"]}, True),
        ({"containerTypes": ["init"], **SKIP}, {"containerTypes": ["init", "container"]}, True),
        ({"containerTypes": ["init", "container"], **SKIP}, {"containerTypes": ["init"]}, False),
        ({"containerTypes": ["init"]}, {"containerTypes": ["ephemeral"]}, True),
        ({"containerTypes": ["init"]}, {"containerTypes": ["container"]}, False),
    ],
)
def test_rules_always_overlap_where_the_conditions_of_one_follow_from_the_others(
    one: dict[str, Any], other: dict[str, Any], always: bool
) -> None:
    assert always_overlap(rule(match=one), rule(match=other)) is always
    assert always_overlap(rule(match=other), rule(match=one)) is always


TERMS = st.lists(st.sampled_from(["a", "ab", "b", "a*", "ab*", "*b", "?b", "*", "abc", "b?c*"]), min_size=1, max_size=3)
LABELS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)
EXPRESSIONS = st.fixed_dictionaries(
    {
        "key": st.just("z"),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.sampled_from(["1", "2", "12"]).map(list),
    }
)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "namespaces": TERMS,
        "images": TERMS,
        "containerNames": TERMS,
        "podSelector": st.fixed_dictionaries(
            {"matchLabels": LABELS, "matchExpressions": st.lists(EXPRESSIONS, max_size=1)}
        ),
        "ifUnknown": st.sampled_from(["Skip", "Enforce"]),
    },
)


def selects(value: str, **more: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {"x": value}}, **more}


@examples(100)
@example([(selects("1"), "x"), (selects("2"), "y")])  # without `Skip`, an adapter that knows no labels applies both
@example([(selects("1", ifUnknown="Skip"), "x"), (selects("2"), "y"), (selects("1", ifUnknown="Skip"), "z")])
@given(st.lists(st.tuples(MATCHES, st.sampled_from("xyz")), max_size=12))
@example([(NOT_DB, "x"), ({**WEB, **SKIP}, "y")])
def test_index_finds_the_pairs_that_comparing_every_two_finds(given_rules: list[tuple[Any, str]]) -> None:
    wants = [(rule(f"r{n}", match=match), what) for n, (match, what) in enumerate(given_rules)]
    pairs = {
        (one, other)
        for one, other in itertools.combinations(range(len(wants)), 2)
        if wants[one][1] != wants[other][1] and may_overlap(wants[one][0], wants[other][0])
    }
    found = list(contradicting(wants))
    assert len(found) == len(set(found))
    assert set(found) == pairs
