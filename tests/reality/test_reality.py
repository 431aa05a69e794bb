"""200 random containers: 100 by a fixed seed, 100 by a random one that is printed (README.md)."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("seed", [1, secrets.randbelow(10**9)], ids=["fixed seed", "random seed"])
def test_containers_have_what_the_policy_says(seed: int, tmp_path: Path) -> None:
    command = [str(HERE / "run.sh"), "--runs", "100", "--seed", str(seed), "--seconds", "240", "--finds", str(tmp_path)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, text=True, capture_output=True, timeout=600, env=environment)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"
