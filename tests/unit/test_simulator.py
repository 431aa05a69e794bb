"""The simulator of container starts (tests/simulator): kept seeds, and three known bugs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.support import need

from unit.support import ROOT

HERE = ROOT / "tests" / "simulator"

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("seed", [2, 24])
def test_a_kept_seed_breaks_no_invariant(seed: int) -> None:
    done = run("--seed", seed, "--steps", 40_000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_seed_breaks_no_invariant() -> None:
    """The output names the seed, with which the run can be repeated."""
    done = run("--steps", 40_000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_run_again() -> None:
    once, again = (run("--seed", 2, "--steps", 8_000) for _ in range(2))
    assert "trace " in once.stdout
    assert once.stdout == again.stdout


@pytest.mark.parametrize(
    ("bug", "seed", "steps", "symptom"),
    [
        ("two-word-option", 3, 50_000, "started with .*events \\[\\]"),
        ("missing-lseek", 3, 50_000, "was refused without an event"),
        ("late-mount", 1, 50_000, "a late mount"),
        ("write-in-place", 1, 8_000, "is not whole"),
    ],
)
def test_a_bug_that_is_put_back_is_found(bug: str, seed: int, steps: int, symptom: str, tmp_path: Path) -> None:
    for directory in ("hook", "packaging/front"):
        shutil.copytree(ROOT / directory, tmp_path / directory, ignore=shutil.ignore_patterns("__pycache__"))
    patch = (HERE / "mutants" / f"{bug}.patch").read_text()
    subprocess.run(["patch", "-p1", "--quiet"], cwd=tmp_path, input=patch, text=True, check=True)
    done = run("--seed", seed, "--steps", steps, "--tree", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(symptom, done.stdout), done.stdout
