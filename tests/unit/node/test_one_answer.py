"""No two commands disagree about a node: each broken node is asked of all of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.finding import ERROR, NOTE, WARNING, Finding
from hook.entry.dispatcher import FRONT
from hook.node import kept
from hook.node.artifacts.dispatchers import pass_through
from hook.ops.exits import STATUSES
from hook.ops.metrics.node import NodeState
from hook.ops.metrics.prometheus import Metrics
from unit.node.crio import LOAD, RULE, crio_node, enforce, install
from unit.ops.audit.test_drift import NodeWithContainers
from unit.ops.metrics.support import samples
from unit.ownmachine import Machine
from unit.support import called

Found = set[tuple[str, str, str]]
"""Severity, engine and part of each error and each warning."""

DROP_IN = "/etc/crio/crio.conf.d/99-reassert.conf"


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine.boot()
    monkeypatch.setattr("hook.inside.containers._of_processes", lambda *_: [])  # the real machine's
    with crio_node(machine, tmp_path, monkeypatch) as found:
        yield found


def wrong(findings: list[dict[str, str]]) -> Found:
    return {
        (each["severity"], each["engine"], each["part"]) for each in findings if each["severity"] in (ERROR, WARNING)
    }


def answers() -> tuple[int, Found]:
    """The one exit status, and the one set of errors and warnings, of every view."""
    views: dict[str, tuple[int, Found]] = {}
    for name, command in {
        "status": ("status", "-o", "json"),
        "status --all": ("status", "--all", "-o", "json"),
        "doctor": ("doctor", "-o", "json"),
        "node status": ("node", "status", "-o", "json"),
    }.items():
        done = called(*command)
        found = json.loads(done.stdout)
        assert found["exitStatus"] == done.returncode, name
        lists = {"problems": ERROR, "remarks": WARNING, "hints": NOTE}
        for key, severity in lists.items():
            assert found[key] == [str(Finding(**each)) for each in found["findings"] if each["severity"] == severity]
        views[name] = done.returncode, wrong(found["findings"])
    status, found_wrong = views["status"]
    assert status in STATUSES
    assert all(view == (status, found_wrong) for view in views.values()), views
    for command in (("status",), ("status", "--all")):
        done = called(*command)
        assert done.returncode == status
        assert all(part in done.stdout and severity in done.stdout for severity, _, part in found_wrong), done.stdout
    reason, _, message = called("status", "-o", "condition").stdout.partition(" ")
    assert (reason == "NotReady") == (status in (1, 3)), (reason, message)
    assert_enforcement(found_wrong, reason, message.strip())
    assert_audit(found_wrong)
    assert called("status", "--record").returncode == 0
    assert {(each.severity, each.engine, each.part) for each in kept.read().findings} == found_wrong
    assert measured() == found_wrong
    return status, found_wrong


def assert_enforcement(found: Found, reason: str, message: str) -> None:
    """What a NodeEnforcement says of the node."""
    said = json.loads(called("status", "-o", "enforcement", "--state", reason, "--message", message).stdout)
    assert (said["state"], said["message"]) == (reason, message)
    engines = {each["name"]: each for each in said.get("engines", ())}
    for _, engine, part in found:
        if part.startswith("handler/"):
            assert part[8:] in engines[engine]["notWired"] + engines[engine]["notKnown"]
    verified = kept.read().verified
    results = {1: "NotProtected", 0: "Protected"}
    assert said.get("verify", {}).get("result") == (results[verified["crio"].status] if verified else None)
    counts = json.loads(called("status", "-o", "json").stdout)["containers"]["counts"]
    assert said["containers"] == {
        name: counts.get(state, 0)
        for name, state in {"inPolicy": "in-policy", **{n: n for n in ("drifted", "exempt", "unknown")}}.items()
    }
    is_held = "heldBack" in said.get("policy", {})
    assert is_held <= ((ERROR, "", "policy") in found)


def assert_audit(found: Found) -> None:
    """What `audit` says of containers is what `status` says of them."""
    done = called("audit", "-o", "json")
    told = {severity for severity, _, part in found if part == "containers"}
    assert done.returncode == (1 if ERROR in told else 4 if told else 0), done.stdout + done.stderr
    severities = {one["severity"] for each in json.loads(done.stdout)["containers"] for one in each["differences"]}
    assert severities == told


def measured() -> Found:
    """What the metrics say, without the samples of handlers, of which each has to be one of these findings."""
    metrics = Metrics()
    NodeState(metrics, "/etc/reassert/policy.yaml", "/var/lib/reassert", has_plugin=False).refresh()
    found: Found = set()
    for name in samples(metrics):
        if name.startswith("reassert_findings{"):
            labels = dict(pair.split("=") for pair in name.partition("{")[2][:-1].split(","))
            found.add((labels["severity"].strip('"'), labels["engine"].strip('"'), labels["part"].strip('"')))
    unwired = {name for name, value in samples(metrics).items() if name.startswith("reassert_wired{") and not value}
    assert {
        f'reassert_wired{{engine="{e}",handler="{p[8:]}"}}' for s, e, p in found if p.startswith("handler/")
    } == unwired
    return found


def test_a_node_on_which_nothing_is_wrong(node: Machine) -> None:
    install()
    assert answers() == (0, set())


KATA = '[crio.runtime.runtimes.kata]\nruntime_path = "/usr/local/sbin/kata"\nruntime_type = "vm"\n'


def has_kata(node: Machine) -> None:
    node.program("kata", ":")
    node.file("/etc/crio/crio.conf.d/50-kata.conf", KATA)
    LOAD[0]()


def not_loaded(node: Machine) -> None:
    Path(DROP_IN).rename("/etc/crio/away")
    LOAD[0]()
    Path("/etc/crio/away").rename(DROP_IN)


def passes_through(node: Machine) -> None:
    """As a package's removal leaves the dispatchers."""
    Path("/opt/reassert/reassert-crun").write_bytes(pass_through("/usr/local/sbin/crun").content)


