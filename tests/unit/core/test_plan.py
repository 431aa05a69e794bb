"""Decisions about single containers. tests/unit/core/test_plan_properties.py has the properties of all containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import marks

from hook.core.container.identity import Identity
from hook.core.container.oci import Device
from hook.core.container.start import Start
from hook.core.decide import Adapter
from hook.core.facts import Container, Facts
from hook.core.facts.exclusive import Devices
from hook.core.facts.gather import gather
from hook.core.plan import ALL, Plan, plan
from hook.core.policy.model import Policy, select
from unit.support import POD, bind, container, policy

pytestmark = marks.promise(
    "Planning a corrected container again gives no edits, and entries that are not reserved keep their order"
)

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}


def decide(node: Policy, target: Container) -> Plan:
    """The decision as an adapter makes it, with the facts of the matching rules."""
    matches = select(node, target.identity)
    target.facts = gather(Adapter(), node, target.identity, matches)
    return plan(node, target, matches)


def env_after(node: Policy, *env: str) -> list[str]:
    """The container's env after the correction of this env."""
    target = container(list(env))
    plan(node, target).apply(target.start)
    return target.start.env


def mounts_after(rules: list[dict[str, Any]], *destinations: str) -> list[object]:
    """The destinations of the container's mounts after the correction."""
    target = container(mounts=[bind(path) for path in destinations])
    plan(policy(*rules), target).apply(target.start)
    return [mount.destination for mount in target.start.mounts]


def mount(path: str, **fields: Any) -> dict[str, Any]:
    """A mount of a rule."""
    return {"hostPath": "/node" + path, "mountPath": path, **fields}


def test_exact_name_beats_a_pattern_whichever_comes_first() -> None:
    exact = {"name": "exact", "env": [{"name": "N_A", "value": "void"}]}
    pattern = {"name": "pattern", "env": [{"name": "N_*", "absent": True}]}
    for rules in ((exact, pattern), (pattern, exact)):
        assert env_after(policy(*rules), "N_A=all", "N_B=1") == ["N_A=void"]


@marks.promise(
    "Rules that contradict each other for every match are an error of the policy; others refuse the "
    "container, and both are named"
)
def test_two_rules_against_each_other_refuse_the_container_and_are_both_named() -> None:
    """Only for the container that both match; when the policy was read this was a warning."""
    one = {"name": "one", "match": {"namespaces": ["team-*"]}, "env": [{"name": "A", "value": "1"}]}
    two = {"name": "two", "match": {"images": ["registry.*"]}, "env": [{"name": "A", "absent": True}]}
    node = policy(one, two)
    assert plan(node, container()).refusal() == "rule two: wants another value for env A than rule one"
    elsewhere = Identity(
        "containerd",
        True,
        namespace="other",
        pod="p",
        uid="1",
        container="c",
        types=("container",),
        image="registry.example/x",
    )
    assert plan(node, container(["A=1"], identity=elsewhere)).refusal() == ""


def test_two_mounts_against_each_other_refuse_the_container_and_are_both_named() -> None:
    one = {"name": "one", "match": {"namespaces": ["team-*"]}, "mounts": [mount("/m")]}
    two = {"name": "two", "match": {"images": ["registry.*"]}, "mounts": [mount("/m", readOnly=False)]}
    facts = Facts()
    decided = plan(policy(one, two), container(facts=facts))
    assert decided.refusal() == "rule two: wants another mount at /m than rule one"


def test_deny_refuses_what_override_would_correct() -> None:
    node = policy({**CA, "onConflict": "Deny"})
    assert plan(node, container(["CA=/tmp/x"])).refusal() == "rule ca: env CA is reserved and was set to something else"
    assert plan(node, container()).refusal() == ""
    assert plan(node, container(["CA=/ca.pem", "CA=/ca.pem"])).refusal() == ""


def test_deny_counts_whichever_rule_reserved_the_name_first() -> None:
    wide = {"name": "wide", "env": [{"name": "N_*", "absent": True}]}
    strict = {"name": "strict", "env": [{"name": "N_A*", "absent": True}], "onConflict": "Deny"}
    for rules in ((wide, strict), (strict, wide)):
        assert (
            plan(policy(*rules), container(["N_AB=1"])).refusal() == "rule strict: env N_AB must be absent and was set"
        )
        assert plan(policy(*rules), container(["N_B=1"])).refusal() == ""


