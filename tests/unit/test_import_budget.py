"""A container start imports only a few builtins and the start path's modules (hook/start.py has the reason).

The real commands run under `-X importtime`, which lists every module that the interpreter loads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hook.policy.compiler import refresh
from unit.support import CONTAINERD, ROOT, bind, config, document

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
    "hook.base.excerpt",
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
PYTHON = [sys.executable, "-I", "-S", "-X", "importtime"]
"""Isolated and without `site`, as the frozen program runs."""

RULE = {
    "name": "r",
    "match": {"namespaces": ["team-*"], "podSelector": {"matchLabels": {"a": "b"}}},
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "N_*", "absent": True}],
}
MOUNT = {"hostPath": "/etc", "mountPath": "/etc/ssl"}


def imported(*command: str, text: str = "") -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules that a command loads beyond those of an interpreter that does nothing."""

    def modules(stderr: str) -> set[str]:
        lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
        return {line.rpartition("|")[2].strip() for line in lines[1:]}

    idle = subprocess.run([*PYTHON, "-c", "pass"], capture_output=True, text=True, check=True)
    result = subprocess.run([*PYTHON, *command], capture_output=True, text=True, input=text, timeout=60)
    own = modules(result.stderr)
    assert own, result.stderr
    return own - modules(idle.stderr), result


class Start:
    """A node with a compiled policy, and the bundle of a container that overrides reserved entries."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bundle = directory, directory / "bundle"
        self.config = self.bundle / "config.json"
        self.bundle.mkdir()
        self.set_policy({**RULE, "mounts": [MOUNT]})
        self.write(["CA=/tmp/x", "N_A=1"])
        self.where = ["--policy", f"{directory}/policy.yaml", "--store", f"{directory}/s"]
        self.where += ["--events", f"{directory}/events.jsonl"]

    def set_policy(self, rule: dict[str, object]) -> None:
        (self.directory / "s").mkdir(exist_ok=True)
        (self.directory / "policy.yaml").write_text(document(rule))
        refresh(f"{self.directory}/policy.yaml", f"{self.directory}/s")

    def write(self, env: list[str]) -> None:
        self.config.write_text(json.dumps(config(env, [bind("/etc/ssl/certs")], CONTAINERD)))

    def runtime(self, *arguments: str) -> set[str]:
        """The modules of `reassert runtime`, which must have executed the real runtime."""
        command = ["runtime", "--real", "/bin/true", *self.where, "--", "--root", f"{self.directory}/state"]
        modules, result = imported(str(ROOT / "hook" / "__main__.py"), *command, *arguments)
        assert result.returncode == 0, result.stderr
        return modules

    def hook(self, stage: str, text: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
        """The modules of `reassert hook`."""
        return imported(str(ROOT / "hook" / "__main__.py"), "hook", *self.where, stage, text=text)

    def state(self) -> str:
        """What a runtime gives a hook on stdin."""
        return json.dumps(
            {"ociVersion": "1.0.2", "id": "0a", "status": "creating", "pid": 1, "bundle": str(self.bundle)}
        )


@pytest.fixture
def start(root_dir: Path) -> Start:
    return Start(root_dir)


def assert_within_budget(modules: set[str]) -> None:
    assert modules - MODULES - BUILTINS == set()
    assert "hook.start" in modules


def test_create_imports_the_start_path_only(start: Start) -> None:
    assert_within_budget(start.runtime("create", "--bundle", str(start.bundle), "0a"))
    assert "CA=/ca.pem" in json.loads(start.config.read_text())["process"]["env"], "the start was a real one"
    assert '\\"event\\":' in start.config.read_text(), "handed on to the hook that looks at the mount"


EXCLUSIVE = {"hook.exclusivefacts", "hook.reserve.exclusive", "hook.container.nodes", "hook.container.injections"}


def test_only_a_policy_with_exclusive_pays_for_it(start: Start) -> None:
    start.write(["A=1"])
    config = json.loads(start.config.read_text())
    kubelet = {"kubelet": {"root": str(start.directory)}}
    for parts, loaded in (({"devices": True}, set()), ({"exclusive": ["/dev/none*"]}, EXCLUSIVE)):
        (start.directory / "policy.yaml").write_text(document({"name": "r", "deviceAllocations": parts}, **kubelet))
        refresh(f"{start.directory}/policy.yaml", f"{start.directory}/s")
        start.config.write_text(json.dumps(config))
        modules = start.runtime("create", "--bundle", str(start.bundle), "0a")
        assert modules & EXCLUSIVE == loaded
        assert not any(name in modules for name in ("os", "ctypes", "re"))


def test_exec_imports_the_start_path_only(start: Start) -> None:
    start.runtime("create", "--bundle", str(start.bundle), "0a")
    state, process = start.directory / "state" / "0a", start.directory / "process.json"
    state.mkdir(parents=True)
    (state / "state.json").write_text(json.dumps({"config": {"labels": [f"bundle={start.bundle}"]}}))
    process.write_text(json.dumps({"args": ["sh"], "env": ["CA=/tmp/x", "N_A=1", "B=1"]}))
    assert_within_budget(start.runtime("exec", "--process", str(process), "0a"))
    assert json.loads(process.read_text())["env"] == ["CA=/ca.pem", "B=1"], "the exec was a real one"


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
    assert_within_budget(start.runtime("create", "--bundle", str(start.bundle), "0a"))
    assert '"new"' in (start.directory / "events.jsonl").read_text()
