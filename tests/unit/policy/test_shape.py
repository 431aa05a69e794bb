"""Validity by the policy's schema is what jsonschema says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hook.core.policy.check import schema
from hook.core.policy.shape import Shapes
from unit.support import examples

FULL: dict[str, Any] = {
    "apiVersion": "reassert/v1",
    "kind": "NodePolicy",
    "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {}},
    "spec": {
        "mode": "Audit",
        "failurePolicy": "Ignore",
        "exclude": {"namespaces": ["a*"], "containerTypes": ["sandbox"]},
        "kubelet": {"root": "/k"},
        "eventLog": {"maxSizeMiB": 64, "keep": 4, "journal": True},
        "rules": [
            {
                "name": "r",
                "mode": "Enforce",
                "match": {
                    "namespaces": ["a"],
                    "podSelector": {
                        "matchLabels": {"a": "b"},
                        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                    },
                    "ifUnknown": "Skip",
                },
                "env": [
                    {"name": "A", "value": "x"},
                    {"name": "B", "absent": True},
                    {"name": "C", "valueFrom": {"file": "/f"}},
                    {"name": "D", "valueFrom": {"deviceAllocation": {"default": "Keep"}}},
                ],
                "mounts": [{"hostPath": "/a", "mountPath": "/b", "options": ["ro"], "readOnly": False}],
                "annotations": [{"name": "x/*", "absent": True, "of": "Pod"}],
                "deviceAllocations": {"env": True, "exclusive": ["/dev/n*"]},
                "onConflict": "Deny",
            }
        ],
    },
}
VALUES = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    1.5,
    5000,
    "",
    "x",
    "Audit",
    "/a",
    "a b",
    [],
    ["x"],
    [1],
    {},
    {"a": "b"},
    {"absent": True},
]
KEYS = ["name", "mode", "value", "absent", "file", "hostPath", "x", "rules", "valueFrom", "deviceAllocation"]
SHAPES = Shapes(schema())
JSONSCHEMA = Draft202012Validator(schema())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, item in entries for each in places(item, (*path, key)))]


def changed(path: tuple[Any, ...], kind: str, key: str, value: Any) -> Any:
    """FULL with one change: a value replaced, a member removed, or a member or an item added."""
    data = copy.deepcopy(FULL)
    if not path:
        return value
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    if kind == "remove":
        del at[path[-1]]
    elif kind == "replace" or not isinstance(at[path[-1]], (dict, list)):
        at[path[-1]] = value
    elif isinstance(at[path[-1]], dict):
        at[path[-1]][key] = value
    else:
        at[path[-1]].append(value)
    return data


def test_document_with_every_field_is_valid_but_for_its_mount_option() -> None:
    assert SHAPES.document(FULL) == JSONSCHEMA.is_valid(FULL)
    fixed = changed(("spec", "rules", 0, "mounts", 0, "options"), "replace", "", ["nosuid"])
    assert SHAPES.document(fixed)
    assert JSONSCHEMA.is_valid(fixed)


GOOD = changed(("spec", "rules", 0, "mounts", 0, "options"), "replace", "", ["nosuid"])
FULL = GOOD


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("kind", ["replace", "add"])
def test_any_one_change_is_judged_alike(kind: str, value: Any) -> None:
    for path in places(GOOD):
        data = changed(path, kind, "name", value)
        assert SHAPES.document(data) == JSONSCHEMA.is_valid(data), (path, value)


def test_any_missing_member_is_judged_alike() -> None:
    for path in places(GOOD)[1:]:
        data = changed(path, "remove", "", None)
        assert SHAPES.document(data) == JSONSCHEMA.is_valid(data), path


@examples(200)
@given(st.data())
def test_any_two_changes_are_judged_alike(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(places(GOOD)[1:]))
    kind = data.draw(st.sampled_from(["replace", "add", "remove"]))
    value = data.draw(st.one_of(st.sampled_from(VALUES), st.text(max_size=4)))
    once = changed(path, kind, data.draw(st.sampled_from(KEYS)), value)
    assert SHAPES.document(once) == JSONSCHEMA.is_valid(once)


@pytest.mark.parametrize("kind", sorted(schema()["$defs"]))
def test_definitions_are_judged_alike(kind: str) -> None:
    validator = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema()["$defs"]})
    check = SHAPES.definition(kind)
    items = [*VALUES, *GOOD["spec"]["rules"], *GOOD["spec"]["rules"][0]["env"], *GOOD["spec"]["rules"][0]["mounts"]]
    for item in items:
        assert check(item) == validator.is_valid(item), (kind, item)


def test_keyword_that_is_not_known_is_an_error_and_never_ignored() -> None:
    with pytest.raises(KeyError, match="uniqueItems"):
        Shapes({"type": "array", "uniqueItems": True})
