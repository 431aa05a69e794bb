"""Warm and cold are told apart: in events with the reason, in the agent's status, at its end and for Prometheus."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED
from unit.nri.support import Peer, create_request

from e2e.agent.support import Agent, Cold
from e2e.agent.test_agent import RUNC
from hook.agent.answers import REASONS
from hook.node.services import ask
from hook.nri import ttrpc

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.root,
    marks.promise("A start that the agent does not answer is cold, and events, `status` and metrics say why"),
]

FRONTS = ("unreadable", "absent", "peer", "busy", "timeout", "broken", "request", "exec")
"""front's own reasons."""


def test_each_reason(start: Cold) -> None:
    agent, node = start.agent, start.agent.node
    assert start.told() == ("warm", "")
    assert start.told("create", "--bundle", "/proc/self/cwd", "0a") == ("cold", "path")
    assert start.told("create", "0a", "x" * 70000) == ("cold", "request")
    assert start.told("create", "0a", *["x"] * 5000, "y" * 60000) == ("cold", "request")
    assert start.told(before=("unshare", "-m")) == ("cold", "peer")
    assert start.told(before=("setpriv", "--bounding-set=-sys_chroot")) == ("cold", "caller")
    node.write_policy(POLICY + "\n")
    assert start.told() == ("cold", "policy")
    assert start.told() == ("warm", "")
    (start.bundle / "config.json").write_text(
        json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}, "x": "y" * (5 << 20)})
    )
    assert start.told("create", "large") == ("cold", "size")
    Path(start.full).write_text(Path(start.full).read_text().replace(f"# store: {node.store}", "# store: /other"))
    assert start.told() == ("cold", "options")
    agent.dispatcher(str(node.directory / "runc"))
    agent.stop(signal.SIGSTOP)
    assert start.told() == ("cold", "timeout")
    agent.stop(signal.SIGKILL)
    assert start.told() == ("cold", "absent")
    agent.socket.unlink()
    for answer in (
        b"x",
        b"reassert-agent/1\0Zword\0",
        b"reassert-agent/1\0C",
        b"reassert-agent/1\0Ctwo\0words\0",
        b"reassert-agent/1\0A" + b"a" * 65535 + b"\0",
        None,
    ):
        assert answered(start, answer) == ("cold", "broken"), answer
    assert answered(start, b"reassert-agent/1\0Cpolicy\0") == ("cold", "policy")
    assert answered(start, b"reassert-agent/1\0C$(id) `id`; x\0") == ("cold", "unknown")
    assert answered(start, b"reassert-agent/1\0C" + b"l" * 5000 + b"\0") == ("cold", "l" * 31)
    text = Path(start.full).read_text()
    Path(start.full).write_text(text.replace("# socket: ", "# nosocket: "))
    assert start.told() == ("cold", "unreadable")


def answered(start: Cold, answer: bytes | None) -> tuple[str, str]:
    """The same with a program in the agent's place that gives this answer to one client."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(start.agent.socket))
        listener.listen()
        if os.fork() == 0:
            connection, _ = listener.accept()
            connection.recv(1 << 17)
            if answer is not None:
                connection.send(answer)
            os._exit(0)
        try:
            return start.told()
        finally:
            os.wait()
            start.agent.socket.unlink()


def test_nobody_else_says_why(start: Cold) -> None:
    """An engine's own --cold is an argument of the runtime like any other, and the environment says nothing."""
    forged = {"PATH": os.defpath, "cold": "forged", "reassert_cold": "--cold=forged", "REASSERT_COLD": "forged"}
    assert start.told("--cold=forged", "create", "0a", env=forged) == ("warm", "")
    start.agent.stop()
    assert start.told("--cold=forged", "create", "0a", env=forged) == ("cold", "absent")
    cold = start.agent.node.dispatcher(str(start.agent.node.directory / "runc"))  # without front
    start.full = cold
    assert start.told() == ("cold", "")


def test_every_reason_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/internals/agent.md").read_text()
    for reason in (*FRONTS, *REASONS, "unknown"):
        assert f"\n- `{reason}`: " in text, reason


@pytest.mark.engine
def test_an_event_of_several_calls_is_warm_if_all_are(agent: Agent) -> None:
    bundle = Bundle(agent.node.directory / "bundle")
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=x"]
    bundle.save()
    file = agent.dispatcher(RUNC)
    with Running(file, bundle) as running:
        assert WANTED in running.environ()
    bundle.save()
    with Running(agent.only_cold(file), bundle):  # its hook is warm
        pass
    told = [(event["start"], event.get("cold")) for event in agent.node.logged() if event["adapter"] == "runtime"]
    assert told == [("warm", None), ("cold", "absent")]


# -- the NRI plugin in the same process


def test_the_nri_plugin_in_the_agent(start: Cold) -> None:
    agent = start.agent
    agent.stop()
    path = agent.node.directory / "nri.sock"
    scrape = agent.node.directory / "run" / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(path))
        runtime.listen()
        runtime.settimeout(600)
        agent.start(more=["--nri", "--nri-socket", str(path), "--metrics", f"unix:{scrape}"])
        peer = Peer(runtime.accept()[0])
        peer.take_in()
        response = peer.call("CreateContainer", create_request(["REQUESTS_CA_BUNDLE=x"]))
        adjusted = ttrpc.get("CreateContainerResponse").FromString(response.payload)
        assert WANTED.partition("=")[2] in [entry.value for entry in adjusted.adjust.env]
        assert start.told() == ("warm", "")
        for _ in range(10000):
            if ask(str(agent.socket))["nri"]:
                break
            time.sleep(0.05)
        assert ask(str(agent.socket))["nri"] is True
        text = scraped(scrape)
        assert 'reassert_agent_answers_total{answer="go",cold=""} 1.0' in text
        assert 'reassert_containers_total{adapter="nri",cold="",outcome="adjusted",start=""} 1.0' in text
        peer.socket.close()
        again = Peer(runtime.accept()[0])  # it connects again
        again.take_in()
        assert start.told() == ("warm", "")
        assert agent.stop() == 0
        assert again.socket.recv(10) == b""


def scraped(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(600)
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        found = b""
        while data := connection.recv(1 << 16):
            found += data
    return found.decode()
