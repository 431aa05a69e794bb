"""What is wrong with a text that is not JSON, or has too many entries or a name twice. Almost no start has one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def reason(error: Exception, scan: Callable[[str, int], object], text: str, start: int) -> str:
    """What an exception of the C scanner says about the value at `start`.

    The scanner raises JSONDecodeError, a ValueError, which it gets from json.decoder. The frozen start path has no such
    module: the scanner then raises a SystemError (Python 3.11) or an ImportError.
    """
    if isinstance(error, StopIteration):
        return f"no JSON value at {place(text, error.value)}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    position = getattr(error, "pos", None)
    if position is None:
        position = _position(scan, text, start)
    return f"not valid JSON at {place(text, position)}" if position is not None else "not valid JSON"


class _DecodeError(ValueError):
    """Used in place of json.decoder.JSONDecodeError."""

    def __init__(self, _: str, __: str, position: int) -> None:
        self.position = position


def _position(scan: Callable[[str, int], object], text: str, start: int) -> int | None:
    """Where the C scanner stops, in a process without json.decoder; None where it does not say.

    Where json.decoder is loaded, the scanner's exception has the position, and one without it has none. A process with
    several threads loads it before it starts them: sys.modules is theirs too.
    """
    name = "json.decoder"
    if name in sys.modules:
        return None
    decoder = type(sys)(name)
    decoder.JSONDecodeError = _DecodeError  # type: ignore[attr-defined]  # a module of our own
    sys.modules[name] = decoder
    try:
        scan(text, start)
    except _DecodeError as error:
        return error.position
    except Exception:
        return None
    finally:
        del sys.modules[name]
    return None


def has_more(data: bytes, most: int) -> bool:
    """Whether a JSON document has more commas and opening brackets outside of strings, or far more strings."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # An entry has at most two strings, its name and its value. More would be costly to split, too.
    if plain.count(b'"') > 4 * most + 4:
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"{") + outside.count(b"[") > most


def twice(pairs: list[tuple[str, Any]]) -> str:
    """The first name of an object's members that occurs again."""
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]  # add() returns None


def place(text: str, position: int) -> str:
    """A position as text: line and column."""
    if position >= len(text):
        return "the end of the text (truncated?)"
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"
