"""tests/hostile-pod under real runtimes: plain ones fail, the wrapper holds all, and a hole in it is noticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree  # of our own output

import pytest
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import need, run
from lab.peers.results import results

from e2e.hostile_pod import SUITE, expectation, of_result, policy, suite
from e2e.runtimes import EXHAUSTIVE

RUNTIMES_TURN = {name: turn for turn, name in enumerate(RUNTIMES)}
CASES = {case["id"]: case["name"] for case in json.loads((SUITE.parent / "cases.json").read_text())}
INNOCENT = {name for name in CASES.values() if name.startswith("innocent")}


def cases(name: str) -> set[str]:
    """Those of a runtime: a quarter, since e2e/table.py has most for each runtime and adapter."""
    return {*CASES.values()} if EXHAUSTIVE else {*[*CASES.values()][RUNTIMES_TURN[name] :: 4], *INNOCENT}


def plain(name: str) -> set[str]:
    """Those of `cases` that docs/project/peers.md says a plain runtime holds."""
    known = results()[name]["cases"]
    return {CASES[key] for key, result in known.items() if result in ("held", "refused")} & cases(name)


def suite_with(node: Node, name: str, command: str) -> tuple[int, dict[str, str], str]:
    """The cases of a runtime with a command in front of it."""
    return suite(node, "--runtime", command, *(word for case in cases(name) for word in ("--case", case)))


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_plain_runtime_holds_nothing_but_what_it_refuses_itself(node: Node, name: str) -> None:
    status, found, output = suite_with(node, name, RUNTIMES[name])
    assert status == 1, output
    assert (found.keys(), of_result(found, "held", "refused")) == (cases(name), plain(name)), output
    assert of_result(found, "error", "not run") == set(), output


def test_the_first_command_of_its_page_needs_nothing_that_is_made_before() -> None:
    page = (SUITE.parent / "README.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("    ./hostile-pod "))
    words = command.partition("#")[0].split()
    script = 'mount -t tmpfs tmpfs /srv && "$@" --case innocent && [ -z "$(ls /srv)" ]'
    done = run("unshare", "--mount", "sh", "-euc", script, "sh", *words, check=False, cwd=SUITE.parent)
    assert (done.returncode, "1 held" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_wrapper_holds_all(node: Node, name: str) -> None:
    node.compile(policy(node))
    status, found, output = suite_with(node, name, node.dispatcher(RUNTIMES[name]))
    assert status == 0, output
    assert (found.keys(), of_result(found, "error", "FAILED", "not run")) == (cases(name), set()), output


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_wrapper_starts_the_agents_that_many_nodes_run(node: Node, name: str) -> None:
    """All of them: tests/e2e/test_innocents.py. Here a tenth, as somebody else runs them, without `exclusive`."""
    node.compile(policy(node).partition("  - name: devices")[0])
    agents = json.loads((SUITE.parent / "innocents.json").read_text())
    # The checkout and the volumes of other tests are there.
    own = {"/", "/run", "/var/run", "/tmp", "/var", "/var/lib"}
    agents = [case for case in agents if not {mount["host"] for mount in case.get("mounts", ())} & own]
    chosen = [word for case in agents[RUNTIMES_TURN[name] :: 10] for word in ("--case", case["id"])]
    status, found, output = suite(node, "--runtime", node.dispatcher(RUNTIMES[name]), *chosen)
    assert (status, {*found.values()} - {"refused"}) == (0, {"held"}), output
    must = {case["name"] for case in agents if case.get("start") == "must"}
    assert of_result(found, "refused").isdisjoint(must), output


def test_one_file_is_all_that_it_needs(node: Node, directory: Path) -> None:
    """Without the packages of this Python, as the release's file is run, and with no busybox on the node."""
    file = directory / "hostile-pod.pyz"
    run(str(SUITE.parent / "build.sh"), str(file))
    options = [
        "--busybox",
        "/nowhere",
        "--expect",
        str(expectation(node)),
        "--scratch",
        str(node.directory),
        "--case",
        "HP-005",
    ]
    done = run("/usr/bin/python3", "-I", "-S", str(file), "--runtime", RUNTIMES["runc"], *options, check=False)
    assert (done.returncode, "HP-005 env-pod  FAILED" in done.stdout) == (1, True), done.stdout + done.stderr


