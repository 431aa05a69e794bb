"""Edits TOML files of other programs and keeps everything else: comments, order, spelling."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hook.node.errors import NodeError

Key = tuple[str, ...]

_MARK = "\ufeff"
"""A byte order mark: containerd 1.x skips it, tomllib does not."""


def decode(content: bytes) -> str:
    """Returns a file's text. Bytes that are not UTF-8 are kept: containerd 1.x accepts them in a comment."""
    return content.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Returns the bytes of a text from `decode`."""
    return text.encode("utf-8", "surrogateescape")


def parse(text: str, path: str) -> dict[str, Any]:
    """Returns the values of a TOML text. Raises NodeError with path and line."""
    try:
        return tomllib.loads(text.removeprefix(_MARK))
    except tomllib.TOMLDecodeError as error:
        raise NodeError(f"{path}: {error}; nothing was changed") from None


def values_of(path: str) -> dict[str, Any]:
    """Returns the values of a file, {} if there is none. Raises NodeError if it cannot be read."""
    try:
        return parse(Path(path).read_text(), path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: {error}") from None


def get(values: Any, key: Key, default: Any = None) -> Any:
    """Returns the value at a path of keys; `default` if a key is missing."""
    for part in key:
        if not isinstance(values, dict) or part not in values:
            return default
        values = values[part]
    return values


def put(values: dict[str, Any], key: Key, value: Any) -> None:
    """Sets a value in nested dictionaries, and makes missing tables; None removes the value. Raises TypeError."""
    if value is None:
        get(values, key[:-1], {}).pop(key[-1], None)
        return
    for part in key[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise TypeError(f"{part} is not a table")
    values[key[-1]] = value


def leaves(values: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yields every value that is not a table, with its path of keys."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*at, name))
        else:
            yield (*at, name), value


def edit(text: str, path: str, settings: dict[Key, Any], present: bytes | None = None) -> str:
    """Returns the text with each key set to its value. None removes the key, and the tables that it leaves empty.

    `path`: for messages. `present`: what the file has now; it is returned if it is such an edit already.
    Raises NodeError if the text is not TOML, or if the edited text would not have exactly the wanted values.
    """
    wanted = parse(text, path)
    if done := _edited_before(text, path, settings, present):
        return done
    import tomlkit  # imported late: most commands edit nothing, and it loads slowly
    from tomlkit.exceptions import TOMLKitError

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
    raise NodeError(
        f"{path} cannot be edited safely, because a table is defined in several places; set by hand: {keys}"
    )


def _edited_before(text: str, path: str, settings: dict[Key, Any], present: bytes | None) -> str:
    """Returns what a file has, if that is every line of the text and exactly the wanted values; else ""."""
    if present is None:
        return ""
    wanted = parse(text, path)
    try:
        there = decode(present)
        for key, value in settings.items():
            put(wanted, key, value)
        lines = iter(there.splitlines())
        is_edit = all(line in lines for line in text.splitlines())  # in the same order
        return there if is_edit and parse(there, path) == wanted else ""
    except (NodeError, TypeError):
        return ""


def _tidied(old: str, new: str) -> str:
    """Returns the edited text with unchanged lines byte for byte as before, and new lines indented like the others."""
    from difflib import SequenceMatcher

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
        if tag == "delete" and (
            next_is_table or end == len(before)
        ):  # tomlkit counts lines after a table as part of it
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
    """Returns the last lines that belong to the table whose header comes next: its comment and blank lines."""
    start = len(lines)
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    while start and not lines[start - 1].strip():
        start -= 1
    return lines[start:]


def _indentation(line: str, lines: list[str], indents: bool) -> str:
    """Returns the indentation of a new line: a key below its table's header, a table below its parent table."""
    headers = [other for other in lines if other.lstrip().startswith("[")]
    last = headers[-1] if headers and indents else ""
    space = last[: len(last) - len(last.lstrip())]
    is_child = not line.startswith("[") or line.startswith(last.strip().rstrip("]") + ".")
    return space + "  " if last and is_child else space


def _set(document: Any, key: Key, value: Any) -> None:
    import tomlkit

    table = document
    for depth, part in enumerate(key[:-1]):
        if part not in table:
            # Only the innermost table gets a header: [a.b.c], not [a], [a.b], [a.b.c].
            table[part] = tomlkit.table(is_super_table=depth < len(key) - 2)
        table = table[part]
    table[key[-1]] = value


def _remove(document: Any, key: Key) -> None:
    table = document
    for part in key[:-1]:
        table = table[part]
    del table[key[-1]]
