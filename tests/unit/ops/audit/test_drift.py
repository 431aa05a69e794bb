"""What is remembered of running containers: which are looked at again, and that each that differs is told once."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.finding import ERROR, OK, WARNING
from hook.core.policy.store import STORE
from hook.node import kept
from hook.node.kept import DRIFTED, IN_POLICY
from hook.ops.audit import drift, remembered
from unit.ownmachine import Machine
from unit.support import CONTAINERD, called, document

pytestmark = pytest.mark.users  # a look at a process leads out of the root directory of tests/rootless.sh

EVENTS = Path("/var/log/reassert/events.jsonl")
RULE = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
RIGHT, WRONG = {"CA": "/ca.pem"}, {"CA": "/tmp/x"}


class NodeWithContainers:
    """A wired node. `start` starts a container as runc records it; `end` ends it."""

    def __init__(self, machine: Machine, is_wired: bool = True) -> None:
        self.machine = machine
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        if not is_wired:
            return
        self.policy()
        part = {"adapters": ["runtime"], "runtimeClass": None, "files": {}, "references": [], "directories": []}
        record = {"parts": {"containerd": {**part, "units": [], "notes": {}, "since": 1}}}
        machine.file("/var/lib/reassert/node/installed.json", json.dumps(record))

    def policy(self, **more: Any) -> None:
        """A policy that takes force now."""
        self.machine.file("/etc/reassert/policy.yaml", document(RULE, **more))
        self.in_force()

    def in_force(self) -> str:
        """The fingerprint of the policy in force."""
        return drift.read_round("/etc/reassert/policy.yaml", STORE).policy.fingerprint

    def start(self, name: str, env: dict[str, str], is_started: bool = True) -> str:
        key = name * 64
        path = {"PATH": "/usr/bin:/bin"}
        words = ["unshare", "--mount", "--propagation", "unchanged", "env", "-i", *(f"{k}={v}" for k, v in env.items())]
        process = self._processes[key] = subprocess.Popen([*words, "/bin/sleep", "1000"], env=path)
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.001)
        bundle = f"/run/bundles/{key}"
        spec = {
            "ociVersion": "1.0.2",
            "process": {"args": ["sleep"], "cwd": "/", "env": [f"{name}={value}" for name, value in env.items()]},
            "root": {"path": "rootfs"},
            "mounts": [],
            "linux": {"namespaces": [{"type": "mount"}], "cgroupsPath": f"kubepods-pod1.slice:cri-containerd:{key}"},
            "annotations": {**CONTAINERD, "io.kubernetes.cri.sandbox-name": name},
        }
        self.machine.file(f"{bundle}/config.json", json.dumps(spec))
        state = {"init_process_pid": process.pid, "config": {"labels": [f"bundle={bundle}"]}}
        state["created"] = datetime.now(UTC).isoformat()
        if not is_started:
            self.machine.file(f"/run/runc/{key}/exec.fifo")
        self.machine.file(f"/run/runc/{key}/state.json", json.dumps({"id": key, **state}))
        return key

    def end(self, key: str) -> None:
        self._processes[key].kill()
        self._processes[key].wait()
        for name in os.listdir(f"/run/runc/{key}"):
            os.unlink(f"/run/runc/{key}/{name}")
        os.rmdir(f"/run/runc/{key}")

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeWithContainers]:
    monkeypatch.setattr("hook.inside.containers._of_processes", lambda *_: [])  # the real machine's
    found = NodeWithContainers(machine)
    yield found
    found.close()


def seen(known: kept.Audited) -> dict[str, tuple[str, str]]:
    """State and severity of each container, by the first letter of its id."""
    return {key[0]: (each.state, each.severity) for key, each in known.containers.items()}


def test_containers_that_started_since_are_looked_at_and_nothing_is_kept(node: NodeWithContainers) -> None:
    right = node.start("a", RIGHT)
    last = remembered.now(kept.Audited(), node.in_force())
    assert seen(last) == {"a": (IN_POLICY, OK)}
    assert remembered.now(last, node.in_force()) is last, "nothing has started or ended"
    node.start("b", WRONG)
    waits = node.start("c", WRONG, is_started=False)
    after = remembered.now(last, node.in_force())
    assert seen(after) == {"a": (IN_POLICY, OK), "b": (DRIFTED, ERROR)}
    os.unlink(f"/run/runc/{waits}/exec.fifo")
    node.end(right)
    assert seen(remembered.now(after, node.in_force())) == {"b": (DRIFTED, ERROR), "c": (DRIFTED, ERROR)}
    assert kept.read().audited == kept.Audited()


def test_under_another_policy_every_container_is_looked_at_again(node: NodeWithContainers) -> None:
    node.start("a", RIGHT)
    last = remembered.now(kept.Audited(), node.in_force())
    node.policy(exclude={"namespaces": ["none"]}, failurePolicy="Ignore")
    after = remembered.now(last, node.in_force())
    assert after is not last
    assert (after.policy, seen(after)) == (node.in_force(), {"a": (IN_POLICY, OK)})


def test_status_looks_at_the_newest_and_says_how_many_are_left(
    node: NodeWithContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "MOST", 1)
    node.start("a", RIGHT)
    time.sleep(0.01)  # the clock of the file system
    node.start("b", RIGHT)
    known = remembered.now(kept.Audited(), node.in_force())
    assert (seen(known), remembered.unseen(known)) == ({"b": (IN_POLICY, OK)}, 1)


def told() -> list[str]:
    """The containers of which the event log knows, by the first letter of their ids."""
    lines = EVENTS.read_text().splitlines() if EVENTS.exists() else []
    found = [json.loads(line) for line in lines]
    return [event["id"][0] for event in found if event["event"] == "container.drifted"]


def test_each_container_that_differs_is_told_once_by_whichever_look(node: NodeWithContainers) -> None:
    first = node.start("a", WRONG)
    drift.record()
    assert (seen(kept.read().audited), told()) == ({"a": (DRIFTED, ERROR)}, ["a"])
    node.start("b", WRONG)
    for _ in range(2):
        drift.record()
        assert told() == ["a", "b"], "a minute later, without a look at all containers"
    node.start("c", WRONG)
    assert called("audit").returncode == 1
    assert kept.read().audited.count(DRIFTED) >= 3, "status knows it at once"
    assert told() == ["a", "b"]
    node.end(first)
    drift.record()
    assert (told(), sorted(seen(kept.read().audited))) == (["a", "b", "c"], ["b", "c"])


def test_a_container_that_was_looked_at_by_a_worker_that_lies_is_one_that_could_not_be_looked_at() -> None:
    from hook.inside.containers import Running
    from hook.ops.audit.audit import _LISTED, _checked

    difference = dict.fromkeys(("rule", "kind", "name", "message", "why", "cause"), "x")
    lists: dict[str, list[str]] = {each: [] for each in _LISTED}
    for severity, state in ((WARNING, DRIFTED), ("harmless", "unknown")):
        data = {"because": "", "line": "", "state": DRIFTED, "differences": [{**difference, "severity": severity}]}
        assert _checked(Running("0a", 1, 1, "/b", "", 0.0), {**data, **lists}).state == state
