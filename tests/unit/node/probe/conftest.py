"""Fixtures of the probes' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from unit.node.probe.local import (
    Env,
    Local,
)


@pytest.fixture
def local() -> Iterator[Callable[..., Local]]:
    """Makes starters, and holds them to removing what they start."""
    made: list[Local] = []

    def make(*changes: Callable[[Env], Env]) -> Local:
        made.append(Local(*changes))
        return made[-1]

    yield make
    for starter in made:
        assert starter.alive == []