def test_deny_names_the_mounts_at_and_below() -> None:
    reserved = mount("/m/n", allowBelow=["/m/n/ok"], volumesAbove="Allow")
    node = policy({"name": "r", "mounts": [reserved], "onConflict": "Deny"})
    mounts = [bind(path) for path in ("/m", "/m/n/", "/m/n/x", "/m/n/ok", "/m/o")]
    message = "rule r: mount /m/n is reserved and /m/n/, /m/n/x was mounted"
    assert plan(node, container(mounts=mounts)).refusal() == message
    assert plan(node, container(mounts=[bind("/m/n/ok"), bind("/m/o")])).refusal() == ""


def test_deny_does_not_take_the_policys_own_mounts_for_a_conflict() -> None:
    """The hook plans again what the wrapper corrected."""
    node = policy({"name": "r", "mounts": [mount("/m"), mount("/m/n")], "onConflict": "Deny"})
    target = container()
    plan(node, target).apply(target.start)
    again = plan(node, target)
    assert (again.refusal(), again.is_empty()) == ("", True)


def test_allow_below_of_one_mount_opens_no_other() -> None:
    open_, closed = mount("/m", allowBelow=["/m/n"]), mount("/m/n/x")
    assert mounts_after([{"name": "r", "mounts": [open_]}], "/m/n/x/y") == ["/m", "/m/n/x/y"]
    assert mounts_after([{"name": "r", "mounts": [open_, closed]}], "/m/n/x/y", "/m/n/z") == ["/m", "/m/n/z", "/m/n/x"]


def test_audit_decides_everything_and_refuses_nothing() -> None:
    node = policy({**CA, "onConflict": "Deny"}, mode="Audit")
    decided = plan(node, container(["CA=x"]))
    assert decided.audit_only()
    assert (len(decided.edits), len(decided.denials), decided.refusal()) == (1, 1, "")


def test_excluded_container_is_left_alone() -> None:
    decided = plan(policy(CA, exclude={"namespaces": ["team-a"]}), container(["CA=x"]))
    assert (decided.is_empty(), decided.excluded) == (True, "namespace team-a")


def test_rule_that_does_not_match_reserves_nothing() -> None:
    decided = plan(policy({**CA, "match": {"namespaces": ["other"]}}), container(["CA=x"]))
    assert decided.is_empty()
    assert not decided.env


def test_missing_source_refuses_or_skips_as_the_mount_says(root_dir: Path) -> None:
    missing = {"hostPath": f"{root_dir}/gone", "mountPath": "/m"}
    there = {"hostPath": str(root_dir), "mountPath": "/n"}
    decided = decide(policy({"name": "r", "mounts": [missing, there]}), container())
    assert decided.refusal() == f"rule r: hostPath {root_dir}/gone for mount /m does not exist on this node"
    skipping = policy({"name": "r", "mounts": [{**missing, "onMissingSource": "Skip"}, there]})
    decided = decide(skipping, container(mounts=[bind("/m")]))
    assert decided.refusal() == ""
    assert [edit.describe()["name"] for edit in decided.edits] == ["/n"]


def test_value_from_a_file_is_its_first_line(root_dir: Path) -> None:
    file = root_dir / "zone"
    file.write_text("eu-1\r\nsecond\n")
    node = policy({"name": "r", "env": [{"name": "ZONE", "valueFrom": {"file": str(file)}}]})
    target = container(["ZONE=x"])
    decided = decide(node, target)
    decided.apply(target.start)
    assert (target.start.env, decided.env.values) == (["ZONE=eu-1"], {"ZONE": "eu-1"})


def test_value_that_cannot_be_known_is_decided_by_the_failure_policy(root_dir: Path) -> None:
    file = root_dir / "zone"
    env = [{"name": "ZONE", "valueFrom": {"file": str(file)}}, {"name": "B", "value": "2"}]
    for spoil, reason in (
        (lambda: None, f"{file}: No such file or directory"),
        (lambda: (file.write_text("x"), file.chmod(0o666)), f"{file} is writable by others (mode 0666)"),
    ):
        spoil()
        complaint = f"rule r: cannot tell the value of env ZONE: {reason}"
        failing = decide(policy({"name": "r", "env": env}), container(["ZONE=x"]))
        assert failing.refusal().startswith(complaint)
        ignoring = decide(policy({"name": "r", "env": env}, failurePolicy="Ignore"), container(["ZONE=x"]))
        assert ignoring.refusal() == ""
        assert str(ignoring.errors[0]).startswith(complaint)
        assert [edit.describe()["name"] for edit in ignoring.edits] == ["B"]


