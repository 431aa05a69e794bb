"""A field of an event is added to a copy of the tree, in one place and its page, and each adapter's events have it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import marks
import pytest

from unit.changed_tree import Recipe, Tree, changed, list_of, run_in
from unit.support import ROOT, document

pytestmark = marks.promise(
    "Every event about a container has the fields that docs/events.md lists", about="Events and metrics"
)

CODE, PAGE = "hook/core/report.py", "docs/events.md"
PAGES, BUG_REPORT = (
    "tests/unit/test_pages.py",
    "test_of_every_field_of_an_event_it_is_known_whether_a_bug_report_may_have_it",
)
RECIPE: Recipe = {
    CODE: [
        ('        "id": subject.container_id,\n', '        "id": subject.container_id,\n        "answer": 42,\n'),
        ("HARMLESS = (\n", 'HARMLESS = (\n    "answer",\n'),
    ],
    PAGE: [("| `adapter` | `run", "| `answer` | 42 |\n| `adapter` | `run")],
}
RULE = {"name": "r", "env": [{"name": "A", "value": "2"}]}

REQUESTS = """
import json, sys
from pathlib import Path
from unit.nri.support import running
directory = Path(sys.argv[1])
with running(directory, (directory / "policy.yaml").read_text()) as plugin:
    plugin.create(["A=1"])
    print(json.dumps(plugin.logged()))
"""
"""The events of the NRI plugin."""


def test_the_page_names_the_same_files() -> None:
    section = (ROOT / "docs/internals/architecture.md").read_text().partition("## Add a field of an event")[2]
    assert [file for file in RECIPE if file not in section.partition("\n## ")[0]] == []
    assert len(RECIPE) == 2


@pytest.mark.slow
def test_the_events_of_every_adapter_have_a_field_that_was_added_in_one_place(root_dir: Path) -> None:
    tree = Tree(root_dir, RECIPE, RULE)
    tree.hook(1)  # refused
    tree.create()  # corrected
    tree.config.write_text("{")
    tree.create(status=1)  # refused before there is a decision
    tree.put({})
    (tree.directory / "policy.yaml").write_text(document(RULE, mode="Audit"))
    tree.create()
    tree.runtime("teleport", "0a")
    log = tree.directory / "events.jsonl"
    told = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    told += list_of(run_in(tree.directory, "-c", REQUESTS, str(tree.directory)))
    told = [event for event in told if event["event"].startswith("container.")]
    assert {(event["adapter"], event["event"]) for event in told} == {
        ("hook", "container.denied"),
        ("runtime", "container.edited"),
        ("runtime", "container.denied"),
        ("runtime", "container.would-deny"),
        ("nri", "container.edited"),
    }
    assert [event["event"] for event in told if event.get("answer") != 42] == []


@pytest.mark.slow
def test_a_field_that_the_page_does_not_have_or_a_bug_report_may_not_have_is_named(root_dir: Path) -> None:
    for name, recipe, failed in (
        ("whole", RECIPE, set()),
        ("code", {CODE: RECIPE[CODE]}, {"test_every_field_of_an_event_is_described", BUG_REPORT}),
        ("head", {**RECIPE, CODE: RECIPE[CODE][:1]}, {BUG_REPORT}),
    ):
        copy = root_dir / name
        changed(copy, recipe, "tests", "config", "docs", "packaging", "pyproject.toml", "README.md")
        test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "field_of_an_event", f"{copy}/{PAGES}")
        told = run_in(copy, *test, status=1 if failed else 0)
        assert set(re.findall(r"^FAILED [^:]+::(\w+)", told, re.MULTILINE)) == failed
        assert ("'answer'" in told) is bool(failed)
