"""A source of values is added to a copy of the tree by the recipe of architecture.md, and each command knows it.

Each place of the recipe that is left out is named: by the compiler, or by a test.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import marks
import pytest

from unit.changed_tree import Recipe, Tree, changed, run_in
from unit.support import ROOT

pytestmark = marks.promise("A source of values that is added by the recipe works with every command", about="Decision")

SOURCE = '''
class PodField(Env):
    """`valueFrom.podField`: what the pod is called."""

    PLACE = ("valueFrom", "podField")

    def by_default(self, read):
        """Nothing: it depends on the container."""
        return None

    def value(self, container):
        """The field. Raises Undecided outside a pod."""
        text = {"name": container.identity.pod, "namespace": container.identity.namespace}[self.given]
        if text is None:
            raise Undecided("the pod is unknown")
        return Given(text)


SOURCES = {'''
OF_SCHEMA = '"podField": {"description": "What the pod is called", "enum": ["name", "namespace"]}'

SCHEMA, SOURCES = "hook/compile/schema.json", "hook/core/policy/sources.py"
TEST, PAGE = "tests/unit/core/policy/test_sources.py", "docs/policy.md"
RECIPE: Recipe = {
    SCHEMA: [
        ('"deviceAllocation": {\n              "desc', f'{OF_SCHEMA},\n"deviceAllocation": {{\n              "desc'),
        ('[{"required": ["file"]}, ', '[{"required": ["podField"]}, {"required": ["file"]}, '),
    ],
    SOURCES: [("SOURCES = {", SOURCE), ("FromFile, Allocated, Allowed)}", "FromFile, Allocated, Allowed, PodField)}")],
    TEST: [('    "file": "/etc/value",\n', '    "file": "/etc/value",\n    "podField": "name",\n')],
    PAGE: [
        (
            "| `valueFrom.deviceAllocation.default`",
            "| `valueFrom.podField` | `name`, `namespace` | What the pod is called |\n"
            "| `valueFrom.deviceAllocation.default`",
        )
    ],
}
RULE = {"name": "r", "env": [{"name": "WHO", "valueFrom": {"podField": "name"}}]}
OTHER = ["A=1", "WHO=forged"]


def test_the_page_names_the_same_files() -> None:
    section = (
        (ROOT / "docs/internals/architecture.md").read_text().partition("## Add a source")[2].partition("\n## ")[0]
    )
    assert re.findall(r"^\| ((?:hook|tests|docs)/\S+)", section, re.MULTILINE) == list(RECIPE)
    assert len(RECIPE) == 4


@pytest.mark.slow
def test_every_command_knows_a_source_that_was_added_by_the_recipe(root_dir: Path) -> None:
    tree = Tree(root_dir, RECIPE, RULE)
    tree.put({}, OTHER)
    assert "a hook cannot set env" in tree.hook(1)
    assert "'forged'  'web-1'" in tree.explain()
    assert "'web-1'" in tree.explain(f"{tree.directory}/pod.yaml", "--adapter", "runtime")
    tree.create()
    assert tree.process()["env"] == ["A=1", "WHO=web-1"]
    assert tree.hook(0) == ""
    tree.exec()
    tree.test({"env": {"WHO": "web-1"}}, adapter="nri")
    two = [f"{tree.directory}/{name}.yaml" for name in ("policy", "other")]
    assert "onConflict" in tree.run("policy", "diff", *two, status=1)
    shown: Any = json.loads(tree.run("policy", "show", *tree.where, "-o", "json"))
    assert shown["policy"]["spec"]["rules"][0]["env"] == RULE["env"]
    assert '"after": "web-1"' in tree.run("events", *tree.log, "-o", "json")


@pytest.mark.slow
def test_a_pod_that_is_unknown_is_for_the_failure_policy(root_dir: Path) -> None:
    tree = Tree(root_dir, RECIPE, RULE)
    tree.config.write_text(json.dumps({"ociVersion": "1.0.2", "process": {"env": OTHER, "args": ["sh"]}}))
    assert "cannot tell the value of env WHO: the pod is unknown" in tree.create(status=1)


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [SCHEMA, SOURCES, TEST])
def test_what_of_the_recipe_is_forgotten_is_named(root_dir: Path, forgotten: str) -> None:
    changed(root_dir, {file: made for file, made in RECIPE.items() if file != forgotten}, "tests", "config", "docs")
    said = run_in(root_dir, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{root_dir}/{TEST}", status=1)
    assert "test_the_schema_the_table_and_these_examples_have_the_same_sources" in said
    assert "podField" in said


@pytest.mark.slow
def test_a_source_that_only_the_schema_has_compiles_no_policy(root_dir: Path) -> None:
    tree = Tree(root_dir, {SCHEMA: RECIPE[SCHEMA]}, RULE)
    tree.put({}, OTHER)
    why = "env WHO: no source of values is named podField; please report it"
    assert why in tree.run("policy", "check", f"{tree.directory}/policy.yaml", status=1)
    assert "no node policy" in tree.create(status=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["by_default", "value"])
def test_what_a_class_does_not_say_is_named(root_dir: Path, method: str) -> None:
    table, added = RECIPE[SOURCES][1], SOURCE.replace(f"def {method}(", f"def no_{method}(")
    recipe = {**RECIPE, SOURCES: [("SOURCES = {", added), table]}
    changed(root_dir, recipe, "tests", "config", "docs")
    said = run_in(root_dir, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{root_dir}/{TEST}", status=1)
    assert "test_each_source_says_what_it_gives[PodField]" in said
    assert f"'{method}'" in said


@pytest.mark.slow
def test_a_page_that_is_not_written_again_is_named(root_dir: Path) -> None:
    recipe = {file: made for file, made in RECIPE.items() if file != PAGE}
    changed(root_dir, recipe, "tests", "docs", "config", "packaging", "pyproject.toml", "README.md")
    assert "docs/policy.md" in run_in(root_dir, f"{root_dir}/tests/pages.py", "--check", status=1)
