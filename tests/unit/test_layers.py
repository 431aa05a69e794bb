"""Who may import whom: hook/README.md has the table, and each directory of hook/ a README.md."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from unit.support import ROOT

LAYERS = {
    "core": {"core"},
    "entry": {"core", "entry"},
    "agent": {"core", "entry", "agent"},
    "nri": {"core", "entry", "nri"},
    "node": {"core", "entry", "node"},
    "ops": {"core", "entry", "agent", "nri", "node", "ops"},
}
LOOSE = {"__init__.py", "__main__.py", "cli.py", "start.py"}
"""The entry points; cli imports every command."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "hook").rglob("*.py"))
}


@cache
def imports(name: str) -> frozenset[str]:
    """The modules of hook/ that one imports: at its top, in a function, or for the type checker."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name}: a relative import"
            one = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names = [full if full in FILES else node.module for full in one.values()]
        found.update(names)
    return frozenset(each for each in found if each in FILES and each != name)


def test_no_layer_imports_one_above_it() -> None:
    found = [
        f"{name} imports {target}"
        for name in FILES
        if name.count(".")
        for target in imports(name)
        if (layer := name.split(".")[1]) in LAYERS and target.split(".")[1:2] not in [[each] for each in LAYERS[layer]]
        if target != "hook"
    ]
    assert found == []


def test_no_module_is_loose() -> None:
    assert {path.name for path in (ROOT / "hook").glob("*.py")} == LOOSE
    assert {path.parent.name for path in (ROOT / "hook").glob("*/__init__.py")} == LAYERS.keys()


def test_no_modules_import_each_other() -> None:
    TopologicalSorter({name: imports(name) for name in FILES}).prepare()


def test_every_directory_says_what_it_is() -> None:
    directories = {path.parent for path in FILES.values()}
    lacking = [str(each.relative_to(ROOT)) for each in directories if not _readme(each)]
    assert lacking == []


def _readme(directory: Path) -> bool:
    file = directory / "README.md"
    return file.exists() and 1 < len(file.read_text().splitlines()) <= 15
