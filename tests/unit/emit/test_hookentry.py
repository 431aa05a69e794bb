"""Hook entries are safe in every engine: absolute path, env, timeout."""

from __future__ import annotations

import pytest

from hook.entry.hook import STAGES
from hook.node.artifacts.specs import hooks_d, oci_hook

PROGRAM = "/opt/reassert/reassert"


@pytest.mark.parametrize("stage", STAGES)
def test_every_entry_has_what_past_holes_ask_for(stage: str) -> None:
    entry = oci_hook(PROGRAM, stage)
    assert entry["path"] == PROGRAM
    assert entry["args"] == ["reassert", "hook", stage]
    assert entry["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert entry["timeout"] == 30


def test_hooks_d_names_the_stage_that_its_hook_is_told() -> None:
    assert hooks_d(PROGRAM, "createRuntime") == {
        "version": "1.0.0",
        "hook": oci_hook(PROGRAM, "createRuntime"),
        "when": {"always": True},
        "stages": ["createRuntime"],
    }
