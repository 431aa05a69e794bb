"""The parts of tests/hostile-pod that need no container."""

from __future__ import annotations

import json
import sys

import hpack
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unit.support import ROOT

sys.path.append(str(ROOT / "tests/hostile-pod"))

import unary  # after the path is set

SUITE = ROOT / "tests/hostile-pod"
NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=40)


def test_each_case_has_an_id_a_severity_and_where_it_comes_from() -> None:
    for name, prefix in (("cases.json", "HP"), ("innocents.json", "IN")):
        cases = json.loads((SUITE / name).read_text())
        assert sorted(case["id"] for case in cases) == [f"{prefix}-{number + 1:03}" for number in range(len(cases))]
        assert {case["severity"] for case in cases} <= {"high", "medium", "low"}
        assert all(case["from"] and case["why"] for case in cases)
    assert next(case for case in cases if case["name"] == "node-exporter")["start"] == "must"


def test_the_policy_of_reassert_reserves_what_is_expected() -> None:
    expected = json.loads((SUITE / "expect.json").read_text())
    reserved, devices = yaml.safe_load((ROOT / "tests/lab/peers/policy.yaml").read_text())["spec"]["rules"]
    assert {entry["name"]: entry.get("value") for entry in reserved["env"]} == expected["env"]
    assert {mount["mountPath"]: mount["hostPath"] for mount in reserved["mounts"]} == expected["mounts"]
    assert devices["deviceAllocations"]["exclusive"] == expected["devices"]


def test_it_is_small_and_of_no_product() -> None:
    texts = [path.read_text() for path in SUITE.iterdir() if path.is_file()]
    assert sum(text.count("\n") for text in texts) <= 1500
    assert not [text for text in texts if "reassert" in text]


@given(st.lists(st.lists(st.tuples(NAMES, NAMES | st.just("")), max_size=8), max_size=4))
def test_headers_are_read_as_a_library_writes_them(blocks: list[list[tuple[str, str]]]) -> None:
    """With Huffman's code and the dynamic table, as the servers of engines write them."""
    encoder, table = hpack.Encoder(), []
    for block in blocks:
        named = [("content-type", "application/grpc"), *block, ("grpc-status", "0")]
        read = [*unary._headers(encoder.encode(named), table)]
        assert [name for name, _ in read] == [name for name, _ in named]
        assert [value for name, value in read if name == "grpc-status"] == ["0"]


def test_messages_are_written_as_protobuf_does() -> None:
    message: unary.Message = [(1, [(1, "a"), (2, 300)]), (2, ["x", ""]), (3, {"k": "v"}), (4, True), (5, 0), (6, "")]
    assert unary.encode(message).hex() == "0a060a016110ac02" + "120178" + "1200" + "1a060a016b120176" + "2001"
    assert unary.decode(unary.encode(message))[4] == 1
