"""Tests of the statistics, without containers and clocks."""

from __future__ import annotations

import random

import pytest

from bench.stats import estimate, paired, ranks


@pytest.mark.parametrize(("count", "expected"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (20, (5, 14)), (60, (21, 38))])
def test_ranks_are_those_of_the_binomial_tables(count: int, expected: tuple[int, int]) -> None:
    assert ranks(count) == expected


def test_an_estimate_brackets_its_median() -> None:
    found = estimate([3.0, 1.0, 2.0])
    assert (found.low, found.median, found.high) == (1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_pairing_takes_a_drifting_machine_out() -> None:
    drift = [float(minute % 50) for minute in range(100)]
    found = paired([value + 2.0 for value in drift], drift)
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="argument"):
        paired([1.0, 2.0], [1.0])


def test_the_interval_holds_the_true_median_as_often_as_it_claims() -> None:
    source = random.Random(1)
    inside = 0
    for _ in range(1000):
        found = estimate([source.expovariate(1.0) for _ in range(60)])
        inside += found.low <= 0.6931 <= found.high
    assert inside >= 940
