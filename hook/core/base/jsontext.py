"""JSON through CPython's C scanner and encoder.

Importing the `json` module costs ten times as much. `members` does what it cannot: it returns the position of each
value in the text, so that an edit replaces those bytes and keeps all others.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner, scanstring
from collections.abc import Callable, Iterator
from typing import Any

from hook.core.base import jsonerrors
from hook.core.base.errors import TooLarge, named

_SPACE = " \t\n\r"
_ESCAPED = bytes(range(0x20)) + b'"\\\x7f'
"""ASCII bytes that JSON writes as an escape sequence."""
_UNESCAPED = bytes(sorted({*range(0x20, 0x100)} - {*b'"\\'}))
"""Bytes that stand in a JSON string as they are."""


class Malformed(ValueError):
    """The text is not JSON, or not the JSON that was expected. The message has the position."""


class _Context:
    """Settings of the C scanner, by the names that `json.decoder.JSONDecoder` gives them."""

    strict = True
    object_hook = None
    object_pairs_hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise Malformed(f"{name} is not JSON")


class _Strict(_Context):
    @staticmethod
    def object_pairs_hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise Malformed(f"duplicate member {named(repr(jsonerrors.twice(pairs)))}")
        return result


def _not_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_BROKEN = (ValueError, StopIteration, RecursionError, ImportError, SystemError)
"""Exceptions of the C scanner; hook.core.base.jsonerrors has what each means."""

_scan = make_scanner(_Context)  # type: ignore[arg-type]  # typeshed wants what json.decoder passes
_scan_strictly = make_scanner(_Strict)  # type: ignore[arg-type]  # it has the attributes that the C scanner reads
_encode = make_encoder(None, _not_json, encode_basestring_ascii, None, ":", ",", False, False, False)


def value_at(text: str, start: int, strict: bool = False) -> tuple[object, int]:
    """The value that begins exactly at `start`, and the index of its end. Raises Malformed.

    `strict`: an object with duplicate members is malformed, at any depth.
    """
    scan = _scan_strictly if strict else _scan
    try:
        return scan(text, start)
    except Malformed:
        raise
    except _BROKEN as error:
        raise Malformed(jsonerrors.reason(error, scan, text, start)) from None


class Strings:  # noqa: PLW1641  # like a list, it is not a key of a dictionary
    """A list of strings as compact JSON without an escape sequence: each `"` in `text` begins or ends a string."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator[str]:
        return iter(self.text[2:-2].split('","') if len(self.text) > 2 else ())

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Strings) else list(self) == other

    def replaced(self, edits: list[tuple[int, str, str | None]], more: list[str]) -> list[str] | Strings:
        """The list with other strings in it, and `more` at its end.

        `edits`: the position of a string's first quote, the string, and the new one or None if it is removed.
        """
        pieces: list[str] = []
        index = 0
        for begin, old, new in edits:
            pieces.append(self.text[index : begin - 1])  # without the `[` or `,` before it
            if new is not None:
                pieces.append("," + encode(new))
            index = begin + len(old) + 2
        pieces += [self.text[index:-1], *["," + encode(new) for new in more]]
        text = "".join(pieces).lstrip("[,")
        return parse(f"[{text}]") if "\\" in text else Strings(f"[{text}]")


_LONGEST = 1 << 18
"""Characters of a text that stays one. It is copied a few times, and one character beyond ASCII makes it longer."""


def strings_at(text: str, start: int) -> tuple[object, int]:
    """As `value_at`, but a list of strings that no escape sequence is in stays a text: `Strings`."""
    end = text.find('"]', start + 2) if text.startswith('["', start) else -1
    if 0 <= end < start + _LONGEST:
        body = text[start + 2 : end].encode()
        # If only `","` has quotes, the first of them ends the first string, and each pair ends one and begins the next.
        if body.translate(None, _UNESCAPED) == b'"' * (2 * body.count(b'","')):
            return Strings(text[start : end + 2]), end + 2
    return value_at(text, start)


def _malformed(problem: str, text: str, index: int) -> Malformed:
    return Malformed(f"{problem} at {jsonerrors.place(text, index)}")


def _skip(text: str, index: int) -> int:
    end = len(text)
    while index < end and text[index] in _SPACE:
        index += 1
    return index


