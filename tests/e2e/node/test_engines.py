"""docker and podman of a booted node, which stand beside containerd."""

from __future__ import annotations

import pytest

from e2e.cri.images import HOSTILE, PLAIN, write_images
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    node = module_boot("bookworm", docker=True, images=False)
    for archive in write_images(node.directory):
        for engine in ("docker", "podman"):
            node.run(engine, "load", "--input", str(archive))
    return node


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_runs(node: BootedNode, engine: str) -> None:
    script = "echo $NVIDIA_VISIBLE_DEVICES; ls /etc/ssl/certs"
    command = ["run", "--rm", "--env", "NVIDIA_VISIBLE_DEVICES=GPU-4", "--entrypoint", "/bin/sh", HOSTILE, "-c", script]
    assert node.run(engine, *command).stdout == "GPU-4\nimage.crt\n"


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_exec_works_in_one_that_stays(node: BootedNode, engine: str) -> None:
    container = node.run(engine, "run", "--detach", "--env", "A=b", PLAIN).stdout.strip()
    assert node.run(engine, "exec", container, "/bin/sh", "-c", "echo $A").stdout == "b\n"
    node.run(engine, "kill", container)
