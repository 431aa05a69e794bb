"""Who may import whom: hook/README.md has the table, and each directory of hook/ a README.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from unit.support import ROOT

LAYERS = {
    "core": {"core"},
    "entry": {"core", "entry"},
    "resident": {"core", "resident"},
    "compile": {"core", "entry", "resident", "compile"},
    "agent": {"core", "entry", "resident", "agent"},
    "nri": {"core", "entry", "resident", "nri"},
    "inside": {"core", "inside"},
    "node": {"core", "entry", "resident", "compile", "inside", "node"},
    "ops": {"core", "entry", "resident", "compile", "agent", "nri", "inside", "node", "ops"},
}
LOOSE = {"__init__.py", "__main__.py", "cli.py", "start.py"}
"""The entry points; cli imports every command."""

CORE = (
    "base",
    "container",
    "policy",
    "facts",
    "reserve",
    "events",
    "plan",
    "verdict",
    "linux",
    "audited",
    "report",
    "decide",
)
"""The directories and modules of core. Each imports those before it."""

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


def test_no_room_of_core_imports_one_above_it() -> None:
    above = [
        f"{name} imports {target}"
        for name in FILES
        if name.startswith("hook.core.")
        for target in imports(name)
        if target.startswith("hook.core.") and CORE.index(name.split(".")[2]) < CORE.index(target.split(".")[2])
    ]
    assert above == []


def test_core_and_entry_import_at_the_top_of_their_files() -> None:
    """packaging/frozen_start.py executes a module when it is used first, so no file has to put off an import."""
    late = [
        f"{name}:{node.lineno}"
        for name, path in FILES.items()
        if name.startswith(("hook.core", "hook.entry"))
        for top in ast.parse(path.read_text()).body
        for node in ast.walk(top)
        if isinstance(node, ast.ImportFrom) and node is not top and (node.module or "").startswith("hook")
    ]
    assert late == []


def test_no_module_is_loose() -> None:
    assert {path.name for path in (ROOT / "hook").glob("*.py")} == LOOSE
    assert {path.parent.name for path in (ROOT / "hook").glob("*/__init__.py")} == LAYERS.keys()


def test_no_modules_import_each_other() -> None:
    TopologicalSorter({name: imports(name) for name in FILES}).prepare()


ITS_OWN = re.compile(r"(.*\{\}/(environ|cmdline|mountinfo|mounts|root|maps|mem|fd|cwd|ns/mnt)|/proc/\{\}/\{\})")
"""A file of a process in /proc with what the process itself says, or where it can make a read wait for ever."""

NODES_OWN = {
    "hook.node.change.tree": ["{}/cmdline"],  # of processes of the node alone (systemd.is_the_nodes)
    "hook.node.engines.podman": ["{}/root", "{}/cmdline"],  # the same
    "hook.node.probe.containers": ["/proc/{}/maps"],  # of the sleep(1) that it has started
    "hook.node.probe.pods": ["/proc/{}/cwd"],  # of conmon or a shim
    "hook.node.systemd": ["/proc/{}/{}"],  # of a daemon, by its pid from systemd
}
"""What node/ and ops/ read of processes of the node."""

ENTERS = {"hook.core.linux.mountns", "hook.core.linux.look", "hook.core.linux.lookdevices"}


def test_only_inside_reads_what_a_container_controls() -> None:
    read: dict[str, list[str]] = {}
    for name in (name for name in FILES if name.startswith(("hook.node.", "hook.ops."))):
        found = [text for text in f_strings(name) if ITS_OWN.fullmatch(text)]
        read.update({name: found} if found else {})
        assert not ENTERS & imports(name)
    assert read == NODES_OWN


def f_strings(name: str) -> list[str]:
    """Those of a module, with {} for each value."""
    found = [node for node in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(node, ast.JoinedStr)]
    return ["".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values) for node in found]


def test_every_directory_says_what_it_is() -> None:
    directories = {path.parent for path in FILES.values()}
    lacking = [str(each.relative_to(ROOT)) for each in directories if not _readme(each)]
    assert lacking == []


def _readme(directory: Path) -> bool:
    file = directory / "README.md"
    return file.exists() and 1 < len(file.read_text().splitlines()) <= 20
