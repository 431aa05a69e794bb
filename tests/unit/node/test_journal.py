"""A change of several files: whole, or not at all, wherever it is cut off."""

from __future__ import annotations

import errno
import fcntl
import os
from itertools import chain
from pathlib import Path

import pytest

from hook.core.base.errors import describe
from hook.node.change import journal as journals
from hook.node.change import tree
from hook.node.change.files import Change, State, link, look, put
from hook.node.change.program import program
from hook.node.errors import NodeError
from unit.node.opt import Opt
from unit.ownmachine import Machine


class Cut(Exception):
    """Stands for a kill -9: nothing after it is done, no handler of ours runs."""


@pytest.fixture(params=["an earlier one", "none"])
def opt(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Opt:
    """Where the program goes, with an earlier one in place or without."""
    opt = Opt(tmp_path, monkeypatch)
    if request.param != "none":
        opt.install("old")
    opt.frozen("new")
    return opt


@pytest.fixture
def node(tmp_path: Path, opt: Opt) -> Path:
    """Files that are there already: config.toml with a mode and a time of its own, a link, a program."""
    config = tmp_path / "etc/config.toml"
    config.parent.mkdir()
    config.write_text("theirs\n")
    config.chmod(0o640)
    os.utime(config, ns=(1_000_000_000, 2_000_000_000))
    (tmp_path / "bin").symlink_to("/usr/bin/old")
    (tmp_path / "state").mkdir()
    return tmp_path


def changes(node: Path) -> list[Change]:
    return [
        *program(prepare=True),
        (str(node / "bin"), link("/usr/bin/new")),
        (str(node / "made/by/us/drop-in.toml"), State(b"ours\n", mode=0o600)),
        (str(node / "etc/config.toml"), State(b"theirs and ours\n", mode=0o640)),
    ]


def everything(node: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for directory, names, files in chain(os.walk(node), os.walk("/opt"), os.walk("/usr/local/bin")):
        for name in [*names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            time = status.st_mtime_ns if name == "config.toml" else 0
            found[str(path)] = (status.st_mode, content, time)
    return found


RENAMES = 8
"""The journal and what `changes` says, but for the command's link where that is there already."""


def run(node: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the change, and be cut off at the n-th rename of a file. Returns how many there were."""
    renames = 0
    original = os.rename

    def rename(source: str, target: str) -> None:
        nonlocal renames
        renames += 1
        if renames == cut:
            raise Cut
        original(source, target)

    prepared = changes(node)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        journal = journals.begin("install", "test", prepared, [], str(node / "state"))
        journals.apply(journal)
    journal.end(str(node / "state"))
    return renames


@pytest.mark.parametrize("cut", range(1, RENAMES))
def test_cut_off_anywhere_it_is_put_back(node: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(node)
    with pytest.raises(Cut):
        run(node, cut, monkeypatch)
    left = journals.pending(str(node / "state"))
    assert (left is None) == (cut == 1)  # cut off before the journal is there, nothing was touched
    if left:
        left.undo()
        left.undo()  # as often as it takes
        for path in filter(look, left.new()):
            put(path, None)
        tree.tidy(stays=0)
        journals.remove_directories(left.directories)
        left.end(str(node / "state"))
    tree.tidy(stays=0)
    assert everything(node) == before
    assert journals.pending(str(node / "state")) is None


def test_whole_it_is_there(node: Path, opt: Opt, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(node, 99, monkeypatch) in (RENAMES - 1, RENAMES)
    assert opt.in_place() == "new"
    assert os.readlink(node / "bin") == "/usr/bin/new"
    assert (node / "made/by/us/drop-in.toml").stat().st_mode & 0o777 == 0o600
    assert (node / "etc/config.toml").read_text() == "theirs and ours\n"
    assert (node / "etc/config.toml").stat().st_mode & 0o777 == 0o640


def test_directories_are_for_all_to_read_whatever_the_umask(node: Path) -> None:
    before = os.umask(0o077)
    try:
        drop_in = str(node / "made/by/us/drop-in.toml")
        journals.apply(journals.begin("install", "test", [(drop_in, State(b"ours"))], [], str(node / "state")))
    finally:
        os.umask(before)
    assert {(node / path).stat().st_mode & 0o777 for path in ("made", "made/by", "made/by/us")} == {0o755}


def test_a_journal_that_was_damaged_is_said(node: Path) -> None:
    (node / "state/journal.json").write_text("{")
    with pytest.raises(NodeError, match=r"journal\.json cannot be read"):
        journals.pending(str(node / "state"))


def test_one_at_a_time(tmp_path: Path) -> None:
    directory = str(tmp_path / "lib/node")
    with journals.locked(directory):
        with pytest.raises(NodeError, match="another install or uninstall"), journals.locked(directory):
            pass
        assert os.path.isdir(directory)
    assert not os.path.exists(tmp_path / "lib")


def test_a_lock_that_goes_while_it_is_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who held it has ended and removed it; a third one may hold another by now."""
    flock = fcntl.flock

    def taken(fd: int, operation: int) -> None:
        (tmp_path / "lock").unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", taken)
    with (
        pytest.raises(NodeError, match="another install or uninstall is running"),
        journals.locked(str(tmp_path)),
    ):
        pass


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NodeError, match="neither a file nor a symbolic link"):
        look(str(tmp_path / "fifo"))


def test_a_file_system_that_cannot_be_written_has_nothing_to_be_put_back(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/usr/local is read-only, say: unlink(2) says so before it says that there is no such file."""
    before = everything(node)
    journal = journals.begin("install", "test", [(str(node / "bin"), link("/usr/bin/new"))], [], str(node / "state"))
    monkeypatch.setattr(os, "unlink", _read_only)
    journal.undo()
    monkeypatch.undo()
    journal.end(str(node / "state"))
    assert everything(node) == before


def _read_only(path: str) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_a_full_disk_is_said_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as failed:
        put(str(tmp_path / "file"), State(b"x"))
    assert describe(failed.value) == f"{tmp_path}/file: No space left on device"
    assert list(tmp_path.iterdir()) == []
