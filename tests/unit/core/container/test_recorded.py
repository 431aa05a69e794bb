"""The example policy on config.json files that real kubelets and engines wrote: which containers it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest
from ruamel.yaml import YAML

from hook.core.container.allocation import checkpoint_below
from hook.core.container.identity import APP_TYPES, Identity, identify
from hook.core.container.spec import Spec
from unit.allocated import KubeletNode
from unit.support import FIXTURES, ROOT, called, document, reassert

pytestmark = marks.promise("A container gets its own allocation from kubelet's checkpoint, or there is no decision")

RECORDED = FIXTURES / "kubelet"
EXAMPLE = ROOT / "config" / "examples" / "gpu-lockdown.yaml"
NEW, OLD = "k1.36-containerd", "k1.20-dockershim"

CASES = [
    # The pod wrote `all`, or nothing at all, or its own name by fieldRef; the last of two in its spec.
    (NEW, "three-pods", "victim.evil", "GPU-gpu-4"),
    (NEW, "three-pods", "victim.init-gpu", "GPU-gpu-4"),
    (NEW, "edge", "edge.empty", "GPU-gpu-17"),
    (NEW, "edge", "edge.fieldref", "GPU-gpu-4"),
    (NEW, "edge", "edge.dup", "GPU-gpu-5"),
    (NEW, "edge", "edge.sidecar", "GPU-gpu-8"),
    (NEW, "edge", "edge.priv", "GPU-gpu-22"),
    (OLD, "", "victim.evil", "GPU-gpu-0"),
    (OLD, "", "voidb.image-and-pod-env", "GPU-gpu-6"),
    # The image has a value of its own: before the plugin's, and before the pod's.
    (NEW, "three-pods", "void.image-env", "GPU-gpu-3"),
    (NEW, "three-pods", "void.image-and-pod-env", "GPU-gpu-2"),
    # Two resources set the name: kubelet took the one or the other.
    (NEW, "three-pods", "conflict.both", "GPU-gpu-0"),
    (NEW, "three-pods", "conflict.both-two", "GPU-gpu-1"),
    # No device was allocated: the pod, or the image, asks all the same.
    (NEW, "three-pods", "victim.nodev", "void"),
    (NEW, "three-pods", "victim.init-nodev", "void"),
    (NEW, "three-pods", "void.image-env-nodev", "void"),
    # Honest ones.
    (NEW, "three-pods", "victim.honest", "GPU-gpu-7"),
    (NEW, "three-pods", "conflict.two-devs", "GPU-gpu-5,GPU-gpu-6"),
    (NEW, "edge", "edge.plain-init", "GPU-gpu-5"),
    # kubelet was restarted and no plugin has registered yet: its entries stay.
    (NEW, "after-kubelet-restart-no-plugin", "victim.evil", "GPU-gpu-4"),
]


def node_with(root: Path, engine: str, checkpoint: str) -> KubeletNode:
    """The example policy on the recorded node. The plugin's mount sources (/etc/hostname) exist on every Debian."""
    rules = yaml_rules()
    node = KubeletNode(root, *rules, exclude={"containerTypes": ["sandbox"]})
    path = Path(checkpoint_below(f"{root}/device-plugins"))
    path.parent.mkdir()
    recorded = RECORDED / engine / f"checkpoint{'.' * bool(checkpoint)}{checkpoint}.json"
    path.write_bytes(recorded.read_bytes())
    return node


def yaml_rules() -> list[dict[str, Any]]:
    """The rules of the example policy."""
    rules: list[dict[str, Any]] = YAML(typ="safe").load(EXAMPLE)["spec"]["rules"]
    return rules


def bundle(engine: str, name: str) -> Spec:
    """A recorded config.json, with the path of its engine's bundle."""
    namespace = "k8s.io" if engine == NEW else "moby"
    data = (RECORDED / engine / f"config.{name}.json").read_bytes()
    return Spec(data, f"/run/containerd/io.containerd.runtime.v2.task/{namespace}/{name}/config.json")


def identified(spec: Spec) -> Identity:
    """Who the container of a config.json is; unit/core/container/test_dockershim.py has the proofs of docker's."""
    identity = identify(spec)
    if identity.unproven is None:
        return identity
    uid, _, _, sources = identity.unproven
    [name] = [source.split("/")[-2] for source in sources if f"/pods/{uid}/containers/" in source]
    return Identity("docker", True, uid=uid, container=name, types=APP_TYPES)


@pytest.mark.parametrize(("engine", "checkpoint", "name", "wanted"), CASES, ids=[f"{c[0][:5]}-{c[2]}" for c in CASES])
def test_recorded_container_gets_what_its_plugin_allocated(
    root_dir: Path, engine: str, checkpoint: str, name: str, wanted: str
) -> None:
    node, before = node_with(root_dir, engine, checkpoint), bundle(engine, name)
    after = node.correct(bundle(engine, name), identified(before))
    assert [e for e in after.env if e.startswith("NVIDIA_VISIBLE_DEVICES")] == [f"NVIDIA_VISIBLE_DEVICES={wanted}"]
    others = [[e for e in spec.env if not e.startswith("NVIDIA_VISIBLE_DEVICES")] for spec in (before, after)]
    assert others[0] == others[1]
    assert after.devices == before.devices
    assert after.device_rules == before.device_rules
    assert after.annotations == before.annotations
    for mount in after.mounts:
        assert mount in before.mounts
    toys = [mount.destination for mount in after.mounts if mount.destination.startswith("/toy/")]
    assert len(toys) == len(set(toys))
    assert [mount.source for mount in after.mounts if mount.destination == "/toy/conf"] == (
        ["/etc/default"] if toys else []
    )


