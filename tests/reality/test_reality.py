"""100 random containers: 50 by a fixed seed, 50 by a random one that is printed (README.md).

All are tried, or the test fails. Where a machine is slow, the later ones are tried through one adapter only: 50 took
35 s on two cores.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from reality.start import ADAPTERS

pytestmark = [pytest.mark.frozen, pytest.mark.engine]

HERE = Path(__file__).resolve().parent

NOTHING = """\
#!/bin/sh
case $1 in
dispatcher) printf '#!/bin/sh\\nexec %s "$@"\\n' "$3" ;;
hook) cat ;;
esac
"""
"""A program with reassert's commands that enforces nothing."""


def reality(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzz."""
    whole = {**os.environ, "PYTHON": sys.executable, **environment}
    return subprocess.run([str(HERE / "run.sh"), *arguments], text=True, capture_output=True, timeout=900, env=whole)


@pytest.mark.parametrize("seed", [1, secrets.randbelow(10**9)], ids=["fixed seed", "random seed"])
def test_containers_have_what_the_policy_says(seed: int, tmp_path: Path) -> None:
    done = reality("--runs", "50", "--seed", str(seed), "--hurry", "60", "--seconds", "600", "--finds", str(tmp_path))
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"
    assert "\n50 of 50 cases" in done.stdout


def test_warm_starts_are_as_cold_ones(tmp_path: Path) -> None:
    done = reality("--agent", "--runs", "18", "--hurry", "0", "--seconds", "600", "--finds", str(tmp_path))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(
        reversed(one.split(" ", 1)) for one in done.stdout.rpartition("agent: ")[2].split("\n")[0].split(", ")
    )
    assert int(answers["warm"]) > 18, answers


def test_cases_that_were_not_tried_are_no_success() -> None:
    done = reality("--runs", "4", "--seed", "1", "--seconds", "0")
    assert (done.returncode, done.stderr) == (2, "tests/reality: 4 cases were not tried\n")


def test_a_program_that_enforces_nothing_is_found_out(tmp_path: Path) -> None:
    program = tmp_path / "reassert"
    program.write_text(NOTHING)
    program.chmod(0o755)
    done = reality("--runs", "24", "--seed", "1", "--no-shrink", REASSERT=str(program))
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.rpartition("adapter ")[2].splitlines()[1:] if "/" in line]
    violations = {adapter: sum(int(row[-1]) for row in rows if row[0] == adapter) for adapter in ADAPTERS}
    assert all(violations.values()), done.stdout
    assert "FIND innocent refused" not in done.stdout
