"""Which engine is meant where nobody says it, and what is looked for in all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hook.node import systemd
from hook.node.change.record import Record
from hook.node.engines import registry
from hook.node.engines import registry as engines
from hook.node.errors import NodeError
from hook.node.probe import starter
from hook.node.status import node_status
from unit.node.fake import FakeEngine
from unit.support import ROOT


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kubelet's configuration, on a node with three engines, none of which runs."""
    path = tmp_path / "config.yaml"
    monkeypatch.setattr(engines, "_KUBELET", (str(tmp_path / "missing"), str(path)))
    monkeypatch.setattr(engines, "installed", lambda: ["containerd", "crio", "docker"])
    monkeypatch.setattr(systemd, "is_active", lambda _: False)
    return path


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
    assert engines.chosen(None) == engine
    assert engines.chosen("podman") == "podman"


def test_k3s_that_runs_is_kubelets_whatever_another_kubelet_left(
    kubelet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its containerd is not the one in PATH, which docker's packages bring."""
    kubelet.write_text("containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
    monkeypatch.setattr(engines, "installed", lambda: ["containerd", "docker", "k3s"])
    assert engines.chosen(None) == "containerd"
    monkeypatch.setattr(systemd, "is_active", lambda unit: unit in ("containerd.service", "k3s-agent.service"))
    assert engines.chosen(None) == "k3s"


def test_a_node_without_an_engine_says_what_was_seen(
    tmp_path: Path, kubelet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k0s").mkdir()
    (tmp_path / "os-release").write_text('NAME=x\nPRETTY_NAME="Bottlerocket OS 1.40"\n')
    monkeypatch.setattr(registry, "_SIGNS", {str(tmp_path / "k0s"): "k0s", str(tmp_path / "rke2"): "RKE2"})
    monkeypatch.setattr(registry, "_RELEASE", str(tmp_path / "os-release"))
    monkeypatch.setattr(engines, "installed", list)
    saw = rf"this node is Bottlerocket OS 1.40 and has {tmp_path}/k0s \(k0s\); see docs"
    with pytest.raises(NodeError, match=rf"none of containerd, .* was found .*; {saw}"):
        engines.chosen(None)
    status = node_status(Record("installed.json", {}), None, lambda _: [])
    assert (status.exit_status, status.hints) == (3, [engines.none_installed()])


def test_the_only_one_that_is_wired_is_meant(kubelet: Path) -> None:
    assert engines.chosen(None, ["docker"]) == "docker"
    for wired in (["crio", "docker"], ["podman"]):
        with pytest.raises(NodeError, match="use --engine NAME"):
            engines.chosen(None, wired)
    kubelet.write_text("containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n")
    assert engines.chosen(None, ["docker"]) == "crio"


def test_another_distributions_containerd_is_named_beside_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker on a node of k0s is not what kubelet uses."""
    monkeypatch.setattr(registry, "_OTHERS", {str(tmp_path / "k0s"): "k0s", str(tmp_path / "microk8s"): "MicroK8s"})
    monkeypatch.setattr(engines, "installed", lambda: ["fake"])
    monkeypatch.setattr(engines, "engine", lambda name: FakeEngine())
    assert node_status(Record("installed.json", {}), None, lambda _: []).hints == []
    (tmp_path / "k0s").mkdir()
    [hint] = node_status(Record("installed.json", {}), None, lambda _: []).hints
    assert hint == (
        f"{tmp_path}/k0s: the containers of k0s are started by a containerd of its own, "
        "which is none of these engines; see docs/platforms.md"
    )
    assert node_status(Record("installed.json", {}), "fake", lambda _: []).hints == []


def test_of_several_one_has_to_be_named(kubelet: Path) -> None:
    kubelet.write_text("containerRuntimeEndpoint: unix:///run/another.sock\n")
    with pytest.raises(
        NodeError, match=r"containerd and crio and docker, and kubelet's configuration names none; .*--engine"
    ):
        engines.chosen(None)


@pytest.mark.parametrize("fails", [False, True])
def test_what_interrupted_probes_left_is_looked_for_in_every_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The trace stays until all of it is gone."""
    trace = tmp_path / "reassert-verify-1-0"
    trace.mkdir()
    there = {"containerd": FakeEngine(), "docker": FakeEngine(up=False), "podman": FakeEngine()}
    if fails:
        there["containerd"].fails.add("clean")
    monkeypatch.setattr(starter, "traces", lambda: [str(trace)])
    monkeypatch.setattr(engines, "installed", lambda: list(there))
    monkeypatch.setattr(engines, "engine", lambda name: there[name])
    said = "leftovers of an interrupted test container in containerd could not be removed: clean fails"
    assert engines.clear_probes() == ([said] if fails else [])
    assert [engine.calls for engine in there.values()] == [["clean"], [], ["clean"]]
    assert trace.exists() == fails


def test_what_a_command_does_not_need_is_not_loaded() -> None:
    """`status` and `install` are called often, and half of their time was the loading of modules."""
    code = "import sys, hook.node.command; from hook.node.engines import registry; registry.is_installed('containerd')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "hook.node.engines.containerd.engine" in loaded
    engines = {f"hook.node.engines.{name}" for name in ("crio", "docker.engine", "podman", "containerd.rancher")}
    assert not loaded & {"tomlkit", "http.client", "hook.ops.audit.judge", "hook.node.probe.verify", *engines}
