"""A container's device allocation is read from kubelet's checkpoint, or the decision fails; it is never a wrong one."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marks
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed
from hook.core.container.allocation import Allocation, allocations
from unit.kubelet import Answer, checkpoint, entry
from unit.support import FIXTURES, examples

pytestmark = marks.promise(
    "A container gets its own allocation from kubelet's checkpoint, or there is no decision", about="Decision"
)

RECORDED = FIXTURES / "kubelet"
CHECKPOINTS = sorted(path for path in RECORDED.glob("*/checkpoint*.json") if "decoded" not in path.name)
OURS = entry("uid-1", "app", "GPU-4", envs={"GPU": "GPU-4"})
SECOND = entry("uid-1", "app", "NIC-2", resource="example.com/nic", envs={"NIC": "NIC-2"})
OTHERS = [entry(f"uid-{number}", "app", f"GPU-{number}", envs={"GPU": f"GPU-{number}"}) for number in (2, 3)]


def answer_of(allocation: Allocation) -> dict[str, Any]:
    """The allocation with the field names of the API, without empty fields, as in `checkpoint.*.decoded.json`."""
    answer: dict[str, Any] = {
        "envs": allocation.env,
        "mounts": [{"container_path": c, "host_path": h, "read_only": r} for h, c, r in allocation.mounts],
        "devices": [{"container_path": c, "host_path": h, "permissions": p} for h, c, p in allocation.devices],
        "annotations": allocation.annotations,
        "cdi_devices": [{"name": name} for name in allocation.cdi],
    }
    return {name: value for name, value in answer.items() if value}


def found(data: bytes, uid: str = "uid-1", container: str = "app") -> list[tuple[str, list[str], dict[str, str]]]:
    """Resource, device ids and env of each allocation."""
    return [(a.resource, a.device_ids, a.env) for a in allocations(data, uid, container)]


RIGHT = [("example.com/gpu", ["GPU-4"], {"GPU": "GPU-4"}), ("example.com/nic", ["NIC-2"], {"NIC": "NIC-2"})]


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recorded_allocation_is_read_as_recorded(path: Path) -> None:
    """Kubelet 1.20's NUMA maps and 1.36's, one resource and two, ordinary, init and sidecar containers."""
    data = path.read_bytes()
    decoded = path.with_name(path.name.replace("after-kubelet-restart-no-plugin", "three-pods"))
    entries = json.loads(decoded.with_suffix(".decoded.json").read_text())["Data"]["PodDeviceEntries"]
    for uid, container in {(e["PodUID"], e["ContainerName"]) for e in entries}:
        wanted = [e for e in entries if (e["PodUID"], e["ContainerName"]) == (uid, container)]
        got = allocations(data, uid, container)
        assert [answer_of(allocation) for allocation in got] == [e["AllocRespDecoded"] for e in wanted]
        assert [a.resource for a in got] == [e["ResourceName"] for e in wanted]
        assert [a.device_ids for a in got] == [[i for ids in e["DeviceIDs"].values() for i in ids] for e in wanted]
        assert allocations(data, uid, "no-such-container") == []
    assert allocations(data, "no-such-pod", "evil") == []


@pytest.mark.parametrize(
    ("ids", "read"),
    [
        (["a", "b"], ["a", "b"]),
        ({"-1": ["a", "b"]}, ["a", "b"]),
        ({"0": ["a"], "1": ["b"]}, ["a", "b"]),
        ({}, []),
        (None, []),
    ],
    ids=["list", "one-node", "two-nodes", "none", "null"],
)
def test_device_ids_are_a_list_before_kubelet_1_20_and_a_numa_map_since(ids: object, read: list[str]) -> None:
    [allocation] = allocations(checkpoint({**OURS, "DeviceIDs": ids}), "uid-1", "app")
    assert allocation.device_ids == read
    assert str(allocation) == f"example.com/gpu {','.join(read)}"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
answers = st.builds(
    Answer,
    envs=st.dictionaries(texts, texts, max_size=4),
    mounts=st.lists(
        st.fixed_dictionaries({}, optional={"container_path": texts, "host_path": texts, "read_only": st.booleans()}),
        max_size=3,
    ),
    devices=st.lists(
        st.fixed_dictionaries({}, optional={"container_path": texts, "host_path": texts, "permissions": texts}),
        max_size=3,
    ),
    annotations=st.dictionaries(texts, texts, max_size=3),
    cdi_devices=st.lists(st.fixed_dictionaries({"name": texts}), max_size=3),
)


def same(allocation: Allocation, answer: Any) -> bool:
    """Whether the result equals the protobuf library's."""
    return (
        allocation.env == dict(answer.envs)
        and allocation.mounts == [(m.host_path, m.container_path, m.read_only) for m in answer.mounts]
        and allocation.devices == [(d.host_path, d.container_path, d.permissions) for d in answer.devices]
        and allocation.annotations == dict(answer.annotations)
        and allocation.cdi == [device.name for device in answer.cdi_devices]
    )


