"""Where the program lies, below /opt or a prefix, and that a node has one installation: a package's, or a copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import __version__
from hook.node.artifacts import dispatchers
from hook.node.change import journal, program, tree
from hook.node.change.files import TREE, State, put
from hook.node.change.record import OwnerRecord, Record
from hook.node.errors import NodeError
from hook.node.status import shown
from unit.ownmachine import Machine, own_machine

COPIED, PACKAGED = "/opt/reassert/reassert", "/usr/lib/reassert/reassert"


def record(called: str = "", wired: bool = True) -> Record:
    """`called`: the program in the engine's notes."""
    notes = {program.CALLED: called} if called else {}
    return Record("installed.json", {"containerd": OwnerRecord(["runtime"] if wired else [], notes=notes)})


@pytest.fixture
def places(machine: Machine) -> Iterator[None]:
    """The paths are as before after the test."""
    yield
    with own_machine():
        program.locate("")


def recorded(notes: dict[str, object]) -> None:
    """An engine is wired."""
    found = Record.read()
    found.parts = {"containerd": OwnerRecord(["runtime"], notes=notes)}
    path, state = found.change()
    Path(path).parent.mkdir(parents=True)
    put(path, state)


def paths() -> tuple[str, str, str, str]:
    return tree.PLACE, tree.STAGING, tree.COMMAND, dispatchers.hook_file()


DEFAULTS = (
    "/opt/reassert",
    "/opt/.reassert.reassert-aside",
    "/usr/local/bin/reassert",
    "/usr/local/sbin/reassert-hook",
)


@pytest.mark.parametrize("prefix", ["/opt", "/var/lib/reassert", pytest.param("/usr/local", marks=pytest.mark.users)])
def test_everything_lies_below_the_prefix(places: None, prefix: str) -> None:
    program.locate("")
    assert paths() == DEFAULTS
    program.locate(prefix)
    assert all(path.startswith(f"{prefix}/") for path in paths())
    found = dict[str, object]()
    program.note(found, "x")
    assert found == {"program": "x", "prefix": prefix}


def test_later_commands_find_it(places: None) -> None:
    recorded({"prefix": "/var/lib/reassert"})
    with pytest.raises(
        NodeError, match="is wired with --prefix /var/lib/reassert; run `reassert node uninstall` first"
    ):
        program.locate("/opt")
    program.locate("")
    assert paths()[0] == "/var/lib/reassert/reassert"


def test_an_interrupted_install_is_found_by_its_journal(places: None) -> None:
    Path(journal.DIRECTORY).mkdir(parents=True)
    journal.begin("install", "containerd", [("/srv/x/reassert/0123456789ab", State(b"", TREE))], [])
    program.locate("")
    assert paths()[1] == "/srv/x/.reassert.reassert-aside"


@pytest.mark.parametrize("prefix", ["opt", "/", "/opt/../srv", "/opt/"])
def test_a_prefix_is_an_absolute_path(places: None, prefix: str) -> None:
    with pytest.raises(NodeError, match="--prefix takes an absolute path"):
        program.locate(prefix)


def test_a_prefix_that_others_can_write_is_refused(places: None, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o777)
    (tmp_path / "theirs").chmod(0o777)
    with pytest.raises(NodeError, match=r"--prefix .*/theirs/x: "):
        program.locate(f"{tmp_path}/theirs/x")
    assert paths() == DEFAULTS


def test_a_prefix_below_which_nothing_can_be_executed_is_refused(places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers there would stop every container."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
    with pytest.raises(NodeError, match="--prefix /opt/x: /opt is mounted noexec"):
        program.locate("/opt/x")
    assert paths() == DEFAULTS


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
