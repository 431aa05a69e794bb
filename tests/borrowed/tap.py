"""Reads the TAP (Test Anything Protocol) that bats prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

OK, NOT_OK, SKIP, ABSENT = "ok", "not ok", "skip", "absent"

_PLAN = re.compile(r"1\.\.(\d+)\s*(?:#.*)?$")
_TEST = re.compile(r"(?P<not>not )?ok\b(?:\s+\d+)?\s*(?:-\s+)?(?P<rest>.*)$")
_DIRECTIVE = re.compile(r"(?:^|\s)(?<!\\)#\s*(?P<word>skip|todo)\b\s*:?\s*(?P<why>.*)$", re.IGNORECASE)
_TIMING = re.compile(r" in \d+(?:ms|sec)$")
_WHERE = re.compile(r"in test file (?P<file>.+), line (?P<line>\d+)\)")


@dataclass(frozen=True)
class Outcome:
    """What became of one test. `where`: the line of the test file that failed. `said`: the comments below it."""

    state: str
    where: str = ""
    said: tuple[str, ...] = ()

    def differs(self, other: Outcome) -> bool:
        """Whether it ended in another way, or failed at another line."""
        return (self.state, self.where) != (other.state, other.where)


@dataclass
class Results:
    """One run of one test file."""

    tests: dict[str, Outcome] = field(default_factory=dict)
    planned: int = 0
    bailed: str = ""

    @property
    def unfinished(self) -> int:
        """How many tests of the plan have no line."""
        return max(0, self.planned - len(self.tests))

    def of(self, name: str) -> Outcome:
        """What became of a test; `ABSENT` where there is no line about it."""
        return self.tests.get(name, Outcome(ABSENT))


def parse(text: str) -> Results:
    """The results in a TAP stream. Lines that are not TAP are ignored, as the protocol says.

    A test that fails as a TODO counts as skipped: the suite's author expects no success.
    Two tests of one name become NAME and NAME (2).
    """
    results = Results()
    said: list[str] = []
    current = ""
    for line in text.splitlines():
        if line.startswith("#"):
            said.append(line[1:].removeprefix(" "))
            continue
        if plan := _PLAN.match(line):
            results.planned = int(plan[1])
        elif line.startswith("Bail out!"):
            results.bailed = line.removeprefix("Bail out!").strip() or "no reason given"
        elif test := _TEST.match(line):
            _complete(results, current, said)
            said.clear()
            current = _add(results, bool(test["not"]), test["rest"])
    _complete(results, current, said)
    return results


def _add(results: Results, failed: bool, rest: str) -> str:
    state = NOT_OK if failed else OK
    if directive := _DIRECTIVE.search(rest):
        rest = rest[: directive.start()]
        if directive["word"].lower() == "skip" or failed:
            state = SKIP
    name = unique = _TIMING.sub("", rest).replace(r"\#", "#").strip()
    count = 1
    while unique in results.tests:
        count += 1
        unique = f"{name} ({count})"
    results.tests[unique] = Outcome(state)
    return unique


def _complete(results: Results, name: str, said: list[str]) -> None:
    """Comments stand below the test that they are about; those above the first test are about none."""
    if not name:
        return
    state = results.tests[name].state
    lines = [found["line"] for found in map(_WHERE.search, said) if found]
    results.tests[name] = Outcome(state, lines[0] if lines and state == NOT_OK else "", tuple(said))
