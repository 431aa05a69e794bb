"""What a hostile probe asks for, and which rules it can try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.core.container.identity import CONTAINER, Identity
from hook.core.policy.model import Rule
from hook.node.probe import hostile
from unit.support import policy

PROBE = Identity(
    "containerd", True, namespace="default", pod="p", uid="1", container="probe", types=(CONTAINER,), image="pause:3.9"
)
BARE = Identity("podman", False, types=(CONTAINER,), image="localhost/x:1")
VALUE = [{"name": "A", "value": "a"}]


def rules(*given: dict[str, Any]) -> list[Rule]:
    return policy(*({"name": f"r{number}", **rule} for number, rule in enumerate(given))).candidates(None)


def test_a_value_is_overridden_twice_as_kubelet_does_it() -> None:
    env = [{"name": "A", "value": "a"}, {"name": "B", "valueFrom": {"file": "/b"}}, {"name": "C", "absent": True}]
    assert hostile.env(rules({"env": env})) == [
        ("A", "reassert-verify-plugin"),
        ("B", "reassert-verify-plugin"),
        ("A", "reassert-verify-pod"),
        ("B", "reassert-verify-pod"),
        ("C", "reassert-verify-pod"),
    ]


def test_what_a_device_plugin_would_set_is_overridden_where_a_default_is_reserved() -> None:
    def allocated(default: str) -> dict[str, Any]:
        return {"name": f"D_{default.upper()}", "valueFrom": {"deviceAllocation": {"default": default}}}

    found = dict(hostile.env(rules({"env": [allocated("void"), allocated("Keep")]})))
    assert found == {"D_VOID": "reassert-verify-pod"}


def test_a_pattern_gets_a_name_that_it_covers() -> None:
    pattern = {"name": "N_*_?", "absent": True}
    assert hostile.env(rules({"env": [pattern]})) == [("N_REASSERT_X", "reassert-verify-pod")]


def test_a_value_that_is_not_allowed_is_tried_and_one_that_is_proves_nothing() -> None:
    env = [
        {"name": "A", "oneOf": ["a"], "else": "b"},
        {"name": "B", "pattern": "b*", "default": "b"},
        {"name": "C", "oneOf": ["c"], "else": "Deny"},
        {"name": "D", "pattern": "reassert-*"},
    ]
    assert dict(hostile.env(rules({"env": env}))) == dict.fromkeys("ABC", "reassert-verify-pod")
    assert [*dict(hostile.env(rules({"env": env}), gentle=True))] == ["A", "B"]


def test_gently_nothing_is_asked_for_that_can_only_be_refused() -> None:
    given = rules(
        {"env": [*VALUE, {"name": "C", "absent": True}]}, {"env": [{"name": "D", "value": "d"}], "onConflict": "Deny"}
    )
    assert dict(hostile.env(given, gentle=True)) == {"A": "reassert-verify-pod"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What a rule mounts: a directory, with entries of every kind."""
    path = tmp_path / "source"
    (path / "b-directory").mkdir(parents=True)
    (path / "a-link").symlink_to("b-directory")
    (path / "c-file").touch()
    return path


def mounts(tmp_path: Path, *rule_mounts: dict[str, Any], gentle: bool = False, deny: bool = False) -> dict[str, str]:
    """Paths in the container, with what kind of thing is mounted there."""
    directory = tmp_path / "volumes"
    directory.mkdir()
    rule = {"mounts": [*rule_mounts], "onConflict": "Deny" if deny else "Override"}
    found = hostile.mounts(rules(rule), {"/absent"}, str(directory), gentle)
    return {path: "directory" if Path(own).is_dir() else "file" for own, path in found}


def test_a_directory_gets_one_over_it_and_something_below_that_is_there_already(tmp_path: Path, source: Path) -> None:
    mount = {"hostPath": str(source), "mountPath": "/etc/ssl"}
    assert mounts(tmp_path, mount) == {"/etc/ssl": "directory", "/etc/ssl/b-directory": "directory"}


def test_what_may_be_below_is_no_attack(tmp_path: Path, source: Path) -> None:
    mount = {"hostPath": str(source), "mountPath": "/etc/ssl", "allowBelow": ["/etc/ssl/b-directory"]}
    assert mounts(tmp_path, mount) == {"/etc/ssl": "directory", "/etc/ssl/c-file": "file"}


def test_a_file_gets_a_file(tmp_path: Path, source: Path) -> None:
    mount = {"hostPath": str(source / "c-file"), "mountPath": "/etc/ca.pem"}
    assert mounts(tmp_path, mount) == {"/etc/ca.pem": "file"}


def test_where_nothing_may_be_mounted_something_is(tmp_path: Path) -> None:
    assert mounts(tmp_path, {"mountPath": "/var/run/docker", "absent": True}) == {"/var/run/docker": "directory"}


def test_gently_no_rule_is_provoked_that_denies(tmp_path: Path, source: Path) -> None:
    assert mounts(tmp_path, {"hostPath": str(source), "mountPath": "/x"}, gentle=True, deny=True) == {}


def covering(identity: Identity, **match: Any) -> tuple[bool, str]:
    """Whether a rule with this match is tried, and why not."""
    tried, others = hostile.covering(policy({"name": "r", "env": VALUE, "match": match}), identity)
    assert [match.rule.name for match in tried] + list(others) == ["r"]
    return bool(tried), others.get("r", "")


UNSURE = "whether it matches a test container depends on what the adapter can see"


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        ({"namespaces": ["def*"], "containerNames": ["probe"]}, ""),
        ({"namespaces": ["team-*"]}, "namespaces default is not team-*"),
        ({"images": ["*"]}, ""),
        ({"images": ["pause:*"]}, ""),
        ({"images": ["pause:*"], "ifUnknown": "Skip"}, UNSURE),
        ({"images": ["app:*"]}, UNSURE),
        ({"containerTypes": ["container", "init", "ephemeral"]}, ""),
        ({"containerTypes": ["init"]}, "containerTypes container is not init"),
        ({"containerTypes": ["sandbox"]}, "containerTypes container is not sandbox"),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, UNSURE),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}, ""),
    ],
)
def test_a_rule_is_tried_if_it_holds_whatever_the_adapter_sees(match: dict[str, Any], reason: str) -> None:
    assert covering(PROBE, **match) == (not reason, reason)
