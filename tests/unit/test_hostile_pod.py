"""The parts of tests/hostile-pod that need no container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree  # of our own output

import hpack
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unit.support import ROOT

sys.path.append(str(ROOT / "tests/hostile-pod"))

import hostile_pod  # after the path is set
import results
import unary
from base import Broken

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
    texts = {path.name: path.read_text() for path in SUITE.iterdir() if path.is_file()}
    packed = [text for name, text in texts.items() if name.endswith((".py", ".json"))]  # as build.sh does
    assert sum(text.count("\n") for text in packed) <= 1500
    assert not [name for name, text in texts.items() if "reassert" in text]


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


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{", "x.json: Expecting property name"),
        ("[]", "x.json: [] is of the wrong type"),
        ('{"envs": {"A": "1"}}', "x.json: unknown: envs"),
        ('{"env": ["A"]}', 'x.json: env: ["A"] is of the wrong type'),
        ('{"env": {"A": 1}}', "x.json: env: A: 1 is of the wrong type"),
        ('{"devices": "/dev/fuse"}', 'x.json: devices: "/dev/fuse" is of the wrong type'),
    ],
)
def test_an_expectation_that_would_expect_less_than_it_says_is_refused(written: str, says: str) -> None:
    with pytest.raises(Broken) as raised:
        hostile_pod.Reserved.read(written, "x.json")
    assert str(raised.value).startswith(says)


def test_who_reads_no_output_is_no_failed_case() -> None:
    """Exit status 1 is of a case."""
    reader, pipe = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for output in (pipe, full):
        command = [sys.executable, "-I", str(SUITE), "--list"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
        os.close(output)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_no_name_and_no_reason_changes_what_junit_and_tap_say() -> None:
    reasons = ['a < b & "c"\x00\x1b[31m\ud800\ufffe', "\nnot ok 1"]
    names = {"id": "", "severity": "", "from": "", "why": ""}
    rows = [{**names, "name": "a # TODO <b>", "result": result, "reasons": reasons} for result in results.RESULTS]
    suite = ElementTree.fromstring(results.junit(rows))
    inside = [[each.tag for each in case] for case in suite]
    assert inside == [["system-out"], ["system-out"], ["skipped"], ["failure"], ["error"]]
    lines = [line for line in results.tap(rows).split("\n") if not line.startswith("# ")]
    assert lines[2:] == [
        "ok 1 -  a \\# TODO <b>",
        "ok 2 -  a \\# TODO <b>",
        "ok 3 -  a \\# TODO <b> # SKIP",
        "not ok 4 -  a \\# TODO <b>",
        "not ok 5 -  a \\# TODO <b>",
    ]
