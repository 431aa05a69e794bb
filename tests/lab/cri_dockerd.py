"""A booted node with dockerd, cri-dockerd and reassert, for both files of tests/lab/cri-dockerd."""

from __future__ import annotations

import os
import shutil

from e2e.cri.client import Cri, CriError, wait_for
from e2e.cri.images import PAUSE
from e2e.node.booted import BootedNode
from e2e.node.test_dockershim import example_policy
from e2e.node.wired import DAEMON, PACKAGED, POLICY_FILE, with_program_and_images

SOCKET = "/run/cri-dockerd.sock"
UNIT = f"""\
[Service]
ExecStart=/usr/local/bin/cri-dockerd --container-runtime-endpoint unix://{SOCKET} --pod-infra-container-image {PAUSE} \\
  --network-plugin cni
Delegate=yes
KillMode=process
"""
"""The service of cri-dockerd."""
TYPES = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {containerTypes: [sandbox]}
  rules:
  - name: app
    match: {containerTypes: [container]}
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]
  - name: others
    match: {containerTypes: [init, ephemeral]}
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: none}]
"""
"""A policy with a rule for app containers, and one for init and ephemeral ones."""


def files() -> dict[str, str]:
    """What the node has before it boots."""
    return {**DAEMON, POLICY_FILE: example_policy(), "/etc/systemd/system/cri-dockerd.service": UNIT}


def start(node: BootedNode) -> None:
    """Start cri-dockerd, to which the node's CRI client then talks, and install reassert."""
    with_program_and_images(node, "docker")
    shutil.copy(os.environ["REASSERT_TEST_CRI_DOCKERD"], node.path("/usr/local/bin/cri-dockerd"))
    node.run("systemctl", "start", "cri-dockerd")
    node.cri = Cri(node.path(SOCKET), "", node.directory / "pods")

    def answers() -> bool:
        try:
            return "docker" in node.cri.version()
        except CriError:
            return False

    wait_for(answers, "cri-dockerd", node.trouble)
    node.run(PACKAGED, "node", "install", "--engine", "docker", "--no-probe")
