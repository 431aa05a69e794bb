"""Completion in bash, zsh and fish, a page for each command; extras.sh installs and removes exactly these."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from harness.paths import REASSERT, TOP
from harness.tools import need, run

from hook.cli import GROUPS, command_line

TYPED = {
    "inst": "install",
    "policy sch": "schema",
    "policy check --st": "--strict",
    "verify --exc": "--except",
    "policy check -o gi": "github",
    "report --output h": "html",
    "explain --policy /etc/hostn": "/etc/hostname",
    "policy check /etc/hostn": "/etc/hostname",
    "explain /etc/hostn": "/etc/hostname",
    "trust build --add /etc/hostn": "/etc/hostname",
}
"""What TAB makes of the last word: a command, an option, a value, a file."""


def script(shell: str) -> str:
    return run(REASSERT, "completion", shell).stdout


def test_bash_completes() -> None:
    for line, word in TYPED.items():
        words = " ".join(f"'{each}'" for each in ("reassert", *line.split()))
        lines = f"{script('bash')}\nCOMP_WORDS=({words})\nCOMP_CWORD={len(line.split())}\n_shtab_reassert\n"
        lines += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
        done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True, cwd="/")
        assert done.stdout.split() == [word]


def test_fish_completes(tmp_path: Path) -> None:
    need(bool(shutil.which("fish")), "fish")
    path = tmp_path / "reassert.fish"
    path.write_text(script("fish"))
    asked = "".join(f"complete -C 'reassert {line}'; echo; " for line in TYPED)
    done = subprocess.run(["fish", "--no-config", "-c", f"source {path}; {asked}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition("\t")[0] for line in done.stdout.splitlines() if line] == list(TYPED.values())


def test_zsh_completes(tmp_path: Path) -> None:
    """In a terminal, with the script where packages put it; a key of the test writes the line down."""
    need(bool(shutil.which("zsh")), "zsh")
    (tmp_path / "_reassert").write_text(script("zsh"))
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
        deadline = time.monotonic() + 600
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


def commands(parser: argparse.ArgumentParser, *above: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """The words of each command that help lists, with its options."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            listed = {choice.dest for choice in action._choices_actions}
            for word, below in [each for each in action.choices.items() if each[0] in listed]:
                yield (
                    (*above, word),
                    {
                        option
                        for each in below._actions
                        if each.help != argparse.SUPPRESS
                        for option in each.option_strings
                    },
                )
                yield from commands(below, *above, word)


def test_every_command_has_a_page_with_all_its_options(tmp_path: Path) -> None:
    run(REASSERT, "man", "--directory", tmp_path)
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    wanted = {f"{'-'.join(('reassert', *words))}.8": options for words, options in commands(command_line(GROUPS))}
    assert pages.keys() == wanted.keys()
    assert [name for name, options in wanted.items() if not all(option in pages[name] for option in options)] == []
    assert run(REASSERT, "man", "policy", "test").stdout == pages["reassert-policy-test.8"]
    for words in (("policy", "chek"), ("node", "install"), ("..",), ()):
        assert subprocess.run([REASSERT, "man", *words], capture_output=True).returncode == 2
    need(bool(shutil.which("mandoc")), "mandoc", installed=False)
    lint = ["mandoc", "-T", "lint", "-W", "warning", *map(str, tmp_path.iterdir())]
    assert subprocess.run(lint, capture_output=True, text=True).stdout == ""


def tree(directory: Path) -> dict[str, bytes]:
    """Every file and directory below."""
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b"" for p in directory.rglob("*")}


def test_extras_are_installed_again_and_removed_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "usr/local/share/man/man8").mkdir(parents=True)  # empty, and not ours
    before = tree(tmp_path)
    extras = TOP / "packaging/extras.sh"
    for _ in range(2):
        run(extras, "install", REASSERT, "/usr/local", tmp_path)
        found = tree(tmp_path)
        assert "usr/share/reassert/policy.schema.json" in found
        page = found["usr/local/share/man/man8/reassert-policy-test.8.gz"]
        assert b"Dt REASSERT-POLICY-TEST" in gzip.decompress(page)
        for path in (
            "man/man8/reassert.8.gz",
            "bash-completion/completions/reassert",
            "zsh/site-functions/_reassert",
            "fish/vendor_completions.d/reassert.fish",
        ):
            assert found[f"usr/local/share/{path}"]
    run(extras, "remove", "/usr/local", tmp_path)
    assert tree(tmp_path) == before
