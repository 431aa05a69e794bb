"""Which of our units run around a change: one of them runs the NRI plugin, and never two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node import services, systemd
from hook.node.change.files import State
from hook.node.engines.base import NRI, RUNTIME, Choice, Wiring
from hook.node.errors import NodeError
from hook.node.services import PLUGIN, SERVICE
from unit.node.fake import FakeNode
from unit.support import policy

SOCKET = "reassert-agent.socket"
PROGRAM = "/opt/reassert/reassert"


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below /run of this machine is removed."""
    monkeypatch.setattr(services, "_RUN", [str(tmp_path / "run")])
    monkeypatch.setattr(services, "_LISTENING", str(tmp_path / "run/agent.sock"))


def choice(front: str) -> Choice:
    in_force = policy({"name": "r", "env": [{"name": "A", "value": "1"}]})
    return Choice((RUNTIME, NRI), None, PROGRAM, in_force, front=front)


def test_where_there_is_an_agent_it_runs_the_plugin() -> None:
    artifacts, started = services.nri_unit(choice("/opt/reassert/front"), "/var/run/nri/nri.sock")
    assert started == []
    [(path, state)] = artifacts
    assert path == f"/etc/systemd/system/{SERVICE}.d/nri.conf"
    assert state
    lines = state.content.decode().splitlines()
    assert 'Environment="NRI=--nri"' in lines
    assert f"Conflicts={PLUGIN}" in lines
    elsewhere, _ = services.nri_unit(choice("/opt/reassert/front"), "/run/other.sock")
    assert elsewhere[0][1]
    assert '\nEnvironment="NRI=--nri --nri-socket /run/other.sock"\n' in elsewhere[0][1].content.decode()


def test_without_an_agent_the_plugin_has_a_service_of_its_own() -> None:
    artifacts, started = services.nri_unit(choice(""), "/run/other.sock")
    assert started == [PLUGIN]
    state = dict(artifacts)[f"/etc/systemd/system/{PLUGIN}"]
    assert state
    assert f"\nExecStart={PROGRAM} nri --socket /run/other.sock\n" in state.content.decode()


# -- from one wiring to another


@pytest.fixture
def with_plugin(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Wiring]:
    """A wiring whose agent runs the plugin."""
    drop_in = f"{node.top}/etc/{SERVICE}.d/nri.conf"
    monkeypatch.setattr(services, "DROP_IN", drop_in)

    def wiring() -> Wiring:
        made = node.wiring()
        made.artifacts.append((drop_in, State(b"[Service]\n")))
        made.units = [SOCKET, SERVICE]
        return made

    return wiring


def without(node: FakeNode) -> Wiring:
    made = node.wiring()
    made.units = [SOCKET, SERVICE]
    return made


def test_an_agent_that_loses_the_plugin_is_restarted_last(
    node: FakeNode, ran: list[tuple[str, ...]], with_plugin: Callable[[], Wiring]
) -> None:
    """After the engine has read its new configuration: until then the plugin is needed, and may not connect again."""
    node.install(with_plugin())
    ran.clear()
    node.install(without(node))
    assert not Path(services.DROP_IN).exists()
    assert ran == [
        ("daemon-reload",),
        ("start", "--no-block", SOCKET),
        ("wait", SOCKET),
        ("daemon-reload",),
        ("restart", SERVICE),
    ]


def test_nothing_is_proved_before_the_plugin_has_connected_again(
    node: FakeNode,
    ran: list[tuple[str, ...]],
    order: list[str],
    with_plugin: Callable[[], Wiring],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent stays active when the engine ends; one that requires the plugin refuses containers meanwhile."""
    answers: list[dict[str, object]] = [{"nri": None}, {"nri": False}, {"nri": True}]

    def ask(path: str) -> dict[str, object]:
        order.append("ask")
        return answers.pop(0)

    monkeypatch.setattr(services, "ask", ask)
    node.make(node.installed(with_plugin()), prove=lambda now: order.append("prove"))
    assert order[order.index("restart") :][:5] == ["restart", "ask", "ask", "ask", "prove"]


def test_a_failed_move_of_the_plugin_brings_its_service_back(
    node: FakeNode, ran: list[tuple[str, ...]], with_plugin: Callable[[], Wiring], monkeypatch: pytest.MonkeyPatch
) -> None:
    wiring = node.wiring()
    wiring.artifacts.append((f"{node.top}/etc/{PLUGIN}", State(b"[Service]\n")))
    wiring.units = [PLUGIN]
    node.install(wiring)
    monkeypatch.setattr(services, "glob", lambda pattern: [pattern] if pattern.endswith(PLUGIN) else [])

    def wait(unit: str) -> None:
        raise NodeError(f"{unit} is not active")

    monkeypatch.setattr(systemd, "wait_active", wait)
    ran.clear()
    with pytest.raises(NodeError, match="not active"):
        node.install(with_plugin())
    assert ran[-4:] == [("stop", SOCKET), ("stop", SERVICE), ("stop", PLUGIN), ("start", "--no-block", PLUGIN)]
