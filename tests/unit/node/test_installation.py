"""Where the program lies, and that a node has one installation: a package's, or a copy below /opt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import __version__
from hook.node.change import program, tree
from hook.node.change.files import TREE, State
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.shown import shown
from hook.node.errors import NodeError
from unit.node.opt import Opt
from unit.ownmachine import Machine

COPIED, PACKAGED = "/opt/reassert/reassert", "/usr/lib/reassert/reassert"


def record(called: str = "", wired: bool = True) -> Record:
    """`called`: the program in the engine's notes."""
    notes = {program.CALLED: called} if called else {}
    return Record("installed.json", {"containerd": OwnerRecord(["runtime"] if wired else [], notes=notes)})


@pytest.fixture
def opt(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opt:
    return Opt(tmp_path, monkeypatch)


def test_a_node_of_an_earlier_prefix_is_refused_until_it_is_unwired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's program, whose dispatchers 0.3 placed below it. A copy below it is another program."""
    monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
    monkeypatch.setattr(sys, "executable", PACKAGED)
    found = record(PACKAGED)
    found.parts["containerd"].notes["prefix"] = "/srv/own"
    with pytest.raises(
        NodeError, match="wired with --prefix /srv/own, which is removed: run `reassert uninstall` first"
    ):
        program.refuse_another(found, installs=True)
    program.refuse_another(found, installs=False)


@pytest.mark.parametrize("flag", [0, os.ST_RDONLY])
def test_the_command_is_left_out_where_usr_local_is_read_only(
    opt: Opt, monkeypatch: pytest.MonkeyPatch, flag: int
) -> None:
    opt.place.mkdir()
    opt.frozen("x")
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flag))
    assert program.command_is_left_out() == bool(flag)
    assert (tree.COMMAND in [path for path, _ in program.program()]) != bool(flag)


@pytest.mark.parametrize("installs", [True, False])
@pytest.mark.parametrize(
    ("found", "own", "packaged", "said"),
    [
        (
            record(COPIED),
            PACKAGED,
            True,
            f"wired with {COPIED}.*; to move .* `{COPIED} node uninstall`",
        ),
        (record(PACKAGED), COPIED, True, f"wired with {PACKAGED}.*; to move"),
        (record(wired=False), COPIED, True, f"the package of reassert .*; run `{PACKAGED} node install`"),
        (record(COPIED), COPIED, True, f"run `{COPIED} node uninstall`, then `{PACKAGED} node install`"),
        (record(COPIED), COPIED, False, ""),
        (record(PACKAGED), PACKAGED, True, ""),
        (record(), COPIED, False, ""),  # wired by an earlier version
        (record(COPIED, wired=False), PACKAGED, True, ""),
    ],
)
def test_a_node_has_one_installation(
    monkeypatch: pytest.MonkeyPatch, found: Record, own: str, packaged: bool, said: str, installs: bool
) -> None:
    """An uninstall is refused for the wiring of another program only."""
    monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
    monkeypatch.setattr(sys, "executable", own)
    monkeypatch.setattr(os.path, "exists", lambda path: packaged or path == f"{os.path.dirname(COPIED)}/start")
    if said and (installs or not said.startswith(("the package", "run"))):
        with pytest.raises(NodeError, match=said):
            program.refuse_another(found, installs)
    else:
        program.refuse_another(found, installs)


def test_a_program_that_is_gone_can_be_replaced_by_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
    monkeypatch.setattr(sys, "executable", "/srv/other/reassert")
    for gone in (COPIED, PACKAGED):
        program.refuse_another(record(gone), installs=True)


def test_another_version_is_said() -> None:
    assert (
        program.change_of_version("0.0.9", COPIED) == f"reassert 0.0.9 was replaced by {__version__} (/opt/reassert)."
    )
    assert program.change_of_version(__version__, COPIED) == program.change_of_version("", COPIED) == ""


def test_a_program_that_cannot_be_called_has_no_version() -> None:
    assert program.version_of("/nonexistent/reassert") == ""


def test_a_plan_names_the_program_by_its_version() -> None:
    path = "/opt/reassert/0123456789ab"
    assert shown([(path, State(b"0123456789ab", TREE))]) == f"the program in /opt/reassert: reassert {__version__}"
