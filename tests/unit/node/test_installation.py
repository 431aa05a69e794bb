"""A package and install.sh on one node: which program engines call, and that it changes only if that is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import __version__
from hook.node.artifacts import dispatchers
from hook.node.change import installation, journal, tree
from hook.node.change.files import TREE, State
from hook.node.change.record import PROGRAM, OwnedFile, OwnerRecord, Record
from hook.node.errors import NodeError
from hook.node.show import shown

COPIED, PACKAGED = "/opt/reassert/reassert", "/usr/lib/reassert/reassert"


def record(program: str = "", copied: bool = False, wired: bool = True) -> Record:
    """`program`: in the engine's notes, as this version writes it. `copied`: whether /opt has files of ours."""
    notes = {installation.CALLED: program} if program else {}
    parts = {"containerd": OwnerRecord(["runtime"] if wired else [], notes=notes)}
    if copied:
        parts[PROGRAM] = OwnerRecord(files={COPIED: OwnedFile(None, "")})
    return Record("installed.json", parts)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths are as before after the test."""
    for module, names in ((tree, ("PLACE", "STAGING", "COMMAND")), (dispatchers, ("DIRECTORY",))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(journal, "pending", lambda: None)


def recorded(monkeypatch: pytest.MonkeyPatch, notes: dict[str, object] | None) -> None:
    parts = {} if notes is None else {"containerd": OwnerRecord(["runtime"], notes=notes)}
    monkeypatch.setattr(installation.Record, "read", lambda: Record("installed.json", parts))


def paths() -> tuple[str, str, str, str]:
    return tree.PLACE, tree.STAGING, tree.COMMAND, dispatchers.hook_file()


DEFAULTS = (
    "/opt/reassert",
    "/opt/.reassert.reassert-aside",
    "/usr/local/bin/reassert",
    "/usr/local/sbin/reassert-hook",
)


@pytest.mark.parametrize("prefix", ["/opt", "/var/lib/reassert", "/usr/local"])
def test_everything_lies_below_the_prefix(places: None, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(installation, "trusted", lambda path: None)
    recorded(monkeypatch, None)
    installation.locate("")
    assert paths() == DEFAULTS
    installation.locate(prefix)
    assert all(path.startswith(f"{prefix}/") for path in paths())
    found = dict[str, object]()
    installation.note(found, "x")
    assert found == {"program": "x", "prefix": prefix}


def test_later_commands_find_it(places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "trusted", lambda path: None)
    recorded(monkeypatch, {"prefix": "/var/lib/reassert"})
    with pytest.raises(
        NodeError, match="is wired with --prefix /var/lib/reassert; run `reassert node uninstall` first"
    ):
        installation.locate("/opt")
    installation.locate("")
    assert paths()[0] == "/var/lib/reassert/reassert"


def test_an_interrupted_install_is_found_by_its_journal(places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, None)
    step = journal.Step("/srv/x/reassert/0123456789ab", None, State(b"", TREE))
    left = journal.Journal("install", "containerd", [step], [], [])
    monkeypatch.setattr(journal, "pending", lambda: left)
    installation.locate("")
    assert paths()[1] == "/srv/x/.reassert.reassert-aside"


@pytest.mark.parametrize("prefix", ["opt", "/", "/opt/../srv", "/opt/"])
def test_a_prefix_is_an_absolute_path(places: None, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    recorded(monkeypatch, None)
    with pytest.raises(NodeError, match="--prefix takes an absolute path"):
        installation.locate(prefix)


def test_a_prefix_that_others_can_write_is_refused(
    places: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded(monkeypatch, None)
    (tmp_path / "theirs").mkdir(mode=0o777)
    (tmp_path / "theirs").chmod(0o777)
    with pytest.raises(NodeError, match=r"--prefix .*/theirs/x: "):
        installation.locate(f"{tmp_path}/theirs/x")
    assert paths() == DEFAULTS


def test_a_prefix_below_which_nothing_can_be_executed_is_refused(
    places: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dispatchers there would stop every container."""
    monkeypatch.setattr(installation, "trusted", lambda path: None)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
    with pytest.raises(NodeError, match=rf"--prefix {tmp_path}/x: {tmp_path} is mounted noexec"):
        installation.locate(f"{tmp_path}/x")
    assert paths() == DEFAULTS


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


def test_a_plan_names_the_program_by_its_version() -> None:
    path = "/opt/reassert/0123456789ab"
    assert shown([(path, State(b"0123456789ab", TREE))]) == f"the program in /opt/reassert: reassert {__version__}"
