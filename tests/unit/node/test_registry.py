"""Which engine is meant where nobody says it, and what is looked for in all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hook.node.change.record import Record
from hook.node.engines import registry
from hook.node.engines.containerd.rancher import K3s
from hook.node.errors import NodeError
from hook.node.status import node_status
from unit.ownmachine import Machine
from unit.support import ROOT


@pytest.fixture
def kubelet(machine: Machine) -> Path:
    """Kubelet's configuration, on a node with three engines, none of which runs."""
    for name in ("containerd", "crio", "dockerd"):
        machine.program(name, "exit 1")
    return machine.file("/var/lib/kubelet/config.yaml")


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ('KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock"', "containerd"),
        ("apiVersion: x\ncontainerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n", "crio"),
        ('containerRuntimeEndpoint: "unix:///run/cri-dockerd.sock"', "docker"),
    ],
)
def test_kubelets_is_meant(kubelet: Path, text: str, engine: str) -> None:
    kubelet.write_text(text)
    assert registry.chosen(None) == engine
    assert registry.chosen("podman") == "podman"


def test_k3s_that_runs_is_kubelets_whatever_another_kubelet_left(kubelet: Path, machine: Machine) -> None:
    """Its containerd is not the one in PATH, which docker's packages bring."""
    kubelet.write_text("containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
    machine.file(f"{K3s.programs}/containerd", "", 0o755)
    machine.file(f"{K3s.directory}/agent/etc/containerd/config.toml")
    assert registry.chosen(None) == "containerd"
    for unit in ("containerd.service", "k3s-agent.service"):
        machine.unit(unit)
    assert registry.chosen(None) == "k3s"


def test_a_node_without_an_engine_says_what_was_seen(machine: Machine) -> None:
    Path("/var/lib/k0s").mkdir()
    machine.file("/etc/os-release", 'NAME=x\nPRETTY_NAME="Bottlerocket OS 1.40"\n')
    saw = r"this node is Bottlerocket OS 1.40 and has /var/lib/k0s \(k0s\); see docs"
    with pytest.raises(NodeError, match=rf"none of containerd, .* was found .*; {saw}"):
        registry.chosen(None)
    status = node_status(Record("installed.json", {}), None, lambda _: [])
    assert (status.exit_status, status.hints) == (3, [registry.none_installed()])


def test_the_only_one_that_is_wired_is_meant(kubelet: Path) -> None:
    assert registry.chosen(None, ["docker"]) == "docker"
    for wired in (["crio", "docker"], ["podman"]):
        with pytest.raises(NodeError, match="use --engine NAME"):
            registry.chosen(None, wired)
    kubelet.write_text("containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n")
    assert registry.chosen(None, ["docker"]) == "crio"


def test_another_distributions_containerd_is_named_beside_the_engines(machine: Machine) -> None:
    """docker on a node of k0s is not what kubelet uses."""
    machine.crio()
    assert node_status(Record("installed.json", {}), None, lambda _: []).hints == []
    Path("/var/lib/k0s").mkdir()
    [hint] = node_status(Record("installed.json", {}), None, lambda _: []).hints
    assert hint == (
        "/var/lib/k0s: the containers of k0s are started by a containerd of its own, "
        "which is none of these engines; see docs/platforms.md"
    )
    assert node_status(Record("installed.json", {}), "crio", lambda _: []).hints == []


def test_of_several_one_has_to_be_named(kubelet: Path) -> None:
    kubelet.write_text("containerRuntimeEndpoint: unix:///run/another.sock\n")
    with pytest.raises(
        NodeError, match=r"containerd and crio and docker, and kubelet's configuration names none; .*--engine"
    ):
        registry.chosen(None)


@pytest.mark.parametrize("fails", [False, True])
def test_what_interrupted_probes_left_is_looked_for_in_every_engine(machine: Machine, fails: bool) -> None:
    """The trace stays until all of it is gone. What does not run is not asked."""
    trace = Path("/run/reassert-verify-99999999-0")
    trace.mkdir()
    machine.crio()
    machine.program("dockerd", "echo Docker version 24.0.1, build x")
    machine.program("podman", "echo podman $1 >> /run/asked; [ $1 = --version ] && echo podman version 4.3.1; :")
    machine.program("docker", f"echo docker $1 >> /run/asked; {'echo fails >&2; exit 1' if fails else ''}")
    machine.daemon("docker.service", "dockerd")
    said = "leftovers of an interrupted test container in docker could not be removed: `docker ps` failed: fails"
    assert registry.clear_probes() == ([said] if fails else [])
    asked = Path("/run/asked").read_text().split("\n")
    assert {"docker ps", "podman ps", "podman images"} <= set(asked)
    assert trace.exists() == fails


def test_what_a_command_does_not_need_is_not_loaded() -> None:
    """`status` and `install` are called often, and half of their time was the loading of modules."""
    code = "import sys, hook.node.command; from hook.node.engines import registry; registry.installed()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    engines = {f"hook.node.engines.{name}" for name in ("crio", "docker", "podman", "containerd.engine")}
    assert not loaded & {"tomlkit", "http.client", "hook.ops.audit.judge", "hook.node.probe.verify", *engines}
