"""GPUs that a plugin's answer names by UUID alone, with the driver's files as many nodes show them."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from hook.core.container.injections import GPUS, PCI
from unit.allocated import KubeletNode, ours, spec
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
def node(root_dir: Path, machine: Machine) -> KubeletNode:
    """A node with two GPUs, whose order on the bus is not that of their minor numbers."""
    machine.devices()
    for bus, uuid, minor in (("0000:07:00.0", "GPU-aaaa", 1), ("0000:0b:00.0", "GPU-bbbb", 0)):
        machine.file(f"{GPUS}/{bus}/information", INFORMATION.format(uuid=uuid, bus=bus, minor=minor))
    for name, minor in NODES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o600, os.makedev(240, minor))
    return KubeletNode(root_dir, {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/nvidia*"]}})


def dropped(node: KubeletNode) -> list[str]:
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
def test_a_gpu_that_env_names_is_allocated(node: KubeletNode, value: str, gone: list[str]) -> None:
    """HAMi's answer has mounts too."""
    mounts = [{"host_path": "/usr/lib", "container_path": "/usr/local/vgpu"}]
    node.allocate(ours("GPU-aaaa-3", resource="nvidia.com/gpu", envs={VISIBLE: value}, mounts=mounts))
    assert dropped(node) == gone


def test_where_the_answer_names_nodes_they_are_all(node: KubeletNode) -> None:
    device = {"host_path": "/dev/nvidia0", "container_path": "/dev/nvidia0", "permissions": "rw"}
    node.allocate(ours("x", envs={VISIBLE: "GPU-aaaa"}, devices=[device]))
    assert dropped(node) == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]


MORE = {
    "dri/card0": (226, 0),
    "dri/card1": (226, 1),
    "dri/renderD128": (226, 128),
    "dri/renderD129": (226, 129),
    "nvidia-fs0": (505, 0),
    "nvidia-fs15": (505, 15),
    "infiniband/uverbs0": (231, 192),
    "infiniband/rdma_cm": (10, 58),
    "infiniband/umad0": (231, 0),
    "gdrdrv": (506, 0),
    "nvidia-nvswitch0": (195, 100),
    "nvidia-nvswitchctl": (195, 101),
    "nvidia-caps-imex-channels/channel0": (507, 0),
    "nvidia-caps-imex-channels/channel1": (507, 1),
}
OWN_DRM = {"dri/card1", "dri/renderD129"}


@pytest.mark.parametrize(
    ("env", "stay"),
    [
        ({}, set()),
        ({VISIBLE: "GPU-aaaa"}, OWN_DRM),
        ({VISIBLE: "GPU-cccc"}, set()),
        ({VISIBLE: "all"}, set()),
        ({"NVIDIA_GDS": "enabled"}, {"nvidia-fs0", "nvidia-fs15"}),
        ({"NVIDIA_GDS": "1"}, set()),
        ({"NVIDIA_MOFED": "enabled"}, {"infiniband/uverbs0", "infiniband/rdma_cm"}),
        ({"NVIDIA_GDRCOPY": "enabled"}, {"gdrdrv"}),
        ({"NVIDIA_NVSWITCH": "enabled"}, {"nvidia-nvswitch0", "nvidia-nvswitchctl"}),
        ({"NVIDIA_IMEX_CHANNELS": "1"}, {"nvidia-caps-imex-channels/channel1"}),
        (
            {VISIBLE: "GPU-aaaa", "NVIDIA_GDS": "enabled", "NVIDIA_IMEX_CHANNELS": "0,1,../x"},
            {*OWN_DRM, "nvidia-fs0", "nvidia-fs15", *(f"nvidia-caps-imex-channels/channel{n}" for n in (0, 1))},
        ),
    ],
)
@pytest.mark.parametrize("with_nodes", [False, True], ids=["env", "passDeviceSpecs"])
def test_what_nvidias_runtime_adds_by_the_plugins_env_is_allocated(
    root_dir: Path, node: KubeletNode, env: dict[str, str], stay: set[str], with_nodes: bool
) -> None:
    """DRM nodes are those of the container's own GPUs. The pod's env says nothing."""
    for name, numbers in MORE.items():
        Path("/dev", name).parent.mkdir(exist_ok=True)
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o600, os.makedev(*numbers))
    drm = {"0000:07:00.0": ("card1", "renderD129"), "0000:0b:00.0": ("card0", "renderD128")}
    tops = root_dir / "pci"
    for bus, names in drm.items():
        for name in names:
            (tops / bus / "drm" / name).mkdir(parents=True)
    devices = [{"host_path": "/dev/nvidia1", "container_path": "/dev/nvidia1", "permissions": "rw"}]
    node = KubeletNode(root_dir, {"name": "gpu", "deviceAllocations": {"exclusive": ["/dev/*"]}})
    node.allocate(ours("x", envs=env, devices=devices if with_nodes else []))
    mounts = [bind(f"/dev/{name}", f"/dev/{name}") for name in MORE]
    pods = [f"{name}={value}" for name, value in (("NVIDIA_GDS", "enabled"), (VISIBLE, "GPU-bbbb"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hook.core.container.injections.PCI", str(tops))
        decided = node.decide(spec(mounts=mounts, env=pods, device_rules=[{"allow": False, "access": "rwm"}]))
    assert {*MORE} - {edit.name.removeprefix("/dev/") for edit in decided.edits} == stay
    assert PCI == "/sys/bus/pci/devices"


def test_without_the_driver_nothing_is_named(node: KubeletNode) -> None:
    shutil.rmtree(GPUS)
    node.allocate(ours("x", envs={VISIBLE: "GPU-aaaa"}))
    assert len(dropped(node)) == len(NODES)
