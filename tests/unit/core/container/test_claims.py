"""The claims of kubelet's dra_manager_state, and what CDI specs place: of a real kubelet 1.36, and broken ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.container.claims import claims
from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.core.plan import Plan
from unit.allocated import KubeletNode, ours, spec
from unit.kubelet import claim, state
from unit.ownmachine import Machine
from unit.support import FIXTURES, POD, bind, examples

RECORDED = FIXTURES / "kubelet" / "k1.36-dra"
RULE = {"name": "gpu", "deviceAllocations": {"exclusive": ["example.com/*"]}, "onConflict": "Deny"}
CLAIMS = {
    "a-one.main.0": "a-one-g-7vv8c",
    "b-two.left.0": "b-two-g-q76lp",
    "b-two.none.0": "b-two-g-q76lp",  # the pod's, though not this container's
    "c-both.main.0": "c-both-g-gr2wq",
    "d-init.init.0": "d-init-g-bnpx9",
    "e-extended.main.0": "e-extended-extended-resources-9rhrf",
    "g-shared-2.main.0": "shared",
}


def config(name: str) -> Spec:
    return Spec((RECORDED / f"{name}.config.json").read_bytes(), "config.json")


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_of_recorded_pods(name: str) -> None:
    uid = identify(config(name), copied=True).uid or ""
    [found] = claims((RECORDED / "dra_manager_state.all").read_bytes(), uid, "state")
    assert found.name == CLAIMS[name]
    assert found.cdi
    assert all(device.startswith("example.com/gpu=") for device in found.cdi)
    for other in ("empty", "deleted"):
        assert claims((RECORDED / f"dra_manager_state.{other}").read_bytes(), uid, "state") == []


@pytest.fixture
def recorded(root_dir: Path, machine: Machine) -> KubeletNode:
    """The recorded node: kubelet's two files, and the driver's CDI specs."""
    for path in (RECORDED / "cdi").iterdir():
        machine.file(f"/etc/cdi/{path.name}", path.read_bytes())
    (root_dir / "dra_manager_state").write_bytes((RECORDED / "dra_manager_state.all").read_bytes())
    node = KubeletNode(root_dir, RULE)
    checkpoint = node.allocate()
    checkpoint.write_bytes((RECORDED / "kubelet_internal_checkpoint").read_bytes())
    return node


@marks.claim("exclusive-claims", "runtime")
@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_claim_placed_stays(recorded: KubeletNode, name: str) -> None:
    there = config(name)
    assert recorded.decide(there, identify(there, copied=True)).is_empty()


def test_what_no_claim_of_the_pods_places_is_refused(recorded: KubeletNode) -> None:
    """The pod is another node's: this node's kubelet has no claim of it, but a CDI spec that places the same."""
    there = config("n-c17-cdi.main.0")
    refusal = recorded.decide(there, identify(there, copied=True)).refusal()
    assert refusal == "rule gpu: not allocated: mount /toy/gpu-1 from /etc/hostname shows /etc/hostname"


def decided(node: KubeletNode, **fields: Any) -> Plan:
    return node.decide(spec(**fields))


def written(name: str = "gpu.json", **more: Any) -> None:
    """A CDI spec of two devices, each with a library, and one for both."""
    edits = lambda library: {"mounts": [{"hostPath": f"/lib/{library}", "containerPath": f"/usr/{library}"}]}  # noqa: E731  # one line is clearer
    devices = [{"name": n, "containerEdits": edits(n)} for n in ("0", "1")]
    text = json.dumps({"kind": "example.com/gpu", "containerEdits": edits("all"), "devices": devices, **more}, indent=1)
    Path("/etc/cdi", name).write_text(text)


@pytest.fixture
def node(root_dir: Path, machine: Machine) -> KubeletNode:
    """A node with that spec, and a container of the identity POD."""
    Path("/etc/cdi").mkdir()
    written()
    return KubeletNode(root_dir, RULE)


EACH = [bind(f"/usr/{name}", f"/lib/{name}") for name in ("all", "0", "1")]


@pytest.mark.parametrize(
    "answer",
    [
        {"cdi_devices": [{"name": "example.com/gpu=1"}]},
        {"annotations": {"cdi.k8s.io/plugin": "other.com/x=2,example.com/gpu=1"}},
        {"envs": {"VISIBLE": "1"}},  # no more than env: the resource is named as the kind, the device by its id
    ],
    ids=["cri", "annotation", "env"],
)
def test_a_device_plugins_cdi_devices_are_allocated(node: KubeletNode, answer: dict[str, Any]) -> None:
    node.allocate(ours("1::3" if "envs" in answer else "GPU-4", **answer))
    for mount, stays in zip(EACH, (True, False, True), strict=True):
        assert decided(node, mounts=[mount]).is_empty() is stays, mount


def test_a_claims_cdi_devices_are_allocated(node: KubeletNode) -> None:
    path = node.root / "dra_manager_state"
    path.write_bytes(state([claim("other", "uid", devices={"d": ["example.com/gpu=0"]})]))
    assert not any(decided(node, mounts=[mount]).is_empty() for mount in EACH)
    uid = POD.uid or ""
    path.write_bytes(state([claim("mine", "uid", uid, devices={"d": ["example.com/gpu=1"], "e": []})]))
    for mount, stays in zip(EACH, (True, False, True), strict=True):
        assert decided(node, mounts=[mount]).is_empty() is stays, mount


@pytest.mark.parametrize(("asked", "stays"), [(None, [0, 1]), (["example.com/gpu=1"], [1]), ([], [])])
def test_of_a_claim_only_the_devices_that_kubelet_asked_for_count(
    node: KubeletNode, asked: list[str] | None, stays: list[int]
) -> None:
    """NRI hands them over, and they are exact for one container; kubelet's record names pods."""
    both = claim("mine", POD.uid or "", devices={"d": ["example.com/gpu=0", "example.com/gpu=1"]})
    (node.root / "dra_manager_state").write_bytes(state([both]))
    identity = copy.copy(POD)
    identity.cdi = asked
    left = [n for n in (0, 1) if node.decide(spec(mounts=[EACH[1 + n]]), identity).is_empty()]
    assert left == stays


