"""Completion in bash, zsh and fish: commands, options and values, as the parsers have them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from hook.cli import GROUPS, command_line
from hook.ops.shell.completion import SHELLS, script
from hook.ops.shell.tree import tree
from unit.support import reassert

ROOT = tree(command_line(GROUPS))
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


# -- the shells themselves

TYPED = {
    "no": "node",
    "policy sch": "schema",
    "policy check --st": "--strict",
    "node verify --exc": "--except",
    "policy check -o gi": "github",
    "report --output h": "html",
    "explain --policy /etc/hostn": "/etc/hostname",
    "policy check /etc/hostn": "/etc/hostname",
    "trust build --add /etc/hostn": "/etc/hostname",
}
"""What TAB makes of the last word: a command, an option, a value, a file."""


def test_bash_completes() -> None:
    assert {line: completed(*line.split()) for line in TYPED} == {line: [word] for line, word in TYPED.items()}


@pytest.mark.fish
def test_fish_completes(tmp_path: Path) -> None:
    path = tmp_path / "reassert.fish"
    path.write_text(script("fish", ROOT))
    asked = "".join(f"complete -C 'reassert {line}'; echo; " for line in TYPED)
    done = subprocess.run(["fish", "--no-config", "-c", f"source {path}; {asked}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition("\t")[0] for line in done.stdout.splitlines() if line] == list(TYPED.values())


@pytest.mark.zsh
def test_zsh_completes(tmp_path: Path) -> None:
    """In a terminal, with the script where packages put it; a key of the test writes the line down."""
    (tmp_path / "_reassert").write_text(script("zsh", ROOT))
    out = tmp_path / "out"
    out.touch()
    (tmp_path / ".zshrc").write_text(
        f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D\n"
        f'note() {{ print -r -- "$BUFFER" >> {out}; BUFFER=; }}\n'
        "zle -N note; bindkey '^X' note; bindkey '^I' complete-word\n"
    )
    master, slave = os.openpty()
    with subprocess.Popen(
        ["zsh", "-d", "-i"],
        env={"ZDOTDIR": str(tmp_path), "TERM": "dumb", "PATH": os.environ["PATH"]},
        cwd="/",
        start_new_session=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
    ) as shell:
        os.close(slave)
        os.set_blocking(master, False)
        deadline = time.monotonic() + 60
        for number, line in enumerate(TYPED, 1):
            os.write(master, f"reassert {line}\t\x18".encode())
            while len(out.read_text().splitlines()) < number:
                assert time.monotonic() < deadline, out.read_text()
                with contextlib.suppress(BlockingIOError):
                    os.read(master, 1 << 16)
                time.sleep(0.01)
        shell.kill()
    os.close(master)
    lines = [f"reassert {line.rpartition(' ')[0]} {word}" for line, word in TYPED.items()]
    assert [line.split() for line in out.read_text().splitlines()] == [line.split() for line in lines]
