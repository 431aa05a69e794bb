"""The schema that editors read: a description for every field, valid by its own rules, and named in every example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import marks
import pytest
from jsonschema import Draft202012Validator

from hook.compile.check import schema
from unit.support import ROOT, reassert

pytestmark = marks.promise("Every field of the policy has a description in the schema", about="Policy")

PLACE = "/usr/share/reassert/policy.schema.json"
LINE = f"# yaml-language-server: $schema={PLACE}\n"


def fields(node: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property and definition, with its path."""
    for key in ("properties", "$defs"):
        for name, field in node.get(key, {}).items():
            yield f"{at}/{name}", field
            yield from fields(field, f"{at}/{name}")


@pytest.mark.parametrize(
    ("path", "field"), list(fields(schema())), ids=lambda value: value if isinstance(value, str) else ""
)
def test_field_has_a_description(path: str, field: dict[str, Any]) -> None:
    assert len(field.get("description", "")) > 5


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(schema())


def test_command_prints_the_schema() -> None:
    done = reassert("policy", "schema")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, schema(), "")


EXAMPLES = [ROOT / "config/policy.yaml", *sorted((ROOT / "config/examples").glob("*.yaml"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_names_the_schema_for_editors(path: Any) -> None:
    assert path.read_text().startswith(LINE)


def test_packages_have_the_schema_where_the_examples_say() -> None:
    assert f"schema=$root{PLACE}\n" in (ROOT / "packaging/extras.sh").read_text()
