"""A policy has at most a thousand rules; a hundred are compiled before anybody waits."""

from __future__ import annotations

import time

import pytest
from bench.compiling import KINDS, big

from hook.compile.check import MOST_CONTRADICTIONS
from hook.compile.compiler import compile_bytes
from unit.support import document, lines

CPU = 1.2
"""Seconds of processor time for a hundred rules. It takes 0.4; on a busy machine the same work takes longer."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.native
def test_hundred_rules_are_compiled_at_once(kind: str) -> None:
    """Also where all reserve one name, which every two rules could contradict each other about."""
    before = time.process_time()
    compile_bytes("p", big(100, kind).encode())
    assert time.process_time() - before < CPU


@pytest.mark.slow
def test_a_thousand_rules_are_the_most() -> None:
    rules = [{"name": f"r{n}", "env": [{"name": f"A{n}", "value": ""}]} for n in range(1001)]
    assert len(compile_bytes("p", document(*rules[1:]).encode()).lines) == 1000
    [error] = lines(document(*rules))
    assert error == "policy.yaml:5:3: error: rules: 1001 given; a policy has at most 1000"


def test_problems_of_a_large_policy_are_told_as_those_of_a_small_one() -> None:
    good = [{"name": f"r{n}", "env": [{"name": f"A{n}", "value": ""}]} for n in range(3)]
    bad = {"name": "BAD", "env": [{"name": "A"}], "mod": "x"}
    assert lines(document(*good, bad, mode="x")) == [
        "policy.yaml:5:11: error: mode: 'x' is not one of Enforce, Audit",
        "policy.yaml:35:13: error: name: 'BAD' is not allowed; it takes lower case letters, digits, - and .",
        "policy.yaml:37:6: error: item 0: none given; it takes exactly one of value, absent or valueFrom; or oneOf, "
        "pattern or both",
        "policy.yaml:41:5: error: unknown field 'mod'; did you mean mode?",
    ]


def test_contradictions_of_every_two_rules_are_not_all_listed() -> None:
    rules = [{"name": f"r{n}", "env": [{"name": "A", "value": str(n)}]} for n in range(200)]
    assert len(lines(document(*rules))) == MOST_CONTRADICTIONS + 1
