"""Each source of a value is complete: the schema has it, it compiles itself, and the compiled policy gives it back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hook.compile.check import schema
from hook.compile.compiler import compile_bytes
from hook.core.base.errors import ReassertError
from hook.core.policy.sources import SOURCES, Env, Given, reserved
from hook.ops.policy.show import effective
from unit.support import document, policy, rule

EXAMPLES: dict[str, Any] = {
    "absent": True,
    "value": "x",
    "file": "/etc/value",
    "deviceAllocation": {
        "default": "void",
        "trusted": [{"namespaces": ["research-*"], "reservedBy": ["kai-resource-reservation"]}],
    },
    "oneOf": ["none", "void"],
    "pattern": "/home/*",
}
"""What the policy file has of each source, by the field that names it."""


def entry(field: str) -> dict[str, Any]:
    written = {field: EXAMPLES[field]}
    in_place = {"valueFrom": written} if SOURCES[field].PLACE[0] == "valueFrom" else written
    return {"name": "A", **in_place}


def test_the_schema_the_table_and_these_examples_have_the_same_sources() -> None:
    fields = schema()["$defs"]["env"]["properties"]
    beside = {field for source in SOURCES.values() for field in source.fields} - {*SOURCES}
    of_schema = {*fields, *fields["valueFrom"]["properties"]} - {"name", "valueFrom"} - beside
    assert set(SOURCES) == of_schema, "hook/core/policy/sources.py and schema.json"
    assert set(EXAMPLES) == of_schema
    assert set(SOURCES.values()) == set(Env.__subclasses__()), "SOURCES has not all of the classes"


@pytest.mark.parametrize("source", Env.__subclasses__(), ids=lambda source: str(source.__name__))
def test_each_source_says_what_it_gives(source: type[Env]) -> None:
    assert [name for name in ("PLACE", "by_default", "value") if name not in vars(source)] == []


@pytest.mark.parametrize("field", SOURCES)
def test_a_source_is_compiled_and_shown_as_the_file_has_it(field: str) -> None:
    made = policy({"name": "r", "env": [entry(field)]})
    [env] = made.candidates(None)[0].env
    given = {field: EXAMPLES[field]} if SOURCES[field].fields else EXAMPLES[field]
    assert (type(env), env.given) == (SOURCES[field], given)
    [shown] = effective(made)["spec"]["rules"][0]["env"]
    assert shown == entry(field)


def test_a_source_without_a_class_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {"name": "A", "valueFrom": {"podField": "name"}}
    with pytest.raises(ReassertError, match="env A: no source of values is named podField"):
        reserved(unknown)
    monkeypatch.setitem(schema()["$defs"]["env"]["properties"]["valueFrom"]["properties"], "podField", {})
    monkeypatch.setitem(schema()["$defs"]["env"]["properties"]["valueFrom"], "oneOf", [{"required": ["podField"]}])
    with pytest.raises(ReassertError, match="env A: no source of values is named podField"):
        compile_bytes("policy.yaml", document({"name": "r", "env": [unknown]}).encode())


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ({"absent": True}, None),
        ({"value": "x"}, "x"),
        ({"valueFrom": {"file": "/f"}}, "line of /f"),
        ({"valueFrom": {"deviceAllocation": {}}}, None),
        ({"valueFrom": {"deviceAllocation": {"default": ""}}}, ""),
        ({"valueFrom": {"deviceAllocation": {"default": "void"}}}, "void"),
    ],
)
def test_what_a_source_gives_a_container_of_which_the_node_says_nothing(
    written: dict[str, Any], given: str | None
) -> None:
    [env] = rule(env=[{"name": "A", **written}]).env
    found = env.by_default(lambda path: f"line of {path}")
    assert isinstance(found, Given)
    assert found.text == given


def test_a_name_that_a_container_keeps_has_no_default() -> None:
    [env] = rule(env=[{"name": "A", "valueFrom": {"deviceAllocation": {"default": "Keep"}}}]).env
    assert env.by_default(str) is None


def test_two_sources_with_the_same_text_contradict_each_other() -> None:
    one, other = ({"name": "A", **each} for each in ({"value": "/f"}, {"valueFrom": {"file": "/f"}}))
    rules = [{"name": name, "env": [env]} for name, env in (("a", one), ("b", other))]
    with pytest.raises(ReassertError, match="want different things for env A"):
        compile_bytes("policy.yaml", document(*rules).encode())


def test_the_order_in_which_an_entry_is_written_makes_no_contradiction() -> None:
    given = EXAMPLES["deviceAllocation"]
    turned = json.loads(json.dumps(given), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    rules = [
        {"name": name, "env": [{"name": "A", "valueFrom": {"deviceAllocation": each}}]}
        for name, each in (("a", given), ("b", turned))
    ]
    assert compile_bytes("policy.yaml", document(*rules).encode()).warnings == []
