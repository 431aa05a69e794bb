"""A change of files, as people read it."""

from __future__ import annotations

import os

from hook import __version__
from hook.core.base.text import printable
from hook.node.change.files import LINK, TREE, Change, State, look


def shown(changes: list[Change]) -> str:
    """Returns the changes in text: a diff for each text file, one line for anything else."""
    lines = [line for path, state in changes for line in _diff(path, look(path), state)]
    return "\n".join([printable(line, "\t") for line in lines])


def _diff(path: str, before: State | None, after: State | None) -> list[str]:
    kinds = {state.kind for state in (before, after) if state}
    if TREE in kinds:
        # The name of a program's directory means nothing to people.
        what = f"the program in {os.path.dirname(path)}"
        return [f"{what}: reassert {__version__}" if after else f"{what}: removed"]
    if LINK in kinds:
        return [f"{path} -> {after.content.decode()}" if after else f"{path}: removed"]
    if after is None:
        return [f"{path}: removed"]
    import difflib

    old = (before.content if before else b"").decode(errors="replace").splitlines()
    new = after.content.decode(errors="replace").splitlines()
    if before and old == new:
        return [f"{path}: mode {before.mode:04o} -> {after.mode:04o}"]
    name = path if before else "/dev/null"
    return list(difflib.unified_diff(old, new, name, path, n=2, lineterm=""))
