"""The usual run has each case of a test on the oldest and newest runtimes, and leaves out no runtime and no adapter."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e.runtimes import EACH, WAYS, usual

ALWAYS = {"runc", "crun", "runc-forky", "crun-forky"}


def items(name: str, values: list[Any], cases: int) -> list[Any]:
    """A test with a parameter and this many cases, in pytest's order."""
    found = []
    for at, value in enumerate(values):
        for case in range(cases):
            call = SimpleNamespace(params={name: value, "case": case}, indices={name: at, "case": case})
            found.append(SimpleNamespace(path=Path("test_x.py"), originalname="test_x", callspec=call))
    return found


@pytest.mark.parametrize("cases", [2, 3, 4, 7, 18])
def test_each_case_has_the_wrapper_and_both_mount_namespaces(cases: int) -> None:
    made = items("way", WAYS, cases)
    kept = usual(made)
    by_case: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for item in kept:
        by_case[item.callspec.params["case"]].add(item.callspec.params["way"])
    assert len(by_case) == cases
    for ways in by_case.values():
        assert {name for name, adapter in ways if adapter == "wrapper"} >= ALWAYS
        hooks = {adapter: name for name, adapter in ways if adapter.startswith("create")}
        assert sorted(hooks) == ["createContainer", "createRuntime"]
        assert set(hooks.values()) == {"runc", "crun"}
        assert len([adapter for _, adapter in ways if adapter == "precreate"]) == 1
    assert set.union(*by_case.values()) == set(WAYS)
    assert len(kept) < len(made)


def test_a_test_of_one_case_has_every_way_and_others_stay() -> None:
    one = items("way", WAYS, 1)
    assert usual(one) == one
    others = [*items("real", ["runc", "crun"], 3), *items("way", ["link", "script"], 3)]
    assert usual(others) == others
    each = usual(items("each", EACH, 5))
    assert [item.callspec.params["each"] for item in each].count("runc-trixie") == 2
    assert len(each) == 4 * 5 + 2 * 2
