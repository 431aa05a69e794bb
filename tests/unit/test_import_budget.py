"""A container start executes only the modules that it needs, and no foreign ones but a few builtins (hook/start.py).

The commands run from the checkout, by the code that starts the frozen program.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import frozen_start
import marks
import pytest
from frozen_start import USUAL
from startpath import RULE, Start, executed

from hook.core.plan import STEPS
from unit.support import ROOT, document

pytestmark = marks.promise("A start loads the start path's modules only", about="Decision")

FOREIGN = {"_json", "_signal", "gc", "posix", "sys", "time"}

CREATE = {"hook.entry.runtime", "hook.entry.cmdline"}
EXEC = {"hook.entry.process", "hook.core.container.runtime_records"}
EVENT = {"hook.core.report"}
CONCEALED = {"hook.core.base.concealed", "hook.core.base.urls", "_blake2"}
"""For an event with a value that a container had, and that the event does not show."""

LOOKED_AT = {"hook.core.facts.files"}
"""For a rule that names a file of the node, such as the hostPath of a mount."""

MOUNTED = {"hook.core.reserve.losses"} | LOOKED_AT
"""For an event of a container with a reserved mount."""


@pytest.fixture
def start(root_dir: Path) -> Start:
    return Start(root_dir)


def test_usual_starts_execute_what_they_need(start: Start) -> None:
    """A create that corrects env and mounts, an exec, and a hook that verifies."""
    created = start.create()
    assert "CA=/ca.pem" in json.loads(start.config.read_text())["process"]["env"], "the start was a real one"
    assert '\\"event\\":' in start.config.read_text(), "handed on to the hook that looks at the mount"
    in_exec, env = start.exec(["CA=/tmp/x", "N_A=1", "B=1"])
    assert env == ["CA=/ca.pem", "B=1"], "the exec was a real one"
    start.compile(document(RULE))
    start.write(["CA=/ca.pem"], has_volume=False)
    hooked, result = start.hook("createRuntime", start.state())
    assert result.returncode == 0
    assert created - FOREIGN == USUAL | CREATE | EVENT | CONCEALED | MOUNTED
    assert in_exec - FOREIGN == USUAL | CREATE | EXEC
    assert hooked - FOREIGN == USUAL | EVENT | {"hook.entry.hook"}


NOTED = """
called = set()
def note(frame, event, argument):
    words = frame.f_code.co_qualname.split(".")
    module = frame.f_globals["__name__"]
    if module.startswith("hook.") and words[1:] and words[1] != "<locals>":
        called.add(module.removeprefix("hook.").removeprefix("core.") + "." + words[0])
def noted(*arguments):
    sys.setprofile(None)
    posix.write(posix.open({file!r}, posix.O_WRONLY | posix.O_CREAT), " ".join(called).encode())
    execve(*arguments)
execve, posix.execve = posix.execve, noted
sys.setprofile(note)
"""

CLASSES = {
    *("entry.caller.Caller", "decide.Adapter", "decide.Case", "verdict.Verdict"),
    *("entry.caller.Options", "entry.cmdline.Invocation", "entry.cmdline.Option"),
    *("container.spec.Spec", "container.oci.Mount", "container.identity.Identity", "facts.Container", "facts.Facts"),
    *("policy.store.Stored", "policy.model.Policy", "policy.model.Rule", "policy.model.Match", "policy.entries.Mount"),
    *("policy.sources.Env", "policy.sources.Value", "policy.sources.Given"),
    *("reserve.plan.Plan", "reserve.reserved_env.Reserved"),
    *("reserve.edits.Edit", "reserve.reserved_env.SetEnv", "reserve.place_mount.PlaceMount"),
    "base.jsontext._Strict",
}
"""Ours that a create which corrects env and a mount calls. Whether a reader needs another one is for the review."""


def test_a_reader_of_a_create_needs_these_classes(start: Start) -> None:
    file = start.directory / "called"
    command = ["runtime", "--real", "/bin/true", *start.options(), "--", "create", "--bundle", str(start.bundle), "0a"]
    _, result = executed(start.directory, *command, first=NOTED.format(file=str(file)))
    assert result.returncode == 0, result.stderr
    assert {*file.read_text().split()} == CLASSES


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
    for parts, wanted in (({"devices": True}, set()), ({"exclusive": ["/dev/none*"]}, EXCLUSIVE)):
        start.compile(document({"name": "r", "deviceAllocations": parts}, **kubelet))
        start.config.write_text(json.dumps(config))
        modules = start.runtime("create", "--bundle", str(start.bundle), "0a")
        assert modules & EXCLUSIVE == wanted
        assert not any(name in modules for name in ("os", "ctypes", "re"))


EXECUTE_ALL = """
def execute_all(status):
    for module in [*sys.modules.values()]:
        getattr(module, "any", None)
    print(*(name for name, module in sys.modules.items() if type(module).__name__ == "Lazy"))
    sys.stdout.flush()
    leave(0)
