"""Medians of paired differences with confidence intervals. No assumption about the distribution of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median with the bounds of its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def ranks(count: int) -> tuple[int, int]:
    """Indices into a sorted sample between which the true median lies with at least 95 % confidence.

    Order statistics: the number of samples below the median is binomial with p = 1/2. Where a sample is too small for
    95 %, its two ends (fewer than six values).
    """
    tail, below = 0.0, 0
    while below < count // 2:
        tail += comb(count, below) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        below += 1
    first = max(below - 1, 0)
    return first, count - 1 - first


def estimate(values: Sequence[float]) -> Estimate:
    """The median and its confidence interval. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    low, high = ranks(len(ordered))
    return Estimate(median(ordered), ordered[low], ordered[high])


def paired(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """What `values` has over `base`, round by round: a slow minute of the machine hits both and falls out.

    Raises ValueError for samples of different rounds.
    """
    return estimate([value - other for value, other in zip(values, base, strict=True)])