def decode(data: bytes) -> str:
    """The text of a JSON document in UTF-8. Raises Malformed."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}") from None


def bounded(data: bytes, most: int, name: str) -> bytes:
    """The JSON document, if its lists and objects have at most about `most` entries together. Raises TooLarge.

    A few bytes of text become hundreds of bytes of objects, so the text's length alone bounds no memory. Nothing is
    parsed for this: commas and opening brackets are counted, those in strings only where there are too many at first.
    """
    if (
        len(data) > most
        and data.count(b",") + data.count(b"{") + data.count(b"[") > most
        and jsonerrors.has_more(data, most)
    ):
        raise TooLarge(f"{name} has lists and objects of more than the limit of {most} entries together")
    return data


def parse(text: str) -> Any:
    """The value of a JSON document. Raises Malformed."""
    value, end = value_at(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise _malformed("more text after the value", text, end)
    return value


def fold(name: str) -> str:
    """A member's name as Go's encoding/json compares it where no field matches exactly; for field names in ASCII.

    Go uses Unicode's simple case folding. Only two characters beyond ASCII equal an ASCII letter there: U+017F (long s)
    and U+212A (kelvin sign, which `lower` converts).
    """
    return name.lower().replace("\u017f", "s")


def members(
    text: str,
    *,
    inner: str | None = None,
    strict: tuple[str, ...] = (),
    start: int = 0,
    strings: str | None = None,
) -> tuple[dict[str, tuple[Any, int, int]], int]:
    """The members of the object at `start`, as {name: (value, begin, end)} with indices, and the index of its end.

    `inner`: a member whose value, if it is an object, is returned in the same form. `strict`: members in whose values
    duplicate names are refused. In the object itself, and in `inner`, they always are: Go's decoder takes the last of
    two members with one name, C's the first. `strings`: a member of `inner`, or else of the object, that is parsed by
    `strings_at`. Raises Malformed.
    """
    result: dict[str, tuple[Any, int, int]] = {}
    index = _skip(text, start)
    if text[index : index + 1] != "{":
        raise _malformed("not a JSON object", text, index)
    index = _skip(text, index + 1)
    if text[index : index + 1] == "}":
        return result, index + 1
    while True:
        if text[index : index + 1] != '"':
            raise _malformed("no member name", text, index)
        try:
            name, index = scanstring(text, index + 1, True)
        except _BROKEN:
            raise _malformed("broken member name", text, index) from None
        # Calls of _skip for each member would take longer than the values.
        index = index if text[index : index + 1] > " " else _skip(text, index)
        if text[index : index + 1] != ":":
            raise _malformed(f"no colon after {named(repr(name))}", text, index)
        begin = index + 1 if text[index + 1 : index + 2] > " " else _skip(text, index + 1)
        value: object
        if name == inner and text[begin : begin + 1] == "{":
            value, end = members(text, inner=None, strict=strict, start=begin, strings=strings)
        elif name == strings and inner is None:
            value, end = strings_at(text, begin)
        else:
            value, end = value_at(text, begin, name in strict)
        if name in result:
            raise _malformed(f"duplicate member {named(repr(name))}", text, begin)
        result[name] = (value, begin, end)
        index = end if text[end : end + 1] > " " else _skip(text, end)
        if text[index : index + 1] == "}":
            return result, index + 1
        if text[index : index + 1] != ",":
            raise _malformed("no comma or closing brace", text, index)
        index = index + 1 if text[index + 1 : index + 2] > " " else _skip(text, index + 1)


def encode_strings(values: list[str]) -> str:
    """A list of strings as `encode` writes it. Faster where no string needs an escape, as is usual in env."""
    text = '","'.join(values)
    if values and text.isascii() and len(text.encode().translate(None, _ESCAPED)) == len(text) - 2 * len(values) + 2:
        return f'["{text}"]'  # no other character than the quotes between them has to be escaped
    return encode(values)


def encode(value: object) -> str:
    """Compact JSON in ASCII. Raises TypeError for a value that JSON has no form for, ValueError for an infinite number.

    `parse` reads 1e999 as one; no member of the OCI specification is a fraction or has an exponent.
    """
    return "".join(_encode(value, 0))
