"""The hook entries that engines are given, under a real runtime: they work, and spare the bootloader's restart."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from e2e.support import REASSERT, Bundle, Node, Running, run
from hook.adapters.hookentry import oci_hook


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, compiled_node: Node) -> dict[str, Any]:
    """As the frozen program makes it for itself, told of the test's node."""
    monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
    made = oci_hook(str(REASSERT), "createRuntime")
    made["args"][2:2] = compiled_node.options()
    return made


def test_entry_puts_mounts_back(real: str, entry: dict[str, Any], bundle: Bundle) -> None:
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt")
    bundle.spec["hooks"] = {"createRuntime": [entry]}
    bundle.save()
    with Running(real, bundle) as container:
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]


def test_program_is_executed_once(entry: dict[str, Any], bundle: Bundle) -> None:
    """Without the three variables in its env, the bootloader sets them and executes the program again."""
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle.directory), "pid": os.getpid()})
    executed = []
    for env in (entry["env"], entry["env"][:1]):
        given = dict(variable.split("=", 1) for variable in env)
        trace = ("strace", "-f", "-e", "trace=execve", str(REASSERT), *entry["args"][1:])
        done = run(*trace, input=state, env=given, check=False)
        assert "REQUESTS_CA_BUNDLE is not what the policy wants" in done.stderr
        executed.append(done.stderr.count("execve("))
    assert executed == [1, 2]
