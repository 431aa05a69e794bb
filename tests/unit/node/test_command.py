"""`reassert node status`: what it shows, and what its exit status means."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node import command
from hook.node import status as status_module
from hook.node.change import journal
from hook.node.change.record import OwnedFile, OwnerRecord, Record
from hook.node.choice import adapters_of
from hook.node.engines import registry
from hook.node.errors import NodeError
from unit.node.fake import FakeEngine
from unit.support import policy

HINT = "options.hooks does nothing"
TRAP = "containers bypass it"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """The node's only one. It is wired, and its files are current."""
    engine, record = FakeEngine(left=("runtime",)), Record.read("/nonexistent")
    record.parts = {"fake": OwnerRecord(["runtime"], files={"/etc/engine.conf": OwnedFile(None, "")})}
    monkeypatch.setattr(command, "_root", lambda: None)
    monkeypatch.setattr(command.Record, "read", lambda *_: record)
    monkeypatch.setattr(status_module, "out_of_date", lambda *_: [])
    monkeypatch.setattr(status_module, "_look_at_agent", lambda *_: None)
    monkeypatch.setattr(
        status_module, "policy", lambda **_: policy({"name": "r", "env": [{"name": "A", "value": "1"}]})
    )
    monkeypatch.setattr(status_module, "EVENTS", f"{tmp_path}/log/events.jsonl")
    monkeypatch.setattr(journal, "pending", lambda: None)
    monkeypatch.setattr(registry, "installed", lambda: ["fake"])
    monkeypatch.setattr(registry, "engine", lambda _: engine)
    return engine


def status(output: str) -> int:
    return command._status(argparse.Namespace(engine=None, output=output, old_files=lambda _: []))


def test_a_problem_changes_it(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.hints_of, engine.warnings_of = [HINT], [TRAP]
    assert status("json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["hints"]) == ([f"fake: {TRAP}"], [f"fake: {HINT}"])
    assert status("table") == 1
    assert f"! fake: {TRAP}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("adapters", "hinted"), [(["nri"], True), (["nri", "runtime"], False), (["runtime"], False)])
def test_exec_env_that_nri_does_not_show_is_a_hint_without_the_wrapper(
    adapters: list[str], hinted: bool, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    command.Record.read("").parts["fake"].adapters = adapters
    assert status("json") == 0
    hints = json.loads(capsys.readouterr().out)["hints"]
    assert any("kubectl exec --env" in hint and "--adapter nri,runtime" in hint for hint in hints) is hinted


def test_a_node_that_is_not_wired_has_a_status_of_its_own(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.hints_of = [HINT]
    monkeypatch.setattr(command.Record, "read", lambda *_: Record("/nonexistent", {}))
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

    monkeypatch.setattr(registry, "installed", lambda: ["containerd", "fake"])
    monkeypatch.setattr(registry, "engine", by_name)
    assert status("json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["problems"], found["hints"]) == ([], ["containerd: the CRI plugin is disabled"])


MISSING = {"name": "company-ca", "mounts": [{"hostPath": "/nonexistent/ca.crt", "mountPath": "/etc/ssl/ca.crt"}]}
REFUSED = "rule company-ca: hostPath /nonexistent/ca.crt: No such file or directory; every container that the rule "


def test_a_missing_host_path_is_a_problem(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_module, "policy", lambda **_: policy(MISSING))
    assert status("json") == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith(REFUSED)
    monkeypatch.setattr(status_module, "policy", lambda **_: policy(MISSING, mode="Audit"))
    assert status("json") == 0
    [hint] = json.loads(capsys.readouterr().out)["hints"]
    assert hint.startswith(REFUSED)


def instead_of_its_directory(log: Path) -> None:
    log.parent.rmdir()
    log.parent.touch()


LOGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda log: None, ""),
    "missing with its directory": (lambda log: log.parent.rmdir(), ""),
    "regular": (lambda log: log.touch(), ""),
    "symbolic link": (lambda log: log.symlink_to("/dev/full"), "it is a symbolic link"),
    "dangling link": (lambda log: log.symlink_to("elsewhere"), "it is a symbolic link"),
    "directory": (lambda log: log.mkdir(), "it is a directory"),
    "fifo": (os.mkfifo, "it is not a regular file"),
    "directory that is a file": (instead_of_its_directory, "Not a directory"),
}


@pytest.mark.parametrize("name", LOGS)
def test_event_log_that_cannot_be_written_is_a_problem(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make, why = LOGS[name]
    log = Path(status_module.EVENTS)
    log.parent.mkdir()
    make(log)
    before = log.is_fifo() or log.exists()
    assert status("json") == (1 if why else 0)
    problems = [f"the event log {log} cannot be written: {why}; no event is logged"] if why else []
    assert json.loads(capsys.readouterr().out)["problems"] == problems
    assert (log.is_fifo() or log.exists()) == before


@pytest.mark.users
def test_event_log_of_another_user_is_a_problem(
    root_dir: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(status_module.EVENTS)
    log.parent.mkdir()
    log.touch()
    os.chown(log, 1000, 1000)
    assert status("table") == 1
    assert (
        f"! the event log {log} cannot be written: it belongs to the user 1000, not to root" in capsys.readouterr().out
    )


def test_engines_beside_the_one_that_is_verified_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"fake": FakeEngine(), "docker": FakeEngine(title="docker 20"), "crio": FakeEngine(title="CRI-O", up=False)}

    def by_name(name: str) -> FakeEngine:
        if name not in there:
            raise NodeError("the CRI plugin is disabled")
        return there[name]

    monkeypatch.setattr(registry, "installed", lambda: ["containerd", "crio", "docker", "fake"])
    monkeypatch.setattr(registry, "engine", by_name)
    record = Record.read("/nonexistent")
    record.parts = {"docker": OwnerRecord(["runtime"])}
    assert command._beside("fake", record) == [
        "containerd is not wired: reassert node verify --engine containerd",
        "docker 20 is wired (runtime) and was not tried: reassert node verify --engine docker",
    ]


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
    assert adapters_of(text, engine, OwnerRecord(wired)) == adapters
