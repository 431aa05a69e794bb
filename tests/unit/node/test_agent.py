"""What `install` puts on a node for the resident agent, and what `status` says of the last container starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Usage
from hook.node.agent import Agent, Starts, last_starts, starts_of, with_unchanged, without_event
from hook.node.artifacts.dispatchers import dispatcher_for, hook_file, pass_through, real_of, script
from hook.node.change.files import put
from hook.node.engines.base import CDI, HOOK, RUNTIME, Choice, Wiring
from hook.node.services import SERVICE, SOCKET, TIMERS, UNITS, add_agent, is_wanted, metrics_of, options_of
from unit.ownmachine import Machine
from unit.support import ROOT, policy

pytestmark = marks.promise("A start that the agent does not answer is cold, and events, `status` and metrics say why")

PROGRAM, FRONT = "/opt/reassert/reassert", "/opt/reassert/front"


def choice(
    *adapters: str,
    front: str = FRONT,
    wanted: bool = True,
    program: str = PROGRAM,
    metrics: dict[str, str] | None = None,
    log: dict[str, str] | None = None,
) -> Choice:
    in_force = policy({"name": "r", "env": [{"name": "A", "value": "1"}]})
    return Choice(adapters, None, program, in_force, agent=wanted, front=front, metrics=metrics, log=log)


def test_the_files_and_units_of_an_agent() -> None:
    wiring = Wiring(artifacts=[("/opt/reassert/reassert-runc", None)], units=["reassert-nri.service"])
    add_agent(wiring, choice(RUNTIME))
    assert wiring.units == [*UNITS, "reassert-nri.service", *TIMERS]
    assert [path for path, _ in wiring.artifacts] == [
        f"/etc/systemd/system/{SOCKET}",
        f"/etc/systemd/system/sockets.target.wants/{SOCKET}",
        f"/etc/systemd/system/{SERVICE}",
        f"/etc/systemd/system/multi-user.target.wants/{SERVICE}",
        *(f"/etc/systemd/system/{path}{name}" for name in TIMERS for path in ("", "timers.target.wants/")),
        *(f"/etc/systemd/system/{name.replace('.timer', '.service')}" for name in TIMERS),
        hook_file(),
        "/opt/reassert/reassert-runc",  # names the hook file, so it comes later and goes earlier
    ]
    text = dict(wiring.artifacts)[f"/etc/systemd/system/{SERVICE}"]
    assert text and f"\nExecStart={PROGRAM} agent $LOG $NRI $METRICS $OPTIONS\n" in text.content.decode()
    hook = dict(wiring.artifacts)[hook_file()]
    assert hook and hook.mode == 0o755 and hook.content.startswith(b"#!/opt/reassert/front\n")
    assert is_wanted(wiring.notes)


def test_a_package_has_the_units_and_they_are_only_enabled(machine: Machine) -> None:
    for unit in (*UNITS, *TIMERS, *(timer.replace(".timer", ".service") for timer in TIMERS)):
        machine.file(f"/usr/lib/systemd/system/{unit}")
    wiring = Wiring()
    add_agent(wiring, choice(RUNTIME, program="/usr/lib/reassert/reassert", front="/bin/true"))
    links = [(path, state) for path, state in wiring.artifacts if path.startswith("/etc/systemd")]
    assert [os.path.basename(os.path.dirname(path)) for path, _ in links] == [
        "sockets.target.wants",
        "multi-user.target.wants",
        *["timers.target.wants"] * len(TIMERS),
    ]
    assert [state and state.content.decode() for _, state in links] == [
        f"/usr/lib/systemd/system/{unit}" for unit in (*UNITS, *TIMERS)
    ]


@pytest.mark.parametrize(
    ("adapters", "front", "wanted"), [((RUNTIME,), "", True), ((RUNTIME, HOOK), "", False), ((CDI,), FRONT, True)]
)
def test_no_agent(adapters: tuple[str, ...], front: str, wanted: bool) -> None:
    wiring = Wiring()
    add_agent(wiring, choice(*adapters, front=front, wanted=wanted))
    assert (wiring.units, wiring.artifacts, is_wanted(wiring.notes)) == ([], [], wanted)


DROP_IN = f"/etc/systemd/system/{SERVICE}.d/metrics.conf"


def test_metrics_are_a_drop_in_for_every_kind_of_unit() -> None:
    wiring = Wiring()
    add_agent(wiring, choice(RUNTIME, metrics={"metrics": "127.0.0.1:9464", "textfile": "/run/t"}))
    path, state = wiring.artifacts[0]
    assert path == DROP_IN
    assert state and state.content.decode().endswith(
        '\n[Service]\nEnvironment="METRICS=--metrics 127.0.0.1:9464 --textfile /run/t"\n'
    )
    assert wiring.notes == {"metrics": {"metrics": "127.0.0.1:9464", "textfile": "/run/t"}}
    wiring = Wiring()
    add_agent(wiring, choice(RUNTIME, front="", metrics={"metrics": "127.0.0.1:9464"}))
    assert (wiring.artifacts, wiring.remarks) == ([], ["no metrics are served, because there is no agent"])


def test_the_services_log_as_an_install_says() -> None:
    """In a drop-in of each service, which a package's unit takes too. Without the options there is none."""
    wiring = Wiring()
    add_agent(wiring, choice(RUNTIME, log={"log-format": "json", "log-level": "debug"}))
    found = {path: state.content.decode() for path, state in wiring.artifacts if path.endswith("/log.conf") and state}
    services = (SERVICE, *(name.replace(".timer", ".service") for name in TIMERS))
    assert list(found) == [f"/etc/systemd/system/{name}.d/log.conf" for name in services]
    line = 'Environment="LOG=--log-format=logfmt --log-format=json --log-level=debug"\n'
    assert {text.endswith(f"\n[Service]\n{line}") for text in found.values()} == {True}
    assert wiring.notes == {"log": {"log-format": "json", "log-level": "debug"}}
    given: dict[str, str | None] = {"log-format": None, "log-level": "error"}
    assert options_of("log", given, wiring.notes, []) == {"log-format": "json", "log-level": "error"}
    assert options_of("log", {"log-format": "", "log-level": ""}, wiring.notes, []) == {}
    assert options_of("log", {"log-format": None, "log-level": None}, {}, [{}, wiring.notes]) == wiring.notes["log"]


