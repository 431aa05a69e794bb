"""What a docstring, a message or a comment of the tree names, exists: `hook.core.plan.plan`, `core/plan.py`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from unit.support import ROOT

NAME = re.compile(r"(?<![\w./-])hook(?:\.\w+)+")
FILE = re.compile(r"(?<![\w./~-])(?:[\w.-]+/)*[\w-]+\.(?:py|sh)(?![\w/])")
ELSEWHERE = {"proxy.py"}
"""Programs of others."""

FILES = [
    path
    for top in ("hook", "packaging", "tests")
    for path in sorted((ROOT / top).rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
]
"""All of them, to find what is named."""


@cache
def known() -> frozenset[str]:
    """Each file by its path from the root, and by the ends of it: core/plan.py and plan.py."""
    files = [*FILES, *ROOT.glob("*"), *(ROOT / "docs").rglob("*"), *(ROOT / "config").rglob("*")]
    parts = [path.relative_to(ROOT).parts for path in files]
    return frozenset("/".join(part[at:]) for part in parts for at in range(len(part)))


@cache
def names(module: str) -> dict[str, frozenset[str]] | None:
    """The names that a module binds, and of its classes the names of these; None if there is no such module."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    tree = ast.parse(file.read_text())
    classes = {node.name: frozenset(bound(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return dict.fromkeys(bound(tree), frozenset[str]()) | classes


def bound(tree: ast.AST) -> set[str]:
    """Functions, classes, variables and attributes (`self.name = …`) in a tree."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def exists(reference: str) -> bool:
    """Whether a dotted name is a module, or a name of one, or of a class of one."""
    module, rest = reference, list[str]()
    while (own := names(module)) is None:
        module, _, last = module.rpartition(".")
        if not module:
            return False
        rest.insert(0, last)
    if not rest:
        return True
    if (ROOT / Path(*module.split("."), rest[0])).is_dir():  # a directory without Python
        return True
    return rest[0] in own and (len(rest) == 1 or rest[1] in own[rest[0]])


def prose(path: Path) -> list[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    text = path.read_text()
    found = [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments = [(number, line.partition("# ")[2]) for number, line in enumerate(text.splitlines(), 1) if "# " in line]
    return found + comments


def dead(path: Path) -> list[str]:
    """What a file names and does not exist, with the line."""
    found = []
    for line, text in prose(path):
        found += [f"{path}:{line}: {name}" for name in NAME.findall(text) if not exists(name)]
        found += [f"{path}:{line}: {file}" for file in FILE.findall(text) if file not in known() | ELSEWHERE]
    return found


def test_every_reference_of_a_docstring_exists() -> None:
    assert [each for path in FILES if path.suffix == ".py" for each in dead(path)] == []


def test_dead_references_are_found(tmp_path: Path) -> None:
    for name in ("hook.core.plan.plan", "hook.core.policy.model.Policy.candidates", "hook.core"):
        assert exists(name)
    for name in ("hook.core.planner", "hook.core.plan.planned", "hook.core.policy.model.Policy.candidate"):
        assert not exists(name)
    file = tmp_path / "module.py"
    file.write_text('"""See hook.core.plan, hook.core.planner and core/plan.py."""\n\nX = 1  #' + " core/planner.py\n")
    assert dead(file) == [f"{file}:1: hook.core.planner", f"{file}:3: core/planner.py"]
