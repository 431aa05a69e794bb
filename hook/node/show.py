"""The output of `reassert node`: changes as a diff, the state of a node as a table or JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from hook import __version__
from hook.core.base.text import printable
from hook.node.change.files import LINK, TREE, Change, State, look
from hook.node.change.record import OwnerRecord
from hook.node.status import Status


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


def as_table(found: Status) -> str:
    """Returns a table with one line per handler, then the agent, the problems and hints."""
    from hook.node.agent import Starts
    from hook.node.terminal import table  # brings importlib.metadata

    cells = [
        (
            engine.title,
            handler.name,
            handler.runtime or "-",
            ", ".join(handler.wired) or "no",
            found.starts.get((engine.name, handler.name), Starts()).as_text(),
            found.execs.get((engine.name, handler.name), Starts()).as_text(),
            handler.note,
        )
        for engine, handler in found.rows
    ]
    remarks = [
        *([found.agent.as_text()] if found.agent else []),
        *(f"! {problem}" for problem in found.problems),
        *(f"Hint: {hint}" for hint in found.hints),
    ]
    return "\n".join(
        [table(cells, ["ENGINE", "HANDLER", "RUNTIME", "WIRED", "STARTS", "EXECS", ""]), *map(printable, remarks)]
    )


def as_json(found: Status) -> str:
    """Returns the content of `as_table` as JSON."""
    engines: dict[str, Any] = {}
    for engine, handler in found.rows:
        entry = engines.setdefault(engine.name, {"title": engine.title, "running": engine.running(), "handlers": []})
        entry["adapters"] = found.record.parts.get(engine.name, OwnerRecord()).adapters
        made, executed = (each.get((engine.name, handler.name)) for each in (found.starts, found.execs))
        entry["handlers"].append(
            {
                "name": handler.name,
                "runtime": handler.runtime,
                "wired": list(handler.wired),
                "starts": made.as_dict() if made else None,
                "execs": executed.as_dict() if executed else None,
                "note": handler.note,
            }
        )
    about = found.agent.as_dict() if found.agent else None
    return json.dumps({"engines": engines, "agent": about, "problems": found.problems, "hints": found.hints}, indent=2)
