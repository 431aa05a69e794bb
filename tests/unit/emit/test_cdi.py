"""`reassert cdi generate` prints a valid CDI spec of the rules that a device can express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.errors import ReassertError
from hook.core.policy.compiler import compile_bytes
from hook.core.policy.store import NoPolicy
from hook.node.artifacts.specs import cdi_spec, oci_hook
from unit.support import document, policy, reassert

PROGRAM = "/opt/reassert/reassert"
CA = {"name": "SSL_CERT_FILE", "value": "/etc/ssl/ca.pem"}
MOUNT = {"hostPath": "/etc/ssl", "mountPath": "/etc/ssl"}


def test_device_for_each_rule_of_all_containers() -> None:
    spec = cdi_spec(policy({"name": "ca", "env": [CA], "mounts": [MOUNT]}, {"name": "1.b", "env": [CA]}), PROGRAM)
    assert spec["devices"] == [
        {
            "name": "ca",
            "containerEdits": {
                "env": ["SSL_CERT_FILE=/etc/ssl/ca.pem"],
                "mounts": [
                    {
                        "hostPath": "/etc/ssl",
                        "containerPath": "/etc/ssl",
                        "options": ["rbind", "rprivate", "ro"],
                        "type": "bind",
                    }
                ],
            },
        },
        {"name": "1.b", "containerEdits": {"env": ["SSL_CERT_FILE=/etc/ssl/ca.pem"]}},
    ]


def test_every_device_brings_the_verifying_hook() -> None:
    spec = cdi_spec(policy({"name": "ca", "env": [CA]}), PROGRAM)
    entry = {"hookName": "createRuntime", **oci_hook(PROGRAM, "createRuntime")}
    assert spec["containerEdits"] == {"hooks": [entry]}


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "r", "match": {"namespaces": ["a"]}, "env": [CA]},
        {"name": "r", "env": [{"name": "A", "absent": True}]},
        {"name": "r", "env": [{"name": "A", "valueFrom": {"file": "/etc/a"}}]},
        {"name": "r", "env": [{"name": "A", "valueFrom": {"deviceAllocation": {"default": "void"}}}]},
        {"name": "r", "mounts": [{"mountPath": "/a", "absent": True}]},
    ],
)
def test_what_no_device_can_say_is_left_out(rule: dict[str, Any]) -> None:
    with pytest.raises(ReassertError, match="no rule without match gives an env name a value or mounts something"):
        cdi_spec(policy(rule), PROGRAM)
    spec = cdi_spec(policy(rule, {"name": "ca", "env": [CA]}), PROGRAM)
    assert [device["name"] for device in spec["devices"]] == ["ca"]


def test_audit_and_no_policy_at_all_make_no_spec() -> None:
    with pytest.raises(ReassertError, match="mode is Audit"):
        cdi_spec(policy({"name": "ca", "env": [CA]}, mode="Audit"), PROGRAM)
    with pytest.raises(ReassertError, match="it is broken"):
        cdi_spec(NoPolicy("/p", "it is broken"), PROGRAM)


def test_command_prints_it(root_dir: Path) -> None:
    source = root_dir / "policy.yaml"
    source.write_text(document({"name": "ca", "env": [CA]}))
    where = ("--policy", str(source), "--store", str(root_dir / "s"))
    result = reassert("cdi", "generate", "--reassert", PROGRAM, *where)
    assert (result.returncode, result.stderr) == (0, "")
    in_force = compile_bytes(str(source), source.read_bytes()).policy()
    assert json.loads(result.stdout) == cdi_spec(in_force, PROGRAM)
    source.write_text("{")
    broken = reassert("cdi", "generate", "--policy", str(source), "--store", str(root_dir / "t"))
    assert (broken.returncode, broken.stdout, broken.stderr.count("\n")) == (1, "", 1)
    relative = reassert("cdi", "generate", "--reassert", "x", *where)
    assert (relative.returncode, relative.stderr) == (2, "reassert: x is not an absolute path\n")
