"""Edits of other programs' TOML files that leave everything else as it was: comments, order, spelling."""

from __future__ import annotations

import tomllib
from difflib import SequenceMatcher
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from hook.node.errors import NodeError

Key = tuple[str, ...]

_MARK = "\ufeff"
"""A byte order mark: containerd 1.x passes over it, tomllib does not."""


def decode(content: bytes) -> str:
    """A file's text. Bytes that are no UTF-8 are kept: containerd 1.x does not mind them in a comment."""
    return content.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """What `decode` read."""
    return text.encode("utf-8", "surrogateescape")


def parse(text: str, path: str) -> dict[str, Any]:
    """The values of a TOML text. Raises NodeError with path and line."""
    try:
        return tomllib.loads(text.removeprefix(_MARK))
    except tomllib.TOMLDecodeError as error:
        raise NodeError(f"{path}: {error}; nothing was changed") from None


def get(values: Any, key: Key, default: Any = None) -> Any:
    """A value by its path of keys; `default` where a step is missing."""
    for part in key:
        if not isinstance(values, dict) or part not in values:
            return default
        values = values[part]
    return values


def put(values: dict[str, Any], key: Key, value: Any) -> None:
    """Set a value in plain dictionaries, making tables on the way; None removes it. Raises TypeError."""
    if value is None:
        get(values, key[:-1], {}).pop(key[-1], None)
        return
    for part in key[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise TypeError(f"{part} is no table")
    values[key[-1]] = value


def edit(text: str, path: str, settings: dict[Key, Any]) -> str:
    """The text with each key set to its value; None removes the key, and the tables that are empty without it.

    Raises NodeError for a text that is no TOML, or where the result would not say exactly what it should.
    """
    wanted = parse(text, path)
    mark = _MARK if text.startswith(_MARK) else ""
    text = text.removeprefix(_MARK)
    try:
        document = tomlkit.parse(text)
        for key, value in settings.items():
            put(wanted, key, value)
            if value is not None:
                _set(document, key, value)
            elif get(tomllib.loads(text), key) is not None:
                _remove(document, key)
                for depth in range(len(key) - 1, 0, -1):
                    if get(wanted, key[:depth]) != {}:
                        break
                    put(wanted, key[:depth], None)
                    _remove(document, key[:depth])
        edited = _tidied(text, tomlkit.dumps(document))
        if tomllib.loads(edited) == wanted:
            return mark + edited
    except (TOMLKitError, tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError, ValueError):
        pass
    keys = ", ".join(".".join(key) for key in settings)
    raise NodeError(f"{path} cannot be edited safely, its tables are split in an unusual way; set by hand: {keys}")


def _tidied(old: str, new: str) -> str:
    """An edited text whose untouched lines are the old ones, to the last space, and whose new ones stand as others."""
    before, after = (text.removesuffix("\n").split("\n") if text else [] for text in (old, new))
    feed = "\r" if any(line.endswith("\r") for line in before) else ""
    indents = any(line.startswith((" ", "\t")) and line.lstrip().startswith("[") for line in before)
    same = SequenceMatcher(None, [line.strip() for line in before], [line.strip() for line in after], autojunk=False)
    lines: list[str] = []
    for tag, begin, end, new_begin, new_end in same.get_opcodes():
        if tag == "equal":
            lines += before[begin:end]
        elif tag == "replace":
            lines += [line.rstrip("\r") + feed for line in after[new_begin:new_end]]
        next_is_table = "".join(before[end : end + 1]).lstrip().startswith("[")
        if tag == "delete" and (next_is_table or end == len(before)):  # tomlkit takes what follows a table for its own
            kept = _of_the_next(before[begin:end])
            lines += kept[1:] if kept and not (kept[0].strip() or "".join(lines[-1:]).strip()) else kept
        elif tag == "insert":
            held = _of_the_next(lines) if next_is_table else []
            lines = lines[: len(lines) - len(held)]
            for line in after[new_begin:new_end]:
                if line.strip():
                    lines.append(_indentation(line.strip(), lines, indents) + line.strip() + feed)
                elif not indents and not (lines and held and not lines[-1].strip()):
                    lines.append(feed)
            if held and not (lines[-1].strip() or held[0].strip()):
                lines.pop()
            lines += held
    return "\n".join(lines) + "\n"


def _of_the_next(lines: list[str]) -> list[str]:
    """The last of these lines that belong to a table whose header comes next: the comment above it, blank lines."""
    start = len(lines)
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while start and not lines[start - 1].strip():
        start -= 1
    return lines[start:]


def _indentation(line: str, lines: list[str], indents: bool) -> str:
    """How far a new line is to be moved in: a key below its table's header, a table below the one it belongs to."""
    headers = [other for other in lines if other.lstrip().startswith("[")]
    last = headers[-1] if headers and indents else ""
    space = last[: len(last) - len(last.lstrip())]
    is_child = not line.startswith("[") or line.startswith(last.strip().rstrip("]") + ".")
    return space + "  " if last and is_child else space


def _set(document: Any, key: Key, value: Any) -> None:
    table = document
    for depth, part in enumerate(key[:-1]):
        if part not in table:
            # Only the last one gets a header of its own: [a.b.c], not [a], [a.b], [a.b.c].
            table[part] = tomlkit.table(is_super_table=depth < len(key) - 2)
        table = table[part]
    table[key[-1]] = value


def _remove(document: Any, key: Key) -> None:
    table = document
    for part in key[:-1]:
        table = table[part]
    del table[key[-1]]
