"""`policy diff` says what a change means, and nothing of how the file is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.ops.policy.diff import Change, changes
from unit.support import called, document, policy

pytestmark = marks.promise(
    "`policy diff` says what a change means, and `audit --policy DRAFT` which running containers it affects",
    about="Policy",
)

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
        (
            {**CA, "env": [{"name": "CA", "oneOf": ["/a", "/b"], "else": "Deny"}, CA["env"][1]]},
            Change("ca", "env: CA", "'/ca.pem'", '{"else": "Deny", "oneOf": ["/a", "/b"]}'),
        ),
    ],
)
def test_change_of_a_rule(new: dict[str, Any], change: Change) -> None:
    staged = [Change("", "nodePaths.reassert", "Refuse", "tried, as rules")] if change.what == "mode" else []
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
