"""200 random containers: 100 by a fixed seed, 100 by a random one that is printed (README.md)."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from reality.start import ADAPTERS

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
    return subprocess.run([str(HERE / "run.sh"), *arguments], text=True, capture_output=True, timeout=600, env=whole)


@pytest.mark.parametrize("seed", [1, secrets.randbelow(10**9)], ids=["fixed seed", "random seed"])
def test_containers_have_what_the_policy_says(seed: int, tmp_path: Path) -> None:
    done = reality("--runs", "100", "--seed", str(seed), "--seconds", "240", "--finds", str(tmp_path))
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"


def test_a_program_that_enforces_nothing_is_found_out(tmp_path: Path) -> None:
    program = tmp_path / "reassert"
    program.write_text(NOTHING)
    program.chmod(0o755)
    done = reality("--runs", "12", "--seed", "1", "--no-shrink", REASSERT=str(program))
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.rpartition("adapter ")[2].splitlines()[1:] if "/" in line]
    violations = {adapter: sum(int(row[-1]) for row in rows if row[0] == adapter) for adapter in ADAPTERS}
    assert all(violations.values()), done.stdout
    assert "FIND innocent refused" not in done.stdout
