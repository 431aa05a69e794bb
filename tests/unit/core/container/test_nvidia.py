"""GPUs that a plugin's answer names by UUID alone, with the driver's files as many nodes show them."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from hook.core.container.injections import GPUS
from unit.allocated import Node, ours, spec
from unit.ownmachine import Machine
from unit.support import bind

pytestmark = pytest.mark.users

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
INFORMATION = """\
Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 77
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.19.00.01
Bus Type: \t PCIe
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""
NODES = {"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255, "nvidia-uvm": 254}


@pytest.fixture
def node(root_dir: Path, machine: Machine) -> Node:
    """A node with two GPUs, whose order on the bus is not that of their minor numbers."""
    machine.devices()
    for bus, uuid, minor in (("0000:07:00.0", "GPU-aaaa", 1), ("0000:0b:00.0", "GPU-bbbb", 0)):
        machine.file(f"{GPUS}/{bus}/information", INFORMATION.format(uuid=uuid, bus=bus, minor=minor))
    for name, minor in NODES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o600, os.makedev(240, minor))
    return Node(root_dir, {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/nvidia*"]}})


def dropped(node: Node) -> list[str]:
    """Of all nodes, those that may not be in the container."""
    mounts = [bind(f"/dev/{name}", f"/dev/{name}") for name in NODES]
    rules = [{"allow": False, "access": "rwm"}]
    return [edit.name for edit in node.decide(spec(mounts=mounts, device_rules=rules)).edits]


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ("GPU-aaaa", ["/dev/nvidia0"]),
        ("GPU-aaaa,GPU-bbbb", []),
        ("GPU-cccc", [f"/dev/{name}" for name in NODES]),
        ("all", [f"/dev/{name}" for name in NODES]),
    ],
)
def test_a_gpu_that_env_names_is_allocated(node: Node, value: str, gone: list[str]) -> None:
    """HAMi's answer has mounts too."""
    mounts = [{"host_path": "/usr/lib", "container_path": "/usr/local/vgpu"}]
    node.allocate(ours("GPU-aaaa-3", resource="nvidia.com/gpu", envs={VISIBLE: value}, mounts=mounts))
    assert dropped(node) == gone


def test_where_the_answer_names_nodes_they_are_all(node: Node) -> None:
    device = {"host_path": "/dev/nvidia0", "container_path": "/dev/nvidia0", "permissions": "rw"}
    node.allocate(ours("x", envs={VISIBLE: "GPU-aaaa"}, devices=[device]))
    assert dropped(node) == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_without_the_driver_nothing_is_named(node: Node) -> None:
    shutil.rmtree(GPUS)
    node.allocate(ours("x", envs={VISIBLE: "GPU-aaaa"}))
    assert len(dropped(node)) == len(NODES)
