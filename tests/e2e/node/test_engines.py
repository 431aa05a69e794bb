"""Engines that stand beside containerd: docker and podman run containers; CRI-O is a script that knows its files."""

from __future__ import annotations

import pytest

from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.files import differences
from e2e.node.wired import FILES, PACKAGED, with_program_and_images
from e2e.support import TOP

CRIO = """\
#!/bin/sh
case $* in
*--version*) echo crio version 1.31.0 ;;
*--default*) cat /src/reassert/tests/fixtures/crio/default.toml ;;
*config*) cat /etc/crio/crio.conf.d/99-reassert.conf || true ;;
esac
"""
"""No Debian has the real one."""


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    files = {
        **FILES,
        "/usr/local/bin/crio": CRIO,
        "/etc/crio/crio.conf.d/10-crio.conf": (TOP / "tests/fixtures/crio/10-crio.conf").read_text(),
    }
    node = module_boot("bookworm", files=files, docker=True, images=False)
    node.path("/usr/local/bin/crio").chmod(0o755)
    return with_program_and_images(node, "docker", "podman")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_runs(node: BootedNode, engine: str) -> None:
    script = "echo $NVIDIA_VISIBLE_DEVICES; ls /etc/ssl/certs"
    command = ["run", "--rm", "--env", "NVIDIA_VISIBLE_DEVICES=GPU-4", "--entrypoint", "/bin/sh", HOSTILE, "-c", script]
    assert node.run(engine, *command).stdout == "GPU-4\nimage.crt\n"


def test_crio_is_wired_and_put_back(node: BootedNode) -> None:
    before = node.snapshot()
    command = [PACKAGED, "node", "install", "--engine", "crio", "--no-probe", "--no-agent", "--adapter", "runtime,hook"]
    assert "CRI-O 1.31.0 is wired (runtime, hook)." in node.run(*command).stdout
    assert "/usr/local/sbin/reassert-crun" in node.path("/etc/crio/crio.conf.d/99-reassert.conf").read_text()
    assert "nothing to change" in node.run(*command).stdout
    node.run(PACKAGED, "node", "uninstall", "--engine", "crio")
    assert differences(before, node.snapshot()) == []
