"""The resident agent as `reassert node install` sets it up: units, front, dispatchers, under a real systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.wired import FILES, POLICY, POLICY_FILE, Wirable, assert_put_back, usual_config

SOCKET, SERVICE = "reassert-agent.socket", "reassert-agent.service"
UNITS = (SOCKET, SERVICE)
COLD = "/run/cold"
"""A line for each start that the script of a dispatcher or of a hook made (`watch`)."""


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    node = module_boot("trixie", config=usual_config("trixie"), files=FILES)
    node.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """After every test reassert is taken out, and nothing is different from before."""
    wirable = Wirable(booted, booted.snapshot())
    yield wirable
    wirable.take_out()
    booted.path(POLICY_FILE).write_text(POLICY)
    assert wirable.changes() == []
    assert not booted.path("/run/reassert/agent").exists()
    assert [booted.property(unit, "LoadState") for unit in UNITS] == ["not-found", "not-found"]


def watch(node: Wirable) -> None:
    """Have every cold start leave a line in COLD: dispatchers and hooks source this file then."""
    with node.booted.path("/opt/reassert/start").open("a") as start:
        start.write(f'echo "$0" "$@" >> {COLD}\n')
    node.booted.path(COLD).write_text("")


def cold(node: Wirable) -> list[str]:
    """The cold starts since `watch`."""
    return node.booted.path(COLD).read_text().splitlines()


def is_active(node: Wirable) -> bool:
    """Whether both units run."""
    return [node.booted.property(unit, "ActiveState") for unit in UNITS] == ["active", "active"]


def test_installed_by_default_it_answers_every_start(node: Wirable) -> None:
    node.install()
    assert is_active(node)
    assert node.status()[0] == 0
    checked = node.booted.run("systemd-analyze", "verify", *(f"/etc/systemd/system/{unit}" for unit in UNITS))
    assert checked.stdout + checked.stderr == ""
    watch(node)
    pod = node.hostile_pod("runc")
    assert_put_back(pod, name="c1")
    assert cold(node) == []

    was = node.booted.property(SERVICE, "MainPID")
    node.booted.run("systemctl", "kill", "--signal=KILL", SERVICE)
    assert_put_back(pod, name="c2")
    wait_for(lambda: is_active(node) and node.booted.property(SERVICE, "MainPID") != was, "a restart")
    before = len(cold(node))
    assert_put_back(pod, name="c3")
    assert len(cold(node)) == before
    pod.remove()


def test_without_an_agent_there_is_nothing_of_it(node: Wirable) -> None:
    said = node.install("--no-agent", "--no-probe").stdout
    assert "Note: every container start is cold: --no-agent\n" in said
    assert [node.booted.property(unit, "LoadState") for unit in UNITS] == ["not-found", "not-found"]
    assert node.booted.path("/usr/local/sbin/reassert-runc").read_text().startswith("#!/bin/sh\n")
    assert not node.booted.path("/usr/local/sbin/reassert-hook").exists()
    pod = node.hostile_pod("runc")
    assert_put_back(pod, name="c4")
    # as before, until it is said anew; neither restarts containerd
    pid = node.pid()
    assert "nothing to change" in node.install("--no-probe").stdout
    node.install("--agent", "--no-probe")
    assert is_active(node)
    assert_put_back(pod, name="c5")
    node.install("--no-agent", "--no-probe")
    assert [node.booted.property(unit, "LoadState") for unit in UNITS] == ["not-found", "not-found"]
    assert_put_back(pod, name="c6")
    assert node.pid() == pid
    pod.remove()
