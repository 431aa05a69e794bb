"""What stands in base_runtime_spec: the hook last, and the names that nothing may duplicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.core.policy.compiler import compile_bytes
from hook.core.policy.model import Policy
from hook.node.artifacts.specs import base_spec, reserved_env
from hook.node.errors import NodeError


def policy(rules: str) -> Policy:
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
    assert reserved_env(policy(rules)) == ["VALUE=first", "GPU=void", "THEIRS=x"]


def test_a_value_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    rules = f"  - {{name: a, env: [{{name: N, valueFrom: {{file: {tmp_path}/missing}}}}]}}\n"
    with pytest.raises(NodeError, match="the value of env N cannot be read"):
        reserved_env(policy(rules))
