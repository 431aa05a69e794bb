"""Env with allowed values: `oneOf`, `pattern`, `else` and `default`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.plan import Plan, plan
from hook.core.policy.sources import Allowed
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import read, stamp
from unit.support import container, document, examples, policy, problems, values_of

pytestmark = marks.promise(
    "An env name with allowed values has one of these in every process, or its `else`", about="Decision"
)

GPU = {"name": "X", "oneOf": ["none", "void"]}
HOME = {"name": "X", "pattern": "/home/*", "else": "/home/app"}


def decided(env: list[str], *entries: dict[str, Any], **rule: Any) -> tuple[Plan, list[str]]:
    """The plan, and the env after it."""
    made = container(env)
    found = plan(policy({"name": "r", "env": [*entries], **rule}), made)
    found.apply(made.start)
    return found, list(made.start.env)


@pytest.mark.parametrize(
    ("entry", "env", "after"),
    [
        (GPU, ["X=void", "B=1"], ["X=void", "B=1"]),
        (GPU, ["X=all", "B=1"], ["B=1"]),
        ({**GPU, "else": "none"}, ["X=all"], ["X=none"]),
        ({**GPU, "else": {"absent": True}}, ["X=all"], []),
        (GPU, ["B=1"], ["B=1"]),
        ({**GPU, "default": "d"}, ["B=1"], ["B=1", "X=d"]),
        ({**GPU, "default": "d"}, ["X=d"], ["X=d"]),
        ({**GPU, "default": "d"}, ["X=all"], ["X=d"]),
        ({**GPU, "else": "e", "default": "d"}, ["X=all"], ["X=e"]),
        ({**GPU, "else": "e"}, ["X=e"], ["X=e"]),
        (GPU, ["X=Void", "X=NONE"], []),
        (GPU, ["X=all", "X=void"], ["X=void"]),
        (GPU, ["X=void", "X=all"], []),
        (GPU, ["X=void", "X"], []),
        ({**GPU, "default": "d"}, ["X=void", "X"], ["X=d"]),
        (GPU, ["X="], []),
        ({**GPU, "oneOf": [""]}, ["X="], ["X="]),
        (HOME, ["X=/home/a"], ["X=/home/a"]),
        (HOME, ["X=/home/a/b"], ["X=/home/a/b"]),
        (HOME, ["X=/home"], ["X=/home/app"]),
        (HOME, ["X=/root/home/a"], ["X=/home/app"]),
        (HOME, ["X=/home/../root"], ["X=/home/app"]),
        (HOME, ["X=/home/a/.."], ["X=/home/app"]),
        (HOME, ["X=/home/..a"], ["X=/home/..a"]),
        ({**HOME, "oneOf": ["/root"]}, ["X=/root"], ["X=/root"]),
        ({"name": "X", "pattern": "v?.*"}, ["X=v1.2"], ["X=v1.2"]),
        ({"name": "X", "pattern": "v?.*"}, ["X=v10.2"], []),
        ({"name": "X", "pattern": "a../*"}, ["X=a../../b"], ["X=a../../b"]),
    ],
)
def test_a_value_stays_if_it_is_allowed(entry: dict[str, Any], env: list[str], after: list[str]) -> None:
    found, there = decided(env, entry)
    assert (found.refusal(), there) == ("", after)
    assert plan(policy({"name": "r", "env": [entry]}), container(after)).is_empty()


@pytest.mark.parametrize(
    ("env", "refused"), [(["X=all"], True), (["X=void", "X=all"], True), (["X=all", "X=void"], False), ([], False)]
)
def test_else_deny_refuses_the_container_and_does_not_say_the_value(env: list[str], refused: bool) -> None:
    found, _ = decided(env, {**GPU, "else": "Deny"})
    assert found.refusal() == ("rule r: env X was set to a value that is not allowed" if refused else "")


@pytest.mark.parametrize("entry", [GPU, {**GPU, "else": "none"}, {**GPU, "else": "Deny"}])
def test_on_conflict_deny_refuses_what_is_not_allowed(entry: dict[str, Any]) -> None:
    refusal = "rule r: env X was set to a value that is not allowed"
    assert decided(["X=all"], entry, onConflict="Deny")[0].refusal() == refusal
    for env in (["X=void"], ["X=all", "X=void"], ["X"], []):
        assert decided(env, entry, onConflict="Deny")[0].refusal() == ""


def two(first: dict[str, Any], second: dict[str, Any], env: list[str]) -> str:
    """The refusal of a container that two rules match."""
    return planned(first, second, env).refusal()


def planned(first: dict[str, Any], second: dict[str, Any], env: list[str]) -> Plan:
    """The plan for it."""
    one = {"name": "one", "match": {"containerNames": ["app"]}, "env": [first]}
    other = {"name": "two", "match": {"namespaces": ["team-a"]}, "env": [second]}
    return plan(policy(one, other), container(env))


@pytest.mark.parametrize("env", [[], ["X=void"], ["X=all"]])
def test_two_rules_that_allow_other_values_refuse_the_container(env: list[str]) -> None:
    assert two(GPU, {**GPU, "oneOf": ["void"]}, env).startswith("rule two: allows other values of env X than rule one")
    assert two(GPU, dict(GPU), env) == ""


def test_the_value_of_another_rule_is_the_only_one() -> None:
    fixed = {"name": "X", "value": "void"}
    for pair in ((GPU, fixed), (fixed, GPU)):
        assert two(*pair, ["X=none"]) == "rule two: wants another value for env X than rule one"
        assert two(*pair, []) == two(*pair, ["X=void"]) == ""
        assert planned(*pair, ["X=void"]).env.allowed == {}


def test_what_the_rules_always_want_differently_is_an_error_with_its_place() -> None:
    rules = [{"name": name, "env": [entry]} for name, entry in (("a", GPU), ("b", {**GPU, "else": "none"}))]
    [problem] = problems(json.dumps({"apiVersion": "reassert/v1", "kind": "NodePolicy", "spec": {"rules": rules}}))
    assert "rules a and b want different things for env X, and match the same containers" in problem.message
    assert problem.severity == "error"


def test_a_name_that_is_allowed_has_precedence_over_a_pattern() -> None:
    gone = {"name": "*", "absent": True}
    home = {"name": "HOME", "value": "/"}
    assert decided(["X=void", "B=1"], GPU, gone, home)[1] == ["X=void", "HOME=/"]


@pytest.mark.parametrize(
    ("entry", "env", "exec_env", "after"),
    [
        (GPU, ["X=void"], ["A=1", "X=none"], ["A=1", "X=none"]),
        (GPU, ["X=void"], ["X=all", "A=1"], ["A=1"]),
        (GPU, ["X=void"], ["A=1"], ["A=1", "X=void"]),
        (GPU, [], ["X=all"], []),
        (GPU, [], ["X=void"], ["X=void"]),
        (GPU, ["X=all"], ["X=all"], []),
        ({**GPU, "else": "none"}, ["X=all"], ["X=all"], ["X=none"]),
        ({**GPU, "else": "none"}, [], ["X=none", "X=all"], ["X=none"]),
        ({**GPU, "default": "d"}, [], [], ["X=d"]),
        ({**GPU, "default": "d"}, [], ["X"], ["X=d"]),
        (HOME, ["X=/home/a"], ["X=/root"], ["X=/home/app"]),
        ({"name": "X", "value": "1"}, [], ["X=all"], ["X=1"]),
    ],
)
def test_another_process_of_the_container_may_choose_too(
    entry: dict[str, Any], env: list[str], exec_env: list[str], after: list[str]
) -> None:
    """By the annotation that `create` leaves."""
    found, _ = decided(env, entry)
    decision = read(stamp({}, found.env, fingerprint=""))
    assert decision is not None
    assert decision.env.within(exec_env).correct(exec_env) == after


def test_another_process_is_refused_by_else_deny() -> None:
    found, _ = decided(["X=void"], {**GPU, "else": "Deny"})
    assert found.env.within(["X=all"]).refused == ["X"]
    assert found.env.within(["X=none"]).refused == found.env.within([]).refused == []


def test_the_decision_of_an_earlier_version_has_no_allowed_values() -> None:
    stamped = stamp({}, Reserved({"X": "1"}, []), fingerprint="")
    assert "allowed" not in next(iter(stamped.values()))


def test_an_event_does_not_have_a_value_that_only_the_container_knows() -> None:
    """Of two values, the last stays: it is not in the policy file."""
    found, _ = decided(["X=/home/first", "X=/home/secret"], HOME)
    [edit] = found.edits
    described = edit.describe()
    assert "secret" not in json.dumps(described)
    assert described["after"] == {"bytes": 12}
    [listed] = decided(["X=void", "X=none"], GPU)[0].edits
    assert (listed.describe()["before"], listed.describe()["after"]) == ([{"bytes": 4}, "none"], "none")


texts = st.text("ab./*?", max_size=6)


@examples(200)
@given(st.lists(texts, min_size=1, max_size=2), st.lists(texts, max_size=3), texts, st.booleans())
def test_every_process_has_an_allowed_value_or_none(
    listed: list[str], own: list[str], instead: str, deny: bool
) -> None:
    """Whatever it has of the name, twice or not; and what is corrected stays as it is."""
    source = Allowed("X", {"oneOf": listed, "else": "Deny" if deny else instead})
    found = Reserved({}, [], {"X": source}).within([f"X={text}" for text in own])
    env = list(found.correct([f"X={text}" for text in own]))
    for value in values_of(env, "X"):
        assert value is not None
        assert source.allows(value)
    assert len(env) <= 1
    assert bool(found.refused) == (deny and bool(own) and own[-1] not in listed)
    assert found.within(env).correct(env) == env


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "X", "else": "1"}, "item 0: none given"),
        ({"name": "X", "value": "1", "else": "2"}, "else of X is for allowed values: it needs oneOf or pattern"),
        (
            {"name": "X", "absent": True, "default": "2"},
            "default of X is for allowed values: it needs oneOf or pattern",
        ),
        ({"name": "X", "value": "1", "oneOf": ["1"]}, "item 0: value, oneOf given; it takes exactly one of value"),
        (
            {"name": "X", "oneOf": ["1"], "valueFrom": {"file": "/f"}},
            "item 0: oneOf, valueFrom given; it takes exactly one of",
        ),
        ({"name": "X", "oneOf": []}, "oneOf: the list is empty"),
        (
            {"name": "X", "oneOf": ["1"], "else": {"value": "1"}},
            "else: a mapping is neither a string nor {absent: true}",
        ),
        ({"name": "X", "oneOf": [1]}, 'item 0: 1 is not a string; quote it: "1"'),
        ({"name": "X_*", "oneOf": ["1"]}, "env name 'X_*' is a pattern; only absent: true takes one"),
        ({"name": "X", "oneOf": ["a\0"]}, "oneOf of X: a NUL byte cannot be in an env value"),
        ({"name": "X", "pattern": "[ab]"}, "pattern: '[ab]' is not allowed; it takes a "),
        (
            {"name": "HOME", "pattern": "/home/*", "else": "/"},
            "a container may be without HOME: a runtime then sets it by /etc/passwd of the image; give it a default",
        ),
        (
            {"name": "X", "oneOf": ["1"], "else": {"absent": True}, "default": "1"},
            "else of X removes X, and default gives it to a container without it; leave one of them out",
        ),
        ({"name": "HOME", "oneOf": [""], "default": "/", "else": "/"}, "oneOf of HOME: it cannot be empty"),
        ({"name": "HOME", "pattern": "*", "default": "/", "else": "/"}, "pattern of HOME: it matches an empty one"),
        ({"name": "X", "oneOf": ["1"], "else": None}, "else: nothing is neither a string nor {absent: true}"),
        (
            {"name": "X", "oneOf": ["1"], "else": {"absent": False}},
            "else: a mapping is neither a string nor {absent: true}",
        ),
    ],
)
def test_a_policy_file_with_a_mistake_is_refused_with_its_cure(entry: dict[str, Any], message: str) -> None:
    found = problems(
        json.dumps(
            {"apiVersion": "reassert/v1", "kind": "NodePolicy", "spec": {"rules": [{"name": "r", "env": [entry]}]}},
            indent=1,
        )
    )
    assert [p for p in found if message in p.message and p.severity == "error" and p.line > 4], found
    assert not [p for p in found if "to match everything" in p.message], found


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "X", "oneOf": ["1"], "else": "absent"}, "did you mean else: {absent: true}?"),
        (
            {"name": "X", "oneOf": ["1"], "else": "deny"},
            "else of X gives the container the text 'deny'; did you mean else: Deny?",
        ),
        (
            {"name": "X", "oneOf": ["1"], "default": "Deny"},
            "default of X gives the container the text 'Deny'; did you mean else",
        ),
        (
            {"name": "X", "oneOf": ["1", "a*"]},
            "oneOf of X: 'a*' is this text alone, with its wildcard; pattern takes a glob",
        ),
        ({"name": "X", "pattern": "^a$"}, "and no regular expression"),
        ({"name": "X", "pattern": "(a|b)"}, "and no regular expression"),
        ({"name": "X", "pattern": "a.*"}, "and no regular expression"),
        ({"name": "X", "pattern": "**"}, "allows every value"),
        ({"name": "X", "pattern": "/a/../*"}, "matches nothing"),
        ({"name": "X", "oneOf": ["$(NODE)"]}, "nothing expands $(NODE)"),
        (
            {"name": "X", "oneOf": ["1"], "else": "é" * 65_535},
            "with 131072 bytes, no program starts: Linux takes at most",
        ),
        ({"name": "X", "value": "x" * 131_070}, "with 131072 bytes, no program starts: Linux takes at most 131071"),
    ],
)
def test_what_means_another_thing_than_it_looks_like_is_a_warning(entry: dict[str, Any], message: str) -> None:
    [problem] = problems(
        json.dumps(
            {"apiVersion": "reassert/v1", "kind": "NodePolicy", "spec": {"rules": [{"name": "r", "env": [entry]}]}}
        )
    )
    assert (message in problem.message, problem.severity) == (True, "warning"), problem


def test_the_longest_entry_that_is_no_warning_is_one_that_linux_takes() -> None:
    """It counts the name, the `=` and a final NUL."""
    assert problems(document({"name": "r", "env": [{"name": "X", "value": "x" * 131_069}]})) == []
    subprocess.run(["/bin/true"], env={"X": "x" * 131_069}, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env={"X": "x" * 131_070}, check=True)
