"""libyaml reads a policy as ruamel.yaml does, positions included, or leaves it to ruamel.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hook.core.policy import quick
from unit.support import ROOT, document, examples

MOST = 1000


def by_ruamel(text: str) -> Any:
    """The document by ruamel.yaml, as the policy's parser asks it. Raises YAMLError."""
    yaml = YAML(typ="rt", pure=True)
    yaml.allow_duplicate_keys = False
    return yaml.load(text)


def same(one: Any, other: Any) -> bool:
    """Whether two documents have the same values at the same places."""
    if isinstance(one, (dict, list)):
        entries = list(one.items()) if isinstance(one, dict) else list(enumerate(one))
        others = list(other.items()) if isinstance(other, dict) else list(enumerate(other))
        return (
            isinstance(other, dict) == isinstance(one, dict)
            and [key for key, _ in entries] == [key for key, _ in others]
            and all(same(value, other[key]) for key, value in entries)
            and all(place(one, key) == place(other, key) for key, _ in entries)
        )
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def place(node: Any, key: Any) -> tuple[int, ...]:
    """Where an entry stands. A value that is left out is told at its key (Source.place)."""
    found = tuple(node.lc.data[key])
    return found[:2] if len(found) == 4 and node[key] is None else found


def check(text: str) -> bool:
    """Whether libyaml read it. Then ruamel.yaml must have read the same."""
    found = quick.data(text, MOST)
    if found is None:
        return False
    assert same(found, by_ruamel(text)), text
    return True


@pytest.mark.parametrize(
    "path",
    [ROOT / "config/policy.yaml", *sorted((ROOT / "config/examples").glob("*.yaml"))],
    ids=lambda path: path.name,
)
def test_examples_are_read_alike(path: Path) -> None:
    assert check(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "a: b",
        "{a: b, c: [d, 'e', \"f\"]}",
        "a: yes\nb: no\nc: on\nd: off\ne: y\nf: n",
        "a: true\nb: False\nc: TRUE\nd: 'true'",
        "a:\nb: ''\nc: []\nd: {}\n",
        "a: text\n  more\nb: 'folded\n\n  text'\n",
        "# comment\na: b # comment\n\n\nc:\n- d # e\n-   f\n",
        "a: &x {b: c}\nd: *x\ne: [*x, *x]\n",
        "a: &x b\nc: *x\n",
        '{"a":"b","c":["d"],"e\\n\\u00e9":"\\/"}',
        "a: é😀 b\nc: d\n",
        "'a': x\n\"b\": y\n",
        "- a\n- - b\n  - c\n-\n  - d\n",
        "? a\n: b\n",
        "a: b\r\nc: d\r\n",
        "---\na: b\n...\n",
    ],
)
def test_is_read_by_libyaml_and_alike(text: str) -> None:
    assert check(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "a: 0o17",
        "a: 017",
        "a: 1.5",
        "a: .5",
        "a: -.inf",
        "a: .nan",
        "a: 2024-01-01",
        "a: 1:30",
        "a: ~",
        "a: null",
        "a: =",
        "<<: {a: b}",
        "a: &x {b: c}\nd: {<<: *x}",
        "a: !!str b",
        "a: !x b",
        "a: b\na: c",
        "true: b",
        "? [a]\n: b",
        "%YAML 1.1\n---\na: b",
        "\ufeffa: b",
        "a: b\u2028c: d",
        "a: b\x85c: d",
        "a: b\n---\nc: d",
        "a: *x",
        "&x a: *x",
        "a: |\n  text\n  more\n",
        "a: >-\n  folded\n  text\n",
        "a:\tb",
        "a: &x [*x]",
        "a: &x b\nc: &x d",
        "a: [",
        "a: b: c",
        "\ta: b",
        'a: "\\ud83d"',
        "[" * 5000,
        "a: \x00",
    ],
)
def test_is_left_to_ruamel(text: str) -> None:
    assert not check(text)


def test_nodes_are_counted_with_those_that_aliases_stand_for() -> None:
    text = "a: &x [b, c, d]\n" + "".join(f"e{number}: *x\n" for number in range(10))
    nodes = 1 + 11 + 11 * 4  # the document, the keys, and the lists of three
    assert quick.data(text, nodes) is not None
    assert quick.data(text, nodes - 1) is None


TEXTS = st.sampled_from(
    [
        "a",
        "yes",
        "true",
        "null",
        "1",
        "0x1",
        "-",
        "- a",
        "a: b",
        "a #b",
        "#",
        "é",
        "'",
        '"',
        "\n",
        " a ",
        "*",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "?",
        ": a",
        "{",
        "]",
        "a,b",
        "\t",
        "~",
        "=",
        "<<",
        "0o7",
        "12e3",
        "1_0",
        "a\nb",
        "😀",
    ]
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.text(max_size=5), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@examples(150)
@given(VALUES, st.sampled_from([None, 1, 4]))
def test_json_is_read_alike(value: Any, indent: int | None) -> None:
    check(json.dumps({"x": value}, indent=indent))
    check(json.dumps({"x": value}, indent=indent, ensure_ascii=False))


@examples(150)
@given(
    st.lists(
        st.sampled_from([*"abz01 -:,[]{}'\"#&*!|>?%@~\\\n\n\n", "  ", "- ", ": ", "a: ", "\n- ", "\n  "]), max_size=24
    )
)
def test_any_text_is_read_alike_or_left_to_ruamel(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        read = by_ruamel(text)
    except (YAMLError, ValueError, RecursionError, AttributeError, TypeError, NotImplementedError):
        read = None
    found = quick.data(text, MOST)
    assert found is None or (read is not None and same(found, read)), text


def test_policy_of_a_thousand_rules_is_read_by_libyaml() -> None:
    text = document(*({"name": f"r{n}", "env": [{"name": "A", "value": "x"}]} for n in range(1000)))
    assert quick.data(text, 100_000) is not None
