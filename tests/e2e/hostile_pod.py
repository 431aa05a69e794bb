"""The suite tests/hostile-pod, as a stranger runs it: the command alone, with an expectation of a test's node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness.node import Node
from harness.paths import TOP

from e2e.cri.node import Containerd

SUITE = TOP / "tests/hostile-pod/hostile-pod"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
DEVICE = "/dev/fuse"
"""A device of nearly every kernel, which can be opened by root, and which no engine gives to containers."""

POLICY = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: hostile-pod}}
spec:
  kubelet: {{root: KUBELET}}
  rules:
  - name: reserved
    env:
    - {{name: NVIDIA_VISIBLE_DEVICES, value: void}}
    - {{name: REQUESTS_CA_BUNDLE, value: {BUNDLE}}}
    - {{name: PYTHONHTTPSVERIFY, absent: true}}
    mounts:
    - {{hostPath: CA, mountPath: /etc/ssl, readOnly: true}}
  - name: devices
    deviceAllocations: {{exclusive: [{DEVICE}], devices: true}}
"""
"""The policy for `expectation`, as tests/lab/peers/policy.yaml is for expect.json."""


def policy(node: Node) -> str:
    """POLICY for a test's node, which has no kubelet."""
    return POLICY.replace("KUBELET", str(node.directory / "no-kubelet"))


def expectation(node: Node) -> Path:
    """What POLICY reserves, in the form of the suite."""
    env = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": BUNDLE, "PYTHONHTTPSVERIFY": None}
    path = node.directory / "expect.json"
    path.write_text(json.dumps({"env": env, "mounts": {"/etc/ssl": str(node.ca)}, "devices": [DEVICE]}))
    return path


def suite(node: Node, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit status, result of each case, and everything that was printed. Nothing is left of its containers' files."""
    options = ["-o", "json", "--expect", str(expectation(node)), "--scratch", str(node.directory)]
    command = [sys.executable, str(SUITE), *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert not list(node.directory.glob("hostile-pod-*"))
    assert done.stdout, done.stderr
    found = {case["name"]: case["result"] for case in json.loads(done.stdout)["cases"]}
    return done.returncode, found, done.stdout + done.stderr


def suite_of(containerd: Containerd, handler: str, image: str, *more: str) -> tuple[int, dict[str, str], str]:
    """`suite` for the CRI of a test's containerd. `more`: options."""
    socket, parent = str(containerd.directory / "containerd.sock"), containerd.cri.cgroup_parent
    options = ("--cri", socket, "--handler", handler, "--image", image, "--cgroup-parent", parent)
    return suite(containerd.node, *options, *more)


def of_result(found: dict[str, str], *results: str) -> set[str]:
    """The cases with one of these results."""
    return {name for name, result in found.items() if result in results}
