"""One table of exit statuses (docs/is-it-in-force.md is written from it)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from hook.cli import GROUPS, command_line
from hook.core.base.finding import ERROR, NOTE, OK, SEVERITIES, WARNING, exit_status
from hook.ops.exits import COMMANDS, STATUSES, told
from unit.support import called


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    yield name.strip()
    for action in parser._actions:
        for word, below in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            yield from commands(below, f"{name} {word}")


def test_every_row_is_of_a_command_and_every_status_has_one_meaning() -> None:
    assert COMMANDS.keys() <= {*commands(command_line(GROUPS))}
    assert {status for meanings in COMMANDS.values() for status in meanings} <= STATUSES.keys()


@pytest.mark.parametrize(
    ("severities", "status"),
    [((), 0), ((OK, NOTE), 0), ((NOTE, WARNING, OK), 4), ((WARNING, ERROR, OK), 1)],
)
def test_a_command_has_the_status_of_its_worst_finding(severities: tuple[str, ...], status: int) -> None:
    assert exit_status(severities) == status
    assert {exit_status([each]) for each in SEVERITIES} <= STATUSES.keys()


def test_help_has_the_row_of_its_command() -> None:
    for command in ("status", "verify", "audit"):
        assert " ".join(told(command).split()) in " ".join(called(command, "--help").stdout.split())