def test_each_service_passes_on_its_options_for_the_log() -> None:
    for unit in (ROOT / "packaging" / "systemd").glob("*.service"):
        lines = unit.read_text().splitlines()
        started = [line for line in lines if line.startswith(("ExecStart=", "ExecStopPost="))]
        assert started and all(" $LOG" in line for line in started), unit
        assert 'Environment="LOG=--log-format=logfmt"' in lines, unit


def test_metrics_stay_as_they_are_until_an_install_says_otherwise(tmp_path: Path) -> None:
    nothing: dict[str, str | None] = {"metrics": None, "textfile": None}
    address, notes = "[::1]:9464", {"metrics": {"metrics": "[::1]:9464"}}
    assert metrics_of(nothing, {}, []) is None
    assert metrics_of({"metrics": None, "textfile": ""}, {}, []) is None
    assert metrics_of({**nothing, "metrics": address}, {}, []) == {"metrics": address}
    assert metrics_of(nothing, notes, []) == metrics_of(nothing, {}, [{}, notes]) == {"metrics": address}
    both = {"metrics": address, "textfile": str(tmp_path)}
    assert metrics_of({**nothing, "textfile": str(tmp_path)}, notes, []) == both
    assert metrics_of({**nothing, "metrics": ""}, notes, []) == {}, "the drop-in stays, so that the agent is restarted"


@pytest.mark.parametrize(
    "given",
    [
        {"metrics": "0.0.0.0:9464"},
        {"metrics": "9464"},
        {"metrics": "127.0.0.1:65536"},
        {"metrics": "unix:/run/a b"},
        {"metrics": 'unix:/run/"\n[Service]'},
        {"metrics": "unix:/run/%n"},
        {"textfile": "/no/such/directory"},
        {"textfile": "."},
    ],
)
def test_metrics_that_a_unit_cannot_take_are_refused(given: dict[str, str | None]) -> None:
    with pytest.raises(Usage):
        metrics_of(given, {}, [])


def test_a_dispatcher_names_front_before_it_is_there(machine: Machine) -> None:
    path, state = dispatcher_for("/bin/true", PROGRAM, {}, front=FRONT)
    Path(path).parent.mkdir()
    lines = state.content.decode().splitlines()
    assert lines[0] == f"#!{FRONT}"
    assert f"# hook: {hook_file()}" in lines
    assert "# socket: /run/reassert/agent/agent.sock" in lines
    put(path, state)
    assert real_of(path) == "/bin/true"
    assert script(path)


@pytest.mark.parametrize("text", ["cold", "gone"])
def test_an_argument_of_a_front_that_read_the_file_before_reaches_no_runtime(machine: Machine, text: str) -> None:
    """It goes cold by executing sh with the file, in whose place there may be another one now."""
    real = machine.program("real", 'echo "$@"')
    path, state = dispatcher_for(str(real), PROGRAM, {})
    Path(path).parent.mkdir()
    put(path, state if text == "cold" else pass_through(str(real)))
    for arguments in (["--cold=absent", "state", "c"], ["state", "c"]):
        assert subprocess.check_output([path, *arguments], text=True) == "state c\n"
    assert subprocess.check_output([path], text=True) == "\n"


def event(start: str, cold: str = "", container: str = "c", adapter: str = "runtime") -> str:
    fields = {"event": "container.edited", "id": container, "adapter": adapter, "start": start}
    return json.dumps({**fields, "cold": cold} if cold else fields)


