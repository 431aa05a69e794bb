"""Env that a device plugin set is what the container gets, wherever and whatever the pod or the image put beside it."""

from __future__ import annotations

import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.container.identity import Identity
from hook.core.verdict import Verdict
from unit.allocated import NAME, UID, KubeletNode, ours, spec
from unit.kubelet import checkpoint, entry
from unit.ownmachine import Machine, audited
from unit.support import POD, case, document, lines

pytestmark = marks.promise("A container gets its own allocation from kubelet's checkpoint, or there is no decision")

VISIBLE = {"name": "VISIBLE", "valueFrom": {"deviceAllocation": {"default": "void"}}}
GPU = {"name": "gpu", "env": [VISIBLE]}
EVERY = {"name": "every", "deviceAllocations": {"env": True}}
INIT = Identity("containerd", True, namespace="team-a", pod="web-1", uid=UID, container="init", types=("container",))


def default(value: str | None) -> dict[str, Any]:
    """A rule with a default."""
    origin = {} if value is None else {"default": value}
    return {"name": "gpu", "env": [{"name": "VISIBLE", "valueFrom": {"deviceAllocation": origin}}]}


PLUGINS = "/var/lib/kubelet/device-plugins"


def test_kubelets_root_does_not_move_the_checkpoint(root_dir: Path, machine: Machine) -> None:
    """kubelet has it in PLUGINS whatever --root-dir is. Another one, of a copied directory, counts without that."""
    node = KubeletNode(root_dir, default("void"))
    kubelets = machine.file(f"{PLUGINS}/kubelet_internal_checkpoint", checkpoint(ours(envs={"VISIBLE": "GPU-1"})))
    assert node.env("VISIBLE=all") == ["VISIBLE=GPU-1"]
    node.allocate(ours(envs={"VISIBLE": "GPU-2"}))
    assert node.env("VISIBLE=all") == ["VISIBLE=GPU-1"]
    kubelets.unlink()
    assert node.env("VISIBLE=all") == ["VISIBLE=GPU-2"]


def test_a_checkpoint_that_a_plugins_kubelet_lacks_is_not_nothing_allocated(root_dir: Path, machine: Machine) -> None:
    node = KubeletNode(root_dir, default("void"))
    machine.file(f"{PLUGINS}/kubelet.sock")
    assert node.env("VISIBLE=all") == ["VISIBLE=void"], "no plugin has registered"
    machine.file(f"{PLUGINS}/nvidia-gpu.sock")
    path = f"{PLUGINS}/kubelet_internal_checkpoint"
    assert node.decide(spec(env=["VISIBLE=all"])).refusal() == (
        f"rule gpu: kubelet's device checkpoint {path} is missing, and the device plugin of nvidia-gpu.sock runs; "
        "restart kubelet if this stays so"
    )
    machine.file(f"{PLUGINS}/kubelet_internal_checkpoint", checkpoint())
    assert node.env("VISIBLE=all") == ["VISIBLE=void"]


CHECKPOINTS: dict[str, list[dict[str, Any]] | None] = {
    "no file": None,
    "no entries": [],
    "another pod's": [entry("1-2-34", NAME, envs={"VISIBLE": "GPU-9"})],
    "another container's": [entry(UID, "other", envs={"VISIBLE": "GPU-9"})],
    "another name": [ours(envs={"OTHER": "GPU-9"})],
    "nothing set": [ours()],
}


@pytest.mark.parametrize("entries", CHECKPOINTS.values(), ids=list(CHECKPOINTS))
@pytest.mark.parametrize(
    ("value", "env", "wanted"),
    [
        ("void", ["VISIBLE=all"], ["VISIBLE=void"]),
        ("void", [], ["VISIBLE=void"]),
        ("", ["VISIBLE=all"], ["VISIBLE="]),
        (None, ["VISIBLE=all", "A=1", "VISIBLE"], ["A=1"]),
        (None, [], []),
        ("Keep", ["VISIBLE=0", "VISIBLE=all"], ["VISIBLE=0", "VISIBLE=all"]),
        ("Keep", [], []),
    ],
)
def test_without_an_allocation_the_default_is_what_the_container_gets(
    root_dir: Path, entries: list[dict[str, Any]] | None, value: str | None, env: list[str], wanted: list[str]
) -> None:
    node = KubeletNode(root_dir, default(value))
    if entries is not None:
        node.allocate(*entries)
    assert node.env(*env) == wanted


ELSEWHERE = ["VISIBLE=void", "VISIBLE=GPU-4", "VISIBLE=all", "VISIBLE=", "VISIBLE"]
"""The image's, the plugin's, the pod's, an empty one of the pod's, and a bare entry."""


