"""Adapter and Case: an adapter gives what it knows by its methods, and a Case keeps its own state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hook.core.decide import Case
from unit.support import ROOT

KNOWN = {"Case", *[each.__name__ for each in Case.__subclasses__()]}


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "hook").rglob("*.py"))}


def set_from_outside(tree: ast.Module) -> list[str]:
    """The assignments to attributes of what holds a Case, by its annotation or because a Case is made for it."""
    found = []
    cases = set(_cases(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            of = node.value.attr if isinstance(node.value, ast.Attribute) else ast.unparse(node.value)
            if of in cases:
                found.append(ast.unparse(node))
    return found


def _cases(tree: ast.Module) -> Iterator[str]:
    """The names of the variables, arguments and attributes that hold a Case."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.arg) and node.annotation and _names_case(node.annotation):
            yield node.arg
        if isinstance(node, ast.AnnAssign) and (_names_case(node.annotation) or _makes_case(node.value)):
            targets = [node.target]
        if isinstance(node, ast.Assign) and _makes_case(node.value):
            targets = node.targets
        for target in targets:
            yield target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)


def _names_case(annotation: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id in KNOWN for node in ast.walk(annotation))


def _makes_case(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in KNOWN


def test_no_attribute_of_a_case_is_set_from_outside() -> None:
    assert {str(path): found for path, tree in trees().items() if (found := set_from_outside(tree))} == {}


def test_each_way_to_set_one_is_found() -> None:
    for text in (
        "def f(case: Case): case.policy = 1",
        "def f(case: Case | None): case.policy, other = 1, 2",
        "late = Case(adapter, '')\nlate.identity = 1",
        "self.case = request.case = Case(adapter, '')\nreply.case.began += 1",
        "late: Case = made()\ndel late.policy",
        "def f(case: Case):\n  with x as case.policy: pass",
    ):
        assert set_from_outside(ast.parse(text)), text
    assert not set_from_outside(ast.parse("def f(case: Case): reply.case = case; case.adapter.name"))


def test_they_are_what_they_were_looked_for() -> None:
    """The files that hold a Case are found, however they name it."""
    holding = {path.name for path, tree in trees().items() if set(_cases(tree))}
    assert {"runtime.py", "hook.py", "write_spec.py", "creation.py", "request.py", "explain.py"} <= holding
