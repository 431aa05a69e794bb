"""A container start imports only a few builtins and the start path's modules (hook/start.py has the reason).

The real commands run under `-X importtime`, which lists every module that the interpreter loads.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest
from startpath import ROOT, RULE, Start, imported, imports, reachable, size

BUILTINS = {"_json", "_signal", "errno", "posix", "sys", "time"}
LATE = {"_socket", "binascii", "fcntl", "zlib", "_sha2", "_sha256"}
"""C extensions of what a usual start does not need: journald, the log, claims, the hash of a text that is cut."""


@cache
def start_path() -> frozenset[str]:
    """What a start may load. hook.core.linux, which needs ctypes, comes where mounts are looked at."""
    return frozenset(name for name in reachable() if not name.startswith("hook.core.linux"))


MOST = 260_100
"""Bytes of marshalled code that a usual create loads, at most. tests/startpath.py prints them."""

OTHER_ADAPTERS = {f"hook.entry.{name}" for name in ("write_spec", "hook", "runtime")}


@pytest.fixture
def start(root_dir: Path) -> Start:
    return Start(root_dir)


def test_usual_starts_load_the_start_path_only(start: Start) -> None:
    """A create that corrects env and mounts, an exec, and a hook that verifies."""
    created = start.create()
    assert "CA=/ca.pem" in json.loads(start.config.read_text())["process"]["env"], "the start was a real one"
    assert '\\"event\\":' in start.config.read_text(), "handed on to the hook that looks at the mount"
    executed, env = start.exec(["CA=/tmp/x", "N_A=1", "B=1"])
    assert env == ["CA=/ca.pem", "B=1"], "the exec was a real one"
    start.set_policy(RULE)
    start.write(["CA=/ca.pem"])
    hooked, result = start.hook("createRuntime", start.state())
    assert (result.returncode, "hook.entry.hook" in hooked) == (0, True)
    for modules in (created, executed, hooked):
        assert modules - start_path() - BUILTINS == set()
    assert size(created)[1] <= MOST, "give what few starts need its own module (tests/startpath.py --modules)"


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


def test_start_path_names_no_module_but_builtins_and_its_own() -> None:
    foreign = {
        (module, name)
        for module in start_path()
        for name in imports(module)
        if name.partition(".")[0] != "hook" and name not in BUILTINS | LATE
    }
    assert foreign == set()


@pytest.mark.parametrize("module", ["hook.agent.work", "hook.nri.plugin"])
def test_what_answers_many_requests_loads_nothing_while_it_answers(module: str) -> None:
    """What is missing is missing in hook/entry/preload.py. The plugin has no part in hooks and looks at no mounts."""
    path = f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}; import {module}"
    loaded, result = imported("-c", path)
    assert result.returncode == 0, result.stderr
    needed = reachable() if "agent" in module else start_path() - OTHER_ADAPTERS
    assert needed - loaded - {"hook.start", "hook.entry.help"} == set()
