"""Tables for a terminal, whose cells may hold text of a pod."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from hook.core.base.text import printable


def progress(text: str) -> None:
    """Says on a terminal what a command is waiting for. Nothing elsewhere."""
    if sys.stderr.isatty():
        print(printable(f"{text} …"), file=sys.stderr, flush=True)


def counted(number: int, what: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def table(rows: Iterable[Iterable[str]], headers: list[str]) -> str:
    """A table without lines between its columns. Control characters and newlines of a cell are escaped."""
    lines = [headers, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(column[0]) + 2, *map(len, column)) + 2 for column in zip(*lines, strict=True)]
    return "\n".join("".join(map(str.ljust, line, widths)).rstrip() for line in lines)
