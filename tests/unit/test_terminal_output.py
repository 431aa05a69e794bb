"""Output fits a terminal of 80 columns, and is whole with -o wide and in a pipe; colours are on a terminal alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.cli import GROUPS
from hook.resident.terminal import line, table
from unit.node.crio import crio_node, enforce, install
from unit.node.test_one_answer import has_kata, verify_failed
from unit.ops.audit.test_drift import RIGHT, WRONG, NodeWithContainers
from unit.ops.events.support import CA, DENIED, MOUNT, NVIDIA, event, write
from unit.ops.trust.authority import ca
from unit.ops.trust.conftest import TrustStore
from unit.ownmachine import Machine
from unit.support import CONTAINERD, bind, called, config, document, examples
from unit.terminal import on_terminal, terminal

pytestmark = marks.promise(
    "Output fits 80 columns on a terminal, and is whole in a pipe and with -o wide", about="Packages and cluster"
)

LONG = "a-workload-with-the-longest-name-that-anybody-would-give-to-it"
RULE = {
    "name": "company-certificate-authorities",
    "match": {"namespaces": ["team-*", "another-namespace-*"], "images": ["registry.example.com/team/*"]},
    "env": [{"name": "REQUESTS_CA_BUNDLE", "value": "/etc/ssl/certs/ca-certificates.crt"}],
    "mounts": [{"hostPath": "/etc/ssl", "mountPath": "/etc/ssl/certs/of/the/company"}],
}
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?|now|\d+ s ago"
LOG = Path("/var/log/reassert/events.jsonl")


@pytest.fixture
def files(root_dir: Path) -> Path:
    """A policy, a draft, a broken policy, a config.json, a pod and cases."""
    (root_dir / "policy.yaml").write_text(document(RULE))
    (root_dir / "draft.yaml").write_text(document({**RULE, "onConflict": "Deny"}, {"name": "b", "env": RULE["env"]}))
    (root_dir / "broken.yaml").write_text(document({**RULE, "env": [{"name": "A=B", "valeu": "1"}]}, mode="Sometimes"))
    annotations = {**CONTAINERD, "io.kubernetes.cri.image-name": f"registry.example.com/team/{LONG}@sha256:{'ab' * 32}"}
    mounts = [bind("/etc/ssl/certs/of/the/company/below", f"/var/lib/kubelet/pods/{LONG}/volumes/x")]
    found = config([f"REQUESTS_CA_BUNDLE=/{LONG}/{LONG}"], mounts, annotations)
    (root_dir / "config.json").write_text(json.dumps(found))
    pod = {"kind": "Pod", "metadata": {"name": LONG, "namespace": "team-a"}, "spec": {"containers": [{"name": "c"}]}}
    (root_dir / "pod.yaml").write_text(json.dumps(pod))
    case = {"name": f"the case of {LONG}", "config": "config.json", "expect": {"env": {"A": LONG}}}
    test = {"kind": "PolicyTest", "policy": "policy.yaml", "adapter": "runtime", "cases": [case]}
    (root_dir / "reassert-test.yaml").write_text(json.dumps(test))
    return root_dir


def assert_fits(*command: str, has_wide: bool = True) -> list[str]:
    """Asserts it, and returns what a terminal of 80 columns shows."""
    lines = on_terminal(*command)
    assert lines
    assert max(map(len, lines)) <= 80, command
    piped = called(*command)
    whole = (piped.stdout + piped.stderr).splitlines()
    assert on_terminal(*command, columns=40) != lines or max(map(len, lines)) <= 40, "it is the terminal that counts"
    if has_wide:
        wide = on_terminal(*command, "-o", "wide")
        assert sorted(re.sub(TIME, "", text) for text in wide) == sorted(re.sub(TIME, "", text) for text in whole)
        assert max(map(len, wide)) > 80, "this command's output is a case"
    return lines


def test_a_policys_commands(files: Path) -> None:
    policy, draft, broken = (str(files / name) for name in ("policy.yaml", "draft.yaml", "broken.yaml"))
    assert re.search(r"sha256 [0-9a-f]{12}$", " ".join(assert_fits("policy", "check", policy)))
    assert_fits("policy", "check", broken)
    assert_fits("policy", "diff", policy, draft)
    assert re.fullmatch(r"[01] passed, [01] failed", assert_fits("policy", "test", str(files))[0])
    for target in ("config.json", "pod.yaml"):
        assert assert_fits("explain", str(files / target), "--policy", policy)[0].startswith("result ")
    assert_fits("policy", "compile", "--policy", policy, "--store", f"{files}/s", has_wide=False)


def test_a_stores_check(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.add("company.pem", ca(LONG))
    store.build()
    assert_fits("trust", "check", "--out", str(store.store))


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A wired node, with a handler that is not, a verify that failed, and events."""
    machine.boot()
    monkeypatch.setattr("hook.inside.containers._of_processes", lambda *_: [])  # the real machine's
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with crio_node(machine, tmp_path, monkeypatch) as found:
        enforce(RULE)
        install()
        has_kata(found)
        verify_failed(found)
        edited = event("edited", f"{LONG}-x2k9p", 1, edits=[CA, MOUNT, NVIDIA])
        write(LOG, [edited, event("denied", f"{LONG}-x2k9p", 2, denials=[DENIED])])
        yield found


