"""`reassert help break-glass`: the page for a node on which nothing starts, as text."""

from __future__ import annotations

import re
from pathlib import Path

_LINK = re.compile(r"\[([^\]]*)\]\([^()\s]+\)")


def page() -> str:
    """docs/break-glass.md without its links; the frozen program has it beside this module."""
    frozen = Path(__file__).with_name("break-glass.md")
    path = frozen if frozen.exists() else Path(__file__).parents[2] / "docs" / frozen.name
    return _LINK.sub(r"\1", path.read_text("utf-8"))
