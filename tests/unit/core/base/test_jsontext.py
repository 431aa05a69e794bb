"""JSON is parsed and written as by the json module, and the position of every member is right."""

from __future__ import annotations

import json.decoder
import sys
import threading
from collections.abc import Callable
from typing import Any

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.errors import TooLarge
from hook.core.base.jsontext import Malformed, Strings, bounded, decode, encode, members, parse, strings_at, value_at

pytestmark = marks.promise("Paths and JSON are read as runtimes read them")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
layouts = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (" , ", " : ")}, {"ensure_ascii": False}]
)
space = st.text(" \t\r\n", max_size=3)


@given(values, layouts, space, space)
def test_parse_reads_what_json_wrote(value: Any, layout: dict[str, Any], before: str, behind: str) -> None:
    assert parse(before + json.dumps(value, **layout) + behind) == value


@given(values)
def test_json_reads_what_encode_wrote(value: Any) -> None:
    text = encode(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert "\n" not in text


@given(st.text('{}[]",:0123456789.eE+-truefalsn \\u\n', max_size=20))
def test_parse_takes_exactly_what_json_takes(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: json.loads("no " + name))
    except ValueError:
        with pytest.raises(Malformed):
            parse(text)
    else:
        assert parse(text) == expected


@given(st.dictionaries(st.text(), values), layouts, space)
def test_members_tells_where_each_value_stands(data: dict[str, Any], layout: dict[str, Any], before: str) -> None:
    text = before + json.dumps(data, **layout)
    found, _ = members(text)
    assert {name: value for name, (value, _, _) in found.items()} == data
    for value, begin, end in found.values():
        assert parse(text[begin:end]) == value


def outcome(read: Callable[[str, int], tuple[object, int]], text: str) -> object:
    """What a reader makes of the value at the beginning of a text."""
    try:
        value, end = read(text, 0)
    except Malformed as error:
        return str(error)
    return list(value) if isinstance(value, Strings) else value, end


NEAR_STRINGS = st.text('[]",\\ A=\n\x7f\u00e9', max_size=14)


@given(NEAR_STRINGS | NEAR_STRINGS.map('["{}"]'.format) | st.lists(NEAR_STRINGS).map(json.dumps))
def test_strings_are_read_as_json_does_or_not_at_all(text: str) -> None:
    assert outcome(strings_at, text) == outcome(value_at, text)


@given(st.lists(st.text('[]", A=\x7f\u00e9', max_size=5)), st.booleans())
def test_compact_strings_without_an_escape_stay_a_text(found: list[str], ascii_only: bool) -> None:
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=ascii_only)
    value, end = strings_at(text + "]", 0)
    is_plain = bool(found) and "\\" not in text and not any(entry.startswith("]") for entry in found[1:])
    assert isinstance(value, Strings) is is_plain
    assert (value, end) == (found, len(text))


@given(st.dictionaries(st.text(), values, min_size=1), st.integers(min_value=1))
def test_truncated_object_is_malformed(data: dict[str, Any], cut: int) -> None:
    text = json.dumps(data)
    text = text[: -(cut % len(text)) or -1]
    for read in (parse, members):
        with pytest.raises(Malformed):
            read(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a": 1, "a": 2}', "duplicate member 'a' at line 1, column 15"),
        ('{"a": 1, "\\u0061": 2}', "duplicate member 'a'"),
        ('{\n "a" 1}', "no colon after 'a' at line 2, column 6"),
        ('{"a": 1 "b": 2}', "no comma or closing brace at line 1, column 9"),
        ('{"a": 1,}', "no member name at line 1, column 9"),
        ("{a: 1}", "no member name at line 1, column 2"),
        ('{"a', "broken member name at line 1, column 2"),
        ('{"a": }', "no JSON value at line 1, column 7"),
        ('{"a": tru}', "no JSON value at line 1, column 7"),
        ('{"a": "x}', "not valid JSON at line 1, column 7"),
        ('{"a": 1', "at the end of the text (truncated?)"),
        ("[1]", "not a JSON object at line 1, column 1"),
        ("\n[1]", "not a JSON object at line 2, column 1"),
        ("\ufeff{}", "not a JSON object at line 1, column 1"),
    ],
)
def test_malformed_object_is_told_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(Malformed) as caught:
        members(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '{"a": [NaN]}', "1 2", "", " ", "'a'", '"\n"', "01"])
