"""What is made of what was seen. The containers here are processes with an environment; real ones are in tests/e2e."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marks
import pytest

from hook import __version__
from hook.core import events
from hook.core.policy.model import Policy
from hook.node import systemd
from hook.node.engines.base import Handler
from hook.node.errors import NodeError
from hook.node.probe.report import Report
from hook.node.probe.starter import MARKER, Marks, Unsupported, abandoned, clear_marks, new_token, scratch, traces
from hook.node.probe.verify import NothingToVerify, examine, probe, verify
from unit.node.probe.local import (
    BARE,
    ENGINE,
    KATA,
    POLICY,
    RUNC,
    Env,
    Local,
    Make,
    break_down,
    found,
    keep,
    protect,
    refuse,
    refuse_everything,
)
from unit.ownmachine import Machine
from unit.support import policy
from unit.terminal import terminal

pytestmark = [
    pytest.mark.root,
    marks.promise(
        "`verify` starts hostile containers, tries every way to a closed device, and reports `protected` only for"
        " parts that were tried"
    ),
]


def test_what_was_put_back_is_protected(local: Make) -> None:
    assert found(local(protect)) == ("protected", ["put back: 2 env; in exec too"], "protected")


@pytest.mark.users
def test_devices_that_cannot_be_looked_at_are_not_called_protected(local: Make, root_dir: Path) -> None:
    """These containers are in the node's own mount namespace."""
    os.mknod(root_dir / "gpu0", stat.S_IFCHR | 0o600, os.makedev(240, 0))
    ca = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
    given = policy({**ca, "deviceAllocations": {"exclusive": [f"{root_dir}/gpu*"]}})
    starter = local(protect)
    assert found(starter, given=given) == ("protected", ["put back: 1 env; in exec too"], "protected")
    report, status = reported(starter, given)
    untried = {entry["part"]: entry["because"] for entry in report["notTried"]}
    assert untried.keys() == {"way/device", "way/mount", "way/directory", "way/privileged"}
    assert "no mount namespace of its own" in untried["way/device"]
    assert [entry["part"] for entry in report["notThere"]] == ["way/cdi", "way/cdi-annotation"]
    assert status == 1


def reported(starter: Local, given: Policy, handler: Handler = RUNC) -> tuple[dict[str, Any], int]:
    [finding], _ = examine([handler], given, starter)
    report = Report(ENGINE, given, [finding], {})
    return json.loads(report.as_json()), report.status()


@pytest.mark.users
def test_a_node_without_such_devices_has_nothing_to_try(local: Make, root_dir: Path) -> None:
    """That is no reason to call it unprotected: one policy is for nodes with and without GPUs."""
    ca = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
    report, status = reported(local(protect), policy({**ca, "deviceAllocations": {"exclusive": [f"{root_dir}/gpu*"]}}))
    assert report["notThere"][0] == {"part": "way/device", "because": f"this node has no device of {root_dir}/gpu*"}
    assert (report["notTried"], status) == ([], 0)


