"""Fixtures of the tests on booted nodes."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="module")
def owner_of_null() -> Iterator[None]:
    """runsc gives the machine's /dev/null to the user nobody."""
    before = os.stat("/dev/null")
    yield
    os.chown("/dev/null", before.st_uid, before.st_gid)


def _booter(nodes: ExitStack) -> Boot:
    def boot(suite: str, **options: Any) -> BootedNode:
        return nodes.enter_context(booted(suite, **options))

    return boot