def test_the_last_starts_are_read_from_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert last_starts(str(log)) == []
    lines = [event("cold", "policy"), "no JSON", "[1]", event("warm", adapter="nri"), json.dumps({"id": "older"})]
    log.write_text("\n".join([*lines, event("warm", container="last")]) + "\n")
    assert [found["id"] for found in last_starts(str(log))] == ["last", "c"]
    assert [found["id"] for found in last_starts(str(log), 120)] == ["last"]


def test_starts_are_counted_by_the_runtime_that_an_engine_calls() -> None:
    found = [json.loads(event("warm", container="a")), json.loads(event("cold", "timeout", "b"))]
    found += [json.loads(event("cold", "policy", "unknown"))]
    called = {"a": "/usr/sbin/runc", "b": "/usr/bin/crun", "unknown": ""}.__getitem__
    runc, crun = starts_of("/usr/sbin/runc", found, called), starts_of("/usr/bin/crun", found, called)
    assert (runc.as_text(), crun.as_text()) == ("1 warm", "1 cold (timeout 1)"), "an unknown one is of neither"
    assert crun.as_dict() == {"warm": 0, "cold": {"timeout": 1}}
    assert starts_of("/usr/bin/crun", found * 100, called).count() == 20
    assert Starts(cold=Counter({"": 2})).as_text() == "2 cold"
    assert Starts().as_text() == "-"


def test_starts_without_an_event_count_for_their_real_runtime() -> None:
    """The agent names the real runtime; of a hook's containers only the id."""
    first, second = "2025-11-22T08:26:40.000000Z", "2025-11-22T08:26:42.000000Z"
    log = [{**json.loads(event("cold", "policy", "b")), "timestamp": first}]
    last = [
        {"runtime": "/usr/sbin/runc", "exec": False, "starts": [{"time": 1763800002.0, "start": "warm"}] * 20},
        {"runtime": "", "exec": False, "starts": [{"time": 1763800001.0, "start": "warm", "id": "b"}]},
        {"runtime": "/usr/bin/crun", "exec": True, "starts": [{"time": 9.0, "start": "cold", "cold": "timeout"}]},
    ]
    called = {"b": "/usr/bin/crun"}.__getitem__
    both = with_unchanged(log, last)
    assert [each["timestamp"] for each in both if "event" in each or "runtime" in each][::21] == [second, first]
    assert starts_of("/usr/sbin/runc", both, called).as_text() == "20 warm"
    assert starts_of("/usr/bin/crun", both, called).as_text() == "1 warm, 1 cold (policy 1)"
    execs = without_event(last, True)
    assert starts_of("/usr/bin/crun", execs, called).as_text() == "1 cold (timeout 1)"
    assert starts_of("/usr/sbin/runc", execs, called).as_text() == "-"


def test_an_agent_of_another_version_is_a_problem() -> None:
    other = Agent("", "active", "active", "reassert 0.1.0", "reassert 0.2.0", False, 17 << 20)
    assert other.as_text() == "socket active, service active, reassert 0.1.0, 17.0 MiB"
    assert [each.text.partition(",")[0] for each in other.findings()] == ["the agent is reassert 0.1.0"]
    assert not list(Agent("--no-agent").findings())
    assert Agent("--no-agent").as_text() == "none, every container start is cold: --no-agent"


def test_an_agent_that_does_not_answer_or_whose_plugin_is_not_connected_is_a_problem() -> None:
    fine = Agent("", "active", "active", "reassert 0.3.0", "reassert 0.3.0", True, 17 << 20)
    assert not list(fine.findings())
    assert fine.as_text().endswith("17.0 MiB")
    with_plugin = replace(fine, plugin=True)
    assert not list(with_plugin.findings())
    assert with_plugin.as_text().endswith("NRI plugin connected")
    alone = replace(fine, plugin=False)
    assert [each.text for each in alone.findings()] == ["no runtime is connected to the agent's NRI plugin"]
    assert alone.as_dict()["nriConnected"] is False
    silent = replace(fine, silence="no agent answers: timed out")
    [finding] = silent.findings()
    assert finding.text == "the agent does not answer, so starts are cold: no agent answers: timed out"
    assert finding.remedy == "systemctl restart reassert-agent.service"
    assert silent.as_dict()["answers"] is False


def test_an_agent_that_the_kernel_slows_down_is_a_problem() -> None:
    fine = Agent("", "active", "active", "reassert 0.4.0", "reassert 0.4.0", True, 17 << 20, (40 << 20, 256 << 20))
    assert fine.as_text().endswith("17.0 MiB (cgroup 40 of 256 MiB)")
    assert (list(fine.findings()), fine.as_dict()["cgroupBytes"]) == ([], 40 << 20)
    full = replace(fine, charged=(256 << 20, 256 << 20))
    assert [each.text.partition(",")[0] for each in full.findings()] == ["the agent's cgroup has 256 MiB"]