@examples(300)
@given(answers)
def test_answer_is_read_as_the_protobuf_library_wrote_it(answer: Any) -> None:
    """Empty strings, maps in any order, all of unicode; through base64 and the checkpoint as well."""
    data = answer.SerializeToString()
    assert same(Allocation("r", [], data), answer)
    written = {**OURS, "AllocResp": base64.b64encode(data).decode()}
    assert same(allocations(checkpoint(*OTHERS, written), "uid-1", "app")[0], answer)


unknown_fields = st.lists(
    st.sampled_from([b"\x30\x96\x01", b"\x3a\x02ab", b"\x41" + b"x" * 8, b"\x4d" + b"y" * 4, b"\xf8\xff\x0f\x01"]),
    max_size=3,
)


@given(answers, unknown_fields, answers, st.binary(max_size=4))
def test_fields_of_a_later_version_are_passed_over(answer: Any, unknown: list[bytes], more: Any, inside: bytes) -> None:
    """Between known fields, and within a message; fields of one name add up over the whole answer."""
    device = b"\x0a\x01n" + b"\x12" + bytes([len(inside)]) + inside  # CDIDevice, with a field 2 that it does not have
    data = answer.SerializeToString() + b"".join(unknown) + more.SerializeToString()
    data += b"\x2a" + bytes([len(device)]) + device
    assert same(Allocation("r", [], data), Answer.FromString(data))


def read_both(data: bytes) -> None:
    """The library's result, or Malformed. What the library refuses must be refused."""
    try:
        ours = Allocation("r", [], data)
    except Malformed:
        return
    assert same(ours, Answer.FromString(data))


@examples(100)
@given(answers)
def test_truncated_answer_is_no_answer_unless_a_field_ends_there(answer: Any) -> None:
    data = answer.SerializeToString()
    for end in range(len(data)):
        read_both(data[:end])


@marks.hole(
    "A malformed answer of a device plugin was read as an empty env name",
    since="0.1.0",
    fixed="0.1.0",
    severity="low",
    found="fuzz",
)
@examples(500)
@given(st.binary(max_size=40) | st.lists(st.sampled_from(range(0x30)), max_size=24).map(bytes))
@example(b"\x0a\x04\x0a\x00\x10\x01")  # a number as an env value
@example(b"\x12\x03\x1a\x01\x00")  # text as read_only
@example(b"\x12\x09\x19" + b"\x01" * 8)  # eight bytes as read_only
@example(b"\x09" + b"\x0a\x00\x12\x00\x0a\x00\x12\x00")  # eight bytes as an env entry
@example(b"\x0a\x09\x09" + b"\0" * 8)  # eight bytes as an env name
@example(b"\x0a\x02\x78\x01")  # an env entry with a field 15
@example(b"\x02\x00")  # field number 0
@example(b"\x0b\x0c")  # a group
@example(b"\x0a\x04\x0a\x02\xff\xfe")  # not UTF-8
@example(b"\x0a" + b"\xff" * 9 + b"\x01")  # a length of 2^64 - 1
@example(b"\xff" * 12)
def test_bytes_that_are_no_answer_never_become_a_wrong_one(data: bytes) -> None:
    read_both(data)