@marks.hole(
    "A sidecar renamed a directory of a pod's volume above a device plugin's mount",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
def test_a_pods_volume_above_a_plugins_mount_refuses_the_pod_unless_the_rule_lets_it_through(root_dir: Path) -> None:
    shadow = bundle(NEW, "edge.shadow")
    node = node_with(root_dir, NEW, "edge")
    assert "is a volume above the reserved mount /toy/conf; " in node.decide(shadow, identified(shadow)).refusal()
    allowing = KubeletNode(root_dir, {"name": "r", "deviceAllocations": {"mounts": True, "volumesAbove": "Allow"}})
    assert allowing.correct(shadow, identified(shadow)).mounts[-1].source == "/etc/default"


def test_derived_variables_are_not_repaired(root_dir: Path) -> None:
    node = node_with(root_dir, NEW, "three-pods")
    after = node.correct(bundle(NEW, "victim.evil"), identified(bundle(NEW, "victim.evil")))
    assert "COPY=all" in after.env


@pytest.mark.parametrize("engine", [NEW, OLD])
def test_what_kubelet_and_the_engine_made_of_an_allocation_is_no_conflict(root_dir: Path, engine: str) -> None:
    """Under Deny, the pods that overrode nothing start; those that did are refused for just that."""
    node = node_with(root_dir, engine, "three-pods" if engine == NEW else "")
    strict = KubeletNode(root_dir, *({**rule, "onConflict": "Deny"} for rule in yaml_rules()))
    honest = ["victim.honest", "conflict.two-devs", "conflict.both-two"] if engine == NEW else []
    for name in honest:
        assert strict.decide(bundle(engine, name), identified(bundle(engine, name))).refusal() == ""
    override = "env NVIDIA_VISIBLE_DEVICES is reserved and was set to something else"
    names = {"rule gpu: " + override, "rule whatever-the-device-plugin-set: " + override}
    refusal = strict.decide(bundle(engine, "victim.evil"), identified(bundle(engine, "victim.evil"))).refusal()
    assert set(refusal.split("; ")) <= names
    assert refusal
    assert node.decide(bundle(engine, "victim.evil"), identified(bundle(engine, "victim.evil"))).refusal() == ""


def test_sandbox_is_left_alone(root_dir: Path) -> None:
    node, spec = node_with(root_dir, NEW, "three-pods"), bundle(NEW, "victim.SANDBOX")
    assert node.decide(spec, identified(spec)).is_empty()


def test_explain_names_the_resource_and_the_device_ids_of_a_value(root_dir: Path) -> None:
    node_with(root_dir, NEW, "three-pods")
    file = root_dir / "policy.yaml"
    file.write_text(document(*yaml_rules(), kubelet={"root": str(root_dir)}))
    options = ["explain", str(RECORDED / NEW / "config.victim.evil.json"), "--policy", str(file)]
    table = called(*options).stdout
    assert "allocated  example.com/gpu GPU-gpu-4: NVIDIA_VISIBLE_DEVICES=GPU-gpu-4\n" in table
    [row] = [line for line in table.splitlines() if " env " in line]
    assert row.split(maxsplit=3)[:3] == ["gpu", "env", "NVIDIA_VISIBLE_DEVICES"]
    assert row.endswith("'GPU-gpu-4', 'all'  'GPU-gpu-4' from example.com/gpu GPU-gpu-4")
    data = json.loads(called(*options, "-o", "json").stdout)
    [allocation] = data["allocations"]
    assert (allocation["resource"], allocation["deviceIDs"]) == ("example.com/gpu", ["GPU-gpu-4"])
    [edit] = [edit for edit in data["edits"] if edit["kind"] == "env"]
    assert (edit["after"], edit["from"]) == ("GPU-gpu-4", "example.com/gpu GPU-gpu-4")
    diff = called(*options, "-o", "diff").stdout
    assert '-      "NVIDIA_VISIBLE_DEVICES=all"' in diff


def test_explain_says_that_the_checkpoint_cannot_be_read(root_dir: Path) -> None:
    node_with(root_dir, NEW, "three-pods")
    Path(checkpoint_below(f"{root_dir}/device-plugins")).write_text("{")
    file = root_dir / "policy.yaml"
    file.write_text(document(*yaml_rules(), kubelet={"root": str(root_dir)}))
    config = RECORDED / NEW / "config.victim.evil.json"
    done = reassert("explain", str(config), "--policy", str(file))
    assert "result     refused: rule gpu: kubelet's device checkpoint: not valid JSON" in done.stdout
    assert done.returncode == 1
