"""The simulator of container starts (tests/simulator): kept seeds, and known bugs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import marks
import pytest
from harness.tools import need

from unit.support import ROOT

HERE = ROOT / "tests" / "simulator"

pytestmark = [
    pytest.mark.slow,
    marks.promise(
        "A container is correct if the agent is killed or stopped at any moment, and a resumed agent changes nothing"
    ),
]


@pytest.fixture(autouse=True)
def tools() -> None:
    """front.c is compiled with gcc, and known bugs are put back by patch(1)."""
    for tool in ("gcc", "patch"):
        need(shutil.which(tool) is not None, tool)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The simulator, as a process of its own."""
    command = [str(HERE / "run.sh"), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def seeds() -> list[int]:
    """The kept seeds."""
    lines = (HERE / "seeds").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("seed", seeds())
def test_a_kept_seed_breaks_no_invariant(seed: int) -> None:
    done = run("--seed", seed, "--steps", 40_000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_run_again() -> None:
    once, again = (run("--seed", 2, "--steps", 8_000) for _ in range(2))
    assert "trace " in once.stdout
    assert once.stdout == again.stdout


@pytest.mark.parametrize(
    ("bug", "symptom"),
    [
        ("two-word-option", "started with .*events \\[\\]"),
        ("missing-lseek", "was refused without an event|was refused with status 1; events \\[\\]"),
        ("late-mount", "a late mount"),
        ("write-in-place", "is not whole"),
        ("others-device", "GPU-\\d+-(init|sidecar)"),
        ("early-compile", "started with .*in force"),
        ("kept-descriptor", "the agent keeps open"),
        ("uncounted-loss", "started with .*events \\[\\]"),
    ],
)
def test_a_bug_that_is_put_back_is_found(bug: str, symptom: str, tmp_path: Path) -> None:
    """Most bugs by each seed; the rarest by one of six. Any change of the code shifts what a seed does."""
    for directory in ("hook", "packaging/front"):
        shutil.copytree(ROOT / directory, tmp_path / directory, ignore=shutil.ignore_patterns("__pycache__"))
    patch = (HERE / "mutants" / f"{bug}.patch").read_text()
    subprocess.run(["patch", "-p1", "--quiet"], cwd=tmp_path, input=patch, text=True, check=True)
    runs = (run("--seed", seed, "--steps", 50_000, "--tree", tmp_path) for seed in range(1, 31))
    done = next((done for done in runs if done.returncode), None)
    assert done is not None, "no seed finds it"
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(symptom, done.stdout, re.DOTALL), done.stdout