def undecided(data: bytes) -> str:
    """The message about a checkpoint from which the container's allocation cannot be read."""
    with pytest.raises(Undecided) as caught:
        allocations(data, "uid-1", "app")
    return str(caught.value)


@pytest.mark.parametrize(
    ("spoilt", "complaint"),
    [
        ({"AllocResp": "AAA"}, "AllocResp is not base64: Incorrect padding"),
        ({"AllocResp": "A-AA"}, "AllocResp is not base64: Only base64 data is allowed"),
        ({"AllocResp": "CgQKAg=="}, "the device plugin's answer is truncated"),
        ({"AllocResp": "CgYKAUESAQA="}, "the device plugin's answer has a NUL byte in a text"),
        ({"AllocResp": 3}, "an entry has no AllocResp"),
        ({"AllocResp": None}, "an entry has no AllocResp"),
    ],
)
def test_broken_answer_is_undecided_for_its_container_and_nobody_else(
    spoilt: dict[str, object], complaint: str
) -> None:
    data = checkpoint({**OURS, **spoilt}, *OTHERS)
    assert undecided(data) == f"kubelet's device checkpoint: {complaint}; drain the node, remove it and restart kubelet"
    assert found(data, "uid-2") == [("example.com/gpu", ["GPU-2"], {"GPU": "GPU-2"})]
    assert found(data, container="other") == []


def test_truncated_checkpoint_is_undecided_or_still_tells_the_truth() -> None:
    for whole, uid, container in (
        (checkpoint(OTHERS[0], OURS, SECOND, OTHERS[1]), "uid-1", "app"),
        *((path.read_bytes(), "79a3cc685b68dbeb0caaea052c524305", "evil") for path in CHECKPOINTS[:1]),
    ):
        right = found(whole, uid, container)
        assert right
        for end in range(len(whole)):
            for data in (whole[:end], whole[:end] + bytes(len(whole) - end)):  # a crash may leave zeros
                try:
                    assert found(data, uid, container) == right
                except Undecided:
                    continue


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_damage_elsewhere_never_hides_an_allocation(at: int, damage: bytes) -> None:
    """Only what its own entries say cannot be checked: the checksum is one of Go's memory layout."""
    whole = checkpoint(OTHERS[0], OURS, SECOND, OTHERS[1])
    at %= len(whole)
    data = whole[:at] + damage + whole[at + len(damage) :]
    begin, end = whole.find(b'{"PodUID":"uid-1"'), whole.find(b'{"PodUID":"uid-3"')
    try:
        got = found(data)
    except Undecided:
        return
    if at + len(damage) <= begin or at >= end:
        assert [allocation for allocation in RIGHT if allocation not in got] == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b'"x"}',
        lambda data: data + b"\0",
        lambda data: data + data,
        lambda data: data[:60] + bytes(8) + data[68:],
        lambda data: data.replace(b'"uid-3"', b'"uid-3'),
        lambda data: data.replace(b'"RegisteredDevices":{', b'"RegisteredDevices":'),
        lambda data: data[: len(data) // 2] + bytes(200) + data[-40:],
    ],
)
@pytest.mark.parametrize("uid", ["uid-1", "uid-of-nobody"])
def test_a_damaged_checkpoint_is_no_empty_one(damage: Callable[[bytes], bytes], uid: str) -> None:
    """Wherever the damage is: who has no entry in it may have lost the entry."""
    with pytest.raises(Undecided):
        found(damage(checkpoint(OTHERS[0], OURS, SECOND, OTHERS[1])), uid)


