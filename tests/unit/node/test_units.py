"""Which of our units run around a change: one of them runs the NRI plugin, and never two."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from hook.node import services
from hook.node.change.files import State
from hook.node.engines.base import NRI, RUNTIME, Choice, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.services import PLUGIN, SERVICE
from unit.node.fake import FakeNode
from unit.ownmachine import Machine
from unit.support import policy

SOCKET = "reassert-agent.socket"
PROGRAM = "/opt/reassert/reassert"


def added(front: str, address: str, handlers: Iterable[Handler] = (), default: str = "") -> Wiring:
    in_force = policy({"name": "r", "env": [{"name": "A", "value": "1"}]})
    wiring = Wiring()
    services.add_plugin(
        wiring, Choice((RUNTIME, NRI), None, PROGRAM, in_force, front=front), address, handlers, default
    )
    return wiring


def test_where_there_is_an_agent_it_runs_the_plugin() -> None:
    wiring = added("/opt/reassert/front", services.NRI_SOCKET)
    assert wiring.units == []
    [(path, state)] = wiring.artifacts
    assert path == f"/etc/systemd/system/{SERVICE}.d/nri.conf"
    assert state
    lines = state.content.decode().splitlines()
    assert 'Environment="NRI=--nri"' in lines
    assert f"Conflicts={PLUGIN}" in lines
    [(_, elsewhere)] = added("/opt/reassert/front", "/run/other.sock").artifacts
    assert elsewhere
    assert '\nEnvironment="NRI=--nri --nri-socket /run/other.sock"\n' in elsewhere.content.decode()


def test_without_an_agent_the_plugin_has_a_service_of_its_own() -> None:
    wiring = added("", "/run/other.sock")
    assert wiring.units == [PLUGIN]
    state = dict(wiring.artifacts)[f"/etc/systemd/system/{PLUGIN}"]
    assert state
    assert f"\nExecStart={PROGRAM} nri $LOG --socket /run/other.sock\n" in state.content.decode()


@pytest.mark.parametrize("front", ["", "/opt/reassert/front"])
def test_the_plugin_is_told_which_handlers_are_gvisors(root_dir: Path, front: str) -> None:
    """By what their runtimes say of themselves. A handler without a name in NRI's requests is the default one."""
    runsc, runc = root_dir / "any", root_dir / "runsc"
    for path, version in ((runsc, "runsc version 1"), (runc, "runc version 1")):
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)
    names = {"gvisor": str(runsc), "runc": str(runc), "kata": "", "no pod's = 1": str(runsc)}
    handlers = [Handler(name, path, ()) for name, path in names.items()]
    for default, told in (("runc", " --gvisor=gvisor"), ("gvisor", " --gvisor=gvisor --gvisor=")):
        [(_, state), *_] = added(front, services.NRI_SOCKET, handlers, default).artifacts
        assert state
        line = f'Environment="NRI=--nri{told}"' if front else f"ExecStart={PROGRAM} nri $LOG{told}"
        assert line in state.content.decode().splitlines()


# -- from one wiring to another


def with_plugin(node: FakeNode) -> Wiring:
    """A wiring whose agent runs the plugin."""
    made = without(node)
    made.artifacts.append((services.DROP_IN, State(b"[Service]\n")))
    return made


def without(node: FakeNode) -> Wiring:
    made = node.wiring()
    made.units = [SOCKET, SERVICE]
    return made


def test_an_agent_that_loses_the_plugin_is_restarted_last(node: FakeNode, ran: Machine) -> None:
    """After the engine has read its new configuration: until then the plugin is needed, and may not connect again."""
    with ran.agent({"nri": True}):
        node.install(with_plugin(node))
    ran.asked()
    node.install(without(node))
    assert not Path(services.DROP_IN).exists()
    assert ran.asked() == ["daemon-reload", f"start --no-block {SOCKET}", "daemon-reload", f"restart {SERVICE}"]


def test_nothing_is_proved_before_the_plugin_has_connected_again(
    node: FakeNode, ran: Machine, order: list[str]
) -> None:
    """The agent stays active when the engine ends; one that requires the plugin refuses containers meanwhile."""
    with ran.agent({"nri": None}, {"nri": False}, {"nri": True}) as left:
        node.make(node.installed(with_plugin(node)), prove=lambda now: order.append(f"prove {left}"))
    assert order[order.index("restart") + 1] == "prove [{'nri': True}]"


def test_a_failed_move_of_the_plugin_brings_its_service_back(node: FakeNode, ran: Machine) -> None:
    wiring = node.wiring()
    wiring.artifacts.append((f"/etc/systemd/system/multi-user.target.wants/{PLUGIN}", State(b"[Service]\n")))
    wiring.units = [PLUGIN]
    node.install(wiring)
    ran.file(f"/run/units/{SERVICE}.fails", "not active")
    ran.asked()
    with pytest.raises(NodeError, match="not active"):
        node.install(with_plugin(node))
    assert ran.asked()[-2:] == [f"stop {SOCKET}", f"restart --no-block {PLUGIN}"]


def test_a_timers_service_that_systemd_does_not_know_any_more_hides_no_failure(node: FakeNode, ran: Machine) -> None:
    """Its file went with the others, and it did not run: `systemctl stop` fails then (systemd 257)."""
    wiring = node.wiring()
    wiring.units = [SOCKET, SERVICE, *services.TIMERS]
    for timer in services.TIMERS:
        service = timer.replace(".timer", ".service")
        ran.file(f"/run/units/{service}.fails", f"Failed to stop {service}: Unit {service} not loaded.")
    node.engine.fails.add("prove")
    with pytest.raises(NodeError, match=r"^prove fails$"):
        node.install(wiring)
    assert {f"stop {timer}" for timer in services.TIMERS} < {*ran.asked()}


def test_a_timers_service_that_goes_on_is_said(node: FakeNode, ran: Machine) -> None:
    wiring = node.wiring()
    wiring.units = [*services.TIMERS]
    node.engine.fails.add("prove")
    service = "reassert-verify.service"
    ran.file(f"/run/units/{service}", "7")
    ran.file(f"/run/units/{service}.fails", "timed out")
    with pytest.raises(NodeError, match=rf"^prove fails; and then: systemctl stop {service} failed: timed out"):
        node.install(wiring)
