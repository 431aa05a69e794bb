"""`reassert node` on a booted node: calling it, and what hostile pods get there."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from e2e.cri.client import Container, CriError, Pod, wait_for
from e2e.cri.hostile import CA_BUNDLE, ENV, OVERRIDDEN, RESERVED, assert_only_ours, reserved_in
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.engines import CRUN, RUNC, Handler
from e2e.node.files import differences

PROGRAM = "/src/reassert/dist/reassert/reassert"
"""Where a booted node has the frozen program, before it is installed."""

POLICY = "/etc/reassert/policy.yaml"
CA = "/etc/company/ca"
STATE = "/var/lib/reassert/node"

POLICY_TEXT = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  rules:
  - name: company-ca
    env:
    - {{name: REQUESTS_CA_BUNDLE, value: {CA_BUNDLE}}}
    - {{name: PYTHONHTTPSVERIFY, absent: true}}
    mounts:
    - {{hostPath: {CA}, mountPath: /etc/ssl, readOnly: true}}
  - {{name: gpu, env: [{{name: NVIDIA_VISIBLE_DEVICES, value: void}}]}}
"""

NVIDIA_PATH = "/usr/local/bin/nvidia-container-runtime"
NVIDIA = Handler("nvidia", f'BinaryName = "{NVIDIA_PATH}"', "RuntimeClass nvidia: the wrapper of the GPU vendor")
KATA = Handler("kata", 'ConfigPath = "/opt/kata/kata.toml"', "RuntimeClass kata", type="io.containerd.kata.v2")
HANDLERS = (RUNC, CRUN, NVIDIA, KATA)
RUNC_TYPE = {"crun": "/usr/bin/crun", "nvidia": NVIDIA_PATH, "runc": "/usr/sbin/runc"}
"""Those of them that call an OCI runtime, and which."""

FILES = {
    POLICY: POLICY_TEXT,
    f"{CA}/certs/company.crt": "company\n",
    "/etc/company/evil/evil.crt": "evil\n",
    NVIDIA_PATH: '#!/bin/sh\necho "$@" >> /run/nvidia.log\nexec /usr/sbin/runc "$@"\n',
}
"""What the nodes of these tests have before they boot."""


def prepared(node: BootedNode) -> BootedNode:
    """A node with FILES, once the programs among them are executable."""
    node.run("chmod", "755", NVIDIA_PATH)
    return node


def reassert(node: BootedNode, *arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    """`reassert node …` with the program that is not installed yet. `status`: that it must exit with; None: any."""
    done = node.run(PROGRAM, "node", *arguments, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert status in (None, done.returncode), f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def is_wired(node: BootedNode) -> bool:
    """Whether it has a record of having been installed."""
    return node.path(f"{STATE}/installed.json").exists()


def wire(node: BootedNode, *arguments: str) -> BootedNode:
    """Install, if it is not."""
    if not is_wired(node):
        reassert(node, "install", "--no-probe", *arguments)
    return node


def unwire(node: BootedNode) -> BootedNode:
    """Uninstall, if it is installed."""
    if is_wired(node):
        reassert(node, "uninstall")
    return node


def status(node: BootedNode, expected: int) -> dict[str, Any]:
    """What `status` says, as data: `handlers` by name, `problems`."""
    said = json.loads(reassert(node, "status", "--engine", "containerd", "-o", "json", status=expected).stdout)
    handlers = {handler["name"]: handler for handler in said["engines"]["containerd"]["handlers"]}
    return {"handlers": handlers, "problems": said["problems"]}


def wired(node: BootedNode, expected: int) -> dict[str, list[str]]:
    """By handler, what `status` says it is wired to."""
    return {name: handler["wired"] for name, handler in status(node, expected)["handlers"].items()}


def events(node: BootedNode) -> list[dict[str, Any]]:
    """The event log."""
    return [json.loads(line) for line in node.path("/var/log/reassert/events.jsonl").read_text().splitlines()]


@dataclass
class Started:
    """A hostile pod and its container."""

    pod: Pod
    container: Container

    def is_corrected(self) -> None:
        """Fails unless its process and an executed one have what the policy says."""
        container = self.container
        assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == RESERVED
        assert_only_ours(container.mounts())
        assert_only_ours(container.exec_mounts())
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]

    def is_overridden(self) -> None:
        """Fails unless its process has what the pod's author wants."""
        assert reserved_in(self.container.environ()) == OVERRIDDEN
        assert self.container.exec("/bin/ls", "/etc/ssl/certs").split() == ["evil.crt"]


def start_hostile(node: BootedNode, handler: str = "") -> Started:
    """A pod that overrides what is reserved, under a handler. Raises CriError."""
    pod = node.cri.run_pod(handler)
    try:
        return Started(pod, pod.run(image=HOSTILE, env=ENV, mounts=[("/etc/company/evil", "/etc/ssl/certs")]))
    except CriError:
        pod.remove()
        raise


def assert_corrected(node: BootedNode, handler: str = "") -> str:
    """A hostile pod gets what the policy says. Returns the container's id."""
    started = start_hostile(node, handler)
    started.is_corrected()
    started.pod.remove()
    return started.container.id


def assert_overridden(node: BootedNode, handler: str = "") -> None:
    """A hostile pod gets its way: reassert is nowhere near."""
    started = start_hostile(node, handler)
    started.is_overridden()
    started.pod.remove()


class Before:
    """A node as it was, to the byte."""

    def __init__(self, node: BootedNode, *paths: str) -> None:
        """`paths`: files whose time of change counts too."""
        self._node = node
        self._files = node.snapshot()
        self._times = {path: node.path(path).lstat().st_mtime_ns for path in paths}

    def is_back(self) -> None:
        """Fails unless everything is as it was."""
        assert differences(self._files, self._node.snapshot()) == []
        times = {path: self._node.path(path).lstat().st_mtime_ns for path in self._times}
        assert times == self._times


def main_pid(node: BootedNode) -> str:
    """containerd's."""
    return node.property("containerd.service", "MainPID")


def wait_until_gone(node: BootedNode, path: str) -> None:
    """Until a path is gone."""
    wait_for(lambda: not node.path(path).exists(), f"{path} to go")
