"""`policy diff` says what a change means, and nothing of how the file is written."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest

from hook.core.container.identity import identify
from hook.core.container.spec import Spec
from hook.entry.write_spec import ANNOTATION
from hook.ops.audit.inventory import Running
from hook.ops.policy.diff import Change, affected, changes, compared, diff
from unit.support import CONTAINERD, called, document, policy, spec

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "B", "absent": True}]}
NEW = {"name": "CA", "value": "/new"}
GPU = {"name": "gpu", "match": {"namespaces": ["a", "b"]}, "mounts": [{"hostPath": "/h", "mountPath": "/m"}]}


def found(old: list[dict[str, Any]], new: list[dict[str, Any]], **spec_of_new: Any) -> list[Change]:
    return list(changes(policy(*old), policy(*new, **spec_of_new)))


def test_same_meaning_is_no_change() -> None:
    mount = {"hostPath": "/h/", "mountPath": "//m", "readOnly": True}
    gpu = {"name": "gpu", "match": {"namespaces": ["b", "a"]}, "mounts": [mount]}
    assert found([CA, GPU], [gpu, {**CA, "onConflict": "Override", "env": CA["env"][::-1]}], mode="Enforce") == []


@pytest.mark.parametrize(
    ("new", "change"),
    [
        ({**CA, "onConflict": "Deny"}, Change("ca", "onConflict", "Override", "Deny")),
        ({**CA, "mode": "Audit"}, Change("ca", "mode", "Enforce", "Audit")),
        ({**CA, "env": CA["env"][:1]}, Change("ca", "env: B", "absent", "-")),
        ({**CA, "env": [NEW, CA["env"][1]]}, Change("ca", "env: CA", "'/ca.pem'", "'/new'")),
        ({**CA, "name": "other"}, Change("ca", "name", "ca", "other")),
    ],
)
def test_change_of_a_rule(new: dict[str, Any], change: Change) -> None:
    staged = [Change("", "mode", "Enforce", "Mixed")] if change.what == "mode" else []
    assert found([CA, GPU], [new, GPU]) == [*staged, change]


def test_rule_that_comes_and_one_that_goes() -> None:
    told = found([CA], [GPU])
    assert told[:3] == [
        Change("ca", "rule", "present", "-"),
        Change("ca", "mode", "Enforce", "-"),
        Change("ca", "env: CA", "'/ca.pem'", "-"),
    ]
    assert Change("gpu", "rule", "-", "present") in told
    assert Change("gpu", "match.namespaces", "-", "a, b") in told


def test_change_of_the_policy_itself() -> None:
    told = found([CA], [CA], failurePolicy="Ignore", exclude={"namespaces": ["x"]})
    assert told == [Change("", "failurePolicy", "Fail", "Ignore"), Change("", "exclude.namespaces", "-", "x")]


def test_command_says_so_by_its_exit_status(root_dir: Path) -> None:
    for name, rules in (("old", [CA]), ("same", [{**CA, "onConflict": "Override"}]), ("new", [GPU])):
        (root_dir / name).write_text(document(*rules))
    same = called("policy", "diff", f"{root_dir}/old", f"{root_dir}/same")
    assert (same.returncode, same.stdout) == (0, "no change of meaning\n")
    different = called("policy", "diff", f"{root_dir}/old", f"{root_dir}/new", "-o", "json")
    assert different.returncode == 1
    assert {"rule": "ca", "what": "rule", "old": "present", "new": "-"} in json.loads(different.stdout)["changes"]
    assert called("policy", "diff", f"{root_dir}/old", "/nonexistent").returncode == 1


def test_compared_are_edits_and_refusals() -> None:
    """Not what a policy reserves: a container that has it already would start as before."""
    inside = spec(env=[], annotations={**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "a"})
    outside = spec(env=[], annotations=CONTAINERD)
    rule = {"name": "r", "match": {"namespaces": ["a"]}, "env": [{"name": "X", "value": "1"}]}
    changed = {**rule, "env": [{"name": "X", "value": "2"}]}
    told = [compared(policy(CA, rule), policy(CA, changed), identify(each), each) for each in (inside, outside)]
    assert told == [(["env X"], []), ([], [])]
    has = spec(env=["X=2"], annotations={**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "a"})
    assert compared(policy(rule, mode="Audit"), policy(changed), identify(has), has) == ([], [])
    assert compared(policy(rule, mode="Audit"), policy(rule), identify(has), has) == (["env X"], [])
    denies = policy({**rule, "onConflict": "Deny"})
    assert compared(policy(rule), denies, identify(has), has) == (["env X", "refusal"], [])
    assert compared(policy(rule), denies, identify(inside), inside) == ([], [])


def test_what_the_wrapper_corrected_is_not_known_without_the_rule() -> None:
    """The config.json has what the rule wanted, and not what the pod had asked for."""
    one = spec(env=["CA=/ca.pem"], annotations={**CONTAINERD, ANNOTATION: "{}"})
    assert compared(policy(CA), policy(), identify(one), one) == ([], ["env CA", "env B"])
    assert compared(policy(CA), policy(CA), identify(one), one) == ([], [])
    never = spec(env=["CA=/ca.pem"], annotations=CONTAINERD)
    assert compared(policy(CA), policy(), identify(never), never) == ([], [])


def test_a_policy_in_audit_mode_touches_nothing_until_it_is_enforced() -> None:
    one = spec(env=[], annotations=CONTAINERD)
    two = spec(env=["B=1"], annotations=CONTAINERD)
    audit, other = policy(CA, mode="Audit"), policy({**CA, "env": CA["env"][:1]}, mode="Audit")
    assert compared(audit, policy(CA), identify(one), one) == (["env CA"], [])
    assert compared(audit, policy(CA), identify(two), two) == (["env CA", "env B"], [])
    assert compared(audit, audit, identify(two), two) == ([], [])
    assert compared(audit, other, identify(two), two) == (["env B"], [])


def test_a_container_that_cannot_be_read_is_told_and_hides_no_other(
    root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone() -> Spec:
        raise FileNotFoundError(2, "No such file or directory", "/b/config.json")

    one = spec(env=[], annotations=CONTAINERD)
    there = [
        Namespace(id="1", title="a/p/c", engine="containerd", identity=identify(one), spec=gone),
        Namespace(id="2", title="a/p/d", engine="containerd", identity=None, problem="kata?"),
        Namespace(id="3", title="a/p/e", engine="containerd", identity=identify(one), spec=lambda: one),
    ]
    told = list(affected(policy(CA), policy(), cast("list[Running]", there)))
    assert [each.id for each in told] == ["1", "2", "3"]
    assert told[0].problem.startswith("/b/config.json")
    assert told[1].problem == "kata?"
    assert told[2].entries == ("env CA",)
    old, new = root_dir / "old.yaml", root_dir / "new.yaml"
    old.write_text(document(CA))
    new.write_text(document())
    assert diff(str(old), str(new), "table", lambda: cast("list[Running]", there)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 of 3 running containers would start differently; of 2 it is not known"
