"""What a round says: its exit status, its table, its reasons; and a container that cannot be looked at in time."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.cli import main
from hook.compile.compiler import compile_bytes
from hook.core.base.finding import ERROR, WARNING
from hook.core.container.identity import Identity
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import Decision
from hook.inside import workers
from hook.inside.containers import Running
from hook.node.accepted import Accepted
from hook.node.kept import Gap
from hook.ops.audit.audit import DRIFTED, EXEMPT, IN_POLICY, STATES, UNKNOWN, Audit, ContainerReport, Round, read_round
from hook.ops.audit.command import as_table
from hook.ops.audit.judge import Difference
from unit.ownmachine import Machine
from unit.support import document

pytestmark = marks.promise(
    "`audit` says of every running container, of each engine, whether the policy is in force in it and why "
    "not; no container hides"
)

POLICY = compile_bytes("/p.yaml", document({"name": "a", "env": [{"name": "A", "value": "1"}]}).encode()).policy()


def finding(state: str, **more: Any) -> ContainerReport:
    return ContainerReport("0a" * 32, "n/p/c", "n", "p", "containerd", 7, state, **more)


@pytest.mark.parametrize(
    ("states", "severities", "status"),
    [
        ([], (), 0),
        ([IN_POLICY, EXEMPT], (), 0),
        ([DRIFTED, UNKNOWN], (WARNING, ERROR, WARNING), 1),
        ([DRIFTED], (WARNING, WARNING), 4),
        ([IN_POLICY, UNKNOWN], (), 4),
    ],
)
def test_exit_status(states: list[str], severities: tuple[str, ...], status: int) -> None:
    """1: a container started without reassert. 4: it is from before, or changed since, or could not be looked at."""
    told = tuple(Difference("r", "env", "A", "env A differs", "because", each) for each in severities)
    found = [finding(state, differences=told if state == DRIFTED else ()) for state in states]
    assert Audit(Round(POLICY), found).exit_status() == status


def test_sandboxes_are_one_row() -> None:
    """A node has as many as pods. An exempt container of another kind keeps its own row."""
    sandbox = finding(EXEMPT, because="container type sandbox is excluded", line="/p.yaml:9")
    text = as_table(Audit(Round(POLICY), [sandbox, sandbox, finding(EXEMPT, because="namespace a is excluded")]))
    rows = text.splitlines()[3:5]
    assert "namespace a is excluded" in rows[0]
    assert "2 sandboxes of pods" in rows[1]
    assert rows[1].split()[-1] == "/p.yaml:9"
    assert text.splitlines()[0].startswith("3 containers: 3 exempt.")


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
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["drifted", "unknown", "exempt"]
    first = "4 containers: 1 drifted, 1 unknown, 1 exempt, 1 in policy. Policy /p.yaml (Enforce)"
    assert text.splitlines()[0] == first
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
        (50, None, {}, ("before the install at 1970-01-01 00:01:40 UTC", WARNING)),
        (150, None, {}, ("before this policy, which came at 1970-01-01 00:03:20 UTC", WARNING)),
        (
            250,
            Decision("older", env=Reserved({}, []), mounts=[], draft=None, devices=True),
            {},
            ("under an earlier policy", WARNING),
        ),
        (
            250,
            Decision(POLICY.fingerprint, env=Reserved({}, []), mounts=[], draft=None, devices=True),
            {},
            ("changed since", WARNING),
        ),
        (310, None, {}, ("while handler runc was not wired (1970-01-01 00:05:00 UTC to 1970-01-01 00:05:30", ERROR)),
        (250, None, {"containerd": ["nri", "hook"]}, ("the NRI plugin was away", ERROR)),
        (250, None, {"containerd": ["runtime"]}, ("a runtime or handler that is not wired", ERROR)),
        (250, None, {"cri-o": ["runtime"]}, ("containerd is not wired", ERROR)),
        (250, None, {"containerd": ["cdi"]}, ("the adapter cdi cannot correct this", ERROR)),
    ],
)
def test_why(created: float, decision: Decision | None, more: dict[str, list[str]], why: tuple[str, str]) -> None:
    gaps = (Gap("containerd", "runc", 300, 330), Gap("cri-o", "runc", 200, 0))
    known = Round(POLICY, compiled=200, installed={"containerd": 100}, adapters=more, gaps=gaps)
    running = Running("0a", 1, 1, "/b", "", created, identity=Identity("containerd", True))
    found = known.why(running, decision)
    assert (why[0] in found.text, found.severity) == (True, why[1])


@pytest.mark.parametrize(
    ("adapters", "state", "accepted", "severity"),
    [
        (["runtime"], "/run/docker/runtime-runc/moby/0a", Accepted(), ERROR),
        (["runtime"], "/run/docker/runtime-runc/moby/0a", Accepted(("handler/runc",)), WARNING),
        (["runtime"], "/run/docker/runtime-other/moby/0a", Accepted(("handler/runc",)), ERROR),
        (["runtime"], "/run/runc/0a", Accepted(("handler/*",)), ERROR),
        (["runtime"], "/run/runc/0a", Accepted((), "guarded"), WARNING),
        ([], "/run/docker/runtime-runc/moby/0a", Accepted(("engine/docker",)), WARNING),
        ([], "/run/docker/runtime-runc/moby/0a", Accepted(("handler/runc",)), ERROR),
    ],
)
def test_a_container_past_reassert_is_an_error_unless_its_way_was_accepted_by_name(
    adapters: list[str], state: str, accepted: Accepted, severity: str
) -> None:
    known = Round(POLICY, adapters={"docker": adapters}, accepted={"docker" if adapters else "": accepted})
    running = Running("0a", 1, 1, "/b", state, 250, identity=Identity("docker", False))
    assert known.why(running, None).severity == severity


@pytest.mark.parametrize(
    ("wired", "engine"), [("k3s", "containerd"), ("rke2", "containerd"), ("crio", "cri-o"), ("docker", "docker")]
)
def test_why_knows_an_engine_by_both_of_its_names(wired: str, engine: str, machine: Machine) -> None:
    """`install` calls it by the name of its package, a container's identity by that of its CRI."""
    part = {"adapters": ["runtime"], "runtimeClass": None, "files": {}, "references": [], "directories": []}
    record = {"parts": {wired: {**part, "units": [], "notes": {}}}}
    machine.file("/var/lib/reassert/node/installed.json", json.dumps(record))
    known = replace(read_round("/nowhere/p.yaml", "/nowhere/s"), policy=POLICY, installed={})
    running = Running("0a", 1, 1, "/b", "", 250, identity=Identity(engine, True))
    assert "a runtime or handler that is not wired" in known.why(running, None).text


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


def test_a_container_that_does_not_run_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is not 1."""
    monkeypatch.setattr("hook.ops.audit.command.running", lambda traces: [])
    assert main(["audit", "--policy", "/nowhere/p.yaml", "--store", "/nowhere/s", "nobody"]) == 2
    assert "no running container has the id or name nobody" in capsys.readouterr().err
