"""What a round says: its exit status, its table, its reasons; and a container that cannot be looked at in time."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hook.cli import main
from hook.core.container.identity import Identity
from hook.core.policy.compiler import compile_bytes
from hook.core.reserve import Reserved
from hook.entry.write_spec import Decision
from hook.node import workers
from hook.ops.audit.audit import DRIFTED, EXEMPT, IN_POLICY, STATES, UNKNOWN, Audit, ContainerReport, Round, read_round
from hook.ops.audit.command import as_table
from hook.ops.audit.inventory import Running
from hook.ops.audit.judge import Difference
from unit.ownmachine import Machine
from unit.support import document

POLICY = compile_bytes("/p.yaml", document({"name": "a", "env": [{"name": "A", "value": "1"}]}).encode()).policy()


def finding(state: str, **more: Any) -> ContainerReport:
    return ContainerReport("0a" * 32, "n/p/c", "n", "p", "containerd", 7, state, **more)


@pytest.mark.parametrize(
    ("states", "status"), [([], 0), ([IN_POLICY, EXEMPT], 0), ([DRIFTED, UNKNOWN], 1), ([IN_POLICY, UNKNOWN], 2)]
)
def test_exit_status(states: list[str], status: int) -> None:
    assert Audit(Round(POLICY), [finding(state) for state in states]).exit_status() == status


def test_the_table_has_what_is_not_in_policy_and_escapes_what_a_pod_wrote() -> None:
    hostile = Difference("r", "mount", "/x", "/x\n\x1b[2J is not", "because")
    found = [
        finding(DRIFTED, differences=(hostile,)),
        finding(UNKNOWN, because="slow"),
        finding(EXEMPT),
        finding(IN_POLICY),
    ]
    text = as_table(Audit(Round(POLICY), found))
    assert "\x1b" not in text
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["drifted", "unknown", "exempt"]
    last = "4 containers: 1 drifted, 1 unknown, 1 exempt, 1 in policy. Policy /p.yaml (Enforce)"
    assert text.splitlines()[-1] == last
    assert len(STATES) == 4
    many = tuple(Difference("r", "env", f"E{number}", f"env E{number} is missing", "because") for number in range(5))
    audit = Audit(Round(POLICY), [finding(DRIFTED, differences=many)])
    for most, shown in ((3, [True, True, True, False, False]), (None, [True] * 5)):
        text = as_table(audit, most) if most else as_table(audit)
        assert [f"E{number} " in text for number in range(5)] == shown
        assert ("and 2 more: reassert audit" in text) == bool(most)


@pytest.mark.parametrize(
    ("created", "decision", "more", "why"),
    [
        (50, None, {}, "before the install at 1970-01-01 00:01:40 UTC"),
        (150, None, {}, "before this policy, which came at 1970-01-01 00:03:20 UTC"),
        (250, Decision("older", Reserved({}, []), [], None, True), {}, "under an earlier policy"),
        (250, Decision(POLICY.fingerprint, Reserved({}, []), [], None, True), {}, "changed since it was created"),
        (310, None, {}, "while handler runc was not wired (1970-01-01 00:05:00 UTC to 1970-01-01 00:05:30 UTC)"),
        (250, None, {"containerd": ["nri", "hook"]}, "the NRI plugin was away"),
        (250, None, {"containerd": ["runtime"]}, "a runtime or handler that is not wired"),
        (250, None, {"cri-o": ["runtime"]}, "containerd is not wired"),
        (250, None, {"containerd": ["cdi"]}, "the adapter cdi cannot correct this"),
    ],
)
def test_why(created: float, decision: Decision | None, more: dict[str, list[str]], why: str) -> None:
    gaps = (("containerd", "runc", 300, 330), ("cri-o", "runc", 200, 0))
    known = Round(POLICY, compiled=200, installed={"containerd": 100}, adapters=more, gaps=gaps)
    running = Running("0a", 1, 1, "/b", "", created, identity=Identity("containerd", True))
    assert why in known.why(running, decision)


@pytest.mark.parametrize(
    ("wired", "engine"), [("k3s", "containerd"), ("rke2", "containerd"), ("crio", "cri-o"), ("docker", "docker")]
)
def test_why_knows_an_engine_by_both_of_its_names(wired: str, engine: str, machine: Machine) -> None:
    """`node install` calls it by the name of its package, a container's identity by that of its CRI."""
    part = {"adapters": ["runtime"], "runtimeClass": None, "files": {}, "references": [], "directories": []}
    record = {"parts": {wired: {**part, "units": [], "notes": {}}}}
    machine.file("/var/lib/reassert/node/installed.json", json.dumps(record))
    known = replace(read_round("/nowhere/p.yaml", "/nowhere/s"), policy=POLICY, installed={})
    running = Running("0a", 1, 1, "/b", "", 250, identity=Identity(engine, True))
    assert "a runtime or handler that is not wired" in known.why(running, None)


def own_children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_container_that_cannot_be_looked_at_holds_up_no_other() -> None:
    def work(number: int, taken: int) -> Any:
        assert taken == number
        if number == 3:
            time.sleep(3600)  # as a read of memory in a file system that does not answer
        if number == 5:
            os._exit(1)
        return {"number": number, "text": "x" * 200_000}

    before = own_children()
    found = dict(workers.each(9, int, work, seconds=5.0))
    assert sorted(found) == list(range(9))
    assert [number for number, result in found.items() if result is None] in ([3, 5], [5, 3])
    assert all(result["number"] == number for number, result in found.items() if result)
    while own_children() != before:  # a process that was killed may need longer to end than a round waits
        assert dict(workers.each(0, int, work)) == {}


def test_watch_repeats_and_a_user_without_root_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[float] = []

    def slept(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("hook.ops.audit.command.running", list)
    # Its own `time`: other threads of the tests sleep too.
    monkeypatch.setattr("hook.ops.audit.command.time", SimpleNamespace(sleep=slept, monotonic=time.monotonic))
    arguments = ["audit", "--policy", "/nowhere/p.yaml", "--store", "/nowhere/s"]
    assert main([*arguments, "--watch", "7", "-o", "json"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["counts"]["drifted"] for line in lines] == [0, 0]
    assert rounds == [7, 7]
    assert main([*arguments, "nobody"]) == 2
    assert "no running container has the id or name nobody" in capsys.readouterr().err
    assert main([*arguments, "--watch=-1"]) == 2
