"""Which rules match a container. An unknown condition counts as met, unless the rule has `ifUnknown: Skip`."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.compare import glob_match
from hook.core.container.identity import TYPES, Identity
from hook.core.policy.model import Match, excluded, select
from hook.node.words import actual
from unit.support import POD, examples, policy, rule

pytestmark = marks.promise("A condition that cannot be known counts as met unless the rule says Skip", about="Decision")

UNSEEN = Identity("ambiguous", None)
NO_POD = Identity("podman", False, types=("container",), image="i")


def pod(**known: Any) -> Identity:
    """A pod's container with only these fields known."""
    return Identity("cri-o", True, **known)


def applies(match: dict[str, Any], identity: Identity) -> bool:
    """Whether a rule with these conditions applies to a container."""
    one = rule(match=match)
    return Match(one, identity).applies


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_glob_matches_as_fnmatch_does_without_brackets(pattern: str, text: str) -> None:
    assert glob_match(pattern, text) == bool(re.match(fnmatch.translate(pattern), text))


@given(st.text("[]!a*?\\.", max_size=6), st.text("[]!a\\.", max_size=6))
def test_glob_knows_only_star_and_question_mark(pattern: str, text: str) -> None:
    oracle = re.escape(pattern).replace(r"\*", "(?s:.*)").replace(r"\?", "(?s:.)")
    assert glob_match(pattern, text) == bool(re.fullmatch(oracle, text))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("NVIDIA_*", "NVIDIA_", True),
        ("NVIDIA_*", "nvidia_x", False),
        ("a*a", "a", False),
        ("registry/*:v?", "registry/a/b:v1", True),
        ("*", "", True),
        ("?", "", False),
    ],
)
def test_glob_examples(pattern: str, text: str, matches: bool) -> None:
    assert glob_match(pattern, text) is matches


@pytest.mark.parametrize(
    ("operator", "values", "absent", "web", "db"),
    [
        ("In", ["web"], False, True, False),
        ("NotIn", ["web"], True, False, True),
        ("Exists", None, False, True, True),
        ("DoesNotExist", None, True, False, False),
    ],
)
def test_match_expression_selects_as_kubernetes_does(
    operator: str, values: list[str] | None, absent: bool, web: bool, db: bool
) -> None:
    expression = {"key": "tier", "operator": operator, **({"values": values} if values else {})}
    match = {"podSelector": {"matchExpressions": [expression]}}
    seen = [applies(match, pod(labels=labels)) for labels in ({}, {"tier": "web"}, {"tier": "db"})]
    assert seen == [absent, web, db]


def test_labels_and_expressions_of_a_selector_must_all_hold() -> None:
    match = {
        "podSelector": {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
    }
    assert [applies(match, pod(labels=labels)) for labels in ({"a": "1"}, {"b": ""}, {"a": "1", "b": ""})] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("match", "met"),
    [
        ({}, True),
        ({"namespaces": ["team-*"]}, True),
        ({"namespaces": ["kube-*", "team-a"]}, True),
        ({"namespaces": ["team"]}, False),
        ({"containerNames": ["app"], "images": ["registry.example/*"]}, True),
        ({"containerNames": ["app"], "images": ["docker.io/*"]}, False),
        ({"containerTypes": ["container", "init"]}, True),
        ({"containerTypes": ["init"]}, False),
    ],
)
def test_all_conditions_of_a_rule_must_hold(match: dict[str, Any], met: bool) -> None:
    assert applies(match, POD) is met


@pytest.mark.parametrize(
    "match",
    [
        {"namespaces": ["team-a"]},
        {"containerNames": ["app"]},
        {"images": ["i"]},
        {"containerTypes": ["init"]},
        {"podSelector": {"matchLabels": {"tier": "web"}}},
    ],
)
def test_unknown_condition_counts_as_met_unless_the_rule_skips(match: dict[str, Any]) -> None:
    for identity in (pod(), UNSEEN):
        assert applies(match, identity)
        assert applies({**match, "ifUnknown": "Enforce"}, identity)
    assert not applies({**match, "ifUnknown": "Skip"}, pod())
    assert applies({**match, "ifUnknown": "Skip"}, UNSEEN), "the author of a pod may have caused that nothing is known"


@pytest.mark.parametrize(
    ("match", "known", "seen"),
    [
        ({"namespaces": ["a"]}, {"namespace": "team-a"}, "team-a"),
        ({"namespaces": ["a"]}, {}, "unknown"),
        ({"containerTypes": ["init"]}, {"types": ("container", "init")}, "container|init"),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, {"labels": {"tier": "web", "x": "y"}}, "tier=web,x=y"),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, {"labels": {}}, ""),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, {}, "unknown"),
    ],
)
def test_what_was_seen_is_said(match: dict[str, Any], known: dict[str, Any], seen: str) -> None:
    made = Match(rule(match=match), pod(**known))
    assert [actual(made, field) for field in made.met] == [seen]


def test_condition_that_fails_is_not_saved_by_one_that_is_unknown() -> None:
    assert not applies({"namespaces": ["other"], "podSelector": {"matchLabels": {"a": "b"}}}, POD)


def test_condition_that_matches_everything_is_met_without_knowing() -> None:
    assert applies({"images": ["*"], "containerTypes": list(TYPES), "podSelector": {}, "ifUnknown": "Skip"}, pod())


def test_container_of_no_pod_has_no_namespace_and_no_labels() -> None:
    assert applies({"images": ["i"]}, NO_POD)
    assert not applies({"namespaces": ["*"]}, NO_POD)
    assert not applies({"podSelector": {"matchLabels": {"a": "b"}}}, NO_POD)


def test_exclude_takes_out_only_what_is_known_for_certain() -> None:
    node = policy(exclude={"namespaces": ["kube-*"], "containerTypes": ["sandbox", "init"]})
    assert excluded(node, pod(namespace="kube-system", types=("container",))) == "namespace kube-system"
    assert excluded(node, pod(namespace="a", types=("sandbox",))) == "container type sandbox"
    assert excluded(node, pod(namespace="a", types=("container",))) == ""
    assert excluded(node, pod(types=("init", "ephemeral"))) == ""
    assert excluded(node, pod(types=("init", "sandbox"))) == "container type init or sandbox"
    assert excluded(node, UNSEEN) == ""
    assert excluded(node, Identity("podman", False, namespace="kube-system", types=("container",))) == ""


namespaces = st.sampled_from(["a", "b", "ab"])
selections = st.lists(st.none() | st.lists(st.sampled_from(["a", "b", "ab", "a*", "?", "*"]), min_size=1), max_size=6)


@examples(50)
@given(selections, st.none() | namespaces)
def test_namespace_index_loses_no_rule_and_keeps_their_order(
    wanted: list[list[str] | None], namespace: str | None
) -> None:
    env = [{"name": "X", "value": "1"}]
    rules = [{"name": f"r{n}", "env": env, "match": {"namespaces": w} if w else {}} for n, w in enumerate(wanted)]
    identity = pod(namespace=namespace)
    expected = [
        f"r{number}"
        for number, patterns in enumerate(wanted)
        if not patterns or namespace is None or any(glob_match(pattern, namespace) for pattern in patterns)
    ]
    assert [match.rule.name for match in select(policy(*rules), identity) if match.applies] == expected
