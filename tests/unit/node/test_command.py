"""`reassert status`: what it shows, and what its exit status means."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.core.base.logfile import LOST
from hook.node.change.files import State, put
from hook.node.change.record import OwnerRecord, Record
from hook.node.choice import adapters_of
from unit.node.crio import LOAD, RULE, crio_node, enforce, install, status
from unit.node.fake import FakeEngine
from unit.ownmachine import Machine
from unit.support import called

pytestmark = [
    marks.promise("Events that the log did not take are counted, and `status` says so", about="Events and metrics"),
    marks.promise("`status` reports every problem, also of files that the policy names", about="Node"),
]

LOG = "/var/log/reassert/events.jsonl"
TRAP = "/run/hooks.d/reassert.json: CRI-O does not start"


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with crio_node(machine, tmp_path, monkeypatch) as found:
        yield found


def test_a_problem_changes_it(node: Machine) -> None:
    node.file("/etc/crio/crio.conf", 'crio.runtime.hooks_dir = ["/run/hooks.d"]\n')
    install()
    assert status()[0] == 0
    node.file("/run/hooks.d/reassert.json", '{"stages": ["precreate"]}')
    exit_status, found = status()
    assert exit_status == 1
    [problem] = found["problems"]
    assert problem.startswith(f"crio: {TRAP}")
    table = called("status")
    assert table.returncode == 1
    assert re.search(f"^error +engine +crio: {TRAP}", table.stdout, re.MULTILINE)


@marks.hole("`status` was green where the engine had loaded other settings than its files")
def test_what_crio_has_not_loaded_is_not_wired(node: Machine) -> None:
    install("runtime,hook")
    drop_in = Path("/etc/crio/crio.conf.d/99-reassert.conf")
    drop_in.rename("/etc/crio/away")
    LOAD[0]()
    Path("/etc/crio/away").rename(drop_in)
    exit_status, found = status()
    assert exit_status == 1
    assert [(each["part"], each["remedy"]) for each in found["findings"] if each["severity"] == "error"] == [
        ("handler/crun", "reassert install")
    ]
    assert found["problems"][0].startswith(
        "crio: containers of crun start without reassert: CRI-O 1.31.0 runs with other settings than its files say; "
    )
    assert not any(handler["wired"] for handler in found["engines"]["crio"]["handlers"])
    LOAD[0]()
    exit_status, found = status()
    assert (exit_status, found["problems"]) == (0, [])
    assert [handler["wired"] for handler in found["engines"]["crio"]["handlers"]] == [["runtime", "hook"]]
    Path("/var/run/crio/crio.sock").unlink()
    exit_status, found = status()
    assert (exit_status, found["problems"][0].startswith("crio: it is not known whether it is wired:")) == (1, True)


def test_a_node_that_is_not_wired_has_a_status_of_its_own(node: Machine) -> None:
    node.file("/etc/crio/crio.conf", 'crio.runtime.hooks_dir = ["/run/hooks.d"]\n')
    node.file("/run/hooks.d/reassert.json", '{"stages": ["precreate"]}')
    exit_status, found = status()
    assert (exit_status, found["problems"]) == (3, [])
    assert [hint.startswith(f"crio: {TRAP}") for hint in found["hints"]] == [True]


def test_another_engine_that_cannot_be_wired_does_not_count(node: Machine) -> None:
    """docker.io's containerd has no CRI plugin; docker is wired all the same."""
    install()
    node.program("containerd", "echo disabled >&2; exit 1")
    exit_status, found = status()
    assert (exit_status, found["problems"]) == (0, [])
    assert [hint.partition(":")[0] for hint in found["hints"] if "disabled" in hint] == ["containerd"]


def said() -> list[str]:
    return called("status").stdout.splitlines()


