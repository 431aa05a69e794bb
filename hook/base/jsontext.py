"""JSON through CPython's C scanner and encoder. Part of the start path: builtins only.

The `json` module would cost ten times what it does here (docs/performance.md), so this file holds the few lines
of it that a container start needs, plus one thing `json` cannot do: `members` tells where in the text each value
stands, so that an edit replaces those bytes and leaves every other byte of the file alone.
"""

import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner, scanstring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"
_ESCAPED = bytes(range(0x20)) + b'"\\\x7f'
"""Those of ASCII that a string has in another form."""


class Malformed(ValueError):
    """The text is not the JSON that was expected; says where."""


class _Context:
    """What the C scanner wants to be told (see `json.decoder.JSONDecoder`)."""

    strict = True
    object_hook = None
    object_pairs_hook: "Callable[[list[tuple[str, Any]]], dict[str, Any]] | None" = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise Malformed(f"{name} is not JSON")


def _distinct(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise Malformed(f"member {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


class _Strict(_Context):
    object_pairs_hook = staticmethod(_distinct)


def _not_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_SCANNERS = (ValueError, ImportError, SystemError)
"""What the C scanner raises. It looks for JSONDecodeError, a ValueError, in json.decoder, which is not there on the
frozen start path: a SystemError for Python 3.11, and an ImportError where it tries to import it."""

_scan = make_scanner(_Context)  # type: ignore[arg-type]  # typeshed wants what json.decoder passes
_scan_strictly = make_scanner(_Strict)  # type: ignore[arg-type]
_encode = make_encoder(None, _not_json, encode_basestring_ascii, None, ":", ",", False, False, False)


def value_at(text: str, start: int, strict: bool = False) -> "tuple[object, int]":
    """The value that begins exactly at `start`, and where it ends. Raises Malformed.

    `strict`: no object in it has a member twice.
    """
    try:
        value, end = (_scan_strictly if strict else _scan)(text, start)
    except Malformed:
        raise
    except StopIteration as stop:
        raise Malformed(f"no JSON value at {_place(text, stop.value)}") from None
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except _SCANNERS as error:
        position = getattr(error, "pos", None)
        if position is None:
            position = _position(_scan_strictly if strict else _scan, text, start)
        where = f" at {_place(text, position)}" if position is not None else ""
        raise Malformed(f"not valid JSON{where}") from None
    return value, end


class _DecodeError(ValueError):
    """In the place of json.decoder.JSONDecodeError."""

    def __init__(self, _: str, __: str, position: int) -> None:
        self.position = position


def _position(scan: "Callable[[str, int], object]", text: str, start: int) -> "int | None":
    """Where the C scanner stops, in a process without json.decoder; None where it does not say."""
    decoder = type(sys)("json.decoder")
    decoder.JSONDecodeError = _DecodeError  # type: ignore[attr-defined]  # a module of our own
    sys.modules[decoder.__name__] = decoder
    try:
        scan(text, start)
    except _DecodeError as error:
        return error.position
    except Exception:
        return None
    finally:
        del sys.modules[decoder.__name__]
    return None


def _place(text: str, position: int) -> str:
    if position >= len(text):
        return "the end of the text (truncated?)"
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"


def _skip(text: str, at: int) -> int:
    end = len(text)
    while at < end and text[at] in _SPACE:
        at += 1
    return at


def decode(data: bytes) -> str:
    """UTF-8 text of a JSON document. Raises Malformed."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}") from None


def parse(text: str) -> "Any":
    """The one value that the text consists of. Raises Malformed."""
    value, end = value_at(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise Malformed(f"more text after the value at {_place(text, end)}")
    return value


def holds_nul(text: str) -> bool:
    """Whether a string in JSON text holds an escaped NUL. Behind a backslash that is itself escaped it is none."""
    nul = "\\u0000"
    return nul in text and nul in text.replace("\\\\", "..")


def fold(name: str) -> str:
    """What Go's encoding/json compares of a member's name that has no exact match, for names in ASCII.

    It folds case by Unicode's simple folding: of all other characters only U+017F (long s) and U+212A (the kelvin
    sign, which `lower` knows) equal an ASCII letter.
    """
    return name.lower().replace("\u017f", "s")


def members(text: str, inner: "str | None" = None, strict: "tuple[str, ...]" = ()) -> "dict[str, tuple[Any, int, int]]":
    """The object that the text begins with, as {name: (value, begin, end)} with the place of each value in the text.

    `inner`: a member whose own members' places are wanted: if it is an object, its value here is what this function
    makes of it. `strict`: members in which no object may have a name twice, as it may not here: Go's decoder takes the
    last one, C's the first. Raises Malformed.
    """
    return _members(text, 0, inner, strict)[0]


def _members(
    text: str, start: int, inner: "str | None", strict: "tuple[str, ...]"
) -> "tuple[dict[str, tuple[Any, int, int]], int]":
    """The members of the object at `start`, and where it ends."""
    found: dict[str, tuple[Any, int, int]] = {}
    at = _skip(text, start)
    if text[at : at + 1] != "{":
        raise Malformed(f"not a JSON object at {_place(text, at)}")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise Malformed(f"no member name at {_place(text, at)}")
        try:
            name, at = scanstring(text, at + 1, True)
        except _SCANNERS:
            raise Malformed(f"broken member name at {_place(text, at)}") from None
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise Malformed(f"no colon after {name!r} at {_place(text, at)}")
        begin = _skip(text, at + 1)
        value: object
        if name == inner and text[begin : begin + 1] == "{":
            value, end = _members(text, begin, None, strict)
        else:
            value, end = value_at(text, begin, name in strict)
        if name in found:
            raise Malformed(f"member {name!r} stands there twice, again at {_place(text, begin)}")
        found[name] = (value, begin, end)
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return found, at + 1
        if text[at : at + 1] != ",":
            raise Malformed(f"no comma or closing brace at {_place(text, at)}")
        at = _skip(text, at + 1)


def encode_strings(values: "list[str]") -> str:
    """A list of strings as `encode` writes it, at once if there is nothing to escape; env is long and seldom has."""
    text = "".join(values)
    if values and text.isascii() and len(text.encode().translate(None, _ESCAPED)) == len(text):
        return '["' + '","'.join(values) + '"]'
    return encode(values)


def encode(value: object) -> str:
    """Compact JSON in ASCII. Raises TypeError for what JSON does not know."""
    return "".join(_encode(value, 0))
