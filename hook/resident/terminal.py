"""Tables and lines for a terminal, which may hold text of a pod: as wide as the terminal, or whole."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

from hook.core.base.text import printable

WIDE = "wide"
"""The value of --output for text that is whole on a terminal too. In a pipe or a file, text is always whole."""

OUTPUTS = ("table", WIDE, "json")
"""The values of --output that each command with a table has."""

_LEAST = 6
"""Columns that a cell keeps, however narrow the terminal is."""

_HASH = 12
"""Digits of a hash on a terminal."""

_PIECES = re.compile(r" +|[^ /,]+[/,]*|[/,]+")
"""Where a line can be broken: at spaces, and after a slash or a comma. A longer piece is broken after `-_.`."""


def progress(text: str) -> None:
    """Says on a terminal what a command is waiting for. Nothing elsewhere."""
    if sys.stderr.isatty():
        print(printable(f"{text} …"), file=sys.stderr, flush=True)


def columns(output: str = "", stream: TextIO | None = None) -> int:
    """Returns how many columns text may have: those of the terminal; 0 for any number, elsewhere or for WIDE.

    `stream`: where it is printed, by default standard output.
    """
    target = stream or sys.stdout
    if output == WIDE or not target.isatty():
        return 0
    return os.get_terminal_size(target.fileno()).columns or 80  # a serial console does not say


def counted(number: int, what: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def hashed(sha256: str, width: int) -> str:
    """Returns a hash as it is shown in so many columns: whole, or its first digits."""
    return sha256[:_HASH] if width else sha256


def line(text: str, width: int, indent: int = 0, label: str = "") -> str:
    """Returns one line, escaped, as lines of at most `width` columns. 0: one line.

    `indent`: spaces before each line but the first. `label`: what stands in these on the first one.
    """
    head = f"{label:{indent}}" if label else ""
    if not width:
        return head + printable(text)
    first = len(head) if head else 0
    lines = _broken(printable(text), max(width - indent, _LEAST), max(width - first, _LEAST))
    return head + ("\n" + " " * indent).join(lines)


def table(rows: Iterable[Iterable[str]], headers: list[str], width: int = 0) -> str:
    """A table without lines between its columns. Control characters and newlines of a cell are escaped.

    `width`: columns of the terminal, in which the widest cells have several lines; 0: each row is one line.
    """
    lines = [headers, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(column[0]) + 2, *map(len, column)) + 2 for column in zip(*lines, strict=True)]
    if width:
        widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
        widths[-1] -= 2
        _narrow(widths, width)
        lines = [row for cells in lines for row in _split(cells, widths)]
    return "\n".join("".join(map(str.ljust, cells, widths)).rstrip() for cells in lines)


def _narrow(widths: list[int], width: int) -> None:
    """Takes columns from the widest, until all have room."""
    while sum(widths) > width and max(widths) > _LEAST + 2:
        widths[widths.index(max(widths))] -= 1


def _split(cells: list[str], widths: list[int]) -> list[list[str]]:
    """Returns one row as rows, in which each cell has room."""
    last = len(cells) - 1
    broken = [
        _broken(cell, width - 2 * (number < last))
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    height = max(map(len, broken))
    return [list(row) for row in zip(*(each + [""] * (height - len(each)) for each in broken), strict=True)]


def _broken(text: str, width: int, first: int = 0) -> list[str]:
    """Returns a text as lines of at most `width` characters, the first of at most `first`."""
    lines, now, room = [], "", first or width
    for piece in _PIECES.findall(text):
        if len(now) + len(piece.rstrip()) > room and now.strip():
            lines.append(now.rstrip())
            now, room = "", width
            piece = piece.lstrip()  # noqa: PLW2901
        now += piece
        while len(now.rstrip()) > room:
            end = max(now.rfind(character, 0, room) for character in "-_.") + 1
            end = end if end > room // 2 else room
            lines.append(now[:end])
            now, room = now[end:], width
    return [*lines, now.rstrip()]