@pytest.mark.parametrize(
    ("rules", "spec", "why"),
    [
        ([RULE], {"mode": "Audit"}, "the mode is Audit"),
        ([{**RULE, "mode": "Audit"}], {}, "the mode is Audit"),
        ([], {}, "the policy has no rules"),
        ([RULE], {"exclude": {"namespaces": ["*"]}}, "the policy excludes every namespace"),
        (
            [{**RULE, "match": {"namespaces": ["kube-system"]}}, {**RULE, "name": "b", "mode": "Audit"}],
            {"exclude": {"namespaces": ["kube-*"]}},
            "no container matches a rule (r)",
        ),
        (
            [{**RULE, "match": {"containerTypes": ["init"]}}],
            {"exclude": {"containerTypes": ["init", "ephemeral"]}},
            "no container matches a rule (r)",
        ),
        (
            [{**RULE, "match": {"containerTypes": ["init"], "ifUnknown": "Skip"}}],
            {},
            "no container matches a rule (r)",
        ),
    ],
)
def test_a_policy_that_enforces_nothing_is_not_green(
    rules: list[dict[str, Any]], spec: dict[str, Any], why: str, node: Machine
) -> None:
    install()
    enforce(*rules, **spec)
    exit_status, found = status()
    assert (exit_status, found["problems"], found["remarks"]) == (4, [], [f"NOT ENFORCED: {why}"])
    assert said()[0] == f"state      NOT ENFORCED: {why}"


WASM = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["module.wasm.image/*"]
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
    BinaryName = "/usr/local/sbin/crun"
"""


def test_annotations_that_a_handler_lets_through_on_purpose_are_said(node: Machine) -> None:
    """crun's WebAssembly: pods need them, and a rule takes them away."""
    node.program(
        "containerd", 'case "$*" in *version*) echo x x 1.7.24 x ;; *) cat /etc/containerd/config.toml ;; esac'
    )
    for name in ("ctr", "crun", "runc"):
        node.program(name, "exit 1")
    node.file("/etc/containerd/config.toml", WASM)
    enforce(RULE)
    commands = (
        ("status", "--engine", "containerd", "-o", "json"),
        ("install", "--dry-run", "--engine", "containerd", "--no-agent"),
        ("policy", "check", "--node"),
    )
    for allowed in ((), ("module.wasm.image/*",)):
        enforce(RULE, allowedAnnotations=[*allowed])
        for command in commands:
            done = called(*command)
            there = "the annotation module.wasm.image/*, which the engine lets through for handler crun, can steer"
            assert (there in " ".join((done.stdout + done.stderr).split())) is not bool(allowed), (command, done)


def test_it_starts_with_the_evidence(node: Machine) -> None:
    enforce(RULE, {**RULE, "name": "b", "mode": "Audit", "env": [{"name": "B", "value": "1"}]})
    install()
    called("policy", "compile")
    state, first, policy, *_ = said()
    _, found = status()
    assert first.startswith(f"reassert   {__version__} on {os.uname().nodename}, 2")
    about = found["policy"]
    assert about["rules"] == {"enforced": 1, "tried": 1}
    assert policy == (
        f"policy     /etc/reassert/policy.yaml, sha256 {about['sha256']}, Mixed, rules: 1 enforced, 1 tried, "
        f"since {about['since'][:19]}Z"
    )
    assert (state, found["state"]) == ("state      protected", "protected")
    assert (found["node"], found["version"]) == (os.uname().nodename, __version__)
    os.utime("/etc/reassert/policy.yaml")
    assert status()[1]["policy"]["since"] == about["since"], "the same policy, compiled again"


def test_what_install_would_change_is_not_wired_wrong_or_newer(node: Machine) -> None:
    """CRI-O's drop-in without a handler, another text in a dispatcher, and a file that only a newer version has."""
    install()
    dispatcher = Path("/opt/reassert/reassert-crun")
    text = dispatcher.read_text()
    dispatcher.write_text(text + "# edited\n")
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "not certain")
    assert found["problems"] == [f"crio: {dispatcher} out of date: run `reassert install`"]
    dispatcher.write_text('#!/bin/sh\nexec crun "$@"\n')
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "NOT WIRED")
    assert found["problems"] == [
        "crio: containers of crun start without reassert; the install restarts CRI-O 1.31.0: run `reassert install`"
    ]
    dispatcher.write_text(text)
    socket = Path("/var/lib/reassert/cri/crio")
    record = Path("/var/lib/reassert/node/installed.json")
    parts = json.loads(record.read_text())
    old, owned = socket.read_text(), parts["parts"]["crio"]["files"][str(socket)]
    socket.write_text("/run/older.sock\n")
    owned["after"] = State(b"/run/older.sock\n").sha256()
    record.write_text(json.dumps(parts))
    exit_status, found = status()
    newer = f"crio: newer settings are available ({socket}): run `reassert install`"
    state = "protected, with warnings"
    assert (exit_status, found["problems"], found["remarks"], found["state"]) == (4, [], [newer], state)
    socket.write_text(old)
    Path("/etc/crio/crio.conf.d/99-reassert.conf").unlink()
    LOAD[0]()
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "NOT WIRED")
    assert found["problems"][0].startswith("crio: containers of crun start without reassert")


