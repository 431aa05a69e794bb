"""dockerd's daemon.json: errors have line and column, and an edit keeps the style of the file."""

from __future__ import annotations

import json
import re
from typing import Any

from hook.node.errors import NodeError

_CHECKED: dict[str, type] = {"runtimes": dict, "default-runtime": str}
_SPELLED: dict[type, str] = {dict: "an object", str: "a string"}


def parse(content: bytes, path: str) -> dict[str, Any]:
    """Returns the settings; {} for an empty file. Raises NodeError for a file that dockerd would not read either."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NodeError(f"{path} is not UTF-8: {error}; nothing was changed") from None
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise NodeError(f"{path}:{error.lineno}:{error.colno}: {error.msg}; nothing was changed") from None
    if not isinstance(values, dict):
        raise NodeError(f"{path}:1:1: the file must hold a JSON object; nothing was changed")
    for key, kind in _CHECKED.items():
        _check(values.get(key, kind()), kind, key, text, path)
    for name, entry in values.get("runtimes", {}).items():
        _check(entry, dict, name, text, path)
        for key, kind in (("path", str), ("runtimeType", str), ("options", dict)):
            _check(entry.get(key, kind()), kind, key, text, path)
    return values


def render(values: dict[str, Any], like: bytes) -> bytes:
    """Returns the settings as JSON, in the style of the earlier content: tabs, spaces, or one line."""
    before = like.decode("utf-8-sig", "replace")
    found = re.search(r"^([ \t]+)\S", before, re.MULTILINE)
    one_line = bool(before.strip()) and "\n" not in before.strip()
    indent = None if one_line else found[1] if found else "  "
    end = "\n" if not before.strip() or before.endswith("\n") else ""
    return (json.dumps(values, indent=indent, ensure_ascii=False) + end).encode()


def _check(value: object, kind: type, key: str, text: str, path: str) -> None:
    if isinstance(value, kind):
        return
    found = re.search(re.escape(json.dumps(key)) + r"\s*:", text)
    before = text[: found.start()] if found else ""
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    raise NodeError(f"{path}:{line}:{column}: {key} must be {_SPELLED[kind]}; nothing was changed")
