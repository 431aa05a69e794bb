"""Compares two runs of a suite test by test, and the differences with the list of those that have a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from borrowed.tap import Outcome, Results

ELSEWHERE = "not ok elsewhere"


class BadList(Exception):
    """The list of differences cannot be read."""


@dataclass(frozen=True, order=True)
class Difference:
    """A test that ends in one way with the runtime alone and in another with reassert in front."""

    file: str
    name: str
    alone: str
    with_us: str

    def __str__(self) -> str:
        return f"{self.file} | {self.name} | {self.alone} -> {self.with_us}"


@dataclass
class Verdict:
    """`unlisted`: differ, and no line says why. `gone`: lines that no longer differ. `inapplicable`: lines about tests
    that this suite does not have."""

    unlisted: list[Difference] = field(default_factory=list)
    gone: list[Difference] = field(default_factory=list)
    listed: list[Difference] = field(default_factory=list)
    inapplicable: list[Difference] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the differences are those in the list."""
        return not self.unlisted and not self.gone


def difference(file: str, name: str, alone: Outcome, with_us: Outcome) -> Difference | None:
    """The difference between two outcomes of a test, if there is one."""
    if not alone.differs(with_us):
        return None
    return Difference(file, name, alone.state, ELSEWHERE if alone.state == with_us.state else with_us.state)


def differences(alone: dict[str, Results], with_us: dict[str, Results]) -> list[Difference]:
    """All differences between two runs, by file. A test that only one of them has is `absent` in the other."""
    found: list[Difference | None] = []
    for file in sorted(alone.keys() | with_us.keys()):
        left, right = alone.get(file, Results()), with_us.get(file, Results())
        names = dict.fromkeys([*left.tests, *right.tests])
        found += [difference(file, name, left.of(name), right.of(name)) for name in names]
    return [one for one in found if one]


def read_list(text: str) -> dict[Difference, str]:
    """The reason for each listed difference. A line: FILE | TEST | STATE -> STATE | REASON."""
    listed: dict[Difference, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        file, _, rest = line.partition(" | ")
        parts = [part.strip() for part in rest.rsplit(" | ", 2)]
        states = [part.strip() for part in parts[1].split(" -> ")] if len(parts) == 3 else []
        if len(states) != 2 or not all((file.strip(), parts[0], *states, parts[2])):
            raise BadList(f"line {number} is not FILE | TEST | STATE -> STATE | REASON: {line}")
        one = Difference(file.strip(), parts[0], *states)
        if one in listed:
            raise BadList(f"line {number} is there twice: {one}")
        listed[one] = parts[2]
    return listed


def judge(
    found: set[Difference], flaky: set[Difference], listed: dict[Difference, str], alone: dict[str, Results]
) -> Verdict:
    """Hold the differences against the list.

    `found`: those that were there again. `flaky`: those that were there once only; they neither have to be listed nor
    make a line superfluous. `alone`: the suite's results with the runtime alone, to know its tests.
    """
    verdict = Verdict()
    for one in sorted(found):
        (verdict.listed if one in listed else verdict.unlisted).append(one)
    for one in listed:
        if one in found or one in flaky:
            continue
        there = one.file in alone and one.name in alone[one.file].tests
        (verdict.gone if there else verdict.inapplicable).append(one)
    return verdict
