"""Containers of a kept seed, and what new seeds of tests/lab/explore.sh have found (README.md).

All are tried, or the test fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import marks
import pytest

from reality.start import ADAPTERS

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.engine,
    marks.promise(
        "Random containers have what an independent reading of the policy gives, and a start through the agent is"
        " as the cold start",
        about="Decision",
    ),
]

HERE = Path(__file__).resolve().parent

KEPT = sorted(HERE.glob("kept/*.json"))
"""Cases that were finds, as `--finds` saves them."""

NOTHING = """\
#!/bin/sh
case $1 in
dispatcher) printf '#!/bin/sh\\nexec %s "$@"\\n' "$3" ;;
hook) cat ;;
esac
"""
"""A program with reassert's commands that enforces nothing."""


@pytest.fixture
def nothing(tmp_path: Path) -> str:
    """The path of NOTHING."""
    program = tmp_path / "reassert"
    program.write_text(NOTHING)
    program.chmod(0o755)
    return str(program)


def reality(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzz."""
    whole = {**os.environ, "PYTHON": sys.executable, **environment}
    return subprocess.run([str(HERE / "run.sh"), *arguments], text=True, capture_output=True, timeout=900, env=whole)


def test_containers_have_what_the_policy_says(tmp_path: Path) -> None:
    done = reality("--runs", "45", "--seed", "1", "--hurry", "0", "--seconds", "600", "--finds", str(tmp_path))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n45 of 45 cases" in done.stdout


@pytest.mark.parametrize("kept", KEPT, ids=[path.stem for path in KEPT])
def test_what_was_found_once_is_not_found_again(kept: Path) -> None:
    done = reality("--case", str(kept))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n1 of 1 cases" in done.stdout


def test_warm_starts_are_as_cold_ones(tmp_path: Path) -> None:
    done = reality("--agent", "--runs", "14", "--hurry", "0", "--seconds", "600", "--finds", str(tmp_path))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(
        reversed(one.split(" ", 1)) for one in done.stdout.rpartition("\nagent: ")[2].split("\n")[0].split(", ")
    )
    assert int(answers["warm"]) > 2, answers  # what has to be remounted, and other verbs, are cold


def test_cases_that_were_not_tried_are_no_success() -> None:
    done = reality("--runs", "4", "--seed", "1", "--seconds", "0")
    assert (done.returncode, done.stderr) == (2, "tests/reality: 4 cases were not tried\n")


def test_a_program_that_enforces_nothing_is_found_out(nothing: str) -> None:
    done = reality("--runs", "24", "--seed", "1", "--no-shrink", REASSERT=nothing)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.rpartition("adapter ")[2].splitlines()[1:] if "/" in line]
    violations = {adapter: sum(int(row[-1]) for row in rows if row[0] == adapter) for adapter in ADAPTERS}
    assert all(violations.values()), done.stdout
    assert "FIND innocent refused" not in done.stdout


@pytest.mark.parametrize(
    ("attack", "kind"),
    [("update", "device open"), ("restore", "restore let through"), ("unknown_option", "env wrong")],
)
def test_judge_sees_what_runtimes_do_beside_the_specification(attack: str, kind: str, nothing: str) -> None:
    one = ("--adapter", "runtime", "--runtime", "host/crun", "--attack", attack)
    done = reality("--runs", "24", "--seed", "1", "--no-shrink", *one, REASSERT=nothing)
    assert (done.returncode, f"FIND {kind}" in done.stdout) == (1, True), done.stdout + done.stderr


def test_long_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    command = ("--seed", "1", "--resume", results, "--adapter", "runtime", "--attack", "link_in_image")
    assert reality("--runs", "2", *command).returncode == 0
    done = reality("--runs", "3", *command)
    assert (done.returncode, "3 of 3 cases" in done.stdout) == (0, True), done.stdout + done.stderr
    assert len((tmp_path / "results").read_text().splitlines()) == 1 + 3
    other = reality("--runs", "3", *command, "--runtime", "host/crun")
    assert (other.returncode, "is of another seed, program, runtimes" in other.stderr) == (2, True)
