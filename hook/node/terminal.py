"""Tables for a terminal, whose cells may hold text of a pod.

The start path must not import this: tabulate imports importlib.metadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from tabulate import tabulate

from hook.core.base.text import printable


def counted(number: int, what: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def table(rows: Iterable[Iterable[str]], headers: list[str]) -> str:
    """A table without lines between its columns. Control characters and newlines of a cell are escaped."""
    cells = [[printable(cell) for cell in row] for row in rows]
    return tabulate(cells, headers, tablefmt="plain", disable_numparse=True)
