"""`reassert verify` on booted nodes: through docker, and where runtimes leave cgroups to systemd."""

from __future__ import annotations

import json
from dataclasses import dataclass

import marks
import pytest
from harness.node import POLICY, Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import run

from e2e.cri.verify import Verified, Wired, verify_inside
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CRUN, FORMATS, SANDBOX_IMAGE, Handler, containerd_config

pytestmark = marks.promise(
    "`verify` starts hostile containers, tries every way to a closed device, and reports `protected` only for"
    " parts that were tried"
)

PROGRAM = "/src/reassert/dist/reassert/reassert"
"""Where a booted node has the frozen program."""

SOCKET = "/run/containerd/containerd.sock"
SYSTEMD = Handler("runc", "SystemdCgroup = true", "kubelet: cgroupDriver systemd")


@dataclass
class Docker:
    """A node with dockerd and containerd, and the scratch policy and store of its dispatcher."""

    booted: BootedNode
    node: Node

    def verify(self, wired: Wired) -> Verified:
        return verify_inside(self.booted.pid, self.node, wired)

    def remains(self) -> list[str]:
        """What a probe could have left: containers, images, files."""
        there = self.booted.run("docker", "ps", "--all", "--quiet").stdout.split()
        there += self.booted.run("docker", "images", "--all", "--quiet").stdout.split()
        return there + [path.name for path in self.booted.path("/run").glob("reassert-*")]


@pytest.fixture(scope="module")
def docker(module_boot: Boot) -> Docker:
    booted = module_boot("bookworm", docker=True, config=containerd_config(FORMATS["bookworm"], (SYSTEMD, CRUN)))
    directory = booted.directory / "policy"
    directory.mkdir()
    node = Node(directory)
    wrapper = directory / "reassert-runc"
    made = run(str(REASSERT), "dispatcher", "--real", RUNTIMES["runc"], "--reassert", PROGRAM, *node.options())
    wrapper.write_text(made.stdout)
    wrapper.chmod(0o755)
    daemon = {"runtimes": {"reassert": {"path": str(wrapper)}}}
    booted.path("/etc/docker").mkdir(exist_ok=True)
    booted.path("/etc/docker/daemon.json").write_text(json.dumps(daemon))
    booted.run("systemctl", "restart", "docker")
    return Docker(booted, node)


def test_with_and_without_reassert(docker: Docker) -> None:
    docker.node.write_policy(POLICY)
    verified = docker.verify({"reassert": ["runtime"], "runc": []})
    assert (verified.status, verified.error) == (1, "")
    assert verified.results() == {
        "reassert": ("protected", "protected"),
        "runc": ("not protected", "not protected"),
    }
    assert verified.saw("reassert") == ["put back: 2 env, 2 mounts; in exec too"]
    assert verified.saw("runc")[0] == (
        "env REQUESTS_CA_BUNDLE is reassert-verify-pod, the policy wants /etc/ssl/certs/ca-certificates.crt"
    )
    assert docker.verify({"reassert": ["runtime"]}).status == 0
    assert docker.remains() == []


def test_pods_go_where_systemd_has_the_cgroups(docker: Docker) -> None:
    """An exec is not looked at: on a machine with cgroup v1, runc looks for the pod's in a hierarchy without it."""
    docker.node.write_policy(POLICY)
    verified = verify_inside(docker.booted.pid, docker.node, {"runc": []}, socket=SOCKET, image=SANDBOX_IMAGE)
    assert verified.results()["runc"][0] == "not protected", verified
    assert docker.booted.ctr("container", "list", "--quiet") == ""
    assert docker.booted.run("systemctl", "list-units", "--all", "--no-legend", "cri-containerd-*").stdout == ""
