"""A thousand rules are compiled in half a second of processor time, and ten thousand are the most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.compiling import KINDS, big

from hook.core.policy.check import MOST_CONTRADICTIONS
from hook.core.policy.compiler import compile_bytes
from unit.support import ROOT, document, lines

CPU = 1.0
"""Seconds of processor time for the whole process. It takes 0.3; on a busy machine the same work takes longer."""


def cpu_of(path: Path, store: Path) -> float:
    """Seconds of processor time of `policy compile`."""
    command = [sys.executable, str(ROOT / "hook/__main__.py"), "policy", "compile"]
    child = subprocess.Popen(
        [*command, "--policy", str(path), "--store", str(store)], stdout=subprocess.DEVNULL, cwd=ROOT
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.native
def test_thousand_rules_are_compiled_in_half_a_second(root_dir: Path, kind: str) -> None:
    """Also where all reserve one name, which every two rules could contradict each other about."""
    path = root_dir / "policy.yaml"
    path.write_text(big(1000, kind))
    assert cpu_of(path, root_dir / "s") < CPU


@pytest.mark.slow
def test_ten_thousand_rules_are_the_most() -> None:
    rules = [{"name": f"r{n}", "env": [{"name": f"A{n}", "value": ""}]} for n in range(10_001)]
    assert len(compile_bytes("p", document(*rules[1:]).encode()).lines) == 10_000
    [error] = lines(document(*rules))
    assert error == "policy.yaml:5:3: error: rules: 10001 given; a policy has at most 10000"


def test_problems_of_a_large_policy_are_told_as_those_of_a_small_one() -> None:
    """Only the rules that are wrong are validated again, for the messages."""
    good = [{"name": f"r{n}", "env": [{"name": f"A{n}", "value": ""}]} for n in range(3)]
    bad = {"name": "BAD", "env": [{"name": "A"}], "mod": "x"}
    assert lines(document(*good, bad, mode="x")) == [
        "policy.yaml:5:11: error: mode: 'x' is not one of Enforce, Audit",
        "policy.yaml:35:13: error: name: 'BAD' is not allowed; it takes lower case letters, digits, - and .",
        "policy.yaml:37:6: error: item 0: none given; it takes exactly one of value, absent or valueFrom",
        "policy.yaml:41:5: error: unknown field 'mod'; did you mean mode?",
    ]


def test_contradictions_of_every_two_rules_are_not_all_listed() -> None:
    rules = [{"name": f"r{n}", "env": [{"name": "A", "value": str(n)}]} for n in range(200)]
    assert len(lines(document(*rules))) == MOST_CONTRADICTIONS + 1