def error(node: KubeletNode) -> str:
    """The one thing that could not be found out."""
    result = decided(node, mounts=EACH)
    assert (list(result.edits), len(result.errors)) == ([], 1)
    return str(result.errors[0])


REMEDY = "drain the node, remove the file and restart kubelet"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON value at"),
        (b"{}", "it has no Data"),
        (b"[]", "it has no Data"),
        (b'{"Data":1}', "it has no Data"),
        (b'{"Data":"{}","Checksum":1}', "its checksum is wrong"),
        (
            state([], apiVersion="checkpoint.dra.kubelet.k8s.io/v2"),
            "DRACheckpoint checkpoint.dra.kubelet.k8s.io/v2 is not",
        ),
        (state([], kind="Other"), "is not the known version"),
        (state([{"PodUIDs": ["1-2-3"]}]), "PodUIDs is not what kubelet writes"),
        (state([{"PodUIDs": {"1-2-3": {}}, "DriverState": 1}]), "DriverState is not what kubelet writes"),
    ],
)
def test_a_record_that_cannot_be_read_is_undecided_with_file_and_remedy(
    node: KubeletNode, data: bytes, message: str
) -> None:
    path = node.root / "dra_manager_state"
    path.write_bytes(data)
    told = error(node)
    assert told.startswith(f"rule gpu: kubelet's record of resource claims, {path}: ")
    assert message in told
    remedy = "use a version of reassert that knows it" if "known version" in message or "v2" in message else REMEDY
    assert told.endswith(remedy)


def test_a_claim_without_its_spec_is_undecided(node: KubeletNode) -> None:
    entry = claim("mine", POD.uid or "", devices={"d": ["example.com/gpu=7"]})
    (node.root / "dra_manager_state").write_bytes(state([entry]))
    told = error(node)
    assert "claim mine: no CDI spec in " in told
    assert "defines its device example.com/gpu=7" in told
    assert told.endswith("see the driver's log, and recreate the pod")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "example.com/gpu",\n "devices": [}', "neither YAML nor JSON: no JSON value at line 2, column 14"),
        ('{"kind": "example.com/gpu", "devices": [{}]}', "a device has no name"),
        (
            '{"kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits": {"mounts": 1}}]}',
            "containerEdits.mounts is not a list of objects",
        ),
    ],
)
def test_a_spec_that_does_not_parse_is_undecided_with_file_line_and_remedy(
    node: KubeletNode, text: str, message: str
) -> None:
    path = Path("/etc") / "cdi" / "broken.json"
    path.write_text(text)
    said = f"rule gpu: CDI spec {path}: {message}; correct or remove the file"
    assert error(node) == f"{said}; its cgroup rules may be for a device of it"
    path.write_text(text.replace("example.com/gpu", "other.com/x"))
    assert not decided(node, mounts=EACH).errors


@examples(100)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abc"), max_size=2), st.lists(st.sampled_from(["v/g=0", "v/g=1"]), max_size=3)
        ),
        max_size=5,
    )
)
def test_generated_records(entries: list[tuple[list[str], list[str]]]) -> None:
    data = state([claim(f"n{n}", *uids, devices={"d": names}) for n, (uids, names) in enumerate(entries)])
    for uid in "abc":
        wanted = [(f"claim n{n}", names) for n, (uids, names) in enumerate(entries) if uid in uids]
        assert [(str(one), one.cdi) for one in claims(data, uid, "p")] == wanted


# -- env


