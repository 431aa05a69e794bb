"""Rules by pod label and by type of container behind the wrapper and its hook, which ask the engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import marks
import pytest
from harness.node import Node
from unit.podresources import PodResources, answer

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import CA_BUNDLE, ENV, OVERRIDDEN, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd

POLICY = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  exclude: {{containerTypes: [sandbox]}}
  rules:
  - name: web
    match: {{podSelector: {{matchLabels: {{tier: web}}}}}}
    env: [{{name: REQUESTS_CA_BUNDLE, value: {CA_BUNDLE}}}]
    mounts: [{{hostPath: CA, mountPath: /etc/ssl}}]
  - name: preset
    match: {{podSelector: {{matchLabels: {{tier: db}}}}, ifUnknown: Skip}}
    env: [{{name: NVIDIA_VISIBLE_DEVICES, value: void}}]
"""
BY_TYPE = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  kubelet: {{root: {root}}}
  exclude: {{containerTypes: [sandbox{excluded}]}}
  rules:
  - name: app
    match: {{containerTypes: [container]}}
    env: [{{name: NVIDIA_VISIBLE_DEVICES, value: void}}]
  - name: others
    match: {{containerTypes: [init, ephemeral]}}
    env: [{{name: NVIDIA_VISIBLE_DEVICES, value: none}}]
"""
TYPE = "io.kubernetes.container.type"
WEB = OVERRIDDEN | {"REQUESTS_CA_BUNDLE": CA_BUNDLE}
DB = OVERRIDDEN | {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.fixture
def note(containerd: Containerd, node: Node) -> Iterator[Path]:
    """What `install` writes: the file with the engine's socket."""
    path = node.store / "cri/containerd"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{containerd.directory}/containerd.sock\n")
    node.write_policy(POLICY)
    yield path
    path.unlink()


@marks.claim("pod-selector", "runtime")
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
    assert [mount.point for mount in container.mounts()] == ssl


@marks.claim("container-types", "runtime")
@one_runtime
@pytest.mark.parametrize("handler", ["", "open"])
def test_kubelet_alone_tells_app_containers_from_init_containers(start_pod: StartPod, node: Node, handler: str) -> None:
    """No annotation of a pod does, which the engine of the second handler copies into config.json."""
    root = node.directory / "kubelet"
    node.write_policy(BY_TYPE.format(root=root, excluded=""))
    pod = start_pod(handler, annotations={TYPE: "init"})
    of = pod.config.metadata
    with closing(PodResources(root, answer(of.namespace, of.name, {"app": [], "sidecar": []}))) as kubelet:
        for name, gets in (("app", "void"), ("sidecar", "void"), ("init", "none")):
            container = pod.run(name=name, image=HOSTILE, env=ENV, annotations={TYPE: "container"})
            wanted = OVERRIDDEN | {"NVIDIA_VISIBLE_DEVICES": gets}
            assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == wanted
        node.write_policy(BY_TYPE.format(root=root, excluded=", init, ephemeral"))
        assert reserved_in(pod.run(name="late", image=HOSTILE, env=ENV).environ()) == OVERRIDDEN
        assert set(kubelet.asked) == {f"{of.namespace}/{of.name}"}
    with pytest.raises(CriError, match="wants another value for env NVIDIA_VISIBLE_DEVICES"):
        pod.run(name="unknown", image=HOSTILE, env=ENV)


@marks.claim("pod-selector", "runtime")
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
        assert [mount.point for mount in each.mounts()] == ["/etc/ssl"]