def test_dockers_command_starts_containers_too(node: Node, directory: Path) -> None:
    need(shutil.which("podman") is not None, "podman")
    settings = directory / "containers.conf"
    node.compile(policy(node).partition("  - name: devices")[0])  # without a cgroup, `exclusive` refuses
    found = {}
    for name, crun in (("plain", RUNTIMES["crun"]), ("guarded", node.dispatcher(RUNTIMES["crun"]))):
        engine = f'[engine]\nruntime = "crun"\n[engine.runtimes]\ncrun = ["{crun}"]\n'
        limits = '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n'
        settings.write_text(limits + engine)
        stores = " ".join(f"--{kind} {directory}/{kind}" for kind in ("root", "runroot", "tmpdir"))
        podman = f"env CONTAINERS_CONF={settings} podman {stores} --storage-driver vfs --cgroup-manager cgroupfs"
        cases = ("innocent", "env-pod", "env-absent", "exec-env", "mount-at", "image-link")
        _, found[name], output = suite(node, "--docker", podman, *(w for case in cases for w in ("--case", case)))
        assert found[name]["image-link"] == "not run", output
    assert [*found["plain"].values()] == ["held", "FAILED", "FAILED", "FAILED", "FAILED", "not run"]
    assert of_result(found["guarded"], "FAILED", "error") == set(), output


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


def test_ctrl_c_leaves_no_container(node: Node, directory: Path) -> None:
    """A terminal's goes to each process of the suite. It comes when the container is made, and nobody knows it yet."""
    runtime = directory / "runtime"
    runc = f"{RUNTIMES['runc']} --root {directory}/state"
    interrupt = '[ "$1" != create ] || kill -INT -- "-$(cat suite)"'
    runtime.write_text(f'#!/bin/bash\ncd {directory}\n{runc} "$@" && {interrupt}\n')
    runtime.chmod(0o755)
    script = f'echo $$ >{directory}/suite; exec "$@"'
    options = ("--runtime", str(runtime), "--expect", str(expectation(node)), "--scratch", str(node.directory))
    asked = (sys.executable, str(SUITE), *options, "--case", "innocent")
    # What a shell has started in the background ignores SIGINT, and so do its children.
    command = ("env", "--default-signal=INT", "sh", "-c", script, "sh", *asked)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, start_new_session=True)
    left = run(*runc.split(), "list", "--quiet").stdout
    assert (done.returncode, left) == (2, ""), done.stderr
    assert done.stderr == "hostile-pod: stopped by SIGINT; no container is left\n"
    assert not list(node.directory.glob("hostile-pod-*"))


def test_table_list_and_wrong_use(node: Node) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(SUITE), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout + done.stderr

    options = ("--runtime", RUNTIMES["runc"], "--expect", str(expectation(node)), "--scratch", str(node.directory))
    status, text = call(*options, "--case", "innocent", "--case", "env-default")
    lines = text.splitlines()
    assert (status, lines[0].split()) == (1, ["ID", "CASE", "RESULT", "REASON"])
    assert lines[1].split() == ["HP-001", "innocent", "held"]
    assert lines[2].startswith("HP-004 env-default  FAILED   env: NVIDIA_VISIBLE_DEVICES is absent (and ")
    assert call("--list")[1].startswith("HP-001 innocent: ")
    chosen = ("--case", "HP-001", "--case", "env-default", "--case", "device-at")
    status, text = call(*options, *chosen[:4], "-o", "junit")
    suite = ElementTree.fromstring(text)
    assert (suite.get("tests"), suite.get("failures"), suite[1].get("name")) == ("2", "1", "HP-004 env-default")
    status, text = call(*options, *chosen, "-o", "tap")
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "TAP version 13",
        "1..3",
        "ok 1 - HP-001 innocent",
        "not ok 2 - HP-004 env-default",
        "not ok 3 - HP-030 device-at",
    ]
    assert call(*options, "--case", "none") == (2, call(*options, "--case", "none")[1])
    own = node.directory / "own.json"
    case = {"name": "own", "why": "a new reader's", "check": ["env"], "env": ["{name}=a"]}
    for written, says in (
        ([case], "own: a new reader's"),
        (case, "not a list of objects"),
        ([{**case, "chek": []}], "case own: unknown: chek"),
        ([{**case, "check": ["mount"]}], "case own: unknown: mount"),
        ([{**case, "on": ["podman"]}], "case own: unknown: podman"),
        ([{"name": "own", "why": "x"}], "case own: it has no check"),
        ([], "not a list of objects"),
        ([{**case, "env": "A=1"}], 'case own: env: "A=1" is of the wrong type'),
        ([{**case, "mounts": [{"at": "/x"}]}], "case own: a mount without"),
        ([{**case, "exec": {"hwo": "--env"}}], "case own: exec: unknown: hwo"),
    ):
        own.write_text(json.dumps(written))
        status, text = call("--list", "--cases", str(own))
        assert (status == 0, says in text) == (written == [case], True), text
        assert "Traceback" not in text
    (node.ca / "certs/company.crt").unlink()
    (node.ca / "certs").rmdir()
    status, text = call(*options)
    assert status == 2
    assert "is no file or directory with files on this node" in text
