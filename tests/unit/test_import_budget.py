"""A container start imports only a few builtins and the start path's modules (hook/start.py has the reason).

The real commands run under `-X importtime`, which lists every module that the interpreter loads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from startpath import ROOT, RULE, Start, imported, reachable, size

from unit.support import document

BUILTINS = {"_json", "_signal", "errno", "posix", "sys", "time"}
MODULES = {
    "hook",
    "hook.entry",
    "hook.entry.caller",
    "hook.entry.cmdline",
    "hook.entry.write_spec",
    "hook.entry.runtime",
    "hook.core",
    "hook.core.base",
    "hook.core.base.compare",
    "hook.core.base.errors",
    "hook.core.base.jsontext",
    "hook.core.base.child",
    "hook.core.base.system",
    "hook.core.base.text",
    "hook.core.container",
    "hook.core.container.identity",
    "hook.core.container.spec",
    "hook.core.container.start",
    "hook.core.decide",
    "hook.core.events",
    "hook.core.facts",
    "hook.core.facts.gather",
    "hook.core.plan",
    "hook.core.policy",
    "hook.core.policy.entries",
    "hook.core.policy.model",
    "hook.core.policy.store",
    "hook.core.reserve",
    "hook.core.reserve.env",
    "hook.core.reserve.mounts",
    "hook.start",
}
"""Of a usual create: of a pod's container under containerd that overrides reserved env and mounts."""

MOST = 260_000
"""Bytes of marshalled code that a usual create loads, at most. tests/startpath.py prints them."""

LATE = {
    "hook.core.policy.model",
    "hook.core.base.compare",
    "hook.entry.help",
    "hook.entry.write_spec",
    "hook.core.policy.store",
    "hook.core.events",
    "hook.core.facts.sharing",
    "hook.core.facts.files",
    "hook.core.decide",
    "hook.entry.exec",
    "hook.entry.hook",
    "hook.entry.runtime",
    "hook.entry.cmdline",
    "hook.core.container.runtime_records",
    "hook.core.facts.allocated",
    "hook.core.base.system",
    "hook.core.base.journal",
    "hook.core.base.jsontext",
    "hook.core.base.logfile",
    "hook.core.base.mountinfo",
    "hook.core.container.allocation",
    "hook.core.container.cdi",
    "hook.core.container.claims",
    "hook.core.container.identity",
    "hook.core.container.injections",
    "hook.core.container.nodes",
    "hook.core.facts.exclusive",
    "hook.core.facts.network_filesystems",
    "hook.core.reserve.allocated",
    "hook.core.reserve.annotations",
    "hook.core.reserve.devices",
    "hook.core.reserve.exclusive",
    "hook.core.policy.trust_layout",
}
"""What other commands load, or starts that need it."""


OTHER_ADAPTERS = {f"hook.entry.{name}" for name in ("write_spec", "hook", "runtime")}


@pytest.fixture
def start(root_dir: Path) -> Start:
    return Start(root_dir)


def assert_within_budget(modules: set[str]) -> None:
    assert modules - MODULES - LATE - BUILTINS == set()
    assert "hook.start" in modules


def test_create_imports_the_start_path_only(start: Start) -> None:
    modules = start.create()
    assert modules - MODULES - BUILTINS == set()
    assert size(modules)[1] <= MOST, "tests/startpath.py --modules lists them"
    assert "CA=/ca.pem" in json.loads(start.config.read_text())["process"]["env"], "the start was a real one"
    assert '\\"event\\":' in start.config.read_text(), "handed on to the hook that looks at the mount"


EXCLUSIVE = {
    "hook.core.facts.exclusive",
    "hook.core.reserve.exclusive",
    "hook.core.container.nodes",
    "hook.core.container.injections",
}


def test_only_a_policy_with_exclusive_pays_for_it(start: Start) -> None:
    start.write(["A=1"])
    config = json.loads(start.config.read_text())
    kubelet = {"kubelet": {"root": str(start.directory)}}
    for parts, loaded in (({"devices": True}, set()), ({"exclusive": ["/dev/none*"]}, EXCLUSIVE)):
        start.set_policy({"name": "r", "deviceAllocations": parts}, **kubelet)
        start.config.write_text(json.dumps(config))
        modules = start.runtime("create", "--bundle", str(start.bundle), "0a")
        assert modules & EXCLUSIVE == loaded
        assert not any(name in modules for name in ("os", "ctypes", "re"))


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
    root = {"root": {"path": str(start.bundle)}}  # a relative one would be looked for in the working directory
    modules, result = start.hook("precreate", json.dumps({**json.loads(start.config.read_text()), **root}))
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


def test_nothing_else_can_be_loaded_by_a_start() -> None:
    """With hook.core.linux, which needs ctypes, where mounts are looked at."""
    assert {name for name in reachable() if not name.startswith("hook.core.linux")} == MODULES | LATE


@pytest.mark.parametrize("module", ["hook.agent.work", "hook.nri.plugin"])
def test_what_answers_many_requests_loads_nothing_while_it_answers(module: str) -> None:
    """What is missing is missing in hook/entry/preload.py. The plugin has no part in hooks and looks at no mounts."""
    path = f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}; import {module}"
    loaded, result = imported("-c", path)
    assert result.returncode == 0, result.stderr
    needed = reachable() if "agent" in module else (MODULES | LATE) - OTHER_ADAPTERS
    assert needed - loaded - {"hook.start", "hook.entry.help"} == set()