@pytest.mark.parametrize("rule", [GPU, default(None), default("Keep"), EVERY], ids=["void", "absent", "Keep", "every"])
def test_an_allocation_wins_wherever_it_stands_and_whatever_stands_beside_it(
    root_dir: Path, rule: dict[str, Any]
) -> None:
    node = KubeletNode(root_dir, rule)
    node.allocate(ours(envs={"VISIBLE": "GPU-4"}))
    for size in range(len(ELSEWHERE) + 1):
        for env in permutations(ELSEWHERE, size):
            assert node.env("A=1", *env) == ["A=1", "VISIBLE=GPU-4"]
    assert node.env("VISIBLE=web-1.team-a", "B=2") == ["VISIBLE=GPU-4", "B=2"]  # a fieldRef's value


@pytest.mark.parametrize("value", ["", "a=b", "é\n\"'\\", " "])
def test_any_value_of_a_plugin_arrives_as_it_is(root_dir: Path, value: str) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(ours(envs={"VISIBLE": value}))
    assert node.env("VISIBLE=all") == [f"VISIBLE={value}"]


def test_every_name_that_any_vendors_plugin_set_is_put_back(root_dir: Path) -> None:
    node = KubeletNode(root_dir, GPU, EVERY)
    node.allocate(ours(envs={"VISIBLE": "GPU-4", "CAPS": "x"}), ours("NIC", resource="b/nic", envs={"NIC": "1"}))
    assert node.env("NIC=2", "CAPS", "VISIBLE=all", "FREE=1") == ["NIC=1", "CAPS=x", "VISIBLE=GPU-4", "FREE=1"]


def test_every_container_of_a_pod_has_its_own_allocation(root_dir: Path) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(entry(UID, "init", "GPU-7", envs={"VISIBLE": "GPU-7"}), ours(envs={"VISIBLE": "GPU-4"}))
    assert node.env("VISIBLE=all", identity=INIT) == ["VISIBLE=GPU-7"]
    assert node.env("VISIBLE=all") == ["VISIBLE=GPU-4"]


TWO = [ours("1", envs={"VISIBLE": "GPU-1"}), ours("2", resource="example.com/mig", envs={"VISIBLE": "MIG-2"})]


@pytest.mark.parametrize("rules", [[GPU], [EVERY], [GPU, EVERY]], ids=["gpu", "every", "both"])
@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (["VISIBLE=GPU-1", "VISIBLE=all"], "GPU-1"),
        (["VISIBLE=MIG-2", "VISIBLE=all"], "MIG-2"),
        (["VISIBLE=void", "VISIBLE=MIG-2", "VISIBLE=GPU-1"], "MIG-2"),
        (["VISIBLE=void", "VISIBLE=GPU-1", "VISIBLE=MIG-2", "VISIBLE=all"], "GPU-1"),
    ],
)
def test_of_two_resources_that_differ_the_one_that_kubelet_took_counts(
    root_dir: Path, rules: list[dict[str, Any]], env: list[str], wanted: str
) -> None:
    node = KubeletNode(root_dir, *rules)
    for entries in (TWO, TWO[::-1]):
        node.allocate(*entries)
        assert node.env(*env) == [f"VISIBLE={wanted}"]


@pytest.mark.parametrize("env", [[], ["VISIBLE=all"], ["VISIBLE"], ["VISIBLE=GPU-1,MIG-2"]])
def test_two_resources_that_differ_and_neither_value_there_is_refused(root_dir: Path, env: list[str]) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(*TWO)
    assert node.decide(spec(env=env)).refusal() == (
        "rule gpu: example.com/gpu 1 and example.com/mig 2 set env VISIBLE differently, "
        "and the container has neither value"
    )


def test_two_resources_that_agree_are_one(root_dir: Path) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(TWO[0], ours("3", resource="example.com/mig", envs={"VISIBLE": "GPU-1"}))
    assert node.env("VISIBLE=all") == ["VISIBLE=GPU-1"]


@pytest.fixture
def cdi(machine: Machine) -> str:
    """A CDI spec that sets VISIBLE for the device v/gpu=4; returns the device's name."""
    spec_file = {
        "kind": "v/gpu",
        "containerEdits": {"env": ["VISIBLE=void"]},
        "devices": [{"name": "4", "containerEdits": {"env": ["OWN=4"]}}],
    }
    machine.file("/etc/cdi/gpu.json", json.dumps(spec_file))
    return "v/gpu=4"


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (["VISIBLE=GPU-4", "VISIBLE=all", "VISIBLE=void"], "void"),  # appended: containerd up to 2.3
        (["VISIBLE=GPU-4", "VISIBLE=void"], "void"),  # in place of the last entry: containerd 2.4
        (["VISIBLE=all", "VISIBLE=GPU-4", "VISIBLE=void"], "void"),  # with an image's value before both
        (["VISIBLE=void"], "void"),
        (["VISIBLE=void", "VISIBLE=GPU-4", "VISIBLE=all"], "GPU-4"),  # this void is the image's
        (["VISIBLE=all"], "GPU-4"),
        ([], "GPU-4"),
    ],
)
def test_value_of_a_cdi_spec_stays_where_it_stands_last(root_dir: Path, cdi: str, env: list[str], wanted: str) -> None:
    for rules in ([default("none")], [EVERY], [default("none"), EVERY]):
        node = KubeletNode(root_dir, *rules)
        node.allocate(ours(envs={"VISIBLE": "GPU-4"}, cdi_devices=[{"name": cdi}]))
        assert node.env(*env) == [f"VISIBLE={wanted}"]


