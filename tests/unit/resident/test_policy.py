"""The policy in force of a process that stays: since when it has which."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hook.compile.in_force import refresh
from hook.resident.policy import Resident
from unit.support import document


def test_time_of_a_policy_is_that_of_its_change(root_dir: Path) -> None:
    source, store = root_dir / "policy.yaml", str(root_dir / "store")
    resident = Resident(str(source), store)

    def loaded(value: str) -> float:
        source.write_text(document({"name": "a", "env": [{"name": "A", "value": value}]}))
        refresh(str(source), store)
        found = resident.get(60)
        assert not found.missing
        assert resident.get(60) is found, "an unchanged policy is not loaded again"
        return resident.loaded_at

    before = time.time()
    first = loaded("1")
    assert before <= first <= time.time()
    os.utime(source, (1, 1))
    assert loaded("1") == first, "written anew, and the same"
    assert loaded("2") > first
