"""tests/hostile-pod under real runtimes: plain ones fail, the wrapper holds all, and a hole in it is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.hostile_pod import SUITE, expectation, of_result, policy, suite
from e2e.support import EXHAUSTIVE, RUNTIMES, Node

INNOCENT = {"innocent", "innocent-names", "innocent-volume"}
PLAIN = {
    "runc": INNOCENT | {"env-bare", "env-nul", "annotation-node-file"},
    "crun": INNOCENT | {"mount-proc"},
}
"""The cases that hold under a plain runtime; docs/compared.md has them too."""


CASES = [case["name"] for case in json.loads((SUITE.parent / "cases.json").read_text())]


def cases(name: str) -> set[str]:
    """Those of a runtime: what only one of the two refuses itself, and of the others a half."""
    turn = [*RUNTIMES].index(name)
    return set(CASES) if EXHAUSTIVE else {*CASES[turn::2], *PLAIN["runc"] ^ PLAIN["crun"], *INNOCENT}


def suite_with(node: Node, name: str, command: str) -> tuple[int, dict[str, str], str]:
    """The cases of a runtime with a command in front of it."""
    return suite(node, "--runtime", command, *(word for case in cases(name) for word in ("--case", case)))


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_plain_runtime_holds_nothing_but_what_it_refuses_itself(node: Node, name: str) -> None:
    status, found, output = suite_with(node, name, RUNTIMES[name])
    assert status == 1, output
    assert (found.keys(), of_result(found, "held", "refused")) == (cases(name), PLAIN[name]), output
    assert of_result(found, "error", "not run") == set(), output


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_wrapper_holds_all(node: Node, name: str) -> None:
    node.compile(policy(node))
    status, found, output = suite_with(node, name, node.dispatcher(RUNTIMES[name]))
    assert status == 0, output
    assert (found.keys(), of_result(found, "error", "FAILED", "not run")) == (cases(name), set()), output


BROKEN = {
    "no mounts in the policy": (
        ("hostPath: CA, mountPath: /etc/ssl", "hostPath: CA, mountPath: /etc/other"),
        "mount-at",
    ),
    "a mount that can be written": (("readOnly: true", "readOnly: false"), "mount-default"),
    "another value": (("value: void", "value: all"), "env-default"),
    "a name may be set": (("    - {name: PYTHONHTTPSVERIFY, absent: true}\n", ""), "env-absent"),
    "a rule that only tries": (("- name: devices", "- name: devices\n    mode: Audit"), "device-given"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_product_with_a_hole_fails(node: Node, name: str) -> None:
    (old, new), case = BROKEN[name]
    text = policy(node)
    assert old in text
    node.compile(text.replace(old, new))
    options = ("--runtime", node.dispatcher(RUNTIMES["runc"]), "--case", "innocent", "--case", case)
    status, found, output = suite(node, *options)
    assert (status, found) == (1, {"innocent": "held", case: "FAILED"}), output


def test_a_product_that_refuses_everything_or_answers_nothing_fails(node: Node, directory: Path) -> None:
    refuses, lies = directory / "refuses", directory / "lies"
    refuses.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    lies.write_text("#!/bin/sh\nexit 0\n")  # it says that it started a container, and shows nothing
    for path, status, result in ((refuses, 1, "FAILED"), (lies, 2, "error")):
        path.chmod(0o755)
        options = ("--runtime", str(path), "--case", "innocent", "--seconds", "1")
        assert suite(node, *options)[:2] == (status, {"innocent": result})


def test_table_list_and_wrong_use(node: Node) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(SUITE), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    options = ("--runtime", RUNTIMES["runc"], "--expect", str(expectation(node)), "--scratch", str(node.directory))
    status, text = call(*options, "--case", "innocent", "--case", "env-default")
    lines = text.splitlines()
    assert (status, lines[0].split()) == (1, ["CASE", "RESULT", "REASON"])
    assert lines[1].split() == ["innocent", "held"]
    assert lines[2].startswith("env-default  FAILED   env: NVIDIA_VISIBLE_DEVICES is absent (and ")
    assert call("--list")[1].startswith("innocent: ")
    assert call(*options, "--case", "none") == (2, call(*options, "--case", "none")[1])
    own = node.directory / "own.json"
    case = {"name": "own", "why": "a new reader's", "check": ["env"], "env": ["{name}=a"]}
    for written, says in (
        ([case], "own: a new reader's"),
        (case, "not a list of objects"),
        ([{**case, "chek": []}], "case own: unknown: chek"),
        ([{**case, "check": ["mount"]}], "case own: unknown: mount"),
        ([{"name": "own", "why": "x"}], "case own: it has no check"),
    ):
        own.write_text(json.dumps(written))
        status, text = call("--list", "--cases", str(own))
        assert (status == 0, says in text) == (written == [case], True), text
        assert "Traceback" not in text
    (node.ca / "certs/company.crt").unlink()
    (node.ca / "certs").rmdir()
    status, text = call(*options)
    assert status == 2
    assert "is not a directory with files on this node" in text
