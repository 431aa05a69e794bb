"""A package and install.sh on one node: which program engines call, and that it changes only if that is asked for."""

from __future__ import annotations

import pytest

from hook import __version__
from hook.node.change import installation
from hook.node.change.record import PROGRAM, OwnedFile, OwnerRecord, Record
from hook.node.errors import NodeError

COPIED, PACKAGED = "/opt/reassert/reassert", "/usr/lib/reassert/reassert"


def record(program: str = "", copied: bool = False, wired: bool = True) -> Record:
    """`program`: in the engine's notes, as this version writes it. `copied`: whether /opt has files of ours."""
    notes = {installation.CALLED: program} if program else {}
    parts = {"containerd": OwnerRecord(["runtime"] if wired else [], notes=notes)}
    if copied:
        parts[PROGRAM] = OwnerRecord(files={COPIED: OwnedFile(None, "")})
    return Record("installed.json", parts)


@pytest.fixture(params=[COPIED, PACKAGED])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the program that runs, if it is installed."""
    path: str = request.param
    monkeypatch.setattr(installation, "path_in_use", lambda: path)
    monkeypatch.setattr(installation, "version_of", lambda path: "0.2.0")
    return path


@pytest.mark.parametrize(
    ("found", "called"),
    [
        (record(COPIED), COPIED),
        (record(PACKAGED, copied=True), PACKAGED),  # after it took over
        (record(copied=True), COPIED),  # installed by an earlier version
        (record(), PACKAGED),
        (record(COPIED, wired=False), ""),
    ],
)
def test_the_wiring_never_moves_silently(own: str, found: Record, called: str) -> None:
    assert installation.called(found) == called
    assert installation.other(found) == ("" if called in ("", own) else called)
    if called in ("", own):
        installation.refuse_to_move(found, take_over=False)
        return
    installation.refuse_to_move(found, take_over=True)
    with pytest.raises(NodeError) as error:
        installation.refuse_to_move(found, take_over=False)
    said = str(error.value)
    assert "reassert 0.2.0 in " in said
    assert f"reassert {__version__} in " in said
    assert f"use `{called} node …`, or add --take-over" in said


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("0.0.9", f"reassert was upgraded from 0.0.9 to {__version__} (/opt/reassert)."),
        ("10.0.0", f"reassert was downgraded from 10.0.0 to {__version__} (/opt/reassert)."),
        (__version__, ""),
        ("", ""),
    ],
)
def test_versions_are_said_and_a_downgrade_is_one(before: str, said: str) -> None:
    assert installation.change_of_version(before, COPIED) == said


def test_a_program_that_cannot_be_called_has_no_version() -> None:
    assert installation.version_of("/nonexistent/reassert") == ""
