"""The resident agent as `reassert install` sets it up: units, front, dispatchers, under a real systemd."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.paths import REASSERT

from e2e.cri.client import Pod, wait_for
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, RUNC, containerd_config
from e2e.node.wired import (
    FILES,
    KATA,
    NVIDIA,
    PACKAGED,
    POLICY,
    POLICY_FILE,
    PROGRAM,
    Wirable,
    assert_put_back,
    package,
    without_package,
)

pytestmark = [
    marks.promise(
        "One event says which policy took force, in place of which, with any adapter, and another one why an edit"
        " did not"
    ),
    marks.promise(
        "Containers start and keep running while the program, the agent or the plugin is replaced", about="Node"
    ),
]

SOCKET, SERVICE, PLUGIN = "reassert-agent.socket", "reassert-agent.service", "reassert-nri.service"
UNITS = (SOCKET, SERVICE)
COLD = "/run/cold"
"""A line for each start that was cold (`watched`)."""

HANDLERS = (RUNC, NVIDIA, KATA)
"""crun's starts are warm in test_containerd.py, where verify proves it."""

LOOPS = ("/loop/1", "/loop/2")
"""Bundles of containers that are created again and again (`STARTS`)."""

LOOPED = """#!/bin/sh
# In the place of a runtime: of a container of a loop it looks, after a while, whether it could execute the hooks.
case " $* " in
*" --bundle /loop/"*)
  sleep 0.3
  cd "$3"
  hook=$(grep -o '"/[^"]*/reassert[^/"]*"' config.json | head -n 1 | tr -d '"')
  [ -z "$hook" ] || [ -x "$hook" ] || exit 1
  grep -q NVIDIA_VISIBLE_DEVICES=void config.json || [ ! -e /loop/wired ] || exit 1
  exit 0 ;;
esac
exec runc "$@"
"""
BUNDLE = """{"ociVersion": "1.0.2", "root": {"path": "r"}, "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}"""
STATE = '{"ociVersion": "1.0.2", "id": "x", "bundle": "/loop/1", "pid": 0}'
STARTS = """
say() {
  if "$@" < /loop/state.json; then echo started; else echo failed; fi
}
loop() {
  while [ ! -e /loop/stop ]; do
    cp /loop/config.json "$1/config.json"
    say "$2" create --bundle "$1" c
    [ ! -e /loop/wired ] || say /opt/reassert/reassert hook poststop
    [ ! -e /loop/wired ] || say /opt/reassert/reassert-hook poststop
  done >> "$1/said" 2>&1
}
for bundle in /loop/1 /loop/2; do
  mkdir -p $bundle/r
  loop $bundle /opt/reassert/reassert-nvidia-container-runtime &
done
wait
"""


def twin(directory: Path) -> Path:
    """Another version, whose files have other paths: what begins as one and goes on as the other finds nothing."""
    shutil.copytree(REASSERT.parent, directory, symlinks=True)
    (directory / "lib").rename(directory / "bil")
    executable = directory / REASSERT.name
    said, other = b"pyi-contents-directory lib", b"pyi-contents-directory bil"
    assert said in executable.read_bytes()
    executable.write_bytes(executable.read_bytes().replace(said, other))
    return executable


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    files = {**FILES, "/usr/local/bin/nvidia-container-runtime": LOOPED}
    files |= {"/loop/config.json": BUNDLE, "/loop/state.json": STATE}
    node = module_boot("trixie", config=containerd_config(FORMATS["trixie"], HANDLERS), files=files)
    node.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
    package(node)
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """After every test reassert is taken out, and nothing is different from before."""
    wirable = Wirable(booted, booted.snapshot(), PACKAGED)
    yield wirable
    wirable.take_out()
    booted.path(POLICY_FILE).write_text(POLICY)
    assert wirable.changes() == []
    assert not booted.path("/run/reassert/agent").exists()
    assert [booted.property(unit, "LoadState") for unit in (*UNITS, PLUGIN)] == ["not-found"] * 3