def test_name_that_only_the_cdi_spec_sets_is_allocated_too(root_dir: Path, cdi: str) -> None:
    rule = {"name": "gpu", "env": [{**VISIBLE, "name": name} for name in ("VISIBLE", "OWN")]}
    node = KubeletNode(root_dir, rule)
    node.allocate(ours(cdi_devices=[{"name": cdi}]))
    assert node.env("OWN=4", "OWN=all") == ["OWN=4", "VISIBLE=void"]


def test_a_device_that_an_annotation_names_counts_like_one_in_the_field(root_dir: Path, cdi: str) -> None:
    """NVIDIA's `cdi-annotations`. Each rule reads the same of both answers."""
    rule = {"name": "gpu", "env": [{**VISIBLE, "name": name} for name in ("VISIBLE", "OWN")]}
    for answer in (
        {"cdi_devices": [{"name": cdi}]},
        {"annotations": {"cdi.k8s.io/plugin": cdi}},
        {"annotations": {"cdi.k8s.io/a": "w/nic=1", "cdi.k8s.io/b": f"w/nic=0,{cdi}"}},
    ):
        for rules in ([rule], [EVERY], [default("none"), EVERY]):
            node = KubeletNode(root_dir, *rules)
            node.allocate(ours(envs={"VISIBLE": "GPU-4"}, **answer))
            assert sorted(node.env("OWN=4", "VISIBLE=GPU-4", "VISIBLE=void")) == ["OWN=4", "VISIBLE=void"]
    node.allocate(ours(annotations={"other.k8s.io/x": cdi}))
    assert sorted(KubeletNode(root_dir, rule).env("OWN=4")) == ["OWN=void", "VISIBLE=void"]


def test_cdi_spec_of_other_devices_says_nothing(root_dir: Path, cdi: str) -> None:
    node = KubeletNode(root_dir, default("none"))
    for names in ([], [{"name": cdi + "0"}], [{"name": "w/gpu=4"}]):
        node.allocate(ours(envs={"VISIBLE": "GPU-4"}, cdi_devices=names))
        assert node.env("VISIBLE=all", "VISIBLE=void") == ["VISIBLE=GPU-4"]


def test_unreadable_cdi_spec_is_decided_by_the_failure_policy(root_dir: Path, cdi: str) -> None:
    Path("/etc/cdi/gpu.json").chmod(0o666)
    node = KubeletNode(root_dir, GPU)
    node.allocate(ours(cdi_devices=[{"name": cdi}]))
    assert "rule gpu: CDI spec /etc/cdi/gpu.json: " in node.decide(spec()).refusal()


def truncated(path: Path) -> str:
    path.write_bytes(checkpoint(ours())[:-40])
    return "kubelet's device checkpoint: not valid JSON at "


