"""A configuration is text in, text out: of the node it asks NodeFiles alone.

All that a Config reaches in hook/node/engines is looked at here. What makes files of a policy (artifacts/specs.py) is
not: it reads the files that the policy names.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module

import pytest

from hook.node.engines.facts import FACTS
from unit.support import ROOT

ENGINES = "hook.node.engines"
PURE = {
    "os.path.basename",
    "os.path.dirname",
    "os.path.join",
    "os.path.normpath",
    "os.path.isabs",
    "glob.escape",
    "hook.node.systemd.option",
}
OF_NODE_FILES = ("is_wired", "real_of", "behind")
"""What takes a NodeFiles, and without one looks at the node."""

IMPURE = ("os.", "glob.", "pathlib.", "shutil.", "socket.", "subprocess.", "tempfile.", "time.", "hook.node.systemd.")


@cache
def tree(module: str) -> ast.Module | None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    return ast.parse(path.read_text()) if path.exists() else None


def body(module: str) -> list[ast.stmt]:
    parsed = tree(module)
    return parsed.body if parsed else []


@cache
def names(module: str) -> dict[str, str]:
    """What each imported name of a module is, in full, wherever it is imported."""
    found = {}
    for node in (each for statement in body(module) for each in ast.walk(statement)):
        if isinstance(node, ast.Import):
            found.update(
                {(each.asname or each.name).partition(".")[0]: each.asname or each.name for each in node.names}
            )
        elif isinstance(node, ast.ImportFrom):
            found.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return found


def dotted(node: ast.AST) -> str:
    """`a.b.c` of such an expression, "" of any other."""
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return above and f"{above}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def used(module: str, name: str) -> set[str]:
    """The full names of what a function or a class uses, of what is imported or defined in its module; and `open`."""
    [defined] = [each for each in body(module) if getattr(each, "name", "") == name]
    said = {dotted(node) for node in ast.walk(defined)} - {""}
    calls = [node for node in ast.walk(defined) if isinstance(node, ast.Call) and dotted(node.func) in OF_NODE_FILES]
    full = {f"hook.node.systemd.({ast.unparse(call)})" for call in calls if len(call.args) + len(call.keywords) < 2}
    own = {each.name for each in body(module) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for each in said:
        first, _, rest = each.partition(".")
        known = names(module).get(first, f"{module}.{first}" if first in own else "")
        full.add(f"{known}.{rest}".strip(".") if known or first != "open" else "open")
    return full


def reached(module: str, name: str) -> set[str]:
    """The same, with what these use in hook/node/engines."""
    todo, seen, found = [(module, name)], set(), set[str]()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        for each in used(*at):
            found.add(each)
            words = each.split(".")
            places = [(".".join(words[:at]), words[at]) for at in range(len(words))]
            todo += [
                (owner, first)
                for owner, first in places
                if owner.startswith(ENGINES) and any(getattr(one, "name", "") == first for one in body(owner))
            ]
    return found


@pytest.mark.parametrize("name", FACTS)
def test_a_configuration_reads_nothing(name: str) -> None:
    module, _, daemon = FACTS[name].daemon.partition(":")
    for config in getattr(import_module(module), daemon).config_class.__mro__:
        if config.__module__.startswith(ENGINES):
            found = reached(config.__module__, config.__name__)
            assert [each for each in found if each == "open" or (each.startswith(IMPURE) and each not in PURE)] == []


def test_what_reads_is_found() -> None:
    """The daemons do."""
    assert {"hook.node.systemd.command", "os.listdir"} <= reached(f"{ENGINES}.crio", "Crio") | reached(
        f"{ENGINES}.crio", "files_below"
    )
    assert "open" not in reached(f"{ENGINES}.crio", "CrioConfig")