leave, posix._exit = posix._exit, execute_all
"""


def test_every_module_of_the_start_path_can_be_executed(root_dir: Path) -> None:
    """None imports a name that another has for type checkers alone."""
    _, result = executed(root_dir, "runtime", first=EXECUTE_ALL)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr


WRONG = [
    ("import os\nos.getpid()", "the start path must not import os"),
    ("import ctypes\nctypes.CDLL(None)", "the start path must not import ctypes"),
    ("from typing import cast\ncast(int, 0)", "the start path must not import typing"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_build_refuses_a_foreign_module(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = frozen_start.run_time_tree
    added = frozen_start.at_run_time(text, "hook.core.plan")
    monkeypatch.setattr(frozen_start, "run_time_tree", lambda name: added if name == "hook.core.plan" else tree(name))
    frozen_start.start_path.cache_clear()
    with pytest.raises(SystemExit, match=expected):
        frozen_start.start_path()
    frozen_start.start_path.cache_clear()


TYPED = """
from __future__ import annotations
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar
from hook.core.plan import Plan, plan
T = TypeVar("T", bound=Plan)
Read: TypeAlias = Callable[[str], bytes]
class Has(Protocol):
    def has(self) -> Any: ...
class Empty:
    member: int
def f(a: Any, *b: T, c: Read = plan) -> Read:
    d: list[T]
    e: Plan = a
"""
UNTYPED = """
from hook.core.plan import plan
class Empty:
    pass
def f(a, *b, c=plan):
    e = a
"""


def test_types_cost_a_start_nothing() -> None:
    assert ast.unparse(frozen_start.at_run_time(TYPED, "m")) == ast.unparse(ast.parse(UNTYPED))


def test_build_refuses_an_alias_of_types_that_is_used_at_run_time() -> None:
    with pytest.raises(SystemExit, match="m: Read: an alias of types has no value at run time"):
        frozen_start.at_run_time(TYPED + "Read", "m")


def test_a_start_has_all_that_it_calls_of_each_step() -> None:
    """Nothing of a module may be gone with what only type checkers need."""
    for step in STEPS:
        body = frozen_start.run_time_tree(step.__name__).body  # type: ignore[attr-defined]  # a module
        has = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        has |= {ast.unparse(each) for node in body if isinstance(node, ast.Assign) for each in node.targets}
        has |= {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert {"KIND", "concerns", "want", "apply"} <= {each.rpartition(" ")[2] for each in has}


INSIDE = """
def inside(*_):
    mountns = sys.modules["hook.core.linux.mountns"]
    getattr(mountns, "Namespace")
    walk = sys.modules["hook.core.linux.walk"]
    mountns._NothingIsLoaded.inside.add(mountns.get_ident())
    try:
        getattr(walk, "Walks")
    except RuntimeError as error:
        print(error)
    mountns._NothingIsLoaded.inside.clear()
    getattr(walk, "Walks")
    sys.stdout.flush()
    leave(0)
leave, posix._exit = posix._exit, inside
"""


def test_nothing_is_executed_in_the_mount_namespace_of_a_container(root_dir: Path) -> None:
    _, result = executed(root_dir, "runtime", first=INSIDE)
    message = "module hook.core.linux.walk would be loaded in a container's mount namespace\n"
    assert (result.returncode, result.stdout) == (0, message), result.stderr


STATUS = ("hook.cli", "hook.ops.health.command", "hook.node.engines.containerd.daemon")
SLOW = ("cryptography", "grpc", "google", "ruamel", "jsonschema", "tomlkit", "asyncio", "email", "http", "random")
OF_OTHERS = (
    *("hook.compile.compiler", "hook.compile.source", "hook.core.decide", "hook.core.report", "hook.core.linux"),
    *("hook.entry.caller", "hook.entry.hook", "hook.inside.containers", "hook.inside.workers", "hook.node.probe"),
    *("hook.ops.audit.audit", "hook.ops.audit.drift", "hook.ops.health.record", "hook.ops.trust"),
)
"""What compiles a policy, starts a container, or looks into one."""


@pytest.mark.parametrize(
    ("loaded", "not_needed"),
    [(STATUS, SLOW + OF_OTHERS), ((*STATUS, "hook.ops.health.record", "hook.ops.audit.drift"), SLOW[:-1])],
    ids=["status", "its timer"],
)
def test_status_loads_what_it_needs(loaded: tuple[str, ...], not_needed: tuple[str, ...]) -> None:
    """It is a readiness probe, and its timer runs each minute. Most of its time is imports."""
    code = f"import sys, {', '.join(loaded)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert {*loaded} <= {*modules}
    assert [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in not_needed)] == []
