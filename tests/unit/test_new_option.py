"""A verb and an option of a runtime that change something are added to a copy of the tree, and both are refused."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest

from unit.changed_tree import Recipe, Tree, changed, run_in

pytestmark = marks.promise("A verb or an option that can change what a policy reserves is refused", about="Decision")

CMDLINE, PAGE, TEST = "hook/entry/cmdline.py", "docs/internals/runtime.md", "tests/unit/entry/test_cmdline.py"
RECIPE: Recipe = {
    CMDLINE: [
        ('    "bwrap": _START,\n', '    "bwrap": _START,\n    "teleport": "mounts",\n'),
        ("_BUNDLE = {\n", '_BUNDLE = {\n    "volume": "mounts",\n'),
    ]
}
ON_THE_PAGE = [
    ("| `mounts`, `gofer`, `umount` |", "| `mounts`, `gofer`, `umount`, `teleport` |"),
    (
        "| `--resources` | `update` |",
        "| `--volume` | `create`, `run`, `restore` | mounts | refused |\n| `--resources` | `update` |",
    ),
]
REFUSED = {
    "teleport 0a": "teleport can change mounts, and reassert cannot correct what it does",
    "create --volume /a:/b --bundle BUNDLE 0a": "the option volume of create can change mounts, and reassert cannot",
    "create --volume=/a:/b --bundle BUNDLE 0a": "the option volume of create can change mounts, and reassert cannot",
    "create --bundle BUNDLE 0a --volume /a:/b": "the option volume of create can change mounts, and reassert cannot",
}


@pytest.fixture
def tree(root_dir: Path) -> Tree:
    return Tree(root_dir, RECIPE, {"name": "r", "env": [{"name": "A", "value": "2"}]})


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_what_changes_something_is_refused(tree: Tree, line: str) -> None:
    assert len(RECIPE) == 1
    words = line.replace("BUNDLE", str(tree.directory)).split()
    assert REFUSED[line] in tree.runtime(*words, status=1)
    assert tree.process()["env"] == ["A=1"]
    assert REFUSED[line] in tree.run("events", *tree.log, "-o", "json")


@pytest.mark.slow
def test_what_the_table_does_not_have_is_refused(tree: Tree) -> None:
    assert "beam is not a known verb" in tree.runtime("beam", "0a", status=1)
    assert "no supported runtime has the option --beam" in tree.runtime("create", "--beam=/a", "0a", status=1)


@pytest.mark.slow
def test_the_page_that_has_neither_is_named(root_dir: Path) -> None:
    changed(root_dir, RECIPE, "tests", "config", "docs")
    of_command_lines = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{root_dir}/{TEST}")
    said = run_in(root_dir, *of_command_lines, "-k", "page", status=1)
    for test, name in (("table_of_verbs", "teleport"), ("options_that_change_something", "volume")):
        assert f"test_the_page_has_the_{test}" in said
        assert name in said
    page = root_dir / PAGE
    text = page.read_text()
    for old, new in ON_THE_PAGE:
        assert text.count(old) == 1
        text = text.replace(old, new)
    page.write_text(text)
    run_in(root_dir, *of_command_lines)