def test_an_adapter_asks_for_the_kinds_that_it_is_there_for() -> None:
    node = policy({"name": "r", "env": [{"name": "A", "value": "1"}], "mounts": [mount("/m")], "onConflict": "Deny"})
    for kinds, edits in (({"env"}, ["A"]), ({"mount"}, ["/m"]), ({"env", "mount"}, ["A", "/m"])):
        decided = plan(node, container(["A=2"], [bind("/m")], POD), kinds=frozenset(kinds))
        assert [edit.describe()["name"] for edit in decided.edits] == edits
        assert len(decided.denials) == len(kinds)


def test_kinds_leave_out_each_reason_and_each_edit_of_the_other_kinds(root_dir: Path) -> None:
    """A hook that only restores mounts has no opinion about annotations, shared processes or volumes."""
    rule = {
        "name": "r",
        "env": [{"name": "A", "value": "1"}],
        "mounts": [mount("/m")],
        "annotations": [{"name": "cdi.k8s.io/*", "absent": True}],
        "deviceAllocations": {"exclusive": ["/dev/null0"], "devices": True},
        "sharedProcesses": "Refuse",
        "onConflict": "Deny",
    }
    notes = {"cdi.k8s.io/a": "x", "run.oci.handler": "wasm"}
    start = Start(
        ["A=2"], [bind("/m"), bind("/own", "/etc/reassert")], annotations=notes, shared_processes="has them all"
    )
    facts = Facts()
    facts.devices = Devices()
    facts.devices.nodes["/dev/null0"] = {("c", 1, 3000): "/dev/null0"}
    start.devices = [Device({"path": "/dev/x", "type": "c", "major": 1, "minor": 3000})]
    found: set[str] = set()
    for kind in ALL:
        decided = plan(policy(rule), Container(POD, start, facts), kinds=frozenset({kind}))
        assert {reason.kind for reason in decided.denials} == {kind}
        assert {edit.kind for edit in decided.edits} <= {kind}
        found.update(edit.name for edit in decided.edits)
    assert found == {"A", "/m", "cdi.k8s.io/a", "run.oci.handler", "/dev/x", "linux.resources.devices"}
    excluded = Identity("containerd", True, namespace="team-a", types=("sandbox",))
    sandbox = Container(excluded, Start([], [], annotations={"dev.gvisor.flag": "x"}))
    node = policy(rule, exclude={"containerTypes": ["sandbox"]})
    assert [edit.name for edit in plan(node, sandbox).edits] == ["dev.gvisor.flag"]
    assert plan(node, sandbox, kinds=frozenset({"mount"})).is_empty()


def test_an_allocation_that_is_unknown_concerns_the_kinds_that_it_decides() -> None:
    facts = Facts()
    facts.allocation_problem = "the checkpoint is torn"
    for fields, concerned in (
        ({"env": [{"name": "A", "valueFrom": {"deviceAllocation": {}}}]}, {"env"}),
        ({"deviceAllocations": {"env": True}}, {"env"}),
        ({"deviceAllocations": {"mounts": True, "volumesAbove": "Allow"}}, {"mount"}),
        ({"deviceAllocations": {"devices": True}}, {"device"}),
        ({"deviceAllocations": {"exclusive": ["/dev/kvm"]}}, {"device"}),
        ({"annotations": [{"name": "cdi.k8s.io/*", "absent": True}]}, {"annotation"}),
    ):
        node, target = policy({"name": "r", **fields}), Container(POD, Start([], []), facts)
        for kind in ALL:
            reasons = [str(each) for each in plan(node, target, kinds=frozenset({kind})).errors]
            assert reasons == (["rule r: the checkpoint is torn"] if kind in concerned else [])
        assert [str(each) for each in plan(node, target).errors] == ["rule r: the checkpoint is torn"]