@pytest.fixture
def copied(node: Wirable) -> Iterator[Wirable]:
    """With a program that install puts in place, and that goes."""
    with without_package(node) as wirable:
        yield wirable


@contextmanager
def watched(node: Wirable) -> Iterator[Callable[[], list[str]]]:
    """What gives the cold starts so far: the script of a dispatcher or a hook sources this file then."""
    start = node.booted.path("/opt/reassert/start")
    text = start.read_text()
    start.write_text(f'{text}echo "$0" "$@" >> {COLD}\n')
    node.booted.path(COLD).write_text("")
    yield lambda: node.booted.path(COLD).read_text().splitlines()
    start.write_text(text)


def is_active(node: Wirable) -> bool:
    """Whether both units run."""
    return [node.booted.property(unit, "ActiveState") for unit in UNITS] == ["active", "active"]


def told(node: Wirable, unit: str) -> dict[str, str]:
    """journald's priority of each line of the operation log of a unit, and of each other line."""
    node.booted.run("journalctl", "--sync")
    said = node.booted.run("journalctl", "--no-pager", "--output=json", f"--unit={unit}").stdout.splitlines()
    found = {}
    for record in map(json.loads, said):
        line = re.match(r"timestamp=\S+Z level=\w+ event=([a-z.-]+) ", record["MESSAGE"])
        found[line[1] if line else record["MESSAGE"]] = record["PRIORITY"]
    return found


@marks.promise(
    "The operation log says why a start is cold and who asked, and nothing of an innocent warm start; "
    "repeated lines are counted"
)
def test_installed_by_default_it_answers_every_start(copied: Wirable) -> None:
    node = copied
    node.install()
    assert is_active(node)
    assert node.status()[0] == 0
    shown = json.loads(node.node("status", "--engine", "containerd", "-o", "json").stdout)["agent"]
    assert (shown["socket"], shown["service"], shown["current"]) == ("active", "active", True)
    assert shown["answered"]["seconds"] > 0
    assert told(node, SERVICE)["agent.started"] == "6"
    node.booted.run("systemctl", "start", "reassert-status.service")
    looks = told(node, "reassert-status.service")
    assert looks["wiring.looked"] == "5"
    assert looks.keys() <= {"wiring.looked", "audit.ended", "container.differs"}, "and nothing of systemd"
    assert shown["version"] == shown["installedVersion"] == node.booted.run("reassert", "--version").stdout.strip()
    assert 0 < shown["memoryBytes"] < 64 << 20
    checked = node.booted.run("systemd-analyze", "verify", *(f"/etc/systemd/system/{unit}" for unit in UNITS))
    assert checked.stdout + checked.stderr == ""
    pod = node.hostile_pod("runc")
    with watched(node) as cold:
        assert_put_back(pod)
        assert cold() == []

        was = node.booted.property(SERVICE, "MainPID")
        node.booted.run("systemctl", "kill", "--signal=KILL", SERVICE)
        assert_put_back(pod, name="killed")
        wait_for(lambda: is_active(node) and node.booted.property(SERVICE, "MainPID") != was, "a restart")
        before = cold()
        assert_put_back(pod, name="again")
        assert cold() == before
        pod.remove()

        done = node.node("verify", "--engine", "containerd", "-o", "json", "--except", "handler/kata")
        ways = {handler["name"]: handler["starts"] for handler in json.loads(done.stdout)["handlers"]}
        both = {"warm": "protected", "cold": "protected"}
        assert ways == {"kata": None, "nvidia": both, "runc": both}
        assert len(cold()) > len(before)

    node.booted.run("systemctl", "kill", "--signal=STOP", SERVICE)
    hung = node.node("status", "--engine", "containerd", "-o", "json", check=False)
    problems = json.loads(hung.stdout)["problems"]
    assert (hung.returncode, [p for p in problems if "the agent does not answer" in p]) == (1, problems)
    node.booted.run("systemctl", "kill", "--signal=KILL", SERVICE)
    node.booted.run("systemctl", "stop", *UNITS)
    done = node.node("verify", "--engine", "containerd", "-o", "json", "--except", "handler/kata", check=False)
    found = json.loads(done.stdout)
    missing = {each["part"] for each in found["notTried"] if not each["accepted"]}
    assert (done.returncode, missing) == (1, {"warm/nvidia", "warm/runc"})


