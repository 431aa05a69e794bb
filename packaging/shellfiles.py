"""Completion of shells and a page for each command, made of the parsers. packaging/reassert.spec freezes them."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import shtab

from hook import __version__
from hook.cli import GROUPS, command_line
from hook.ops.shell import SECTION, SHELLS, page_name

ROOT = Path(__file__).resolve().parents[1]
FILES = ("FILE", "FILE.tar.gz", "PATH", "TARGET", "OLD", "NEW", "PLACE")
DIRECTORIES = ("DIR", "DIRECTORY")


def write(directory: Path) -> None:
    """Write `completion.SHELL` for each shell, and the pages, in place of those of an earlier build."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    program = command_line(GROUPS)
    for _, _, parser in commands(program):
        for action in parser._actions:
            if action.metavar in FILES + DIRECTORIES:
                action.complete = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab's
    for shell in SHELLS:
        (directory / f"completion.{shell}").write_text(shtab.complete(program, shell))
    for words, meaning, parser in commands(program):
        (directory / page_name(words)).write_text(page(words, meaning, parser))


def commands(
    parser: argparse.ArgumentParser, *above: str
) -> Iterator[tuple[tuple[str, ...], str, argparse.ArgumentParser]]:
    """The words of every command, what it does, and its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            meanings = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, below in action.choices.items():
                if word not in meanings:  # an alias, or what no person types
                    continue
                yield (*above, word), meanings[word], below
                yield from commands(below, *above, word)


def page(words: tuple[str, ...], meaning: str, parser: argparse.ArgumentParser) -> str:
    """A page in mdoc(7): what --help prints. Its date is that of reassert(8)."""
    date = re.search(r"^\.Dd .*", (ROOT / "packaging/deb/reassert.8").read_text(), re.MULTILINE)
    name = page_name(words).removesuffix(f".{SECTION}")
    lines = parser.format_help().rstrip().replace("\\", r"\e").split("\n")
    text = "\n".join(rf"\&{line}" if line[:1] in (".", "'") else line for line in lines)
    return (
        f'{date[0] if date else ".Dd"}\n.Dt {name.upper()} {SECTION}\n.Os "reassert {__version__}"\n'
        f".Sh NAME\n.Nm {name}\n.Nd {meaning}\n.Sh DESCRIPTION\n.Bd -literal\n{text}\n.Ed\n"
        f".Sh SEE ALSO\n.Xr reassert {SECTION}\n"
    )
