"""A hostPath with `$(pod.uid)`: each pod has the node's directory of its own, and no author names another one."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError, Pod
from e2e.cri.fixtures import StartPod

OTHER_UID = "io.kubernetes.cri.sandbox-uid"


@pytest.fixture
def authorities(node: Node) -> Path:
    """Where a controller puts a directory for each sandbox, with the CA that its proxy signs with."""
    directory = node.directory / "authorities"
    directory.mkdir(exist_ok=True)
    node.write_policy(f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  rules:
  - name: own-ca
    match: {{containerTypes: [init, container, ephemeral]}}
    mounts: [{{hostPath: "{directory}/$(pod.uid)/certs", mountPath: /etc/ssl/certs}}]
""")
    return directory


def fill(authorities: Path, pod: Pod, text: str) -> None:
    """What the controller does for a pod, before its first container."""
    certs = authorities / pod.config.metadata.uid / "certs"
    certs.mkdir(parents=True)
    (certs / "ca.crt").write_text(text)


@marks.claim("mounts", "runtime")
def test_each_pod_has_its_own_directory_and_none_without_one_starts(
    start_pod: StartPod, node: Node, authorities: Path
) -> None:
    one, other = start_pod(name="one"), start_pod(name="other")
    for pod, text in ((one, "first"), (other, "second")):
        fill(authorities, pod, text)
        container = pod.run()
        assert container.exec("/bin/cat", "/etc/ssl/certs/ca.crt") == text
        [mount] = container.mounts("/etc/ssl/certs")
        assert mount.root.endswith(f"/{pod.config.metadata.uid}/certs")
        assert "ro" in mount.options
    with pytest.raises(CriError, match="certs for mount /etc/ssl/certs does not exist on this node"):
        start_pod(name="third").run()


@marks.claim("mounts", "runtime")
def test_no_annotation_names_the_directory_of_another_pod(start_pod: StartPod, authorities: Path) -> None:
    """Through a handler that lets pods' annotations reach the OCI spec."""
    victim = start_pod(name="victim")
    fill(authorities, victim, "secret")
    forged = {OTHER_UID: victim.config.metadata.uid}
    thief = start_pod("open", name="thief", annotations=forged)
    fill(authorities, thief, "own")
    container = thief.run(annotations=forged)
    assert container.exec("/bin/cat", "/etc/ssl/certs/ca.crt") == "own"