MISSING = {"name": "company-ca", "mounts": [{"hostPath": "/nonexistent/ca.crt", "mountPath": "/etc/ssl/ca.crt"}]}
REFUSED = "rule company-ca: hostPath /nonexistent/ca.crt: No such file or directory; every container that the rule "


def test_a_missing_host_path_is_a_problem(node: Machine) -> None:
    install()
    enforce(MISSING)
    exit_status, found = status()
    assert (exit_status, [problem.startswith(REFUSED) for problem in found["problems"]]) == (1, [True])
    enforce(MISSING, mode="Audit")
    exit_status, found = status()
    assert (exit_status, any(hint.startswith(REFUSED) for hint in found["hints"])) == (4, True)


def instead_of_its_directory(log: Path) -> None:
    log.parent.rmdir()
    log.parent.touch()


def anothers(log: Path) -> None:
    log.touch()
    os.chown(log, 1000, 1000)


LOGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda log: None, ""),
    "missing with its directory": (lambda log: log.parent.rmdir(), ""),
    "regular": (lambda log: log.touch(), ""),
    "symbolic link": (lambda log: log.symlink_to("/dev/full"), "it is a symbolic link"),
    "dangling link": (lambda log: log.symlink_to("elsewhere"), "it is a symbolic link"),
    "directory": (lambda log: log.mkdir(), "it is a directory"),
    "fifo": (os.mkfifo, "it is not a regular file"),
    "directory that is a file": (instead_of_its_directory, "Not a directory"),
    "another user's": (anothers, "it belongs to the user 1000, not to root"),
}


@pytest.mark.users
def test_event_log_that_cannot_be_written_is_a_problem(node: Machine) -> None:
    install()
    log = Path(LOG)
    log.parent.rename("/var/log/of-the-install")
    for name, (make, why) in LOGS.items():
        log.parent.mkdir()
        make(log)
        before = log.is_fifo() or log.exists()
        exit_status, found = status()
        problems = [f"the event log {log} cannot be written: {why}; no event is logged"] if why else []
        assert (exit_status, found["problems"]) == (1 if why else 0, problems), name
        assert (log.is_fifo() or log.exists()) == before
        if log.parent.exists():
            log.parent.rename(f"/var/log/{name}")