def test_metrics_and_the_journal_tell_of_warm_and_cold_starts(node: Wirable) -> None:
    """As `install --metrics --textfile` sets it up, and a policy that sends events to systemd's journal."""
    booted = node.booted
    booted.path(POLICY_FILE).write_text(POLICY.replace("spec:\n", "spec:\n  eventLog: {journal: true}\n"))
    booted.path("/run/textfile").mkdir(exist_ok=True)
    node.install("--no-probe", "--metrics", "127.0.0.1:9464", "--textfile", "/run/textfile")
    assert node.status()[0] == 0

    def scraped() -> str:
        url = "http://127.0.0.1:9464/metrics"
        return booted.run("busybox", "wget", "-q", "-O", "-", url, check=False).stdout

    def counted() -> dict[str, str]:
        lines = (line.rpartition(" ") for line in scraped().splitlines())
        return {name: value for name, _, value in lines if name.startswith("reassert_containers_total{")}

    start = 'reassert_containers_total{adapter="runtime",cold="%s",outcome="adjusted",start="%s"}'
    pod = node.hostile_pod("runc")
    assert_put_back(pod, name="warm")
    assert counted() == {start % ("", "warm"): "2.0"}, "the pod's sandbox and its container"
    booted.run("systemctl", "stop", *UNITS)
    assert_put_back(pod, name="absent")
    booted.run("systemctl", "start", SOCKET, SERVICE)
    node.node("verify", "--engine", "containerd", "--except", "handler/kata")
    pod.remove()
    wait_for(counted, "the start without an agent", scraped)
    node.node("status", "--record")  # as reassert-status.timer does
    wait_for(lambda: "\nreassert_drifted_containers 0.0" in scraped(), "a look at running containers", scraped)
    text = scraped()
    assert 'reassert_verify_exit_status{engine="containerd"} 0.0' in text
    assert 'mode="Enforce"' in text
    assert 'reassert_probes_total{adapter="runtime",outcome="adjusted"}' in text
    assert counted() == {start % ("absent", "cold"): "1.0"}, "what came after the other agent's last look; no probe"
    wait_for(lambda: "absent" in booted.path("/run/textfile/reassert.prom").read_text(), "the textfile")

    assert booted.run("journalctl", "-o", "cat", "REASSERT_EVENT=agent.ended").stdout.startswith("agent.ended answered")
    found = booted.run("journalctl", "-o", "json", "SYSLOG_IDENTIFIER=reassert", "REASSERT_EVENT=container.edited")
    entries = [json.loads(line) for line in found.stdout.splitlines()]
    mine = [entry for entry in entries if "REASSERT_PROBE" not in entry and "REASSERT_CONTAINER" in entry]
    assert [entry["REASSERT_START"] for entry in mine] == ["warm", "cold"]
    assert mine[0]["REASSERT_RULE"] == ["company-ca", "gpu"]
    assert json.loads(mine[1]["REASSERT_JSON"])["cold"] == "absent"
    shown = booted.run(node.program, "events", "-o", "json", "--event", "container.edited").stdout
    logged = [json.loads(line) for line in shown.splitlines()]
    node_name = booted.run("uname", "-n").stdout.strip()
    assert [line for line in logged if line["container"].get("container") in ("warm", "absent")] == [
        {**json.loads(entry["REASSERT_JSON"]), "node": node_name} for entry in mine
    ]
    node.install("--no-probe", "--metrics", "", "--textfile", "")
    wait_for(lambda: not scraped(), "an agent without metrics", scraped)