def failed_unit(node: Machine) -> None:
    node.file("/etc/systemd/system/paths.target.wants/reassert-trust.path")
    node.file("/run/units/reassert-trust.path.failed")


def held_policy(node: Machine) -> None:
    called("policy", "compile")
    Path("/etc/reassert/policy.yaml").write_text("spec: [\n")


def dangling_policy(node: Machine) -> None:
    called("policy", "compile")
    Path("/etc/reassert/policy.yaml").unlink()
    Path("/etc/reassert/policy.yaml").symlink_to("/nowhere/policy.yaml")
    assert "; /etc/reassert/policy.yaml is a symbolic link to /nowhere/policy.yaml" in called("status").stdout


def no_policy(node: Machine) -> None:
    Path("/etc/reassert/policy.yaml").unlink()


def engine_away(node: Machine) -> None:
    Path("/run/units/crio.service").unlink()


def engine_silent(node: Machine) -> None:
    Path("/var/run/crio/crio.sock").rename("/var/run/crio/away")


def verify_failed(node: Machine) -> None:
    said = Finding(ERROR, "way/device", "way/device was not tried: nothing answered", engine="crio")
    last = kept.Verified(int(time.time()), 1, is_current=True, untried=["way/device"], findings=[said])
    kept.change(lambda now: now.verified.update(crio=last))


def everyones_policy(node: Machine) -> None:
    Path("/etc/reassert/policy.yaml").chmod(0o666)


def audits_only(node: Machine) -> None:
    enforce(RULE, mode="Audit")


def edited_drop_in(node: Machine) -> None:
    text = Path(DROP_IN).read_text()
    Path(DROP_IN).write_text(text.replace("/opt/reassert/reassert-crun", "/usr/local/sbin/crun"))


def no_agent(node: Machine) -> None:
    front = Path(sys.executable).with_name(FRONT)
    front.write_text("a program\n")
    front.chmod(0o755)
    install("runtime", "--agent")
    for unit in ("reassert-agent.socket", "reassert-agent.service"):
        Path(f"/run/units/{unit}").unlink(missing_ok=True)


def old_verify(node: Machine) -> None:
    last = kept.Verified(int(time.time()) - 400 * 86400, 0, is_current=True)
    kept.change(lambda now: now.verified.update(crio=last))


def no_namespace_is_left(node: Machine) -> None:
    enforce(RULE, exclude={"namespaces": ["*"]})


