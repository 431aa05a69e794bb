"""`reassert policy check`: the problems of policy files, as text, for scripts and for code review."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hook.compile.compiler import Compiled, compile_bytes
from hook.compile.in_force import read_source
from hook.compile.source import PolicyInvalid, Problem
from hook.core.base.errors import ReassertError
from hook.core.base.system import Untrusted, trusted
from hook.core.base.text import printable
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.resident.terminal import columns, counted, hashed, line

if TYPE_CHECKING:
    from hook.node.sources import Placed

STDIN = "-"
_OF_A_NODE = os.path.dirname(store.SOURCE) + "/"
"""Files below it are a node's. Elsewhere, such as in a checkout of CI, who may write to a file says nothing."""


@dataclass
class Checked:
    """A policy file and its problems. `compiled`: None if it has errors. `notes`: what its choices cost."""

    path: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    compiled: Compiled | None = None


def check(files: list[str], node: bool, strict: bool, output: str) -> int:
    """Print the problems of each file. Returns 1 if there is an error, or with `strict` a warning.

    Without a file: the node's policy file. A wrong owner or mode is an error for that one, and a warning for others.
    `node`: look at the files of this node too. Raises ReassertError for the node's policy file.
    """
    checked = [_checked(path, node, bool(files)) for path in files or [store.SOURCE]]
    if output in ("json", "github"):
        {"json": _json, "github": _github}[output](checked, node)
    else:
        _text(checked, node, output)
    severities = {problem.severity for each in checked for problem in each.problems}
    return 1 if "error" in severities or (strict and "warning" in severities) else 0


def _checked(path: str, node: bool, is_draft: bool) -> Checked:
    found = Checked("stdin" if path == STDIN else path)
    try:
        content = _stdin() if path == STDIN else read_source(path)[0]
        found.compiled = compile_bytes(found.path, content)
        found.problems += found.compiled.warnings
        found.notes += _trade_offs(found.compiled)
    except PolicyInvalid as error:
        found.problems += error.problems
        return found
    except ReassertError as error:
        found.problems.append(Problem(0, 0, str(error)))
        return found
    if node or not is_draft:
        found.problems += _node_problems(found.compiled, node)
    if path != STDIN and (not is_draft or os.path.abspath(path).startswith(_OF_A_NODE)):
        try:
            trusted(os.path.abspath(path))
        except Untrusted as error:
            if not is_draft:
                raise
            found.problems.append(Problem(1, 1, f"on a node this file would be refused: {error}", "warning"))
    return found


def _trade_offs(compiled: Compiled) -> list[Problem]:
    """What `trust` costs, once for each value of `mount`. Each choice has a cost, so none is a warning."""
    from hook.compile.trust import ASIDE, DIRECTORIES, trade_off

    found: dict[str, Problem] = {}
    for number, rule in enumerate(compiled.source.rules()):
        if rule.get("trust"):
            mount = str(rule["trust"].get("mount", DIRECTORIES))
            other = DIRECTORIES if mount == ASIDE else ASIDE
            text = f"{trade_off(mount)}; mount: {other} is the other choice (docs/trust.md)"
            found.setdefault(
                mount, compiled.source.problem(("spec", "rules", number, "trust"), text, key=True, severity="note")
            )
    return list(found.values())


def _stdin() -> bytes:
    content = sys.stdin.buffer.read(store.SOURCE_LIMIT + 1)
    if len(content) > store.SOURCE_LIMIT:
        raise ReassertError(f"standard input is larger than the limit of {store.SOURCE_LIMIT} bytes")
    return content


def _node_problems(compiled: Compiled, files: bool) -> list[Problem]:
    """What of the policy this node cannot do, with positions in the policy file. `files`: look at its files too."""
    from hook.node.change.record import Record
    from hook.node.sources import leads_out, look_at, never_known, no_checkpoint, unreadable

    source, policy = compiled.source, compiled.policy()
    found: list[Placed] = []
    if files:
        found += [*look_at(policy), *unreadable(policy), *leads_out(policy), *no_checkpoint(policy)]
        found += _taken_away(policy)
    found += never_known(policy, Record.read().engines())
    return [source.problem(source.origin(place), str(each), severity=each.severity) for place, each in found]


def _taken_away(policy: Policy) -> list[Placed]:
    """The annotations that this node's engines let through and the policy takes away. `status` says what fails."""
    from hook.node.engines import registry
    from hook.node.sources import taken_away

    found: dict[str, Placed] = {}
    for name in registry.installed():
        with suppress(ReassertError, OSError):
            engine = registry.engine(name)
            found |= {each.text: (place, each) for place, each in taken_away(policy, engine.read().annotations())}
    return list(found.values())


def _text(checked: list[Checked], node: bool, output: str) -> None:
    told, wrong = columns(output), columns(output, sys.stderr)
    for each in checked:
        for problem in each.problems:
            unread = not problem.line  # the file cannot be read
            text = f"reassert: {problem.message}" if unread else problem.at(each.path)
            print(line(text, wrong, 2), file=sys.stderr)
        for note in each.notes:
            print(line(note.at(each.path), wrong, 2), file=sys.stderr)
        if each.compiled and not _has_error(each):
            valid = "valid on this node" if node else "valid"
            fingerprint = hashed(each.compiled.source.sha256, told)
            rules = counted(len(each.compiled.lines), "rule")
            print(line(f"{each.path}: {valid}, {rules}, sha256 {fingerprint}", told, 2))


def _has_error(checked: Checked) -> bool:
    return any(problem.severity == "error" for problem in checked.problems)


def _json(checked: list[Checked], node: bool) -> None:
    files = [
        {
            "file": each.path,
            "valid": not _has_error(each),
            "rules": len(each.compiled.lines) if each.compiled else None,
            "sha256": each.compiled.source.sha256 if each.compiled else None,
            "problems": [
                {"line": max(1, p.line), "column": max(1, p.column), "severity": p.severity, "message": p.message}
                for p in [*each.problems, *each.notes]
            ],
        }
        for each in checked
    ]
    print(json.dumps({"files": files, "node": node}, indent=2))


def _github(checked: list[Checked], node: bool) -> None:
    """Workflow commands of GitHub Actions: `::error file=F,line=L,col=C::MESSAGE`."""
    levels = {"error": "error", "warning": "warning", "note": "notice"}
    for each in checked:
        for p in [*each.problems, *each.notes]:
            where = f"file={_escaped(each.path, ',:')},line={max(1, p.line)},col={max(1, p.column)}"
            print(printable(f"::{levels[p.severity]} {where}::{_escaped(p.message)}"))


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