def test_annotations_of_a_pod_are_tried_where_something_sees_them(local: Make, machine: Machine) -> None:
    Path("/var/run").resolve().joinpath("nri").mkdir(parents=True)
    Path("/var/run/nri/nri.sock").touch()
    closed = {"name": "nvidia.cdi.k8s.io/*", "absent": True, "of": "Pod"}
    given = policy({"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}], "annotations": [closed]})
    report, status = reported(local(protect), given)
    assert report["notTried"][0]["because"] == "only `--adapter nri` sees annotations of a pod"
    assert status == 1
    report, status = reported(local(protect), given, Handler("runc", "/usr/sbin/runc", ("nri",)))
    assert [entry["part"] for entry in report["notThere"]] == ["way/pod-annotation"]
    assert status == 0


def test_what_was_not_is_said(local: Make) -> None:
    said = [
        "env CA is reassert-verify-pod, the policy wants /ca.pem",
        "env INSECURE is there, the policy wants it absent",
    ]
    assert found(local(keep)) == ("not protected", said, "not protected")
    around = "it is not wired: every pod that may use it bypasses reassert"
    assert found(local(keep), BARE) == ("not protected", [*said, around], "not protected")


def test_an_exec_that_differs_is_a_way_in(local: Make) -> None:
    result, saw, executed = found(local(protect, keep))
    assert (result, executed) == ("not protected", "not protected")
    assert saw[0] == "executed in it: env CA is reassert-verify-pod, the policy wants /ca.pem"


def test_env_that_the_caller_of_an_exec_sets_is_a_way_in(local: Make) -> None:
    """`kubectl exec --env`: with NRI alone nothing corrects it."""
    starter = local(protect)
    starter.hole = True
    said = "executed with env of its caller: env CA is reassert-verify-pod, the policy wants /ca.pem"
    assert found(starter) == ("not protected", [said], "not protected")


def test_an_exec_that_cannot_be_tried_is_not_called_protected(local: Make) -> None:
    def cannot(_env: Env) -> Env:
        raise NodeError("the image has no command that could be executed in the container")

    said = ["put back: 2 env", "exec not tried: the image has no command that could be executed in the container"]
    assert found(local(protect, cannot)) == ("protected", said, "not tried")


def test_where_no_command_executes_anything_the_first_process_counts(local: Make) -> None:
    """A RUN step of a build. Its start is tried once: the agent cannot be told to leave one of two alone."""

    def cannot(_env: Env) -> Env:
        raise Unsupported("no command executes a program in a RUN step")

    starter = local(protect, cannot)
    starter.marks.unmarked.add(RUNC.name)
    [finding], _ = examine([RUNC], POLICY, starter, agent=True)
    said = ["put back: 2 env", "no command executes a program in a RUN step"]
    assert (finding.result, finding.saw, finding.executed, finding.ways) == ("protected", said, "", {})
    assert (reported(starter, POLICY)[0]["notTried"], reported(starter, POLICY)[1]) == ([], 0)


def test_a_handler_that_this_node_cannot_try_is_said_and_is_no_error(local: Make) -> None:
    """docker has no buildx here, so no build is tried."""

    def lacks(_env: Env) -> Env:
        raise Unsupported("docker has no buildx on this node")

    [finding], _ = examine([RUNC], POLICY, local(lacks))
    [other], _ = examine([BARE], POLICY, local(protect))
    report = Report(ENGINE, POLICY, [finding, other], {})
    assert "not there" in report.as_table()
    assert report.absent() == {"handler/runc": "docker has no buildx on this node"}
    assert report.status() == 0


def test_after_a_refusal_the_rest_is_tried(local: Make) -> None:
    refused = "reassert: refused x: rule ca: INSECURE was set"
    assert found(local(refuse)) == ("protected", [refused, "put back: 1 env; in exec too"], "protected")


@marks.hole(
    "`verify` passed where no container started, or a part was not tried",
    since="0.1.0",
    fixed="0.2.0",
    severity="low",
)
def test_a_refusal_is_no_protection_where_an_innocent_container_is_refused_too(
    local: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "a container that overrides nothing does not start: reassert: refused x: rule ca: hostPath /ca.crt "
    assert found(local(refuse_everything)) == ("starts nothing", [f"{refused}does not exist"], "")
    assert verify(ENGINE, [RUNC], POLICY, local(refuse_everything), "table").status() == 1
    assert capsys.readouterr().out.startswith("result     starts nothing: runc\n")
    assert verify(ENGINE, [RUNC], POLICY, local(refuse_everything), "json", ["*"]).status() == 1
    assert json.loads(capsys.readouterr().out)["protected"] is False


@pytest.mark.parametrize(("more", "says"), [({}, True), ({"onMissingSource": "Skip"}, False)])
def test_a_rule_for_each_pods_directory_is_named_where_it_stops_the_test_container(
    local: Make, more: dict[str, str], says: bool
) -> None:
    """Else an operator reads that no container starts."""
    own = {"mounts": [{"hostPath": "/run/ca/$(pod.uid)", "mountPath": "/ca", **more}]}
    ca = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
    result, said, _ = found(local(refuse_everything), given=policy(ca, {"name": "own", **own}))
    cause = "rule own wants a directory for $(pod.uid), which no test container has"
    assert (result, [each.partition(": let")[0] for each in said[1:]]) == ("starts nothing", [cause] if says else [])


def test_a_handler_that_starts_nothing_is_not_protected(local: Make) -> None:
    broken = "a container that overrides nothing does not start: exec: reassert-runc: no such file"
    assert found(local(break_down)) == ("starts nothing", [broken], "")


def test_an_innocent_container_gets_what_is_reserved_too(local: Make) -> None:
    """A rule with onConflict: Deny refuses the hostile one, so this is the only one that shows what Deny puts back."""

    def only_hostile(env: Env) -> Env:
        return protect(env) if "CA" in env else env

    lacks = "in a container that overrides nothing: env CA is not set, the policy wants /ca.pem"
    assert found(local(only_hostile)) == ("not protected", [lacks, "put back: 2 env; in exec too"], "protected")


def test_a_hostile_container_that_fails_for_another_reason_is_no_protection(local: Make) -> None:
    def fragile(env: Env) -> Env:
        return break_down(env) if "INSECURE" in env else protect(env)

    said = "a container that overrides nothing starts; a hostile one could not be started: "
    assert found(local(fragile)) == ("not tried", [f"{said}exec: reassert-runc: no such file"], "")


def test_one_that_somebody_ends_is_tried_again(local: Make) -> None:
    starter = local(protect)
    starter.short_lived = 2
    assert found(starter)[0] == "protected"
    assert starter.started == 4
    starter.short_lived = 3
    result, [why] = found(starter)[:2]  # the process ends while its environment or its mounts are read
    assert result == "starts nothing"
    ended = "the container's process ended before its (environment|mounts) could be read"
    assert re.fullmatch(f"a container that overrides nothing does not start: {ended}", why)
    starter.short_lived = 2
    probe(starter, "runc")
    starter.short_lived = 3
    with pytest.raises(NodeError, match=r"ended before its (environment|mounts) could be read"):
        probe(starter, "runc")


def test_a_virtual_machines_handler_is_not_called_protected(local: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(ENGINE, [RUNC, KATA], POLICY, local(protect), "table").status() == 1
    output = capsys.readouterr().out
    assert "kata       -        not tried  it calls no OCI runtime of this node; --adapter nri reaches it" in output
    assert output.startswith("result     not tried: handler/kata (--except PART accepts that)\n")
    assert verify(ENGINE, [RUNC, KATA], POLICY, local(protect), "table", ["handler/kata"]).status() == 0
    output = capsys.readouterr().out
    assert output.startswith("result     every handler is protected; not tried, and accepted: handler/kata\n")
    assert verify(ENGINE, [KATA], POLICY, local(protect), "table", ["handler/kata"]).status() == 1
    assert capsys.readouterr().out.startswith("result     no handler calls an OCI runtime of this node\n")


def test_a_rule_that_was_not_tried_is_an_exception_that_has_to_be_named(
    local: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    team = {"name": "team", "match": {"namespaces": ["a"]}, "env": [{"name": "B", "value": "b"}]}
    given = policy({"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}, team)
    assert verify(ENGINE, [RUNC], given, local(protect), "table").status() == 1
    output = capsys.readouterr().out
    assert "not tried  rule/team: namespaces: the test container is not in a pod\n" in output
    assert "every handler is protected" not in output
    assert verify(ENGINE, [RUNC], given, local(protect), "json", ["rule/other"]).status() == 1
    assert json.loads(capsys.readouterr().out)["protected"] is False
    assert verify(ENGINE, [RUNC], given, local(protect), "json", ["rule/*"]).status() == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["protected"], report["notTried"]) == (
        True,
        [{"part": "rule/team", "because": "namespaces: the test container is not in a pod", "accepted": True}],
    )


@marks.hole("`verify` passed where no container started, or a part was not tried")
def test_an_exec_that_was_not_tried_is_an_exception_that_has_to_be_named(
    local: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(_env: Env) -> Env:
        raise NodeError("the image has no command that could be executed in the container")

    assert verify(ENGINE, [RUNC], POLICY, local(protect, cannot), "table").status() == 1
    assert "result     not tried: exec/runc " in capsys.readouterr().out
    assert verify(ENGINE, [RUNC], POLICY, local(protect, cannot), "table", ["exec/runc"]).status() == 0


def test_an_engine_beside_is_named(local: Make, capsys: pytest.CaptureFixture[str]) -> None:
    beside = ["docker 20.10.24 is not wired: reassert verify --engine docker"]
    assert verify(ENGINE, [RUNC], POLICY, local(protect), "table", beside=beside).status() == 0
    line = "beside     docker 20.10.24 is not wired: reassert verify --engine docker"
    assert capsys.readouterr().out.splitlines()[2] == line
    assert verify(ENGINE, [RUNC], POLICY, local(protect), "json", beside=beside).status() == 0
    assert json.loads(capsys.readouterr().out)["enginesBeside"] == beside


def test_the_exit_status_is_that_of_the_worst_handler(local: Make, capsys: pytest.CaptureFixture[str]) -> None:

    def by_turns(env: Env) -> Env:
        return (protect if starter.started <= 3 else keep)(env)

    starter = local(by_turns, protect)
    assert verify(ENGINE, [RUNC, BARE], POLICY, starter, "table").status() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["result     not protected: bare", "engine     containerd 2.1"]
    assert lines[4] == "HANDLER    WIRED    RESULT         SEEN"
    assert lines[5] == "runc       runtime  protected      put back: 2 env; in exec too"
    assert lines[6].startswith("bare       -        not protected  env CA is ")


def test_the_report_fits_a_terminal(local: Make) -> None:
    with terminal() as shown:
        assert verify(ENGINE, [RUNC, KATA], POLICY, local(protect), "table").status() == 1
    assert next(text for text in shown if "…" not in text).startswith("result "), "after its progress"
    assert 40 < max(map(len, shown)) <= 80


def test_the_report_for_programs(local: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(ENGINE, [RUNC], POLICY, local(protect), "json").status() == 0
    report = json.loads(capsys.readouterr().out)
    assert report.pop("policy")["path"] == "policy.yaml"
    assert [report.pop(name) for name in ("node", "version")] == [os.uname().nodename, __version__]
    assert report.pop("time").endswith("Z")
    assert report == {
        "engine": "containerd 2.1",
        "handlers": [
            {
                "name": "runc",
                "runtime": "/usr/sbin/runc",
                "wired": ["runtime"],
                "result": "protected",
                "saw": ["put back: 2 env; in exec too"],
                "exec": "protected",
                "starts": None,
                "ways": {"exec-env": "protected"},
            }
        ],
        "rulesNotTried": [],
        "notTried": [],
        "notThere": [],
        "enginesBeside": [],
        "unreadable": [],
        "remountable": [],
        "protected": True,
        "exitStatus": 0,
        "findings": [
            {
                "severity": "ok",
                "part": "handler/runc",
                "text": "handler runc: protected: put back: 2 env; in exec too",
                "remedy": "",
                "place": "",
                "engine": "containerd",
            }
        ],
        "nothingToVerify": None,
    }


def test_a_rule_in_audit_mode_beside_enforced_ones_is_not_untried(
    local: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    enforced = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "INSECURE", "absent": True}]}
    staged = policy(enforced, {"name": "tried", "mode": "Audit", "env": [{"name": "B", "value": "1"}]})
    assert staged.mode == "Mixed"
    assert verify(ENGINE, [RUNC], staged, local(protect), "json").status() == 0
    assert json.loads(capsys.readouterr().out)["rulesNotTried"] == []


def test_without_a_rule_for_it_there_is_nothing_to_verify(local: Make) -> None:
    given = policy({"name": "ca", "match": {"namespaces": ["a"]}, "env": [{"name": "CA", "value": "/ca.pem"}]})
    with pytest.raises(
        NothingToVerify, match=r"no rule of policy.yaml covers a test container; rule ca: namespaces: the "
    ):
        found(local(protect), given=given)


def test_nothing_to_verify_is_neither_protected_nor_not(local: Make, capsys: pytest.CaptureFixture[str]) -> None:
    audit = policy({"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}, mode="Audit")
    why = "the mode of policy.yaml is Audit, nothing is enforced"
    assert verify(ENGINE, [RUNC], audit, local(protect), "json").status() == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["protected"], report["nothingToVerify"]) == (False, why)
    assert [(entry["result"], entry["saw"]) for entry in report["handlers"]] == [("not tried", [why])]
    assert verify(ENGINE, [RUNC], audit, local(protect), "table").status() == 3
    assert capsys.readouterr().out.startswith(f"result     nothing to verify: {why}\n")


def test_a_rule_that_removes_every_env_leaves_nothing_to_know_a_process_by(local: Make) -> None:
    starter = local(lambda _env: {"PATH": "/bin"})
    starter.up_seconds = 0.0
    result, [reason], _ = found(starter)
    assert result == "not tried"
    assert f"has no env {MARKER}" in reason


def test_only_what_dead_processes_left_is_abandoned() -> None:
    assert not abandoned(new_token())
    process = subprocess.Popen(["true"])
    process.wait()
    assert abandoned(f"{process.pid}-0")
    assert abandoned("latest")


def test_an_interrupted_probe_leaves_a_trace(tmp_path: Path) -> None:
    scratch(str(tmp_path))
    left = tmp_path / "reassert-verify-99999999-0"
    for path in (left, tmp_path / "reassert-nri"):
        (path / "sub").mkdir(parents=True)
    assert traces(str(tmp_path)) == [str(left)]


def test_a_probe_s_volumes_have_the_label_of_a_pod_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's engine may not look into what lies in /run with a label of /run's own."""
    assert "security.selinux" not in os.listxattr(scratch())
    monkeypatch.setattr(systemd, "SELINUX", "/proc/self/stat")
    assert os.getxattr(scratch(), "security.selinux") == b"system_u:object_r:container_file_t:s0\0"


def test_marks_go_with_the_probes_and_after_a_kill_with_the_next_command(machine: Machine) -> None:
    marks, path = Marks(), Path(events.PROBES)
    marks.add("0a1b")
    assert (path.stat().st_mode & 0o777, [file.name for file in path.iterdir()]) == (0o700, ["0a1b"])
    clear_marks()
    assert [file.name for file in path.iterdir()] == ["0a1b"]
    (path / "dead").write_text("99999999-0")
    clear_marks()
    assert [file.name for file in path.iterdir()] == ["0a1b"]
    marks.clear()
    assert not path.parent.exists()


def test_with_an_agent_everything_is_tried_warm_and_cold(local: Make) -> None:
    starter = local(protect)
    [alone], _ = examine([RUNC], POLICY, starter)
    count = starter.started
    [finding], _ = examine([RUNC], POLICY, starter, agent=True)
    assert (finding.ways, starter.started) == ({"warm": "protected", "cold": "protected"}, 3 * count)
    assert finding.saw == [*alone.saw, "the same in a cold start"]
    assert not starter.marks.cold


def only(cold: bool, starters: list[Local]) -> Callable[[Env], Env]:
    """Protects the starts of one way only."""
    return lambda env: protect(env) if starters[0].marks.cold == cold else env


@pytest.mark.parametrize("cold", [True, False])
def test_one_way_that_does_not_protect_is_enough(local: Make, cold: bool) -> None:
    starters: list[Local] = []
    starters.append(local(only(cold, starters)))
    [finding], _ = examine([RUNC], POLICY, starters[0], agent=True)
    wrong, right = ("warm", "cold") if cold else ("cold", "warm")
    assert finding.result == "not protected"
    assert finding.ways == {wrong: "not protected", right: "protected"}
    assert all(text.startswith("in a cold start: ") != cold for text in finding.saw)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reasons", "accepted", "status"),
    [
        (["caller"], [], 1),
        (["mount", "absent"], [], 1),
        (["caller"], ["warm/*"], 0),
        (["mount"], [], 0),  # the container's mounts are missing, and only a cold start mounts
    ],
)
def test_an_agent_that_answers_nothing_is_said(
    local: Make,
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    reasons: list[str],
    accepted: list[str],
    status: int,
) -> None:
    """It fails, unless the reasons lie in what is started."""
    cold = {"adapter": "runtime", "probe": True, "timestamp": "9999", "start": "cold"}
    machine.file(events.EVENTS, "".join(json.dumps({**cold, "cold": reason}) + "\n" for reason in reasons))
    [finding], _ = examine([RUNC], POLICY, local(protect), agent=True)
    assert finding.ways == {"warm": "not tried", "cold": "protected"}
    assert finding.saw[-1].startswith(f"no start was warm: {', '.join(sorted(reasons))}; ")
    assert verify(ENGINE, [RUNC], POLICY, local(protect), "json", accepted, agent=True).status() == status
    report = json.loads(capsys.readouterr().out)
    assert report["protected"] is (status == 0)
    assert [part["part"] for part in report["notTried"]] == ([] if reasons == ["mount"] else ["warm/runc"])


def test_what_calls_no_runtime_of_this_node_has_no_ways(local: Make) -> None:
    [finding], _ = examine([KATA], POLICY, local(protect), agent=True)
    assert finding.ways == {}
