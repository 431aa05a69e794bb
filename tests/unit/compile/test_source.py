"""YAML 1.2 and JSON are parsed with positions; duplicate keys and other ambiguities are refused."""

from __future__ import annotations

import json

import marks
import pytest

from hook.compile.compiler import compile_bytes
from hook.compile.source import PolicyInvalid, parse
from unit.support import document, lines, policy, problems

pytestmark = marks.promise(
    "All errors of a policy are reported at once, each with line, column and a correction, as text, JSON and "
    "GitHub annotations"
)

RULE = {"name": "r", "env": [{"name": "A", "value": "x"}]}


def only(text: str | bytes) -> str:
    """The only problem of a file."""
    (line,) = lines(text)
    return line.removeprefix("policy.yaml:")


def test_json_indented_with_tabs_is_read_and_keeps_its_columns() -> None:
    data = json.loads(document(RULE))
    data["spec"]["mode"] = "Off"
    text = "\t" + json.dumps(data, indent="\t") + "\n\t"
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "Off" in line)
    assert only(text) == f"{line}:11: error: mode: 'Off' is not one of Enforce, Audit"


def test_yaml_indented_with_tabs_is_refused_with_its_place() -> None:
    assert only("apiVersion: reassert/v1\nspec:\n\tmode: Audit\n").startswith("3:1: error: not YAML: ")


def test_value_keeps_every_character_of_json() -> None:
    value = 'tab\t quote" back\\ slash/ é 😀 \x07 \x85'
    compiled = policy({"name": "r", "env": [{"name": "A", "value": value}]})
    assert compiled.candidates(None)[0].env[0].constant == value


@pytest.mark.parametrize(
    ("text", "place", "key"),
    [
        ("apiVersion: reassert/v1\nkind: NodePolicy\nspec: {}\nspec: {}\n", "4:1", "spec"),
        ("spec:\n  rules:\n  - name: a\n    name: b\n", "4:5", "name"),
        ('{"spec": {"mode": "Audit",\n "mode": "Enforce"}}', "2:2", "mode"),
    ],
)
def test_duplicate_key_is_refused_with_its_name_and_place(text: str, place: str, key: str) -> None:
    assert only(text) == f'{place}: error: duplicate key "{key}"'


def test_truncated_json_is_refused_with_its_place() -> None:
    assert only('{"spec": {"rules": [').startswith("1:21: error: not YAML: ")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", "---\n"])
def test_empty_file_is_refused_with_what_is_needed(text: str) -> None:
    assert only(text) == "1:1: error: the file is empty; apiVersion, kind and spec are needed"


def test_second_document_is_refused_with_its_place() -> None:
    assert only(f"{document(RULE)}\n---\n{document(RULE)}").partition(": ")[2].startswith("error: not YAML: ")
    assert "single document" in only("a: 1\n---\nb: 2\n")


def test_other_encoding_than_utf8_is_refused_with_its_place() -> None:
    assert only("spec:\n  mode: für".encode("latin-1")) == "2:10: error: not UTF-8: save the file as UTF-8"
    assert "not UTF-8" in only("spec: {}".encode("utf-16"))


def test_control_character_is_refused_with_its_place() -> None:
    assert only("spec:\n  mode: a\x00b") == "2:10: error: character U+0000 is not allowed"


def test_anchors_and_merge_keys_mean_what_they_say() -> None:
    text = """apiVersion: reassert/v1
kind: NodePolicy
spec:
  rules:
  - name: a
    env: &shared
    - &x {name: X, value: x}
  - name: b
    env: *shared
    match: {namespaces: [b]}
  - name: c
    env:
    - {<<: *x, name: Y}
"""
    assert problems(text) == []
    rules = compile_bytes("policy.yaml", text.encode()).policy().candidates(None)
    assert [[(env.name, env.constant) for env in rule.env] for rule in rules] == [
        [("X", "x")],
        [("X", "x")],
        [("Y", "x")],
    ]


def test_block_scalars_keep_their_lines_and_their_indentation() -> None:
    text = """apiVersion: reassert/v1
kind: NodePolicy
spec:
  rules:
  - name: r
    env:
    - name: A
      value: |-
        a # b

          c
    - name: B
      value: >-
        a
        b

        c
"""
    [rule] = compile_bytes("policy.yaml", text.encode()).policy().candidates(None)
    assert [env.constant for env in rule.env] == ["a # b\n\n  c", "a b\nc"]


def test_billion_laughs_are_refused_before_they_are_expanded() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert only(text) == "1:1: error: expands to more than 1000000 YAML nodes"


def test_alias_inside_its_own_anchor_is_refused() -> None:
    assert only("&a\nspec: *a\n") == "1:1: error: expands to more than 1000000 YAML nodes"


def test_alias_to_nothing_is_refused_with_its_place() -> None:
    assert only("spec: *gone\n") == "1:7: error: not YAML: found undefined alias 'gone'"


@pytest.mark.parametrize("brackets", ["[" * 1000, "{a: " * 1000])
def test_deep_nesting_is_refused_and_not_followed(brackets: str) -> None:
    with pytest.raises(PolicyInvalid):
        parse("policy.yaml", brackets.encode())


def test_object_tags_make_no_objects() -> None:
    text = document(RULE).replace('"x"', "!!python/object/apply:os.system [true]")
    assert "value: a list is not a string" in only(text)


@pytest.mark.parametrize("scalar", ["-_", "+_"])
def test_a_scalar_at_which_the_parser_fails_is_a_problem(scalar: str) -> None:
    """ruamel.yaml takes it for a number and fails. The number in the next line makes that parser read the file."""
    try:
        found = parse("p", f"a: {scalar}\nb: 1".encode()).data
    except PolicyInvalid as error:
        assert "not YAML" in str(error.problems[0])
    else:
        assert found["a"] == scalar
