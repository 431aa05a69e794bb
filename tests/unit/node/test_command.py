"""`reassert node status`: what it shows, and what its exit status means."""

from __future__ import annotations

import argparse
import json

import pytest

from hook.node import command, engines, journal
from hook.node.errors import NodeError
from hook.node.record import Owned, Part, Record
from unit.node.fake import FakeEngine

HINT = "options.hooks does nothing"
TRAP = "containers go past it"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The node's only one. It is wired, and its files are current."""
    engine, record = FakeEngine(left=("runtime",)), Record("/nonexistent")
    record.parts = {"fake": Part(["runtime"], files={"/etc/engine.conf": Owned(None, "")})}
    monkeypatch.setattr(command, "_root", lambda: None)
    monkeypatch.setattr(command, "Record", lambda: record)
    monkeypatch.setattr(command, "_out_of_date", lambda *_: [])
    monkeypatch.setattr(journal, "pending", lambda: None)
    monkeypatch.setattr(engines, "installed", lambda: ["fake"])
    monkeypatch.setattr(engines, "engine", lambda _: engine)
    return engine


def status(output: str) -> int:
    return command._status(argparse.Namespace(engine=None, output=output))


def test_a_hint_is_shown_and_changes_no_exit_status(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.hints_of = [HINT]
    assert status("json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["hints"]) == ([], [f"fake: {HINT}"])
    assert status("table") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Hint: fake: {HINT}"


def test_a_problem_changes_it(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.hints_of, engine.warnings_of = [HINT], [TRAP]
    assert status("json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["hints"]) == ([f"fake: {TRAP}"], [f"fake: {HINT}"])
    assert status("table") == 1
    assert f"! fake: {TRAP}\n" in capsys.readouterr().out


def test_a_node_that_is_not_wired_has_a_status_of_its_own(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.hints_of = [HINT]
    monkeypatch.setattr(command, "Record", lambda: Record("/nonexistent"))
    assert status("json") == 3
    assert json.loads(capsys.readouterr().out)["hints"] == [f"fake: {HINT}"]


def test_another_engine_that_cannot_be_wired_does_not_count(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docker.io's containerd has no CRI plugin; docker is wired all the same."""

    def by_name(name: str) -> FakeEngine:
        if name != "fake":
            raise NodeError("the CRI plugin is disabled")
        return engine

    monkeypatch.setattr(engines, "installed", lambda: ["containerd", "fake"])
    monkeypatch.setattr(engines, "engine", by_name)
    assert status("json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["hints"]) == ([], ["containerd: the CRI plugin is disabled"])


@pytest.mark.parametrize(
    ("text", "wired", "adapters"),
    [
        (None, [], ("runtime",)),
        (None, ["nri", "hook"], ("nri", "hook")),
        ("nri", [], ("nri", "hook")),
        ("cdi,runtime", ["hook"], ("runtime", "cdi")),
        ("hook,hook", [], ("hook",)),
    ],
)
def test_adapters_are_those_asked_for_or_wired_and_nri_never_comes_alone(
    text: str | None, wired: list[str], adapters: tuple[str, ...]
) -> None:
    engine = FakeEngine(adapters=("runtime", "nri", "hook", "cdi"))
    assert command._adapters(text, engine, Part(wired)) == adapters