def log_is_a_link(node: Machine) -> None:
    Path("/var/log/reassert").mkdir(exist_ok=True)
    Path("/var/log/reassert/events.jsonl").unlink(missing_ok=True)
    Path("/var/log/reassert/events.jsonl").symlink_to("/etc/passwd")


def front_is_gone(node: Machine) -> None:
    Path("/opt/reassert/reassert").unlink()


def dispatcher_without_its_mode(node: Machine) -> None:
    Path("/opt/reassert/reassert-crun").chmod(0o644)


BROKEN: dict[str, tuple[Callable[[Machine], None], int, Found]] = {
    "a drop-in that somebody edited": (edited_drop_in, 1, {(ERROR, "crio", "files")}),
    "an agent that was stopped": (no_agent, 1, {(ERROR, "crio", "units")}),
    "a verify of last year": (old_verify, 0, set()),
    "a policy without a namespace": (no_namespace_is_left, 4, {(WARNING, "", "policy")}),
    "a log that is a symbolic link": (log_is_a_link, 1, {(ERROR, "", "event log")}),
    "a dispatcher that cannot be executed": (dispatcher_without_its_mode, 1, {(ERROR, "crio", "files")}),
    "no program": (front_is_gone, 1, {(ERROR, "crio", "files")}),
    "a handler that nobody wired": (has_kata, 1, {(ERROR, "crio", "handler/kata")}),
    "files that are not loaded": (not_loaded, 1, {(ERROR, "crio", "handler/crun")}),
    "pass-through dispatchers": (passes_through, 1, {(ERROR, "crio", "handler/crun")}),
    "a failed path unit": (failed_unit, 1, {(ERROR, "", "trust")}),
    "a policy that is held back": (held_policy, 1, {(ERROR, "", "policy")}),
    "no policy": (no_policy, 1, {(ERROR, "", "policy")}),
    "an engine that does not run": (engine_away, 1, {(ERROR, "crio", "engine")}),
    "an engine that does not answer": (engine_silent, 1, {(ERROR, "crio", "engine")}),
    "a part that verify did not try": (verify_failed, 1, {(ERROR, "crio", "way/device")}),
    "a policy that is a dangling link": (dangling_policy, 1, {(ERROR, "", "policy")}),
    "a policy that others can write": (everyones_policy, 1, {(ERROR, "", "permissions"), (ERROR, "", "policy")}),
    "a policy in Audit mode": (audits_only, 4, {(WARNING, "", "policy")}),
}


@pytest.mark.users
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_node_is_broken_for_every_command(node: Machine, name: str) -> None:
    install()
    breaks, status, found = BROKEN[name]
    breaks(node)
    assert answers() == (status, found)


def test_a_read_only_store_is_an_error_of_every_command(node: Machine) -> None:
    """As a file system is after an error of the disk: then nothing can be kept, nor measured."""
    install()
    node.make_read_only("/var/lib")
    for command in ("status", "doctor"):
        done = called(command, "-o", "json")
        [error] = [each for each in json.loads(done.stdout)["findings"] if each["severity"] == ERROR]
        assert (done.returncode, error["part"], error["remedy"]) == (1, "store", "mount -o remount,rw /var/lib")
    done = called("status", "--record")
    assert (done.returncode, "Read-only file system" in done.stderr) == (1, True)


NVIDIA = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/local/sbin/nvidia-container-runtime"\n'
GPU = {"name": "gpu", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}
ONLY = {"name": "only", "deviceAllocations": {"exclusive": ["/dev/nvidia*"]}}


@pytest.mark.parametrize(("rules", "hidden"), [([GPU], True), ([GPU, ONLY], False), ([RULE], False)])
def test_a_hook_alone_does_not_see_what_nvidias_runtime_has_given(
    node: Machine, rules: list[dict[str, Any]], hidden: bool
) -> None:
    """That runtime writes `void` in the place of the GPUs that a container asked for, before it calls a hook."""
    enforce(*rules)
    install("hook")
    node.program("nvidia-container-runtime", ":")
    node.file("/etc/crio/crio.conf.d/50-nvidia.conf", NVIDIA)
    LOAD[0]()
    assert answers() == ((1, {(ERROR, "crio", "gpus")}) if hidden else (0, set()))


