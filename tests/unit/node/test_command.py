"""`reassert node status`: what it shows, and what its exit status means."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.node.change.record import OwnerRecord
from hook.node.choice import adapters_of
from unit.node.fake import FakeEngine
from unit.node.opt import Opt
from unit.ownmachine import Machine
from unit.support import called, document

LOG = "/var/log/reassert/events.jsonl"
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
    yield machine
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


@pytest.mark.parametrize(("adapters", "hinted"), [("nri", True), ("nri,runtime", False), ("runtime", False)])
def test_exec_env_that_nri_does_not_show_is_a_hint_without_the_wrapper(
    adapters: str, hinted: bool, node: Machine
) -> None:
    install(adapters)
    hints = status()[1]["hints"]
    assert any("kubectl exec --env" in hint and "--adapter nri,runtime" in hint for hint in hints) is hinted


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


MISSING = {"name": "company-ca", "mounts": [{"hostPath": "/nonexistent/ca.crt", "mountPath": "/etc/ssl/ca.crt"}]}
REFUSED = "rule company-ca: hostPath /nonexistent/ca.crt: No such file or directory; every container that the rule "


def test_a_missing_host_path_is_a_problem(node: Machine) -> None:
    install()
    enforce(MISSING)
    exit_status, found = status()
    assert (exit_status, [problem.startswith(REFUSED) for problem in found["problems"]]) == (1, [True])
    enforce(MISSING, mode="Audit")
    exit_status, found = status()
    assert (exit_status, [hint.startswith(REFUSED) for hint in found["hints"]]) == (0, [True])


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
