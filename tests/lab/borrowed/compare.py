"""Reads TAP (Test Anything Protocol), and compares two runs of a suite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

OK, NOT_OK, SKIP, ABSENT = "ok", "not ok", "skip", "absent"

_TEST = re.compile(r"(?P<not>not )?ok\b(?:\s+\d+)?\s*(?:-\s+)?(?P<rest>.*)$")
_DIRECTIVE = re.compile(r"(?:^|\s)(?<!\\)#\s*(?P<word>skip|todo)\b.*$", re.IGNORECASE)
_TIMING = re.compile(r" in \d+(?:ms|sec)$")

States = dict[str, str]
"""What became of each test of a file."""


class BadList(Exception):
    """The list of differences cannot be read."""


class Difference(NamedTuple):
    """A test that ends in one way with the runtime alone and in another with reassert in front."""

    file: str
    name: str
    alone: str
    with_us: str

    def __str__(self) -> str:
        return f"{self.file} | {self.name} | {self.alone} -> {self.with_us}"


def parse(text: str) -> States:
    """The results in a TAP stream. Lines that are not TAP are ignored, as the protocol says.

    A test that fails as a TODO counts as skipped: the suite's author expects no success. Of two tests of one name, the
    second is NAME (2).
    """
    states: States = {}
    for test in filter(None, map(_TEST.match, text.splitlines())):
        rest, state = test["rest"], NOT_OK if test["not"] else OK
        if directive := _DIRECTIVE.search(rest):
            rest = rest[: directive.start()]
            if directive["word"].lower() == "skip" or test["not"]:
                state = SKIP
        name = unique = _TIMING.sub("", rest).replace(r"\#", "#").strip()
        count = 1
        while unique in states:
            count += 1
            unique = f"{name} ({count})"
        states[unique] = state
    return states


def differences(alone: dict[str, States], with_us: dict[str, States]) -> Iterator[Difference]:
    """All differences between two runs, by file. A test that only one of them has is `absent` in the other."""
    for file in sorted(alone.keys() | with_us.keys()):
        left, right = alone.get(file, {}), with_us.get(file, {})
        for name in dict.fromkeys([*left, *right]):
            states = left.get(name, ABSENT), right.get(name, ABSENT)
            if states[0] != states[1]:
                yield Difference(file, name, *states)


def read_list(text: str) -> dict[Difference, str]:
    """The reason for each listed difference. A line: FILE | TEST | STATE -> STATE | REASON. Raises BadList."""
    listed: dict[Difference, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = re.fullmatch(r"(\S+) \| (.+) \| ([^|]+) -> ([^|]+) \| ([^|]+)", line)
        if not found:
            raise BadList(f"not FILE | TEST | STATE -> STATE | REASON: {line}")
        listed[Difference(*found.groups()[:4])] = found[5]
    return listed