def test_a_full_disk_and_events_that_were_lost_are_said(node: Machine) -> None:
    install()
    log, lost = Path(LOG), Path(LOST)
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    lost.parent.mkdir(exist_ok=True)
    lost.write_text("..")
    os.utime(lost, (2e9, 2e9))
    exit_status, found = status()
    said = f"{log} did not take 2 of the events since the node was booted, the last at 2033-05-18T03:33:20.000000Z"
    assert (exit_status, found["problems"]) == (1, [said])
    os.utime(lost, (1, 1))
    exit_status, found = status()
    assert (exit_status, found["problems"], "did not take 2" in " ".join(found["hints"])) == (0, [], True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", log.parent], check=True)
    log.write_bytes(b"x" * 4096)
    full = f"the event log {log} cannot be written: the disk is full; no event is logged"
    assert full in status()[1]["problems"]


def test_engines_beside_the_one_that_is_verified_are_named(node: Machine) -> None:
    """Of CRI-O, containerd, whose configuration is broken, and docker, which runs."""
    enforce({"name": "r", "env": [{"name": "A", "value": "1"}]}, mode="Audit")
    install()
    node.program("containerd", "exit 1")
    node.program("dockerd", "echo Docker version 24.0.1, build x")
    node.daemon("docker.service", "dockerd")
    said = called("verify", "--engine", "docker").stdout
    assert "containerd is not wired: reassert verify --engine containerd" in said
    assert "CRI-O 1.31.0 is wired (runtime) and was not tried: reassert verify --engine crio" in said


@pytest.mark.parametrize(
    ("text", "wired", "adapters"),
    [
        (None, [], ("runtime",)),
        (None, ["nri", "hook"], ("nri", "hook")),
        ("nri", [], ("nri", "hook")),
        ("cdi,runtime", ["hook"], ("runtime", "cdi")),
        ("hook,hook", [], ("hook",)),
    ],
)
def test_adapters_are_those_asked_for_or_wired_and_nri_never_comes_alone(
    text: str | None, wired: list[str], adapters: tuple[str, ...]
) -> None:
    engine = FakeEngine(adapters=("runtime", "nri", "hook", "cdi"))
    assert adapters_of(text, engine, OwnerRecord(wired)) == adapters


def everything() -> dict[str, str | bytes]:
    """Every file of the node that an install may change."""
    paths = [path for top in ("/etc", "/opt", "/usr/local", "/var/lib/reassert") for path in Path(top).rglob("*")]
    return {str(path): path.read_bytes() if path.is_file() else str(path.is_dir()) for path in paths}


def test_a_crio_that_is_unwired_is_as_it_was(node: Machine) -> None:
    before = everything()
    install("runtime,hook")
    assert "/opt/reassert/reassert-crun" in Path("/etc/crio/crio.conf.d/99-reassert.conf").read_text()
    assert called("uninstall", "--engine", "crio").returncode == 0
    assert everything() == before


def test_the_operation_log_has_each_step_with_what_it_wrote(node: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """On standard error, beside what people read on standard output. Without the option there is no such log."""
    arguments = ("--engine", "crio", "--adapter", "runtime", "--no-agent", "--no-probe", "--log-format", "json")
    done = called("install", *arguments)
    assert done.returncode == 0, done.stderr
    assert " is wired (runtime).\n" in done.stdout
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [said[at]["event"] for at in (0, -1)] == ["command.started", "command.ended"]
    assert (said[-1]["status"], said[0]["arguments"]) == (0, " ".join(["install", *arguments]))
    [written] = [line for line in said if line.get("path") == "/opt/reassert/reassert-crun"]
    content = Path("/opt/reassert/reassert-crun").read_bytes()
    assert (written["event"], written["bytes"], written["mode"]) == ("file.written", len(content), "0755")
    assert "writing /opt/reassert/reassert-crun" in [line["text"] for line in said if line["event"] == "node.step"]
    Path("/run/units/crio.service").write_text("0\n")
    LOAD[0]()
    called("status", "--record", "--log-level", "info")
    said_by_a_timer = capfd.readouterr().err
    assert " level=info event=wiring.looked engines=crio" in said_by_a_timer
    assert called("uninstall", "--engine", "crio", "--purge").returncode == 0
    assert capfd.readouterr().err == "", "no option, and no journal"


def test_a_failure_is_in_the_operation_log_and_not_twice_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    done = called("install", "--engine", "podman", "--log-format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    [failed] = [line for line in map(json.loads, capfd.readouterr().err.splitlines()) if line["level"] == "error"]
    assert (failed["event"], failed["command"]) == ("command.failed", "install")
    plain = called("install", "--engine", "podman")
    assert plain.stderr.startswith(f"reassert: {failed['error']}")


def test_an_uninstall_of_several_engines_asks_or_is_told(node: Machine) -> None:
    """Not in the middle of a script: there it says which engines it would unwire."""
    install()
    record = Record.read()
    record.parts["docker"] = record.parts["crio"]
    path, state = record.change()
    put(path, state)
    done = called("uninstall")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "reassert: wired are crio, docker: name one with --engine, or give --yes for all\n"
    assert Path("/etc/crio/crio.conf.d/99-reassert.conf").exists()
    assert "--engine" in called("uninstall", "--help").stdout
    assert called("uninstall", "--dry-run", "--engine", "crio").returncode == 0