@pytest.mark.users
def test_a_nodes_commands(node: Machine) -> None:
    for command in (("status",), ("status", "--all")):
        lines = assert_fits(*command)
        assert lines[0].startswith("state ")
        assert re.search(r"sha256 [0-9a-f]{12}, ", " ".join(lines))
    assert_fits("report", "--since", "2020-01-01")
    assert_fits("events", has_wide=False)
    assert max(map(len, on_terminal("events", "-o", "wide"))) > 80
    for command in (("policy", "audit"), ("policy", "enforce"), ("uninstall",)):
        assert_fits(*command, has_wide=False)


def test_an_audit(machine: Machine, monkeypatch: pytest.MonkeyPatch, root_dir: Path) -> None:
    monkeypatch.setattr("hook.inside.containers._of_processes", lambda *_: [])  # the real machine's
    found = NodeWithContainers(machine)
    try:
        found.start("a", RIGHT)
        found.start("b", WRONG)
        draft = root_dir / "draft.yaml"
        draft.write_text(document(RULE))
        for options in ((), ("--policy", str(draft)), ("--preflight",)):
            assert assert_fits("audit", *options)[0].startswith("2 containers: ")
    finally:
        found.close()


@pytest.mark.parametrize("name", [*GROUPS, "agent", "nri"])
def test_help(name: str) -> None:
    assert max(map(len, on_terminal("help", name))) <= 80


def test_errors() -> None:
    assert max(map(len, on_terminal("explain", "/etc/hostname", "--policy", f"/{LONG}/{LONG}"))) <= 80


@given(
    st.text("ab/, \n\x1b", max_size=200),
    st.integers(20, 90),
    st.sampled_from(["", "result     "]),
)
@examples(200)
def test_a_line_that_is_broken_loses_nothing_and_nobody_forges_one(text: str, width: int, label: str) -> None:
    shown = line(text, width, 11, label)
    assert max(map(len, shown.split("\n"))) <= width
    assert all(row.startswith(" " * 11) for row in shown.split("\n")[1:])
    assert "".join(shown.split()) == "".join(line(text, 0, 11, label).split())


@given(st.lists(st.lists(st.text("ab/, \n\x1b", max_size=60), min_size=3, max_size=3), max_size=4))
@examples(100)
def test_a_table_that_is_narrow_loses_nothing(rows: list[list[str]]) -> None:
    shown = table(rows, ["A", "B", "C"], 60)
    assert max(map(len, shown.split("\n"))) <= 60
    assert sorted("".join(shown.split())) == sorted("".join(table(rows, ["A", "B", "C"]).split()))


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_on_a_terminal_alone(
    variables: dict[str, str], coloured: bool, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that a command prints, only the operation log has some."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    commands = (
        ("explain", str(files / "config.json"), "--policy", str(files / "policy.yaml")),
        ("policy", "check", str(files / "broken.yaml")),
        *(("help", name) for name in GROUPS),
        ("nonsense",),
    )
    for command in commands:
        assert "\x1b" not in "".join(on_terminal(*command)), command
        piped = called(*command)
        assert "\x1b" not in piped.stdout + piped.stderr, command
    with terminal() as lines:
        log()
    assert ("\x1b[" in "".join(lines)) == coloured


def log() -> None:
    """One line of the operation log, in a process of its own: a process has one such log."""
    code = "from hook.resident import oplog; oplog.configure(None, 'info', False); oplog.info('x'); oplog.close()"
    subprocess.run([sys.executable, "-c", code], stderr=sys.stderr, check=True, env=os.environ)


def test_a_long_name_is_broken_where_it_has_a_joint() -> None:
    assert line("whatever-the-device-plugin-set", 20).split("\n") == ["whatever-the-device-", "plugin-set"]
    assert line("x" * 25, 20).split("\n") == ["x" * 20, "x" * 5]
