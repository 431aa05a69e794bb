"""The claims of kubelet's dra_manager_state, and what CDI specs place: of a real kubelet 1.36, and broken ones."""

from __future__ import annotations

import functools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import exclusivefacts
from hook.container.claims import claims, state_path
from hook.container.identity import identify
from hook.container.injections import Specs
from hook.container.spec import Spec
from hook.plan import Plan
from unit.allocated import Node, ours, spec
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


def state(entries: list[dict[str, Any]], **more: Any) -> bytes:
    """The file as kubelet writes it."""
    text = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": entries,
            **more,
        },
        separators=(",", ":"),
    )
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}).encode()


def claim(name: str, *uids: str, devices: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "ClaimUID": "u",
        "ClaimName": name,
        "Namespace": "ns",
        "PodUIDs": {uid: {} for uid in uids},
        "DriverState": {
            driver: {"Devices": [{"DeviceName": n, "RequestNames": ["r"], "CDIDeviceIDs": [n]} for n in names]}
            for driver, names in devices.items()
        },
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
def recorded(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The recorded node: kubelet's two files, and the driver's CDI specs."""
    monkeypatch.setattr(exclusivefacts, "Specs", functools.partial(Specs, directories=(str(root_dir / "cdi"),)))
    (root_dir / "cdi").mkdir()
    for path in (RECORDED / "cdi").iterdir():
        (root_dir / "cdi" / path.name).write_bytes(path.read_bytes())
    Path(state_path(str(root_dir))).write_bytes((RECORDED / "dra_manager_state.all").read_bytes())
    node = Node(root_dir, RULE)
    checkpoint = node.allocate()
    checkpoint.write_bytes((RECORDED / "kubelet_internal_checkpoint").read_bytes())
    return node


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_claim_placed_stays(recorded: Node, name: str) -> None:
    there = config(name)
    assert recorded.decide(there, identify(there, copied=True)).is_empty()


def test_what_no_claim_of_the_pods_places_is_refused(recorded: Node) -> None:
    """The pod is another node's: this node's kubelet has no claim of it, but a CDI spec that places the same."""
    there = config("n-c17-cdi.main.0")
    refusal = recorded.decide(there, identify(there, copied=True)).refusal()
    assert refusal == "rule gpu: not allocated: mount /toy/gpu-1 from /etc/hostname brings /etc/hostname"


def decided(node: Node, **fields: Any) -> Plan:
    return node.decide(spec(**fields))


def written(root: Path, name: str = "gpu.json", **more: Any) -> None:
    """A CDI spec of two devices, each with a library, and one for both."""
    edits = lambda library: {"mounts": [{"hostPath": f"/lib/{library}", "containerPath": f"/usr/{library}"}]}  # noqa: E731
    devices = [{"name": n, "containerEdits": edits(n)} for n in ("0", "1")]
    text = json.dumps({"kind": "example.com/gpu", "containerEdits": edits("all"), "devices": devices, **more}, indent=1)
    (root / "cdi" / name).write_text(text)


@pytest.fixture
def node(root_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with that spec, and a container of the identity POD."""
    monkeypatch.setattr(exclusivefacts, "Specs", functools.partial(Specs, directories=(str(root_dir / "cdi"),)))
    (root_dir / "cdi").mkdir()
    written(root_dir)
    return Node(root_dir, RULE)


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
def test_a_device_plugins_cdi_devices_are_allocated(node: Node, answer: dict[str, Any]) -> None:
    node.allocate(ours("1::3" if "envs" in answer else "GPU-4", **answer))
    for mount, stays in zip(EACH, (True, False, True), strict=True):
        assert decided(node, mounts=[mount]).is_empty() is stays, mount


def test_a_claims_cdi_devices_are_allocated(node: Node) -> None:
    path = Path(state_path(str(node.root)))
    path.write_bytes(state([claim("other", "uid", devices={"d": ["example.com/gpu=0"]})]))
    assert not any(decided(node, mounts=[mount]).is_empty() for mount in EACH)
    uid = POD.uid or ""
    path.write_bytes(state([claim("mine", "uid", uid, devices={"d": ["example.com/gpu=1"], "e": []})]))
    for mount, stays in zip(EACH, (True, False, True), strict=True):
        assert decided(node, mounts=[mount]).is_empty() is stays, mount


def error(node: Node) -> str:
    """The one thing that could not be found out."""
    result = decided(node, mounts=EACH)
    assert (list(result.edits), len(result.errors)) == ([], 1)
    return str(result.errors[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON value at"),
        (b"{}", "it has no Data"),
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
def test_a_record_that_cannot_be_read_is_undecided_with_file_and_remedy(node: Node, data: bytes, message: str) -> None:
    path = Path(state_path(str(node.root)))
    path.write_bytes(data)
    told = error(node)
    assert told.startswith(f"rule gpu: kubelet's record of resource claims, {path}: ")
    assert message in told
    assert told.endswith("restart kubelet, which writes it anew, or take a version of reassert that knows it")


def test_a_claim_without_its_spec_is_undecided(node: Node) -> None:
    entry = claim("mine", POD.uid or "", devices={"d": ["example.com/gpu=7"]})
    Path(state_path(str(node.root))).write_bytes(state([entry]))
    told = error(node)
    assert "claim mine: no CDI spec in " in told
    assert "defines its device example.com/gpu=7" in told
    assert told.endswith("see the driver's log, and recreate the pod")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "example.com/gpu",\n "devices": [}', "no JSON value at line 2, column 14"),
        ('{"kind": "example.com/gpu", "devices": [{}]}', "a device has no name"),
        (
            '{"kind": "example.com/gpu", "devices": [{"name": "0", "containerEdits": {"mounts": 1}}]}',
            "containerEdits.mounts is not a list of objects",
        ),
    ],
)
def test_a_spec_that_does_not_parse_is_undecided_with_file_line_and_remedy(node: Node, text: str, message: str) -> None:
    path = node.root / "cdi" / "broken.json"
    path.write_text(text)
    assert error(node) == f"rule gpu: CDI spec {path}: {message}; correct or remove the file"
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
