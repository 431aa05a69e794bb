"""Tables for people. Everything in them may be a pod's. Not for the start path: tabulate brings importlib.metadata."""

from __future__ import annotations

from collections.abc import Iterable

from tabulate import tabulate

from hook.base.text import printable


def table(rows: Iterable[Iterable[str]], headers: list[str]) -> str:
    """Columns without lines; a cell is one line, whatever it holds."""
    cells = [[printable(cell) for cell in row] for row in rows]
    return tabulate(cells, headers, tablefmt="plain", disable_numparse=True)
