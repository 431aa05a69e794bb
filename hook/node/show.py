"""The output of `reassert node`: changes as a diff, the state of a node as a table or JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hook.base.text import printable
from hook.node.agent import Agent, Starts
from hook.node.change.files import LINK, TREE, Change, State, look
from hook.node.change.record import OwnerRecord, Record
from hook.node.engines.base import AnyEngine, Handler


def shown(changes: list[Change]) -> str:
    """Returns the changes in text: a diff for each text file, one line for anything else."""
    lines = [line for path, state in changes for line in _diff(path, look(path), state)]
    return "\n".join([printable(line, "\t") for line in lines])


def _diff(path: str, before: State | None, after: State | None) -> list[str]:
    kinds = {state.kind for state in (before, after) if state}
    if TREE in kinds:
        return [f"{path}: {'the program' if after else 'removed'}"]
    if LINK in kinds:
        return [f"{path} -> {after.content.decode()}" if after else f"{path}: removed"]
    if after is None:
        return [f"{path}: removed"]
    old = (before.content if before else b"").decode(errors="replace").splitlines()
    new = after.content.decode(errors="replace").splitlines()
    if before and old == new:
        return [f"{path}: mode {before.mode:04o} -> {after.mode:04o}"]
    name = path if before else "/dev/null"
    return list(difflib.unified_diff(old, new, name, path, n=2, lineterm=""))


def as_table(
    rows: list[tuple[AnyEngine, Handler]],
    record: Record,
    problems: list[str],
    hints: list[str],
    starts: Mapping[tuple[str, str], Starts] = MappingProxyType({}),
    agent: Agent | None = None,
) -> str:
    """Returns a table with one line per handler, then the agent, the problems and hints."""
    from hook.base.terminal import table  # brings importlib.metadata

    cells = [
        (
            engine.title,
            handler.name,
            handler.runtime or "-",
            ", ".join(handler.wired) or "no",
            starts.get((engine.name, handler.name), Starts()).as_text(),
            handler.note,
        )
        for engine, handler in rows
    ]
    remarks = [
        *([agent.as_text()] if agent else []),
        *(f"! {problem}" for problem in problems),
        *(f"Hint: {hint}" for hint in hints),
    ]
    return "\n".join([table(cells, ["ENGINE", "HANDLER", "RUNTIME", "WIRED", "STARTS", ""]), *map(printable, remarks)])


def as_json(
    rows: list[tuple[AnyEngine, Handler]],
    record: Record,
    problems: list[str],
    hints: list[str],
    starts: Mapping[tuple[str, str], Starts] = MappingProxyType({}),
    agent: Agent | None = None,
) -> str:
    """The same for programs."""
    found: dict[str, Any] = {}
    for engine, handler in rows:
        entry = found.setdefault(engine.name, {"title": engine.title, "running": engine.running(), "handlers": []})
        entry["adapters"] = record.parts.get(engine.name, OwnerRecord()).adapters
        made = starts.get((engine.name, handler.name))
        entry["handlers"].append(
            {
                "name": handler.name,
                "runtime": handler.runtime,
                "wired": list(handler.wired),
                "starts": made.as_dict() if made else None,
                "note": handler.note,
            }
        )
    about = agent.as_dict() if agent else None
    return json.dumps({"engines": found, "agent": about, "problems": problems, "hints": hints}, indent=2)
