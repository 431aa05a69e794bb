"""Completion in bash, zsh and fish: commands, options and values, as the parsers have them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hook.shell.command import root
from hook.shell.completion import SHELLS, script
from unit.support import reassert

ROOT = root()
ALL = [*ROOT.each()]


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("reassert", *words))
    lines = f"{script('bash', ROOT)}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words)}\n_reassert\n"
    lines += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True, cwd="/")
    return [word for word in done.stdout.splitlines() if word]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pol",), ["policy"]),
        (("policy", "sch"), ["schema"]),
        (("policy", "check", "--st"), ["--strict"]),
        (("policy", "check", "-o", ""), ["text", "json", "github", "sarif"]),
        (("policy", "check", "--output", "s"), ["sarif"]),
        (("policy", "check", "-o", "json", "--no"), ["--node"]),
        (("explain", "--policy", "/et"), ["/etc"]),
        (("policy", "check", "/et"), ["/etc"]),
        (("node", "verify", "--out"), ["--output"]),
    ],
)
def test_bash_offers(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


def test_bash_offers_every_command_and_option() -> None:
    for command in ALL:
        wanted = {each.words[-1] for each in command.below}
        assert wanted <= set(completed(*command.words, ""))
        options = {name for argument in command.arguments for name in argument.names}
        assert options == set(completed(*command.words, "-"))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell: str) -> None:
    done = reassert("completion", shell)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", script(shell, ROOT))
    for command in ALL:
        for argument in command.arguments:
            for name in argument.names:
                spelled = f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" if shell == "fish" else name
                assert re.search(rf"(?<!\w){re.escape(spelled)}(?![\w-])", done.stdout), (command.words, name)


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_shell_reads_its_script(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(script(shell, ROOT))
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
