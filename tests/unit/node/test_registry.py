"""Which engine is meant where nobody says it, and what is looked for in all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import marks
import pytest

from hook.core.base.finding import ERROR, NOTE
from hook.node.change.record import Record
from hook.node.engines import registry
from hook.node.engines.containerd.rancher import K3s
from hook.node.errors import NodeError
from hook.ops.health import checks, node
from hook.ops.health.status import status_of
from unit.ownmachine import Machine
from unit.support import ROOT


def notes(name: str | None = None) -> list[str]:
    """What `status` notes of a node that is not wired."""
    found = checks.all_of(node.look(Record("installed.json", {}), name))
    return [each.text for each in found if each.severity == NOTE]


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
    found = status_of(node.look(Record("installed.json", {})))
    assert (found.exit_status, notes()) == (3, [registry.none_installed()])


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
    assert notes() == []
    Path("/var/lib/k0s").mkdir()
    [hint] = notes()
    assert hint == (
        "/var/lib/k0s: the containers of k0s are started by a containerd of its own, "
        "which is none of these engines; see docs/engines.md"
    )
    assert notes("crio") == []


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
    code = "import sys, hook.ops.node; from hook.node.engines import registry; registry.installed()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    engines = {f"hook.node.engines.{name}" for name in ("crio", "docker", "podman", "containerd.config")}
    assert not loaded & {"tomlkit", "http.client", "hook.ops.audit.judge", "hook.node.probe.verify", *engines}


@marks.hole(
    "A container of uid 0 took root's inotify instances: reassert-trust.path failed, and no later change of a"
    " trust store's sources was built",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_path_unit_that_failed_is_a_problem(machine: Machine) -> None:
    """A container of uid 0 can take all inotify instances of root."""
    for name in ("reassert-trust.path", "reassert-trust@one.path"):
        machine.file(f"/etc/systemd/system/paths.target.wants/{name}", "")
    unwired = node.look(Record("installed.json", {}))
    assert not list(checks.trust(unwired))
    machine.file("/run/units/reassert-trust@one.path.failed", "")
    [problem] = checks.trust(unwired)
    assert problem.text.startswith("reassert-trust@one.path has failed: ")
    assert (problem.severity, problem.remedy) == (ERROR, "systemctl restart reassert-trust@one.path")
