"""reassert(8) has every command and option of the program's help, and no other."""

from __future__ import annotations

import argparse
import re

from hook.cli import GROUPS, command_line
from hook.entry import help as usage
from unit.support import ROOT

PAGE = (ROOT / "packaging/deb/reassert.8").read_text()


def commands(parser: argparse.ArgumentParser, name: str = "") -> dict[str, set[str]]:
    """Options by command, from argparse's parsers."""
    found: dict[str, set[str]] = {}
    options: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                found |= commands(below, f"{name} {word}".strip())
        elif action.help != argparse.SUPPRESS:
            options |= set(action.option_strings) - {"-h", "--help"}
    return found or {name: options}


HELP = commands(command_line(GROUPS)) | {
    name: set(re.findall(r"--[a-z][a-z-]*", text)) - {"--help"}
    for name, text in (("runtime", usage.RUNTIME), ("hook", usage.HOOK))
}
SECTIONS = dict(re.findall(r"^\.Ss (.+)\n((?:(?!\.S[sh]).*\n)*)", PAGE, re.MULTILINE))


def test_every_command_has_its_section() -> None:
    assert HELP.keys() == SECTIONS.keys()
    assert len(HELP) >= 14


def test_a_section_has_the_commands_options() -> None:
    wrong = {}
    for command, options in HELP.items():
        lines = "\n".join(line for line in SECTIONS[command].splitlines() if line.startswith("."))
        shown = {f"-{option}" for option in re.findall(r"\bFl ([a-z-]+)", lines)}
        if shown != options or f".Cm {command}" not in lines:
            wrong[command] = shown ^ options
    assert wrong == {}
