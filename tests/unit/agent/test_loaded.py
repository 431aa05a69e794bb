"""Whatever modules load when they need it, the agent and the NRI plugin have loaded before their first request.

A module that is loaded later costs the first request that needs it, and after an upgrade it would be another version's.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import marks
import pytest

from unit.support import ROOT

pytestmark = marks.promise(
    "The agent with the NRI plugin stays below 35 MB, and loads no module after its first request"
)

LATER = {
    "hook.agent.service": {
        "hook.nri",
        "hook.node.agent",
        "hook.ops.metrics",
    },  # at the start, as the command line says
    "hook.nri.service": {"hook.ops.metrics"},  # with --metrics, at the start
    "hook.resident.oplog": {"structlog"},  # at the start (`configure`), and not by tests
    "hook.ops.metrics.prometheus": {"prometheus_client"},  # likewise
    "hook.core.base.child": {"subprocess"},
    "hook.entry.hook": {"hook.entry.usage"},  # with --help
    "hook.entry.runtime": {"hook.entry.usage"},  # likewise
    "hook.entry.write_spec": {"hook.core.linux.early"},  # not by the plugin
    "hook.core.linux.look": {"hook.core.linux.place"},  # likewise: it only looks at running containers
}
"""What may be loaded later, or never, and why."""

ELSEWHERE = {"_sha2" if sys.version_info < (3, 12) else "_sha256"}
"""What other versions of Python have."""


def loaded(module: str) -> dict[str, str]:
    """The modules of reassert in a process that has imported this one, with their files; and all others, with ""."""
    files = "{k: getattr(m, '__file__', '') or '' for k, m in sys.modules.items()}"
    code = f"import {module}, sys, json; print(json.dumps({files}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules: dict[str, str] = json.loads(done.stdout)
    return modules


def inside_functions(file: str) -> set[str]:
    """The modules that the functions of a file import."""
    found: set[str] = set()
    for function in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                within = ROOT / Path(*node.module.split("."))
                found |= {f"{node.module}.{a.name}" for a in node.names if (within / f"{a.name}.py").is_file()}
    return found


@pytest.mark.parametrize("module", ["hook.agent.service", "hook.nri.service"])
def test_nothing_is_loaded_later(module: str) -> None:
    modules = loaded(module)
    late = {
        (name, wanted)
        for name, file in modules.items()
        if name.split(".")[0] == "hook" and file
        for wanted in inside_functions(file)
        if wanted not in modules
        and wanted not in ELSEWHERE
        and not any(wanted.startswith(other) for other in LATER.get(name, ()))
    }
    assert not late


@pytest.mark.parametrize("module", ["hook.agent.service", "hook.nri.service"])
def test_what_the_json_scanner_loads_is_there(module: str) -> None:
    """hook.core.base.jsontext puts a stand-in into sys.modules otherwise, which other threads would see."""
    assert "json.decoder" in loaded(module)