def test_status_tells_of_starts_that_leave_no_event(node: Wirable) -> None:
    """Of containers that need nothing, and execs, that the agent answered."""
    booted = node.booted
    booted.path("/var/log/reassert/events.jsonl").unlink(missing_ok=True)  # of other tests
    node.install("--no-probe")
    booted.wait_for_cri()
    pod = booted.cri.run_pod("runc", namespace="kube-system")
    container = pod.run(name="quiet")
    container.exec_environ()

    def told() -> dict[str, dict[str, dict[str, object]]]:
        shown = json.loads(node.node("status", "--engine", "containerd", "-o", "json", check=False).stdout)
        return {handler["name"]: handler for handler in shown["engines"]["containerd"]["handlers"]}

    runc = told()["runc"]
    assert (runc["starts"], runc["execs"]) == ({"warm": 2, "cold": {}}, {"warm": 1, "cold": {}})
    assert told()["nvidia"]["execs"] == {"warm": 0, "cold": {}}
    pod.remove()


def tells_of_a_policy(node: Wirable, pod: Pod, name: str) -> None:
    """Whoever answers the first start after a change, one event says which policy took force, in place of which."""

    def loaded() -> list[dict[str, Any]]:
        return [event for event in node.events() if event["event"] == "policy.loaded"]

    before, path = loaded(), node.booted.path(POLICY_FILE)
    text = f"{POLICY}# {name}\n"
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)
    assert_put_back(pod, name=name)
    wait_for(lambda: len(loaded()) > len(before), "the event")
    [*earlier, event] = loaded()
    assert (earlier, event["mode"]) == (before, "Enforce")
    assert event["before"] == before[-1]["policy"]["sha256"]
    assert event["policy"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_without_an_agent_there_is_nothing_of_it(node: Wirable) -> None:
    said = node.install("--no-agent", "--no-probe").stdout
    assert "Note: every container start is cold: --no-agent\n" in said
    assert [node.booted.property(unit, "LoadState") for unit in UNITS] == ["not-found", "not-found"]
    assert node.booted.path("/opt/reassert/reassert-runc").read_text().startswith("#!/bin/sh\n")
    assert not node.booted.path("/opt/reassert/reassert-hook").exists()
    pod = node.hostile_pod("runc")
    assert_put_back(pod, name="c4")
    tells_of_a_policy(node, pod, "cold")
    assert "agent      none, every container start is cold: --no-agent" in node.node("status").stdout.splitlines()
    # as before, until it is said anew; neither restarts containerd
    pid = node.pid()
    assert "no file was changed" in node.install("--no-probe").stdout
    node.install("--agent", "--no-probe")
    assert is_active(node)
    assert_put_back(pod, name="c5")
    tells_of_a_policy(node, pod, "warm")
    changes = [event["event"] for event in node.events() if event["event"].startswith("node.")]
    assert changes[-2:] == ["node.install", "node.install"]
    node.install("--no-agent", "--no-probe")
    assert [node.booted.property(unit, "LoadState") for unit in UNITS] == ["not-found", "not-found"]
    assert_put_back(pod, name="c6")
    assert node.pid() == pid
    pod.remove()


def test_an_install_sets_level_and_format_of_the_services_log_until_they_are_unset(node: Wirable) -> None:
    def said() -> list[str]:
        """What the service says when it starts, with a policy file that is not in force."""
        node.booted.run("journalctl", "--sync")
        before = len(node.booted.journal(SERVICE))
        node.booted.run("systemctl", "restart", SERVICE)
        node.booted.run("journalctl", "--sync")
        return [line for line in node.booted.journal(SERVICE)[before:] if "event" in line]

    node.install("--no-probe", "--service-log-format", "json", "--service-log-level", "warning")
    node.booted.path(POLICY_FILE).write_text(POLICY.replace("rules", "rulez"))
    wait_for(lambda: any('"policy.held"' in line for line in said()), "a line about the policy")
    assert {json.loads(line)["level"] for line in said()} == {"warning"}
    node.install("--no-probe", "--service-log-format", "", "--service-log-level", "")
    assert any(re.match(r"timestamp=\S+Z level=info event=agent.started ", line) for line in said())


def test_containers_are_created_while_it_comes_changes_and_goes(copied: Wirable) -> None:
    """Upgrades, a failed one, an uninstall: none of the starts fails, none is unadjusted while it is wired.

    A start is wholly the old version's or the new one's. An upgrade changes nothing else, and restarts no engine.
    """
    node = copied
    booted = node.booted
    other = str(twin(booted.directory / "twin"))
    node.install("--no-probe")
    pod = node.hostile_pod("nvidia")
    pod.run(name="user")  # for which the dispatcher stays as a pass-through
    booted.path("/loop/wired").touch()
    looping = subprocess.Popen(booted.command("sh", "-euc", STARTS))

    def started() -> list[int]:
        return [booted.path(f"{bundle}/said").read_text().count("started") for bundle in LOOPS]

    def some_more() -> None:
        before = started()
        wait_for(lambda: all(now > was for now, was in zip(started(), before, strict=True)), "more starts")

    try:
        wait_for(lambda: all(booted.path(f"{bundle}/said").exists() for bundle in LOOPS), "the first starts")
        some_more()
        for program in (other, PROGRAM):
            was, listening = (
                booted.property(SERVICE, "MainPID"),
                booted.property(SOCKET, "ActiveEnterTimestamp"),
            )
            wired, engine = booted.snapshot(("/etc", "/usr/local")), node.pid()
            upgraded = booted.run(program, "install", "--engine", "containerd", "--no-probe").stdout
            assert upgraded.count("writing the program in /opt/reassert\n") == 1
            assert (booted.snapshot(("/etc", "/usr/local")), node.pid()) == (wired, engine)
            some_more()
            there = {*booted.run("ls", "/opt/reassert").stdout.split()} - {"front", "reassert", "start"}
            programs = [name for name in there if not name.startswith("reassert-")]
            assert len(programs) == 1, "one program, beside the dispatchers"
            assert booted.property(SERVICE, "MainPID") not in ("0", was)
            assert booted.property(SOCKET, "ActiveEnterTimestamp") == listening
            assert_runs_what_is_installed(node)
        broken = booted.path(f"/run/systemd/system/{SERVICE}.d/broken.conf")
        broken.parent.mkdir(exist_ok=True)
        broken.write_text("[Service]\nExecStartPre=/bin/false\n")
        failed = booted.run(other, "install", "--engine", "containerd", "--no-probe", check=False)
        assert failed.stderr.startswith(f"reassert: systemctl restart {SERVICE} failed")
        broken.unlink()
        booted.run("systemctl", "daemon-reload")
        wait_for(lambda: is_active(node), "the agent of before", booted.trouble)
        assert_runs_what_is_installed(node)
        some_more()
        booted.path("/loop/wired").unlink()
        said = node.node("uninstall").stdout
        assert re.search("still calls? /opt/reassert/reassert-nvidia-container-runtime", said)
        some_more()
    finally:
        booted.path("/loop/stop").touch()
        looping.wait(600)
    said = "".join(booted.path(f"{bundle}/said").read_text() for bundle in LOOPS)
    assert set(said.splitlines()) == {"started"}
    pod.remove()
    node.node("uninstall")


def test_one_process_answers_and_runs_the_plugin(copied: Wirable) -> None:
    """Also after a service of the plugin's own, as earlier versions installed it, and never are there two plugins."""
    node = copied
    booted = node.booted
    node.install("--adapter", "runtime,nri", "--no-probe")
    assert resident(node) == [f"{SERVICE} agent --log-format=logfmt --nri"]
    assert booted.property(SERVICE, "StatusText") == "listening, connected to NRI"
    shown = json.loads(node.node("status", "-o", "json").stdout)
    assert (shown["agent"]["answers"], shown["agent"]["nriConnected"], shown["problems"]) == (True, True, [])
    checked = booted.run("systemd-analyze", "verify", f"/etc/systemd/system/{SERVICE}")
    assert checked.stdout + checked.stderr == ""
    pod = node.hostile_pod("runc")
    with watched(node) as cold:
        assert_void(pod, "first")
        assert cold() == []
    assert "nri" in [event["adapter"] for event in node.events() if event["event"] == "container.edited"]

    booted.run("systemctl", "stop", "--no-block", "containerd")
    wait_for(lambda: "not connected" in booted.property(SERVICE, "StatusText"), "its complaint", booted.trouble)
    code, _, problems = node.status()
    assert (code, "no runtime is connected to the agent's NRI plugin" in problems) == (1, True)
    booted.run("systemctl", "restart", SERVICE, "--no-block")
    wait_for(lambda: booted.property(SERVICE, "ActiveState") == "activating", "the next one", booted.trouble)
    booted.run("systemctl", "start", "containerd")
    wait_for(lambda: is_active(node), "its connection", booted.trouble)
    booted.wait_for_cri()

    with watched_plugins(node):
        node.install("--no-agent", "--no-probe")
        assert resident(node) == [f"{PLUGIN} nri --log-format=logfmt"]
        node.install("--agent", "--no-probe")
        assert resident(node) == [f"{SERVICE} agent --log-format=logfmt --nri"]
        assert booted.property(PLUGIN, "LoadState") == "not-found"
        assert_void(pod, "again")
        node.install("--adapter", "runtime", "--no-probe")
    assert resident(node) == [f"{SERVICE} agent --log-format=logfmt"]
    assert not booted.path(f"/etc/systemd/system/{SERVICE}.d").exists()
    assert_put_back(pod, name="without")
    pod.remove()


def assert_void(pod: Pod, name: str) -> None:
    """A container that overrides a reserved name once is corrected. With NRI, one that does so twice is refused."""
    container = pod.run(name=name, env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    for environ in (container.environ(), container.exec_environ()):
        assert [line for line in environ if line.startswith("NVIDIA")] == ["NVIDIA_VISIBLE_DEVICES=void"]


def resident(node: Wirable) -> list[str]:
    """Processes of reassert that stay: their unit and arguments."""
    script = """
    for process in /proc/[0-9]*; do
      case $(readlink "$process/exe") in */reassert) ;; *) continue ;; esac
      unit=$(grep -o 'reassert.*[.]service' "$process/cgroup" | head -n 1)
      echo "$unit" $(tr '\\0' ' ' < "$process/cmdline" | cut -d ' ' -f 2-)
    done
    """
    return node.booted.run("sh", "-c", script, check=False).stdout.splitlines()


@contextmanager
def watched_plugins(node: Wirable) -> Iterator[None]:
    """Meanwhile there are never two processes that run the plugin: NRI refuses what two plugins set."""
    seen, ended = set(), threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            seen.add(plugins(node, SERVICE) + plugins(node, PLUGIN))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
    assert seen == {0, 1}


def plugins(node: Wirable, unit: str) -> int:
    """How many processes of a unit run the plugin."""
    found = 0
    with suppress(OSError):  # the unit ends, or a process
        for process in node.booted.path(f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs").read_text().split():
            found += not {"nri", "--nri"}.isdisjoint(Path(f"/proc/{process}/cmdline").read_text().split("\0"))
    return found


def assert_runs_what_is_installed(node: Wirable) -> None:
    """The service runs the program that dispatchers call."""
    process = node.booted.property(SERVICE, "MainPID")
    running = node.booted.run("readlink", f"/proc/{process}/exe").stdout
    assert running == node.booted.run("readlink", "-f", "/opt/reassert/reassert").stdout