def env_rule(name: str, default: str = "none") -> dict[str, Any]:
    return {"name": "env", "env": [{"name": name, "valueFrom": {"deviceAllocation": {"default": default}}}]}


ENV = [
    ("a-one.main.0", "claim-gpu-0", "void"),
    ("b-two.left.0", "claim-gpu-1", "void"),
    ("b-two.none.0", "none", "none"),  # no claim of the pod's is for this container
    ("c-both.main.0", "claim-gpu-3", "void"),  # also a device plugin's: CDI's value stands last, and stays
    ("d-init.init.0", None, "void"),
    ("e-extended.main.0", "claim-gpu-5", "void"),
    ("m-c17-nocdi.main.0", "none", "GPU-gpu-0"),  # containerd 1.7 as shipped leaves CDI out; a plugin's value is there
    ("n-c17-cdi.main.0", "claim-gpu-1", "void"),
]


@pytest.mark.parametrize(("name", "toy", "nvidia"), ENV, ids=[name for name, _, _ in ENV])
def test_the_env_of_a_claim_counts_as_allocated(recorded: KubeletNode, name: str, toy: str | None, nvidia: str) -> None:
    if "-c17-" in name:
        for file in ("dra_manager_state", "kubelet_internal_checkpoint"):
            target = recorded.root / ("device-plugins" if file.startswith("kubelet") else ".") / file
            target.write_bytes((RECORDED / f"{file}.containerd1.7").read_bytes())
    for variable, wanted in (("TOY_GPU", toy), ("NVIDIA_VISIBLE_DEVICES", nvidia)):
        node = KubeletNode(recorded.root, env_rule(variable))
        there = config(name)
        before = [entry for entry in there.env if entry.startswith(f"{variable}=")]
        decided = node.decide(there, identify(there, copied=True))
        assert decided.refusal() == ""
        decided.apply(there)
        after = [entry for entry in there.env if entry.startswith(f"{variable}=")]
        assert after == [f"{variable}={wanted}" if wanted else before[-1]]
        if wanted in ("void", toy) and wanted != "none":
            assert all(edit.origin == f"claim {CLAIMS.get(name, edit.origin[6:])}" for edit in decided.edits)


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (["G=all", "G=c1"], "c1"),  # appended
        (["G=c1"], "c1"),  # in place of the pod's
        (["G=c1", "G=all"], "c1"),  # in place of the first of two
        (["G=all"], "none"),
        (["G"], "none"),
        ([], "none"),
        (["G=other"], "none"),  # of another pod's claim
    ],
)
def test_a_claims_value_counts_where_the_container_shows_it(node: KubeletNode, there: list[str], wanted: str) -> None:
    written(devices=[{"name": n, "containerEdits": {"env": [f"G={n}"]}} for n in ("c1", "other")])
    mine = claim("mine", POD.uid or "", devices={"d": ["example.com/gpu=c1"]})
    (node.root / "dra_manager_state").write_bytes(state([mine]))
    one = KubeletNode(node.root, env_rule("G"))
    assert one.env(*there) == [f"G={wanted}"]
    every = KubeletNode(node.root, {"name": "env", "deviceAllocations": {"env": True}})
    assert every.env(*there) == (["G=c1"] if wanted == "c1" else there)


def test_a_device_plugins_value_yields_to_a_claims_only_where_that_stands_last(node: KubeletNode) -> None:
    written(devices=[{"name": "c1", "containerEdits": {"env": ["G=void"]}}])
    mine = claim("mine", POD.uid or "", devices={"d": ["example.com/gpu=c1"]})
    (node.root / "dra_manager_state").write_bytes(state([mine]))
    one = KubeletNode(node.root, env_rule("G"))
    one.allocate(ours("4", envs={"G": "GPU-4"}))
    assert one.env("G=GPU-4", "G=all", "G=void") == ["G=void"]
    assert one.env("G=void", "G=GPU-4") == ["G=GPU-4"]  # this void is the image's


def test_a_spec_that_cannot_be_read_is_for_those_who_hold_its_kind(node: KubeletNode) -> None:
    """The others of the pods start; so does who holds another kind."""
    (Path("/etc") / "cdi" / "broken.json").write_text('{"kind": "example.com/gpu", "devices": [{}]}')
    opens_nothing = [{"allow": False, "access": "rwm"}]
    assert not decided(node, device_rules=opens_nothing).errors
    node.allocate(ours("0", resource="other.com/x", cdi_devices=[{"name": "other.com/x=0"}]))
    assert not decided(node, device_rules=opens_nothing).errors
    node.allocate(ours("0", resource="example.com/gpu", cdi_devices=[{"name": "example.com/gpu=0"}]))
    [why] = decided(node, device_rules=opens_nothing).errors
    assert str(why) == ("rule gpu: CDI spec /etc/cdi/broken.json: a device has no name; correct or remove the file")
