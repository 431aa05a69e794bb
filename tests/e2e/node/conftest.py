"""Fixtures of the tests on booted nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from e2e.node.booted import BootedNode, booted

Boot = Callable[..., BootedNode]


@pytest.fixture
def boot() -> Iterator[Boot]:
    """Boots nodes for one test; takes what `booted` takes."""
    with ExitStack() as nodes:
        yield _booter(nodes)


@pytest.fixture(scope="module")
def module_boot() -> Iterator[Boot]:
    """Boots nodes for the tests of a module; takes what `booted` takes."""
    with ExitStack() as nodes:
        yield _booter(nodes)


def _booter(nodes: ExitStack) -> Boot:
    def boot(suite: str, **options: Any) -> BootedNode:
        return nodes.enter_context(booted(suite, **options))

    return boot