SHAPES = {
    "as-written": checkpoint(OTHERS[0], OURS, SECOND),
    "pretty": json.dumps(json.loads(checkpoint(OTHERS[0], OURS, SECOND)), indent=1).encode(),
    "checksum-first": json.dumps(dict(reversed(json.loads(checkpoint(OURS, SECOND)).items()))).encode(),
    "entry-turned-round": checkpoint(dict(reversed(OURS.items())), SECOND),
    "uid-among-device-ids": checkpoint(entry("uid-9", "app", "uid-1"), OURS, SECOND),
    "uid-as-container-name": checkpoint(entry("uid-9", "uid-1"), OURS, SECOND),
    "uid-begins-another": checkpoint(entry("uid-10", "app"), OURS, SECOND),
    "escaped": checkpoint(OTHERS[0], OURS, SECOND).replace(b'"uid-1"', b'"\\u0075id-1"'),
    "one-escaped": checkpoint(OTHERS[0], OURS, SECOND).replace(b'"uid-1"', b'"uid\\u002d1"', 1),
    "newline-at-end": checkpoint(OURS, SECOND) + b"\n",
    "no-checksum": checkpoint(OURS, SECOND).replace(b',"Checksum":4242424242', b""),
}


@pytest.mark.parametrize("data", SHAPES.values(), ids=list(SHAPES))
def test_checkpoint_of_another_shape_tells_the_same(data: bytes) -> None:
    assert found(data) == RIGHT


def test_entries_of_other_containers_may_be_broken() -> None:
    broken = [{"PodUID": "uid-2", "ContainerName": "app", "AllocResp": "!"}, {"PodUID": "uid-3"}, {}]
    assert found(checkpoint(*broken, OURS, SECOND, {**OURS, "ContainerName": "other", "AllocResp": "!"})) == RIGHT


@pytest.mark.parametrize(
    "data", [checkpoint(), b' {"Data": {"PodDeviceEntries": null}}', b'{"Data":{"PodDeviceEntries":[]},"Checksum":1}']
)
def test_checkpoint_without_entries_means_that_nothing_is_allocated(data: bytes) -> None:
    assert found(data) == []


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no JSON value at the end of the text (truncated?)"),
        (b"{}", "it has no Data.PodDeviceEntries"),
        (b'{"Data":null,"Checksum":1}', "it has no Data.PodDeviceEntries"),
        (b'{"Data":{"RegisteredDevices":null},"Checksum":1}', "it has no Data.PodDeviceEntries"),
        (b"[]", "it has no Data.PodDeviceEntries"),
        (b'{"Data":{"PodDeviceEntries":{}}}', "PodDeviceEntries is not a list of objects"),
        (b'{"Data": {"PodDeviceEntries":[1]}}', "PodDeviceEntries is not a list of objects"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_checkpoint_is_undecided(data: bytes, complaint: str) -> None:
    assert undecided(data) == f"kubelet's device checkpoint: {complaint}; drain the node, remove it and restart kubelet"


@given(st.binary(max_size=60) | st.text('{}[]":,\\Data01', max_size=40).map(str.encode))
def test_whatever_the_file_holds_nothing_but_undecided_is_raised(data: bytes) -> None:
    try:
        assert allocations(data, "uid-1", "app") == []
    except Undecided:
        pass


def test_ten_thousand_entries_are_read() -> None:
    """A node has some hundreds."""
    many = [entry(f"pod-{number}", "app", f"GPU-{number}", envs={"GPU": str(number)}) for number in range(10_000)]
    data = checkpoint(*many[:5000], OURS, SECOND, *many[5000:])
    began = time.thread_time()
    assert found(data) == RIGHT
    assert time.thread_time() - began < 0.2
    assert found(data, "pod-9999") == [("example.com/gpu", ["GPU-9999"], {"GPU": "9999"})]
