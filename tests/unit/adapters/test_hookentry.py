"""What an engine is given to call the hook: safe by its form, whatever the engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hook.adapters.hook import STAGES
from hook.adapters.hookentry import hooks_d, oci_hook

PROGRAM = "/opt/reassert/reassert"


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the frozen program."""
    monkeypatch.setattr(sys, "_MEIPASS", "/somewhere", raising=False)


@pytest.mark.parametrize("stage", STAGES)
def test_every_entry_has_what_past_holes_ask_for(stage: str) -> None:
    entry = oci_hook(PROGRAM, stage)
    assert entry["path"] == PROGRAM
    assert entry["args"] == ["reassert", "hook", stage]
    assert entry["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert entry["timeout"] == 30


def test_flags_stand_before_the_stage() -> None:
    assert oci_hook(PROGRAM, "prestart", ("--inject-env",))["args"] == ["reassert", "hook", "--inject-env", "prestart"]


def test_stage_that_is_none_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="startContainer"):
        oci_hook(PROGRAM, "startContainer")


@pytest.mark.usefixtures("frozen")
def test_frozen_program_is_told_what_its_bootloader_would_find_out() -> None:
    assert oci_hook(PROGRAM, "prestart")["env"][1:] == [
        f"_PYI_ARCHIVE_FILE={PROGRAM}",
        "_PYI_PARENT_PROCESS_LEVEL=0",
        "LD_LIBRARY_PATH=/opt/reassert/lib",
    ]


@pytest.mark.usefixtures("frozen")
def test_program_behind_a_link_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "reassert").symlink_to(PROGRAM)
    assert oci_hook(str(tmp_path / "reassert"), "prestart")["env"][1:] == []


def test_hooks_d_names_the_stage_that_its_hook_is_told() -> None:
    assert hooks_d(PROGRAM, "createRuntime") == {
        "version": "1.0.0",
        "hook": oci_hook(PROGRAM, "createRuntime"),
        "when": {"always": True},
        "stages": ["createRuntime"],
    }
