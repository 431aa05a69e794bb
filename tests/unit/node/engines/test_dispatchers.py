"""Dispatchers by their path: one for each real runtime, and none in front of another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hook.node.artifacts.dispatchers import behind, dispatcher_for, real_of
from hook.node.change.files import put
from hook.node.errors import NodeError
from unit.ownmachine import Machine

PROGRAM = "/opt/reassert/reassert"


@pytest.fixture(autouse=True)
def directory(machine: Machine) -> Path:
    """The directory of dispatchers."""
    return Path("/usr/local/sbin")


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


@pytest.mark.parametrize("text", ["\n\n", "# a note\n", "exec 'unbalanced\n", "exec\n"])
def test_one_that_somebody_edited_is_still_read(tmp_path: Path, text: str) -> None:
    real = runtime(tmp_path)
    path, state = dispatcher_for(real, PROGRAM, {})
    put(path, state.with_content(state.content + text.encode()))
    assert real_of(path) in (real, None)


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
