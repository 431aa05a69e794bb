"""The agent's memory stays where it is: a short run of tests/bench/resident.py, which makes 100,000 requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.resident import measure

from e2e.agent.support import FRONT
from e2e.support import REASSERT, need

pytestmark = [pytest.mark.frozen, pytest.mark.root]


def test_memory_is_flat(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need(FRONT.exists(), "front, which packaging/build.sh builds where musl-gcc is")
    assert measure(str(REASSERT), directory, 2000) <= 35
    said = capsys.readouterr().out
    assert "cold: 0" in said
    grown = float(said.rpartition("requests, ")[2].split()[0])
    assert grown < 1.5, said
