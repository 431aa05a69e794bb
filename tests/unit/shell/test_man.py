"""Each command has a manual page with all its options, and extras.sh installs and removes exactly its files."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hook.cli import GROUPS, command_line
from hook.ops.shell.man import name, page, pages
from hook.ops.shell.tree import tree
from unit.support import ROOT, called, reassert

COMMANDS = tree(command_line(GROUPS))


@pytest.mark.parametrize("words", [command.words for command in pages(COMMANDS)], ids=" ".join)
def test_page_has_every_option(words: tuple[str, ...]) -> None:
    [command] = [command for command in pages(COMMANDS) if command.words == words]
    text = page(command, COMMANDS)
    for argument in command.arguments:
        for option in argument.names:
            assert f"Fl {option[1:]}".replace("-", r"\-") in text.replace("Fl -", "Fl \\-")
    assert all(name(below) in text for below in command.below)
    done = called("man", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


@pytest.mark.skipif(not shutil.which("mandoc"), reason="this machine lacks mandoc")
def test_pages_are_well_formed(tmp_path: Path) -> None:
    assert reassert("man", "--directory", str(tmp_path)).returncode == 0
    found = sorted(map(str, tmp_path.glob("*.8")))
    assert len(found) == len(pages(COMMANDS))
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *found], capture_output=True, text=True)
    assert done.stdout == ""


def test_page_of_no_command_is_wrong_usage() -> None:
    assert reassert("man", "policy", "chek").returncode == 2
    assert reassert("man").returncode == 2


def tree(directory: Path) -> dict[str, bytes]:
    """Every file and directory below."""
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b"" for p in directory.rglob("*")}


def test_extras_are_installed_again_and_removed_without_a_trace(tmp_path: Path) -> None:
    program = tmp_path / "reassert"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/hook/__main__.py "$@"\n')
    program.chmod(0o755)
    node = tmp_path / "node"
    (node / "usr/local/share/man/man8").mkdir(parents=True)  # empty, and not ours
    before = tree(node)
    script = str(ROOT / "packaging/extras.sh")
    for _ in range(2):
        subprocess.run([script, "install", str(program), "/usr/local", str(node)], check=True)
        found = tree(node)
        assert "usr/share/reassert/policy.schema.json" in found
        assert b"Dt REASSERT-POLICY-TEST" in gzip.decompress(
            found["usr/local/share/man/man8/reassert-policy-test.8.gz"]
        )
        for path in (
            "man/man8/reassert.8.gz",
            "bash-completion/completions/reassert",
            "zsh/site-functions/_reassert",
            "fish/vendor_completions.d/reassert.fish",
        ):
            assert found[f"usr/local/share/{path}"]
    subprocess.run([script, "remove", "/usr/local", str(node)], check=True)
    assert tree(node) == before
