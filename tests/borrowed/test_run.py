"""What run.sh says when it cannot run: no runtime is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.sh"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="run.sh wants root before anything else")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that is to be the whole PATH: with what run.sh itself uses, and what a suite needs, as stubs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("bash", "dirname", "id", "sh"):
        found = subprocess.run(["sh", "-c", f"command -v {name}"], text=True, capture_output=True, check=True)
        (directory / name).symlink_to(Path(found.stdout.strip()).resolve())
    for name in ("bats", "jq", "gawk", "tar", "ip", "unshare", "reassert", "runc"):
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def run(programs: Path, *arguments: str) -> tuple[int, str]:
    environment = {"PATH": str(programs), "PYTHON": sys.executable, "REASSERT": str(programs / "reassert")}
    done = subprocess.run(["bash", str(RUN), *arguments], text=True, capture_output=True, env=environment)
    return done.returncode, done.stderr


def test_missing_programs_are_named(programs: Path) -> None:
    (programs / "bats").unlink()
    (programs / "jq").unlink()
    status, said = run(programs, "runc", "/nowhere")
    assert status == 2
    assert said == "tests/borrowed/run.sh: install these first (names are Debian's): bats jq\n"


def test_a_directory_that_is_no_source_tree_is_named(programs: Path, tmp_path: Path) -> None:
    status, said = run(programs, "runc", str(tmp_path))
    assert status == 2
    assert f"{tmp_path} is not the source tree wanted" in said


def test_a_program_that_is_not_built_is_named(programs: Path) -> None:
    (programs / "reassert").unlink()
    status, said = run(programs, "runc", "/nowhere")
    assert status == 2
    assert "packaging/build.sh" in said


@pytest.mark.parametrize("arguments", [(), ("runc",), ("youki", "/nowhere")])
def test_usage(programs: Path, arguments: tuple[str, ...]) -> None:
    status, said = run(programs, *arguments)
    assert status == 2
    assert "usage: sudo tests/borrowed/run.sh" in said


def test_a_runtime_that_is_not_there_is_named(programs: Path) -> None:
    (programs / "runc").unlink()
    status, said = run(programs, "runc", "/nowhere")
    assert status == 2
    assert "no runtime runc" in said
