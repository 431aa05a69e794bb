"""Devices that pods share by env alone: a container may name what a reserving pod holds, and nothing else."""

from __future__ import annotations

import copy
import os
import stat
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile.compiler import PolicyInvalid, compile_bytes
from hook.core.container.identity import Identity
from hook.core.facts.sharing import POD_LOGS
from unit.allocated import KubeletNode, ours, spec
from unit.kubelet import entry
from unit.ownmachine import Machine
from unit.support import POD, bind, document

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
RESERVING = "kai-resource-reservation"
HELD, OTHER = "GPU-aaaa", "GPU-bbbb"


def rule(*trusted: dict[str, Any], **more: Any) -> dict[str, Any]:
    allocation = {"default": "void", "trusted": list(trusted)}
    return {"name": "gpu", "env": [{"name": VISIBLE, "valueFrom": {"deviceAllocation": allocation}}], **more}


TRUSTED = {"namespaces": ["research-*"], "reservedBy": [RESERVING]}


@pytest.fixture
def node(root_dir: Path, machine: Machine) -> KubeletNode:
    """A node on which one pod holds a GPU to be shared, and another pod has a GPU of its own."""
    for name in (f"{RESERVING}_gpu-reservation-node-x_uid-r", "research-a_train_uid-o", "odd", f"{RESERVING}_x"):
        Path(POD_LOGS, name).mkdir(parents=True)
    node = KubeletNode(root_dir, rule(TRUSTED))
    node.allocate(
        entry("uid-r", "resource-reservation", f"{HELD}::0", resource="nvidia.com/gpu", envs={VISIBLE: HELD}),
        entry("uid-o", "train", OTHER, resource="nvidia.com/gpu", envs={VISIBLE: OTHER}),
    )
    return node


def pod(namespace: str) -> Identity:
    identity = copy.copy(POD)
    identity.namespace = namespace
    return identity


def visible(node: KubeletNode, *values: str, namespace: str = "research-a") -> str:
    [only] = node.env(*(f"{VISIBLE}={value}" for value in values), identity=pod(namespace))
    return only.partition("=")[2]


@pytest.mark.parametrize("values", [[HELD], ["all", HELD], [f"{HELD},{HELD}"]])
def test_a_device_that_a_reserving_pod_holds_may_be_named(node: KubeletNode, values: list[str]) -> None:
    assert visible(node, *values) == values[-1]


@marks.claim("trusted", "runtime")
@pytest.mark.parametrize(
    "values",
    [["all"], [OTHER], [f"{HELD},{OTHER}"], [HELD, "all"], [""], ["none"], ["0"], [f"{HELD}::0"], [HELD, f"{HELD},"]],
)
def test_a_pod_author_can_name_no_other(node: KubeletNode, values: list[str]) -> None:
    """Of several entries the last one is what the process would have."""
    assert visible(node, *values) == "void"


@pytest.mark.parametrize("namespace", ["research", "team-a", RESERVING])
def test_in_another_namespace_nothing_may_be_named(node: KubeletNode, namespace: str) -> None:
    assert visible(node, HELD, namespace=namespace) == "void"


def test_a_pod_that_only_looks_like_a_reserving_one_holds_nothing(node: KubeletNode) -> None:
    """Its name, its labels, its containers' names are its author's; its namespace and its UID are not."""
    Path(POD_LOGS, f"{RESERVING}_gpu-reservation-node-x_uid-r").rmdir()
    Path(POD_LOGS, f"research-a_{RESERVING}_uid-r").mkdir()
    assert visible(node, HELD) == "void"


def test_an_allocation_of_its_own_comes_first(node: KubeletNode) -> None:
    node.allocate(ours("GPU-4", envs={VISIBLE: "GPU-4"}), entry("uid-r", "c", HELD, envs={VISIBLE: HELD}))
    assert visible(node, "GPU-4", HELD) == "GPU-4"


def test_names_of_cdi_devices_count_as_well(node: KubeletNode) -> None:
    """KAI writes them with NVIDIA's device plugin in CDI mode."""
    name = f"k8s.device-plugin.nvidia.com/gpu={HELD}"
    assert visible(node, name) == "void"
    node.allocate(entry("uid-r", "c", HELD, cdi_devices=[{"name": name}]))
    assert visible(node, name) == name


@marks.hole("With `trusted`, a pod named another pod's GPU by an index", since="0.3.0", fixed="0.3.0", severity="high")
@pytest.mark.parametrize("number", ["0", "0:1"])
def test_a_number_counts_only_where_the_plugin_says_it_of_the_device(node: KubeletNode, number: str) -> None:
    """It is the id of whatever else the reserving pod has; for NVIDIA's hook it is a GPU's index."""
    other = entry(
        "uid-r", "c", number, resource="example.com/fuse", cdi_devices=[{"name": f"example.com/fuse={number}"}]
    )
    node.allocate(other)
    assert visible(node, number) == "void"
    node.allocate(entry("uid-r", "c", HELD, resource="nvidia.com/gpu", envs={VISIBLE: number}))
    assert visible(node, number) == number


def test_a_broken_checkpoint_is_undecided(node: KubeletNode) -> None:
    checkpoint = node.allocate()
    checkpoint.write_text("{")
    decided = node.decide(spec(env=[f"{VISIBLE}={HELD}"]), pod("research-a"))
    told = str(decided.errors[0])
    assert "kubelet's device checkpoint: no" in told
    assert told.endswith(f"; drain the node, remove {checkpoint} and restart kubelet")


@pytest.mark.users  # mknod(2)
def test_what_is_shared_is_allocated_for_a_closed_world(node: KubeletNode) -> None:
    """The device nodes that the reserving pod was given, and no others."""
    for minor in (0, 1):
        os.mknod(node.root / f"gpu{minor}", stat.S_IFCHR | 0o600, os.makedev(240, minor))
    node = KubeletNode(node.root, rule(TRUSTED, deviceAllocations={"exclusive": [f"{node.root}/gpu*"]}))
    device = {"host_path": f"{node.root}/gpu0", "container_path": "/dev/gpu0", "permissions": "rw"}
    node.allocate(entry("uid-r", "c", HELD, devices=[device]))

    def dropped(namespace: str) -> list[str]:
        rules = [{"allow": False, "access": "rwm"}]
        mounts = [bind(f"/dev/gpu{minor}", f"{node.root}/gpu{minor}") for minor in (0, 1)]
        decided = node.decide(spec(env=[f"{VISIBLE}={HELD}"], mounts=mounts, device_rules=rules), pod(namespace))
        return [edit.name for edit in decided.edits if edit.kind == "device"]

    assert dropped("research-a") == ["/dev/gpu1"]
    assert dropped("team-a") == ["/dev/gpu0", "/dev/gpu1"]


@pytest.mark.parametrize(
    ("trusted", "said"),
    [
        ({"namespaces": ["*"], "reservedBy": [RESERVING]}, r"item 0: '\*' is not allowed"),
        ({"namespaces": ["a"], "reservedBy": ["*"]}, r"item 0: '\*' is not allowed"),
        ({"namespaces": ["a"]}, "reservedBy"),
    ],
)
def test_nobody_can_trust_everybody(trusted: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyInvalid, match=said):
        compile_bytes("policy.yaml", document(rule(trusted)).encode())


def test_with_keep_there_is_nothing_to_trust() -> None:
    kept = rule(TRUSTED)
    kept["env"][0]["valueFrom"]["deviceAllocation"]["default"] = "Keep"
    with pytest.raises(PolicyInvalid, match="with default: Keep every container keeps its value"):
        compile_bytes("policy.yaml", document(kept).encode())
