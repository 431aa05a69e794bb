"""Dispatchers by their path: one for each real runtime, and none in front of another."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node.artifacts.dispatchers import (
    behind,
    dispatcher_for,
    dispatcher_on_disk,
    hook_file,
    is_wired,
    pass_through,
    real_of,
)
from hook.node.change.files import State, put
from hook.node.errors import NodeError
from unit.ownmachine import Machine
from unit.support import ROOT

PROGRAM = "/opt/reassert/reassert"


@pytest.fixture(autouse=True)
def directory(machine: Machine) -> Path:
    """The directory of dispatchers."""
    place = Path("/opt/reassert")
    place.mkdir(exist_ok=True)
    return place


def runtime(directory: Path, name: str = "runc") -> str:
    """A program that prints its arguments."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text('#!/bin/sh\necho "$0" "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_dispatcher_is_named_after_its_runtime_and_calls_it(tmp_path: Path, directory: Path) -> None:
    real = runtime(tmp_path / "it's a $dir")
    path, state = dispatcher_for(real, PROGRAM, {})
    assert path == f"{directory}/reassert-runc"
    put(path, state)
    assert real_of(path) == real
    assert subprocess.check_output([path, "state", "x"], text=True) == f"{real} state x\n"


def test_one_of_0_3_stays_where_it_is(tmp_path: Path, directory: Path) -> None:
    """The engine and running containers call it. Another runtime's dispatcher is beside the program."""
    real, old = runtime(tmp_path), "/usr/local/sbin/reassert-runc"
    put(old, dispatcher_for(real, PROGRAM, {})[1])
    assert dispatcher_for(real, PROGRAM, {})[0] == old
    assert dispatcher_on_disk(real, {})[0] == old  # type: ignore[index]  # it is there
    assert dispatcher_for(runtime(tmp_path, "crun"), PROGRAM, {})[0] == f"{directory}/reassert-crun"
    assert hook_file() == f"{directory}/reassert-hook"
    put("/usr/local/sbin/reassert-hook", dispatcher_for(real, PROGRAM, {})[1])
    assert hook_file() == "/usr/local/sbin/reassert-hook"


@pytest.mark.parametrize("text", ["\n\n", "# a note\n", "exec 'unbalanced\n", "exec\n"])
def test_one_that_somebody_edited_is_still_read(tmp_path: Path, text: str) -> None:
    real = runtime(tmp_path)
    path, state = dispatcher_for(real, PROGRAM, {})
    put(path, state.with_content(state.content + text.encode()))
    assert real_of(path) in (real, None)


def by_hand(path: str) -> None:
    """The shell line of docs/break-glass.md."""
    [line] = [
        each for each in (ROOT / "docs/break-glass.md").read_text().splitlines() if each.startswith("    for f in ")
    ]
    subprocess.run(["sh", "-euc", line], check=True)


def by_the_package(path: str) -> None:
    """The text that packaging/deb/postrm puts in place of a dispatcher."""
    script = (ROOT / "packaging/deb/postrm").read_text()
    text = script.partition('put "$file" << END\n')[2].partition("\nEND\n")[0]
    last = Path(path).read_text().splitlines()[-1]
    put(path, State(f"{text.replace(chr(92), '').replace('$last', last)}\n".encode(), mode=0o755))


def by_uninstall(path: str) -> None:
    """What an uninstall leaves while running containers still call a dispatcher."""
    put(path, pass_through(str(real_of(path))))


@pytest.mark.parametrize("replace", [by_hand, by_the_package, by_uninstall])
def test_a_pass_through_is_not_wired_and_the_next_install_takes_its_place(
    tmp_path: Path, replace: Callable[[str], None]
) -> None:
    real = runtime(tmp_path)
    path, state = dispatcher_for(real, PROGRAM, {})
    put(path, state)
    assert is_wired(path)
    replace(path)
    assert subprocess.check_output([path, "create", "x"], text=True) == f"{real} create x\n"
    assert (is_wired(path), behind(path)) == (False, real)
    assert dispatcher_for(real, PROGRAM, {}) == (path, state)


def test_two_runtimes_of_one_name_get_two_dispatchers(tmp_path: Path, directory: Path) -> None:
    taken: dict[str, str] = {}
    one, other = runtime(tmp_path / "a"), runtime(tmp_path / "b")
    paths = [dispatcher_for(real, PROGRAM, taken)[0] for real in (one, other, one, other)]
    assert paths == [f"{directory}/reassert-runc", f"{directory}/reassert-runc-2"] * 2


def test_what_was_installed_keeps_its_place(tmp_path: Path, directory: Path) -> None:
    one, other = runtime(tmp_path / "a"), runtime(tmp_path / "b")
    put(*dispatcher_for(one, PROGRAM, {}))
    second = dispatcher_for(other, PROGRAM, {})
    put(*second)
    assert second[0] == f"{directory}/reassert-runc-2"
    assert dispatcher_for(other, PROGRAM, {}) == second


def test_file_of_that_name_that_is_not_ours_is_left_alone(tmp_path: Path, directory: Path) -> None:
    (directory / "reassert-runc").write_text("an administrator's\n")
    (directory / "reassert-runc-2").symlink_to("/nonexistent")
    assert dispatcher_for(runtime(tmp_path), PROGRAM, {})[0] == f"{directory}/reassert-runc-3"


def test_dispatcher_is_not_put_before_a_dispatcher(tmp_path: Path) -> None:
    real = runtime(tmp_path)
    path, state = dispatcher_for(real, PROGRAM, {})
    put(path, state)
    assert (behind(path), behind(real), behind("/nonexistent")) == (real, real, "/nonexistent")
    assert dispatcher_for(behind(path), PROGRAM, {}) == (path, state)


@pytest.mark.parametrize("what", ["gone", "file", "directory", "relative"])
def test_runtime_that_is_no_program_is_said_to_be_none(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    path = "runc" if what == "relative" else str(tmp_path / what)
    with pytest.raises(NodeError, match=f"{path} is not an executable file"):
        dispatcher_for(path, PROGRAM, {})
