"""What engines read: hook entries, the base spec of containerd, and the CDI spec of `reassert cdi generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile.compiler import compile_bytes
from hook.core.base.errors import ReassertError
from hook.core.policy.model import Policy
from hook.core.policy.store import NoPolicy
from hook.node.artifacts.specs import base_spec, cdi_spec, oci_hook, reserved_env
from hook.node.errors import NodeError
from unit.support import document, policy, reassert

pytestmark = [
    marks.promise("Hook entries have a safe form and call one version only", about="Decision"),
    marks.promise("`cdi generate` makes valid specs that carry the hook", about="Decision"),
]

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
    entry = {"hookName": "createRuntime", **oci_hook(PROGRAM)}
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


def test_every_entry_has_what_past_holes_ask_for() -> None:
    entry = oci_hook(PROGRAM)
    assert entry["path"] == PROGRAM
    assert entry["args"] == ["reassert", "hook", "createRuntime"]
    assert entry["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC0"]
    assert entry["timeout"] == 30


def parsed(rules: str) -> Policy:
    text = f"apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {{name: t}}\nspec:\n  rules:\n{rules}"
    return compile_bytes("/policy.yaml", text.encode()).policy()


def test_the_hook_comes_last_and_the_default_stays() -> None:
    default = {
        "process": {"env": ["A=theirs", "B=1"], "cwd": "/"},
        "hooks": {"createRuntime": [{"path": "/theirs"}], "poststop": [{"path": "/other"}]},
        "linux": {},
    }
    spec = base_spec(default, "/opt/reassert/reassert", ["A=ours", "C=2"])
    assert spec["process"] == {"env": ["B=1", "A=ours", "C=2"], "cwd": "/"}
    assert [entry["path"] for entry in spec["hooks"]["createRuntime"]] == ["/theirs", "/opt/reassert/reassert"]
    assert spec["hooks"]["createRuntime"][-1]["env"]  # CVE-2025-23266
    assert spec["hooks"]["poststop"] == [{"path": "/other"}]
    assert default["process"]["env"] == ["A=theirs", "B=1"]


def test_names_with_a_value_are_reserved_and_no_others() -> None:
    rules = """\
  - name: a
    match: {namespaces: [team-b]}
    env:
    - {name: VALUE, value: first}
    - {name: GONE, absent: true}
    - {name: GPU, valueFrom: {deviceAllocation: {default: void}}}
    - {name: NONE, valueFrom: {deviceAllocation: {}}}
    - {name: KEPT, valueFrom: {deviceAllocation: {default: Keep}}}
  - name: b
    match: {namespaces: [team-a]}
    env: [{name: VALUE, value: second}, {name: THEIRS, value: x}]
"""
    assert reserved_env(parsed(rules)) == ["VALUE=first", "GPU=void", "THEIRS=x"]


def test_a_value_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    rules = f"  - {{name: a, env: [{{name: N, valueFrom: {{file: {tmp_path}/missing}}}}]}}\n"
    with pytest.raises(NodeError, match="the value of env N cannot be read"):
        reserved_env(parsed(rules))