def test_a_node_whose_record_is_lost_is_not_wired_and_says_that_it_calls_reassert(node: Machine) -> None:
    """Then `verify` is green, and `status` has the exit status of a node without an install."""
    install()
    Path("/var/lib/reassert/node/installed.json").unlink()
    for command in ("status", "doctor"):
        done = called(command, "-o", "json")
        [said] = [each for each in json.loads(done.stdout)["findings"] if each["severity"] == WARNING]
        assert (done.returncode, said["part"], said["remedy"]) == (3, "engine", "reassert install")
        assert "containers of crun start with reassert" in said["text"]
        assert "this record was lost" in called(command).stdout
    install()
    assert answers() == (0, set())


def test_a_directory_in_the_place_of_what_is_kept_is_an_error(node: Machine) -> None:
    install()
    file = Path("/var/lib/reassert/node.json")
    file.unlink(missing_ok=True)
    file.mkdir()
    for command in ("status", "doctor"):
        done = called(command, "-o", "json")
        [error] = [each for each in json.loads(done.stdout)["findings"] if each["severity"] == ERROR]
        assert (done.returncode, error["part"], error["remedy"]) == (1, "store", f"mv {file} {file}.old")
    assert called("status", "--record").returncode == 1


@pytest.mark.parametrize(
    ("options", "takes"),
    [
        (("--except", "handler/kata"), False),
        (("--except", "handler/other"), True),
        (("--runtime-class", "crun"), False),
    ],
)
def test_what_was_accepted_by_name_is_accepted_by_every_command(
    node: Machine, options: tuple[str, ...], takes: bool
) -> None:
    install("runtime", *options)
    has_kata(node)
    assert answers() == ((1, {(ERROR, "crio", "handler/kata")}) if takes else (0, set()))


def test_an_acceptance_stays_and_is_taken_back_by_name(node: Machine) -> None:
    install("runtime", "--except", "handler/kata", "--except", "engine/docker")
    has_kata(node)
    for options in ((), ("--except", "rule/*")):
        install("runtime", *options)
        has_kata(node)
        assert answers()[0] == 0
    install("runtime", "--except", "")
    has_kata(node)
    assert answers() == (1, {(ERROR, "crio", "handler/kata")})


def test_what_verify_did_not_try_is_accepted_afterwards_too(node: Machine) -> None:
    install()
    verify_failed(node)
    assert answers()[0] == 1
    install("runtime", "--except", "way/device")
    verify_failed(node)
    assert answers() == (0, set())


def test_another_policy_since_the_last_verify_makes_its_errors_warnings(node: Machine) -> None:
    install()
    verify_failed(node)
    kept.change(lambda now: setattr(now.verified["crio"], "policy", "of another policy"))
    assert answers() == (4, {(WARNING, "crio", "way/device")})
    kept.change(lambda now: setattr(now.verified["crio"], "is_current", False))
    assert answers() == (0, set())


def last_verify() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(called("status", "-o", "json").stdout)["verify"]["crio"]
    return found


def test_status_has_the_last_verify_its_age_and_what_it_left_untried(node: Machine) -> None:
    install("runtime", "--except", "way/*")
    assert "verify     crio: never\n" in called("status").stdout
    verify_failed(node)
    kept.change(lambda now: setattr(now.verified["crio"], "when", now.verified["crio"].when - 3 * 3600))
    said = "verify     crio: 3 h ago: not protected; not tried: way/device"
    assert said in called("status").stdout.splitlines()
    found = last_verify()
    assert 3 * 3600 <= found["ageSeconds"] < 4 * 3600
    assert (found["exitStatus"], found["notTried"], found["accepted"]) == (1, ["way/device"], ["way/*"])


@pytest.mark.users
def test_a_container_that_an_engine_started_past_it(node: Machine) -> None:
    """By an engine that is not wired, until it is accepted by name."""
    install()
    containers = NodeWithContainers(node, is_wired=False)
    try:
        enforce(RULE)
        containers.start("a", {"A": "2"})
        assert answers() == (1, {(ERROR, "containerd", "containers")})
        install("runtime", "--except", "engine/containerd")
        called("audit")
        assert answers() == (4, {(WARNING, "containerd", "containers")})
    finally:
        containers.close()
