"""Rules by pod label and by type of container behind the wrapper and its hook, which ask the engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import CA_BUNDLE, ENV, OVERRIDDEN, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.support import Node

POLICY = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  exclude: {{containerTypes: [sandbox, init]}}
  rules:
  - name: web
    match: {{podSelector: {{matchLabels: {{tier: web}}}}}}
    env: [{{name: REQUESTS_CA_BUNDLE, value: {CA_BUNDLE}}}]
    mounts: [{{hostPath: CA, mountPath: /etc/ssl}}]
  - name: preset
    match: {{podSelector: {{matchLabels: {{tier: db}}}}, ifUnknown: Skip}}
    env: [{{name: NVIDIA_VISIBLE_DEVICES, value: void}}]
"""
TYPE = "io.kubernetes.container.type"
WEB = OVERRIDDEN | {"REQUESTS_CA_BUNDLE": CA_BUNDLE}
DB = OVERRIDDEN | {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.fixture
def note(containerd: Containerd, node: Node) -> Iterator[Path]:
    """What `node install` writes: the file with the engine's socket."""
    path = node.store / "cri/containerd"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{containerd.directory}/containerd.sock\n")
    node.write_policy(POLICY)
    yield path
    path.unlink()


@pytest.mark.usefixtures("note")
@pytest.mark.parametrize(
    ("runtime", "labels", "gets", "ssl"),
    [
        ("crun", {"tier": "web"}, WEB, ["/etc/ssl"]),
        ("runc", {"tier": "db", "x": ""}, DB, []),
        ("runc", {"tier": "other"}, OVERRIDDEN, []),
    ],
)
def test_a_rule_applies_to_the_pods_with_its_labels(
    start_pod: StartPod, labels: dict[str, str], gets: dict[str, str], ssl: list[str]
) -> None:
    container = start_pod(labels=labels).run(image=HOSTILE, env=ENV)
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == gets
    assert [point for _, point, _ in container.mounts()] == ssl


@pytest.mark.usefixtures("note")
@one_runtime
def test_an_init_container_is_one_by_kubelets_word_alone(start_pod: StartPod) -> None:
    """A pod's annotation of that name, which the engine copies into config.json, takes no container out."""
    init = start_pod(labels={"tier": "web"}).run(image=HOSTILE, env=ENV, annotations={TYPE: "init"})
    assert reserved_in(init.environ()) == OVERRIDDEN
    forged = start_pod("open", name="q", labels={"tier": "web"}, annotations={TYPE: "init"})
    assert reserved_in(forged.run(image=HOSTILE, env=ENV, annotations={TYPE: "container"}).environ()) == WEB
    assert reserved_in(forged.run(name="old-kubelet", image=HOSTILE, env=ENV).environ()) == WEB


@one_runtime
def test_without_an_answer_if_unknown_decides(start_pod: StartPod, note: Path, node: Node) -> None:
    """An engine that accepts the call and never answers, and no engine."""
    pod = start_pod(labels={"tier": "db"})
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{node.directory}/silent.sock")
        silent.listen()
        note.write_text(f"{node.directory}/silent.sock\n")
        container = pod.run(image=HOSTILE, env=ENV)
    (node.directory / "silent.sock").unlink()
    absent = pod.run(name="d", image=HOSTILE, env=ENV)
    for each in (container, absent):
        assert reserved_in(each.environ()) == WEB
        assert [point for _, point, _ in each.mounts()] == ["/etc/ssl"]