def test_a_volume_above_a_reserved_mount_refuses_the_container_unless_the_rule_lets_it_through() -> None:
    """Whoever shares the volume can take the mount point away: rm, mv or a rename of a directory above it."""
    rule = {"name": "r", "mounts": [mount("/m/n/o")]}
    for path in ("/m/n", "/m", "/", "//m/./n/"):
        refusal = plan(policy(rule), container(mounts=[bind(path)])).refusal()
        assert refusal.startswith("rule r: mount ")
        assert "is a volume above the reserved mount /m/n/o; " in refusal
    for path in ("/m/nx", "/m/n/ox", "/x"):
        assert plan(policy(rule), container(mounts=[bind(path)])).refusal() == ""
    allowing = {"name": "r", "mounts": [mount("/m/n/o", volumesAbove="Allow")]}
    assert mounts_after([allowing], "/m/n", "/") == ["/m/n", "/", "/m/n/o"]
    shared = {**bind("/m"), "options": ["rbind", "rshared"]}
    refusal = plan(policy(allowing), container(mounts=[shared])).refusal()
    on_the_node = "which would appear on the node (mountPropagation: Bidirectional)"
    assert refusal == f"rule r: mount /m is a volume above the reserved mount /m/n/o, {on_the_node}"
    for kind in ("devpts", "proc", "sysfs"):
        above = {"destination": "/m", "type": kind, "source": kind, "options": []}
        refusal = plan(policy(allowing), container(mounts=[above])).refusal()
        above_it = f"rule r: mount /m is above the reserved mount /m/n/o and of type {kind}"
        assert refusal == f"{above_it}: no mount point can be made in it"
    two = policy(allowing, {**rule, "name": "strict"})
    assert plan(two, container(mounts=[bind("/m")])).refusal(), "one rule that does not allow it is enough"


def test_a_reserved_mount_above_another_is_no_volume_of_the_containers() -> None:
    rules = [{"name": "r", "mounts": [mount("/m"), mount("/m/n")]}]
    assert mounts_after(rules, "/m") == ["/m", "/m/n"]
    assert plan(policy(*rules), container(mounts=[bind("/m")])).refusal() == ""


def test_more_forbidden_names_than_anybody_needs_refuse_the_container() -> None:
    node = policy({"name": "r", "env": [{"name": "N_*", "absent": True}]})
    assert plan(node, container([f"N_{n}=" for n in range(1000)])).refusal() == ""
    decided = plan(node, container([f"N_{n}=" for n in range(100_000)]))
    assert decided.refusal() == "rule r: more than 1000 env entries of the container are reserved or must be absent"
    assert len(decided.edits) == 1000


def test_another_env_than_the_one_that_was_compared_is_corrected_too() -> None:
    """The positions of reserved names are those of the compared env."""
    compared, other = container(["CA=x", "B=1"]), container(["B=1", "C=2", "CA=y"])
    plan(policy({"name": "r", "env": [{"name": "CA", "value": "/ca"}]}), compared).apply(other.start)
    assert other.start.env == ["B=1", "C=2", "CA=/ca"]


ALONE = {"name": "alone", "sharedProcesses": "Refuse"}


def test_shared_processes_refuse_the_container_by_rule() -> None:
    target = Container(POD, Start([], [], shared_processes="has the node's PID namespace"))
    [denial] = plan(policy(ALONE), target).denials
    assert str(denial) == "rule alone: the container has the node's PID namespace, and sharedProcesses is Refuse"
    assert plan(policy({**CA, "sharedProcesses": "Allow"}), target).denials == []
    assert plan(policy(ALONE), Container(POD, Start([], [], shared_processes=""))).is_empty()


def test_shared_processes_that_nobody_tells_are_for_the_failure_policy() -> None:
    assert plan(policy(ALONE), container()).refusal().endswith("does not say which namespaces the container has")
    assert plan(policy(ALONE, failurePolicy="Ignore"), container()).refusal() == ""


def test_what_only_the_container_shows_is_looked_at_there() -> None:
    """Reserved mounts, since links of the image lead elsewhere. Env is in config.json."""
    assert not decide(policy(CA), container(["CA=x"])).is_seen_in_the_container()
    kept = policy({"name": "ca", "mounts": [{"mountPath": "/etc/ssl", "absent": True}]})
    assert decide(kept, container([])).is_seen_in_the_container()
