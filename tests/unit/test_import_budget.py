"""A container start imports only a few builtins and the start path's modules (hook/start.py has the reason).

The real commands run under `-X importtime`, which lists every module that the interpreter loads.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from startpath import ROOT, RULE, Start, imported

from unit.support import document

BUILTINS = {"_json", "_signal", "errno", "posix", "sys", "time"}
MODULES = {
    "hook",
    "hook.adapters",
    "hook.adapters.caller",
    "hook.adapters.cmdline",
    "hook.adapters.exec",
    "hook.adapters.handover",
    "hook.adapters.hook",
    "hook.adapters.options",
    "hook.adapters.precreate",
    "hook.adapters.runtime",
    "hook.adapters.state",
    "hook.base",
    "hook.base.child",
    "hook.base.errors",
    "hook.base.glob",
    "hook.base.jsontext",
    "hook.base.logfile",
    "hook.base.text",
    "hook.base.system",
    "hook.container",
    "hook.container.identity",
    "hook.container.model",
    "hook.container.paths",
    "hook.container.spec",
    "hook.decide",
    "hook.events",
    "hook.gather",
    "hook.plan",
    "hook.policy",
    "hook.policy.match",
    "hook.policy.model",
    "hook.policy.store",
    "hook.reserve",
    "hook.reserve.annotations",
    "hook.reserve.decision",
    "hook.reserve.devices",
    "hook.reserve.env",
    "hook.reserve.mounts",
    "hook.reserve.outcome",
    "hook.start",
}


@pytest.fixture
def start(root_dir: Path) -> Start:
    return Start(root_dir)


def assert_within_budget(modules: set[str]) -> None:
    assert modules - MODULES - BUILTINS == set()
    assert "hook.start" in modules


def test_create_imports_the_start_path_only(start: Start) -> None:
    assert_within_budget(start.create())
    assert "CA=/ca.pem" in json.loads(start.config.read_text())["process"]["env"], "the start was a real one"
    assert '\\"event\\":' in start.config.read_text(), "handed on to the hook that looks at the mount"


def test_exec_imports_the_start_path_only(start: Start) -> None:
    start.create()
    modules, env = start.exec(["CA=/tmp/x", "N_A=1", "B=1"])
    assert_within_budget(modules)
    assert env == ["CA=/ca.pem", "B=1"], "the exec was a real one"


def test_hook_imports_the_start_path_only(start: Start) -> None:
    """It verifies, and refuses. One that has something to mount also needs the mount calls."""
    start.set_policy(RULE)
    modules, result = start.hook("createRuntime", start.state())
    assert result.returncode == 1
    assert "a hook cannot set env" in result.stderr
    assert_within_budget(modules)
    start.write(["CA=/ca.pem"])
    modules, result = start.hook("createRuntime", start.state())
    assert result.returncode == 0
    assert_within_budget(modules)


def test_precreate_imports_the_start_path_only(start: Start) -> None:
    modules, result = start.hook("precreate", start.config.read_text())
    assert "CA=/ca.pem" in json.loads(result.stdout)["process"]["env"]
    assert_within_budget(modules)


def test_refused_start_imports_the_start_path_only(start: Start) -> None:
    start.config.write_text("{")
    command = ["runtime", "--real", "/bin/true", *start.where, "--", "create", "--bundle", str(start.bundle), "0a"]
    modules, result = imported(str(ROOT / "hook" / "__main__.py"), *command)
    assert result.returncode == 1
    assert f"{start.config}: no member name at the end of the text" in result.stderr
    assert_within_budget(modules)


def test_changed_policy_is_compiled_in_another_process(start: Start) -> None:
    start.set_policy(RULE)
    (start.directory / "policy.yaml").write_text(document({**RULE, "name": "new"}))
    assert_within_budget(start.create())
    assert '"new"' in (start.directory / "events.jsonl").read_text()
