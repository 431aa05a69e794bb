"""The results: one row per measured value, with medians of paired differences and their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from statistics import median

from bench.measure import Sample


@dataclass(frozen=True)
class Estimate:
    """A median with the bounds of its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def estimate(values: Sequence[float]) -> Estimate:
    """The interval is between two order statistics: the number of values below the median is binomial with p = 1/2."""
    ordered = sorted(values)
    below = max(0, int((len(ordered) - 1.96 * sqrt(len(ordered))) / 2))
    return Estimate(median(ordered), ordered[below], ordered[-1 - below])


def paired(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """What `values` has over `base`, round by round: a slow minute of the machine hits both and falls out."""
    return estimate([value - other for value, other in zip(values, base, strict=True)])


@dataclass
class Row:
    """One contender in one case. `added` and `added_cpu`: over the case's base in the same round, milliseconds."""

    case: str
    contender: str
    rounds: int
    wall: Estimate
    cpu: Estimate
    added: Estimate | None = None
    added_cpu: Estimate | None = None
    peak_mb: float | None = None
    samples: list[tuple[float, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """For the result file."""
        return asdict(self)


class Results:
    """All rows of a run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, case: str, contender: str, samples: Sequence[Sample], base: Sequence[Sample] | None) -> Row:
        """A row; `base`: the samples of the same rounds that it is compared with."""
        wall, cpu = [sample.wall for sample in samples], [sample.cpu for sample in samples]
        row = Row(case, contender, len(samples), estimate(wall), estimate(cpu))
        row.samples = [(round(sample.wall, 3), round(sample.cpu, 3)) for sample in samples]
        if base is not None:
            row.added = paired(wall, [sample.wall for sample in base])
            row.added_cpu = paired(cpu, [sample.cpu for sample in base])
        self.rows.append(row)
        return row

    def find(self, case: str, contender: str) -> Row | None:
        """The row of a case and contender."""
        return next((row for row in self.rows if (row.case, row.contender) == (case, contender)), None)

    def ratio(self, row: Row, peer: str) -> tuple[float | None, float | None]:
        """What a row adds, divided by what a peer adds in the same case: wall time, CPU time."""
        other = self.find(row.case, peer)
        if other is None or other is row or row.added is None or other.added is None:
            return None, None
        cpu = row.added_cpu.median / other.added_cpu.median if row.added_cpu and other.added_cpu else None
        return row.added.median / other.added.median, cpu

    def table(self, cases: Sequence[str] | None = None) -> str:
        """The rows as text."""
        head = ("case", "contender", "median ms", "added ms [95 %]", "added CPU ms", "wall/CPU : nvidia", "peak MB")
        lines = [head]
        for row in self.rows:
            if cases is not None and row.case not in cases:
                continue
            wall, cpu = self.ratio(row, "nvidia")
            ratio = "" if wall is None else f"{wall:.2f}" + ("" if cpu is None else f" / {cpu:.2f}")
            lines.append(
                (
                    row.case,
                    row.contender,
                    f"{row.wall.median:.2f}",
                    str(row.added or ""),
                    str(row.added_cpu or ""),
                    ratio,
                    "" if row.peak_mb is None else f"{row.peak_mb:.1f}",
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )
