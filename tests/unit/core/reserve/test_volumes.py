"""A rule's emptyDir: what the policy may say of it, where it is for one pod, and what contradicts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.linux.volumes import make
from hook.core.plan import Plan, plan
from hook.core.policy.model import select
from hook.ops.policy.show import effective
from unit.core.linux.mountnamespace import Stop, stop
from unit.ownmachine import Machine
from unit.support import POD, WithPolicy, document, policy, problems

CACHE = {"mountPath": "/cache", "emptyDir": {}}
MEMORY = {"mountPath": "/cache", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
DISK = "/var/lib/kubelet/pods/1-2-3/reassert/"


def rule(*mounts: dict[str, Any], name: str = "r", **more: Any) -> dict[str, Any]:
    return {"name": name, "mounts": list(mounts), **more}


def decided(*rules: dict[str, Any], identity: Identity = POD, mounts: tuple[str, ...] = (), **spec: Any) -> Plan:
    own: list[dict[str, object]] = [
        {"destination": path, "type": "bind", "source": "/x", "options": ["rbind"]} for path in mounts
    ]
    start = Start([], own)
    return plan(policy(*rules, **spec), Container(identity, start))


def source(*rules: dict[str, Any], **more: Any) -> str:
    decision = decided(*rules, **more)
    assert not decided(*rules, **more).refusal()
    return decision.mounts[0].source()


def test_memory_is_mounted_once_and_unless_the_caller_objects(machine: Machine) -> None:
    machine.file("/var/lib/kubelet/pods/1-2-3/etc-hosts")
    volumes = decided(rule(MEMORY)).mounts
    with pytest.raises(Stop):
        make(volumes, stop, is_probe=False)
    assert not os.path.lexists(volumes[0].source())
    for before in (lambda: None, stop):
        make(volumes, before, is_probe=False)
        assert os.path.isdir(volumes[0].source())


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ({"emptyDir": {"medium": "HugePages"}}, "'HugePages' is not one of , Memory"),
        ({"emptyDir": {"sizeLimit": "64Mi"}}, "sizeLimit needs medium: Memory; nothing on the node limits a directory"),
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "64 MB"}}, "sizeLimit: '64 MB' is not allowed"),
        ({"emptyDir": {}, "hostPath": "/x"}, "emptyDir, hostPath given; it takes exactly one of hostPath"),
        ({"emptyDir": {}, "onMissingSource": "Skip"}, "onMissingSource has no effect with emptyDir"),
        ({"emptyDir": {"medium": "Memory"}}, "the NRI plugin cannot mount a tmpfs, so failurePolicy decides there"),
    ],
)
def test_what_it_cannot_be_is_said_with_its_place(mount: dict[str, Any], says: str) -> None:
    [problem] = problems(document(rule({"mountPath": "/cache", **mount})))
    assert says in problem.message
    assert problem.line > 1


def test_each_pod_has_its_own_directory_for_each_path_medium_and_size() -> None:
    assert source(rule(CACHE)).startswith(DISK)
    assert source(rule(CACHE), kubelet={"root": "/k/"}).startswith("/k/pods/1-2-3/reassert/")
    assert source(rule(MEMORY)).startswith("/run/reassert/volumes/var-lib-kubelet-pods/1-2-3/")
    larger = {"mountPath": "/cache", "emptyDir": {"medium": "Memory", "sizeLimit": "1G"}}
    each = [CACHE, {**CACHE, "mountPath": "/data"}, MEMORY, larger]
    assert len({source(rule(mount)).rpartition("/")[2] for mount in each}) == len(each)
    three = decided(rule(larger, {**MEMORY, "mountPath": "/x"}, {**CACHE, "mountPath": "/y"}))
    sizes = [edit.volume[2] for edit in three.mounts]
    assert sizes == [10**9, 64 << 20, -1]


def test_it_is_writable_and_has_no_devices_and_no_set_user_id_programs() -> None:
    [edit] = decided(rule(CACHE)).mounts
    assert edit.options() == ["rbind", "rprivate", "rw", "nosuid", "nodev"]
    [edit] = decided(rule({**CACHE, "readOnly": True})).mounts
    assert "ro" in edit.options()


@pytest.mark.parametrize("uid", [None, "", ".", "..", "../x", "a/b"])
def test_without_a_known_pod_failure_policy_decides(uid: str | None) -> None:
    identity = Identity(
        "containerd", True, namespace="team-a", pod="web-1", uid=uid, container="app", types=("container",), image="i"
    )
    assert "it is unknown whose this container is" in decided(rule(CACHE), identity=identity).refusal()
    assert not decided(rule(CACHE), identity=identity, failurePolicy="Ignore").refusal()
    assert "unknown whose" in decided(rule(CACHE), identity=Identity("ambiguous", None)).refusal()


def test_a_container_of_no_pod_is_refused_with_the_remedy() -> None:
    alone = Identity("podman", False, types=("container",))
    assert (
        "this container has no pod; give the rule a match with namespaces"
        in decided(rule(CACHE), identity=alone).refusal()
    )
    preset = rule(CACHE, match={"podSelector": {"matchLabels": {"role": "frontend"}}})
    assert not decided(preset, identity=alone).refusal()


def test_presets_merge_and_a_contradiction_is_an_error() -> None:
    two = decided(
        rule(CACHE, env=[{"name": "A", "value": "1"}]), rule(CACHE, name="s", env=[{"name": "B", "value": "2"}])
    )
    assert not two.refusal()
    assert [(edit.kind, edit.name) for edit in two.edits] == [("env", "A"), ("env", "B"), ("mount", "/cache")]
    for other in (MEMORY, {"mountPath": "/cache", "hostPath": "/x"}, {**CACHE, "readOnly": True}):
        messages = [problem.message for problem in problems(document(rule(CACHE), rule(other, name="s")))]
        assert any("rules r and s want different things for mount /cache" in message for message in messages)
        apart = rule(other, name="s", match={"containerNames": ["a*"]})
        refusal = decided(rule(CACHE, match={"containerNames": ["*p"]}), apart).refusal()
        assert "wants another mount at /cache than rule r" in refusal or "does not exist" in refusal


def test_a_pods_own_mount_there_is_a_conflict() -> None:
    assert (
        "mount /cache is reserved and /cache was mounted"
        in decided(rule(CACHE, onConflict="Deny"), mounts=("/cache",)).refusal()
    )
    assert not decided(rule(CACHE), mounts=("/cache", "/cache/mine")).refusal()


@pytest.mark.parametrize(
    "upper", [CACHE, {**CACHE, "readOnly": True}, {"mountPath": "/cache", "hostPath": "/", "readOnly": False}]
)
def test_no_reserved_mount_is_in_one_that_other_containers_write_to(upper: dict[str, Any]) -> None:
    """They could remove the directory that it is mounted on, and the mount with it."""
    lower = {"mountPath": "/cache/ca", "hostPath": "/etc"}
    assert "mount /cache is a volume above the reserved mount /cache/ca" in decided(rule(upper, lower)).refusal()
    assert not decided(rule(upper, {**lower, "volumesAbove": "Allow"})).refusal()


OWN = {"hostPath": "/run/ca/$(pod.uid)/certs", "mountPath": "/etc/ssl/certs"}


def test_a_host_path_with_the_uid_is_that_of_the_pod() -> None:
    assert source(rule(OWN)) == "/run/ca/1-2-3/certs"
    store = decided({"name": "r", "trust": {"bundle": "/run/ca/$(pod.uid)"}})
    assert {"/run/ca/1-2-3/live/certs", "/run/ca/1-2-3/live/extracted"} <= {edit.source() for edit in store.mounts}


@pytest.mark.parametrize("policy_for_failures", ["Fail", "Ignore"])
def test_a_host_path_with_the_uid_needs_a_proven_pod(policy_for_failures: str) -> None:
    """No `failurePolicy` lets a container start without it: its author may have caused that nothing proves it."""
    for identity in (Identity("unknown", None, uid="1-2-3"), Identity("containerd", True, uid="..")):
        refusal = decided(rule(OWN), identity=identity, failurePolicy=policy_for_failures).refusal()
        assert "nothing proves whose this container is" in refusal
    refusal = decided(rule(OWN), identity=Identity("podman", False)).refusal()
    assert "this container has no pod; give the rule a match with namespaces" in refusal


def test_a_node_without_the_pods_directory_refuses_it(root_dir: Path) -> None:
    own = {**OWN, "hostPath": f"{root_dir}/$(pod.uid)/certs"}
    for more, text in (({}, f"hostPath {root_dir}/1-2-3/certs for mount"), ({"onMissingSource": "Skip"}, "")):
        in_force = policy(rule({**own, **more}))
        facts = WithPolicy(in_force).facts(in_force, POD, select(in_force, POD), "")
        refusal = plan(in_force, Container(POD, Start([], []), facts)).refusal()
        assert (text in refusal) == bool(refusal or not text), refusal
        assert bool(refusal) == bool(text)
    (root_dir / "1-2-3/certs").mkdir(parents=True)
    in_force = policy(rule(own))
    facts = WithPolicy(in_force).facts(in_force, POD, select(in_force, POD), "")
    assert facts.directories == {f"{root_dir}/1-2-3/certs"}


def test_a_host_path_with_the_uid_is_shown_as_it_is_written() -> None:
    [shown] = effective(policy(rule(OWN)))["spec"]["rules"][0]["mounts"]
    assert (shown["hostPath"], shown["onMissingSource"]) == (OWN["hostPath"], "Fail")


APPS = {"containerTypes": ["init", "container", "ephemeral"]}


@pytest.mark.parametrize("match", [{}, {"namespaces": ["*"]}, {"containerTypes": ["sandbox", "container"]}])
def test_a_rule_that_stops_each_pods_sandbox_is_a_warning(match: dict[str, Any]) -> None:
    """Nobody knows the UID before it starts, so nobody can have made its directory."""
    more = {"match": match} if match else {}
    stores = {"name": "r", "trust": {"bundle": "/run/ca/$(pod.uid)", "mount": "Files"}, **more}
    for each in (rule(OWN, **more), stores):
        warned = [each for each in problems(document(each)) if each.severity == "warning"]
        assert ["rule r: a pod's sandbox container starts before" in one.message for one in warned] == [True]
        assert "add containerTypes: [init, container, ephemeral] to its match" in warned[0].message
        quiet = document(each, exclude={"containerTypes": ["sandbox"]})
        assert [each for each in problems(quiet) if each.severity == "warning"] == []
    skips = rule({**OWN, "onMissingSource": "Skip"}, **more)
    assert problems(document(skips)) == []


@pytest.mark.parametrize("path", ["/run/ca-$(pod.uid)", "/run/$(pod.uid).d/x"])
def test_the_uid_is_a_whole_name_of_the_path(path: str) -> None:
    [problem] = problems(document(rule({**OWN, "hostPath": path}, match=APPS)))
    assert "$(pod.uid) must be a whole name between two slashes" in problem.message
    assert problem.severity == "error"


def test_what_nothing_expands_is_a_warning_still() -> None:
    assert problems(document(rule(OWN, match=APPS))) == []
    [problem] = problems(document(rule({**OWN, "hostPath": "/run/$(pod.name)"})))
    assert "nothing expands $(pod" in problem.message
