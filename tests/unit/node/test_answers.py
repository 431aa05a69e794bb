"""An engine's program is not asked again while all that its answer depends on is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import marks
import pytest

from hook.node import answers, kept, systemd
from hook.node.engines.containerd.daemon import Containerd, _read_for
from hook.node.kept import Answer
from unit.ownmachine import Machine

pytestmark = marks.promise("`status` asks an engine's program again once its answer may be another one", about="Node")


class Program:
    """A program in a directory, and a configuration that it reads. `ask` returns how often it has run so far."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = directory / "program"
        shutil.copy("/bin/true", self.path)
        self.config = directory / "config"
        self.config.mkdir()
        (self.config / "a.toml").write_text("version = 3\n")
        self.known: dict[str, Answer] = {}
        self.runs = 0
        self.now = os.stat(self.config).st_ctime + 60
        monkeypatch.setattr("time.time", lambda: self.now)

    def files(self, printed: str) -> list[str] | None:
        return [str(self.config), *(str(path) for path in self.config.iterdir())]

    def ask(self) -> int:
        def run() -> str:
            self.runs += 1
            return str(self.runs)

        with answers.known(self.known):
            assert answers.ask([str(self.path)], run, self.files) == str(self.runs)
        return self.runs


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, monkeypatch)


def replace(path: Path, text: bytes) -> None:
    """As an editor does: a new file of the same size and time."""
    before, new = os.stat(path), path.with_name("new")
    new.write_bytes(text)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(path)


CHANGES: dict[str, Callable[[Program], object]] = {
    "the program is replaced": lambda each: replace(each.path, each.path.read_bytes()),
    "the program gets another mode": lambda each: each.path.chmod(0o700),
    "a file is replaced": lambda each: replace(each.config / "a.toml", b"version = 2\n"),
    "a file is added": lambda each: (each.config / ".b.toml").touch(),
    "a file is removed": lambda each: (each.config / "a.toml").unlink(),
    "a file is renamed": lambda each: (each.config / "a.toml").rename(each.config / "c.toml"),
    "the directory is another one": lambda each: each.config.rename(each.config.with_name("x")) and each.config.mkdir(),
    "nothing is remembered": lambda each: each.known.clear(),
    "what is remembered names no file": lambda each: each.known.update({str(each.path): Answer("1", {})}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_asked_once_and_again_after_a_change(program: Program, change: Callable[[Program], object]) -> None:
    assert [program.ask(), program.ask()] == [1, 1]
    change(program)
    assert program.ask() == 2


def test_what_was_edited_in_place_is_asked_again(program: Program) -> None:
    program.ask()
    file = program.config / "a.toml"
    before = os.stat(file)
    file.write_text("version = 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert program.ask() == 2


def test_an_answer_is_not_kept_of_a_file_that_may_change_again_and_look_the_same(program: Program) -> None:
    program.now = os.stat(program.config).st_ctime + 1
    assert [program.ask(), program.ask()] == [1, 2]


def test_a_script_is_asked_each_time(program: Program) -> None:
    program.path.write_text("#!/bin/sh\n")
    assert [program.ask(), program.ask()] == [1, 2]


def test_an_answer_whose_files_are_not_known_is_not_kept(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "files", lambda _: None)
    assert [program.ask(), program.ask()] == [1, 2]


def test_what_is_not_asked_any_more_is_forgotten(program: Program) -> None:
    program.ask()
    with answers.known(program.known):
        pass
    assert program.known == {}


def test_outside_of_a_block_each_is_asked(program: Program) -> None:
    program.ask()
    assert answers.ask([str(program.path)], lambda: "asked", program.files) == "asked"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A configuration with imports: `conf.d/*.toml`, and one of these has another one of `more/`."""
    for name in ("conf.d", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.toml").write_text(f'imports = ["{tmp_path}/conf.d/*.toml"]\n')
    (tmp_path / "conf.d/a.toml").write_text(f'imports = ["{tmp_path}/more/x.toml"]\n')
    (tmp_path / "conf.d/note.txt").write_text("no TOML [\n")
    (tmp_path / "more/x.toml").touch()
    return tmp_path


def test_a_dump_depends_on_every_file_that_it_reads_and_on_the_directories(etc: Path) -> None:
    names = ("config.toml", "conf.d", "conf.d/a.toml", "conf.d/note.txt", "more", "more/x.toml")
    assert _read_for(f"{etc}/config.toml", "") == {f"{etc}/{name}" for name in names}
    (etc / "default").mkdir()
    shown = f'imports = ["{etc}/default/*.toml"]'
    assert (_read_for(f"{etc}/config.toml", shown) or set()) - {f"{etc}/{name}" for name in names} == {f"{etc}/default"}


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "{}/*/a.toml", "{}/none/*.toml", "{}/conf.d/note.txt"])
def test_what_releases_read_in_different_ways_is_not_certain(etc: Path, pattern: str) -> None:
    (etc / "more/x.toml").write_text(f'imports = ["{pattern.format(etc)}"]\n')
    assert _read_for(f"{etc}/config.toml", "") is None


@pytest.mark.parametrize("is_containerd", [False, True], ids=["version", "config dump"])
def test_what_an_engine_says_is_kept_in_node_json(
    machine: Machine, program: Program, etc: Path, is_containerd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any engine the version, of containerd the configuration too."""
    (etc / "conf.d/note.txt").unlink()
    asked: list[list[str]] = []

    def command(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(arguments)
        return subprocess.CompletedProcess(arguments, 0, "version = 3 # 1.2.3\n", "")

    monkeypatch.setattr(systemd, "command", command)
    monkeypatch.setattr(Containerd, "which", lambda *_: str(program.path))
    engine = Containerd((1, 2, 3), f"{etc}/config.toml", "")
    for _ in range(2):
        remembered = kept.read().answers
        with answers.known(remembered):
            if is_containerd:
                assert engine._dump(f"{etc}/config.toml") == {"version": 3}
            else:
                assert systemd.version_of(str(program.path), (1, 0)) == (1, 2, 3)
        kept.change(lambda now, new=remembered: setattr(now, "answers", new))  # type: ignore[misc]  # by default
    words = ["--config", f"{etc}/config.toml", "config", "dump"] if is_containerd else ["--version"]
    assert asked == [[str(program.path), *words]]