def directory(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return f"{path} is not a regular file"


def fifo(path: Path) -> str:
    path.unlink()
    os.mkfifo(path)
    return f"{path} is not a regular file"


def no_directory(path: Path) -> str:
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()
    return f"{path}: Not a directory"


@pytest.mark.parametrize("spoil", [truncated, directory, fifo, no_directory])
def test_unreadable_checkpoint_is_decided_by_the_failure_policy(root_dir: Path, spoil: Any) -> None:
    others = {"name": "others", "env": [{"name": "A", "value": "1"}]}
    reason = spoil(KubeletNode(root_dir).allocate(ours(envs={"VISIBLE": "GPU-4"})))
    failing = KubeletNode(root_dir, GPU, others, EVERY).decide(spec(env=["VISIBLE=all"]))
    assert failing.refusal().startswith(f"rule gpu: {reason}")
    assert "rule every: " in failing.refusal()
    assert "rule others" not in failing.refusal()
    event = case("runtime", "0a", failing.policy).event(failing, Verdict()) or {}
    assert (event["event"], event["level"], event["applied"]) == ("container.denied", "error", False)
    assert [error["rule"] for error in event["errors"]] == ["gpu", "every"]  # type: ignore[attr-defined]  # a JSON object
    assert reason in event["errors"][0]["message"]  # type: ignore[index]  # a JSON object
    ignoring = KubeletNode(root_dir, GPU, others, EVERY, failurePolicy="Ignore").decide(spec(env=["VISIBLE=all"]))
    assert ignoring.refusal() == ""
    assert [edit.describe()["name"] for edit in ignoring.edits] == ["A"]
    told = case("runtime", "0a", ignoring.policy).event(ignoring, Verdict()) or {}
    assert told["event"] == "container.error"


def test_container_of_no_pod_and_a_sandbox_have_no_allocation(root_dir: Path) -> None:
    node = KubeletNode(root_dir, GPU)
    truncated(node.allocate(ours()))  # is not even looked at
    for identity in (
        Identity("podman", False, types=("container",)),
        Identity("containerd", True, namespace="n", pod="p", uid=UID, container=None, types=("sandbox",)),
        Identity("containerd", True, namespace="n", pod="p", uid=None, container=None, types=("sandbox",)),
    ):
        assert node.env("VISIBLE=all", identity=identity) == ["VISIBLE=void"]


@pytest.mark.parametrize(
    ("identity", "unknown"),
    [
        (
            Identity("containerd", True, namespace="n", pod="p", uid=None, container="app", types=("container",)),
            "the pod's UID",
        ),
        (
            Identity("containerd", True, namespace="n", pod="p", uid=UID, container=None, types=("container",)),
            "the container's name",
        ),
    ],
)
def test_container_of_unknown_identity_is_undecided_and_never_given_a_default(
    root_dir: Path, identity: Identity, unknown: str
) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(ours(envs={"VISIBLE": "GPU-4"}))
    decided = node.decide(spec(env=["VISIBLE=all"]), identity)
    assert decided.refusal() == f"rule gpu: {unknown} is unknown, so its device allocation is too"
    assert decided.edits == []


def test_relative_kubelet_root_is_an_error_of_the_policy() -> None:
    complaint = "error: root 'var/lib/kubelet' is relative; write it from the root: /var/lib/kubelet"
    assert [line for line in lines(document(GPU, kubelet={"root": "var/lib/kubelet"})) if complaint in line]


def test_policy_that_uses_no_allocations_never_opens_the_checkpoint(root_dir: Path) -> None:
    plain = {"name": "plain", "env": [{"name": "VISIBLE", "value": "void"}], "deviceAllocations": {"env": False}}
    for rule, times in ((plain, 0), ({**GPU, "match": {"namespaces": ["other"]}}, 0), (GPU, 1), (EVERY, 1)):
        node = KubeletNode(root_dir, rule)
        (root_dir / "device-plugins").mkdir(exist_ok=True)
        with audited("open") as opened:
            node.decide(spec())
        paths = [path for _, (path, *_) in opened if str(path).startswith(str(root_dir))]
        files = [f"{root_dir}/device-plugins/kubelet_internal_checkpoint", f"{root_dir}/dra_manager_state"]
        assert paths == files[: 2 * times]


def test_an_override_of_an_allocation_can_be_denied(root_dir: Path) -> None:
    for rule in (GPU, EVERY):
        node = KubeletNode(root_dir, {**rule, "onConflict": "Deny"})
        node.allocate(ours(envs={"VISIBLE": "GPU-4"}))
        complaint = f"rule {rule['name']}: env VISIBLE is reserved and was set to something else"
        assert node.decide(spec(env=["VISIBLE=GPU-4", "VISIBLE=all"])).refusal() == complaint
        assert node.decide(spec(env=["VISIBLE=GPU-4", "VISIBLE=GPU-4"])).refusal() == ""


def test_where_a_value_comes_from_is_in_the_edit(root_dir: Path) -> None:
    node = KubeletNode(root_dir, GPU)
    node.allocate(ours("GPU-4", "GPU-5", envs={"VISIBLE": "GPU-4,GPU-5"}))
    [edit] = node.decide(spec(env=["VISIBLE=all"])).edits
    assert edit.describe()["from"] == "example.com/gpu GPU-4,GPU-5"
    assert node.decide(spec()).env.values == {"VISIBLE": "GPU-4,GPU-5"}
    assert "from" not in node.decide(spec(), INIT).edits[0].describe()


def test_rule_that_wants_another_value_than_was_allocated_is_named(root_dir: Path) -> None:
    node = KubeletNode(root_dir, EVERY, {"name": "fixed", "env": [{"name": "VISIBLE", "value": "0"}]})
    node.allocate(ours(envs={"VISIBLE": "GPU-4"}))
    assert node.decide(spec(), POD).refusal() == "rule fixed: wants another value for env VISIBLE than rule every"