def test_what_only_python_takes_for_json_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        parse(text)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000])
def test_deep_nesting_is_malformed_and_does_not_crash(text: str) -> None:
    with pytest.raises(Malformed, match="nested too deeply"):
        parse(text)


def test_number_too_long_to_convert_is_malformed() -> None:
    """CPython refuses to convert more than 4300 digits (CVE-2020-10735)."""
    with pytest.raises(Malformed):
        parse("1" * 10_000)


def test_bytes_that_are_no_utf8_are_malformed_with_their_place() -> None:
    assert decode("é".encode()) == "é"
    with pytest.raises(Malformed, match="not UTF-8 at byte 2"):
        decode(b"ab\xff")


@pytest.mark.parametrize("value", [{1, 2}, b"x", {"a": object()}])
def test_what_json_does_not_know_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_numbers_json_does_not_know_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(float("nan"))


def entries(value: Any) -> int:
    """Of all lists and objects in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(inner) + sum(map(entries, inner))


@given(values, layouts, st.integers(0, 12))
def test_bounded_counts_entries_and_nothing_in_strings(value: Any, layout: dict[str, Any], most: int) -> None:
    """The bracket of a list or object counts too, so it may be one more for each."""
    text = json.dumps(value, **layout)
    try:
        bounded(text.encode("utf-8", "surrogatepass"), most, "it")
    except TooLarge as error:
        assert str(error) == f"it has lists and objects of more than the limit of {most} entries together"
        assert 2 * entries(value) + 1 > most
    else:
        assert entries(value) <= most + 1


@pytest.mark.parametrize(
    "text", ['["' + ",[{" * 100 + '"]', '["' + '\\",' * 100 + '"]', '["\\\\", "' + "," * 100 + '"]']
)
def test_what_stands_in_a_string_is_no_entry(text: str) -> None:
    assert bounded(text.encode(), 3, "it")


@pytest.mark.parametrize("text", ["[" + '"",' * 100, "[" * 100, '{"a":0,' * 100, '"' * 100 + "," * 100])
def test_too_many_entries_are_not_parsed_to_be_counted(text: str) -> None:
    with pytest.raises(TooLarge):
        bounded(text.encode(), 20, "it")


def test_a_member_that_stands_there_twice_is_found_in_one_pass() -> None:
    """Once each name was counted anew: minutes for the names that a file may have."""
    text = "{" + ",".join(f'"{n}":0' for n in range(50_000)) + ',"7":0}'
    with pytest.raises(Malformed, match="duplicate member '7'"):
        members('{"annotations":' + text + "}", strict=("annotations",))


# -- the position of an error: no thread may see another one's stand-in for json.decoder


def complaint(text: str) -> str:
    with pytest.raises(Malformed) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("text", ['{"a": 1,}', '["\\x"]', "[1" + "0" * 5000 + "]", '{"a" 1}'])
def test_the_same_text_with_and_without_the_module(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = complaint(text)
    monkeypatch.delitem(sys.modules, "json.decoder")
    assert complaint(text) == with_it
    assert "json.decoder" not in sys.modules


def test_threads_leave_the_module_alone() -> None:
    """A process with threads has loaded it (hook.agent.work, hook.nri.service)."""
    seen: set[object] = set()

    def spoil() -> None:
        for _ in range(300):
            complaint("[1" + "0" * 5000 + "]")  # an error without a position, with json.decoder too
            seen.add(sys.modules.get("json.decoder"))

    threads = [threading.Thread(target=spoil) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {json.decoder}
