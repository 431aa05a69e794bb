"""`reassert node status`: what it shows, and what its exit status means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook import __version__
from hook.core.base.logfile import LOST
from hook.node.change.files import State
from hook.node.change.record import OwnerRecord
from hook.node.choice import adapters_of
from unit.node.fake import FakeEngine
from unit.node.opt import Opt
from unit.ownmachine import Machine
from unit.support import called, document

LOG = "/var/log/reassert/events.jsonl"
LOAD: list[Callable[[], None]] = []
"""Makes the node's CRI-O read its files."""

TRAP = "/run/hooks.d/reassert.json: CRI-O does not start"


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A node with a CRI-O that does not run yet."""
    machine.crio()
    for runtime in ("crun", "runc"):
        machine.program(runtime, ":")
    Opt(tmp_path, monkeypatch).frozen("a program")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    enforce({"name": "r", "env": [{"name": "A", "value": "1"}]})
    with machine.crio_daemon() as load:
        LOAD.append(load)
        yield machine
        LOAD.clear()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def enforce(*rules: dict[str, Any], **spec: Any) -> None:
    path = Path("/etc/reassert/policy.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(document(*rules, **spec))


def install(adapter: str = "runtime") -> None:
    done = called("node", "install", "--engine", "crio", "--adapter", adapter, "--no-agent", "--no-probe")
    assert done.returncode == 0, done.stderr
    Path("/run/units/crio.service").write_text("0\n")  # it is active from now on
    LOAD[0]()


def status() -> tuple[int, dict[str, Any]]:
    done = called("node", "status", "--output", "json")
    return done.returncode, json.loads(done.stdout)


def test_a_problem_changes_it(node: Machine) -> None:
    node.file("/etc/crio/crio.conf", 'crio.runtime.hooks_dir = ["/run/hooks.d"]\n')
    install()
    assert status()[0] == 0
    node.file("/run/hooks.d/reassert.json", '{"stages": ["precreate"]}')
    exit_status, found = status()
    assert exit_status == 1
    [problem] = found["problems"]
    assert problem.startswith(f"crio: {TRAP}")
    table = called("node", "status")
    assert table.returncode == 1
    assert f"! crio: {TRAP}" in table.stdout


def test_what_crio_has_not_loaded_is_not_wired(node: Machine) -> None:
    install("runtime,hook")
    drop_in = Path("/etc/crio/crio.conf.d/99-reassert.conf")
    drop_in.rename("/etc/crio/away")
    LOAD[0]()
    Path("/etc/crio/away").rename(drop_in)
    exit_status, found = status()
    [problem] = found["problems"]
    assert (exit_status, problem.startswith("crio: NOT WIRED, containers start without reassert: CRI-O")) == (1, True)
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
    assert [hint.partition(":")[0] for hint in found["hints"]] == ["containerd"]


def said() -> list[str]:
    return called("node", "status").stdout.splitlines()


RULE = {"name": "r", "env": [{"name": "A", "value": "1"}]}


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
            {"exclude": {"containerTypes": ["init"]}},
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
    assert said()[2] == f"state      NOT ENFORCED: {why}"


def test_it_starts_with_the_evidence(node: Machine) -> None:
    enforce(RULE, {**RULE, "name": "b", "mode": "Audit", "env": [{"name": "B", "value": "1"}]})
    install()
    called("policy", "compile")
    first, policy, state, *_ = said()
    _, found = status()
    assert first.startswith(f"reassert   {__version__} on {os.uname().nodename}, 2")
    about = found["policy"]
    assert about["rules"] == {"enforced": 1, "tried": 1}
    assert policy == (
        f"policy     /etc/reassert/policy.yaml, sha256 {about['sha256']}, Mixed, rules: 1 enforced, 1 tried, "
        f"since {about['since']}"
    )
    assert (state, found["state"]) == ("state      protected", "protected")
    assert (found["node"], found["version"]) == (os.uname().nodename, __version__)
    os.utime("/etc/reassert/policy.yaml")
    assert status()[1]["policy"]["since"] == about["since"], "the same policy, compiled again"


def test_what_install_would_change_is_not_wired_wrong_or_newer(node: Machine) -> None:
    """CRI-O's drop-in without a handler, another text in a dispatcher, and a file that only a newer version has."""
    install()
    dispatcher = Path("/usr/local/sbin/reassert-crun")
    text = dispatcher.read_text()
    dispatcher.write_text(text + "# edited\n")
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "not certain")
    assert found["problems"] == [f"crio: {dispatcher} out of date: run `reassert node install`"]
    dispatcher.write_text('#!/bin/sh\nexec crun "$@"\n')
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "NOT WIRED")
    assert found["problems"] == [
        "crio: NOT WIRED, containers of crun start without reassert: run `reassert node install`, which restarts "
        "CRI-O 1.31.0"
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
    newer = f"protected, and newer settings are available for crio ({socket}): run `reassert node install`"
    assert (exit_status, found["problems"], found["remarks"], found["state"]) == (4, [], [newer], newer)
    socket.write_text(old)
    Path("/etc/crio/crio.conf.d/99-reassert.conf").unlink()
    LOAD[0]()
    exit_status, found = status()
    assert (exit_status, found["state"]) == (1, "NOT WIRED")
    assert found["problems"][0].startswith("crio: NOT WIRED, containers of crun start without reassert: run `reassert")


MISSING = {"name": "company-ca", "mounts": [{"hostPath": "/nonexistent/ca.crt", "mountPath": "/etc/ssl/ca.crt"}]}
REFUSED = "rule company-ca: hostPath /nonexistent/ca.crt: No such file or directory; every container that the rule "


def test_a_missing_host_path_is_a_problem(node: Machine) -> None:
    install()
    enforce(MISSING)
    exit_status, found = status()
    assert (exit_status, [problem.startswith(REFUSED) for problem in found["problems"]]) == (1, [True])
    enforce(MISSING, mode="Audit")
    exit_status, found = status()
    assert (exit_status, [hint.startswith(REFUSED) for hint in found["hints"]]) == (4, [True])


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
    assert status()[1]["problems"] == [f"the event log {log} cannot be written: the disk is full; no event is logged"]


def test_engines_beside_the_one_that_is_verified_are_named(node: Machine) -> None:
    """Of CRI-O, containerd, whose configuration is broken, and docker, which runs."""
    enforce({"name": "r", "env": [{"name": "A", "value": "1"}]}, mode="Audit")
    install()
    node.program("containerd", "exit 1")
    node.program("dockerd", "echo Docker version 24.0.1, build x")
    node.daemon("docker.service", "dockerd")
    said = called("node", "verify", "--engine", "docker").stdout
    assert "containerd is not wired: reassert node verify --engine containerd" in said
    assert "CRI-O 1.31.0 is wired (runtime) and was not tried: reassert node verify --engine crio" in said


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
    assert "/usr/local/sbin/reassert-crun" in Path("/etc/crio/crio.conf.d/99-reassert.conf").read_text()
    assert called("node", "uninstall", "--engine", "crio").returncode == 0
    assert everything() == before
