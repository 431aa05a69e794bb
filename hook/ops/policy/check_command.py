"""`reassert policy check`: the problems of policy files, as text, for scripts and for code review."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from hook import __version__
from hook.core.base.errors import ReassertError
from hook.core.base.system import Untrusted, trusted
from hook.core.base.text import printable
from hook.core.policy import store
from hook.core.policy.compiler import Compiled, compile_bytes, read_source
from hook.core.policy.source import PolicyInvalid, Problem
from hook.node.terminal import counted

STDIN = "-"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass
class Checked:
    """A policy file and its problems. `compiled`: None if it has errors."""

    path: str
    problems: list[Problem] = field(default_factory=list)
    compiled: Compiled | None = None


def check(files: list[str], node: bool, strict: bool, output: str) -> int:
    """Print the problems of each file. Returns 1 if there is an error, or with `strict` a warning.

    Without a file: the node's policy file. A wrong owner or mode is an error for that one, and a warning for others.
    `node`: look at the files of this node too. Raises ReassertError for the node's policy file.
    """
    checked = [_checked(path, node, bool(files)) for path in files or [store.SOURCE]]
    {"text": _text, "json": _json, "github": _github, "sarif": _sarif}[output](checked, node)
    severities = {problem.severity for each in checked for problem in each.problems}
    return 1 if "error" in severities or (strict and "warning" in severities) else 0


def _checked(path: str, node: bool, is_draft: bool) -> Checked:
    found = Checked("stdin" if path == STDIN else path)
    try:
        content = _stdin() if path == STDIN else read_source(path)[0]
        found.compiled = compile_bytes(found.path, content)
        found.problems += found.compiled.warnings
    except PolicyInvalid as error:
        found.problems += error.problems
        return found
    except ReassertError as error:
        found.problems.append(Problem(0, 0, str(error)))
        return found
    if node or not is_draft:
        found.problems += _node_problems(found.compiled, node)
    if path != STDIN:
        try:
            trusted(os.path.abspath(path))
        except Untrusted as error:
            if not is_draft:
                raise
            found.problems.append(Problem(1, 1, f"on a node this file would be refused: {error}", "note"))
    return found


def _stdin() -> bytes:
    content = sys.stdin.buffer.read(store.SOURCE_LIMIT + 1)
    if len(content) > store.SOURCE_LIMIT:
        raise ReassertError(f"standard input is larger than the limit of {store.SOURCE_LIMIT} bytes")
    return content


def _node_problems(compiled: Compiled, files: bool) -> list[Problem]:
    """What of the policy this node cannot do, with positions in the policy file. `files`: look at its files too."""
    from hook.node.change.record import Record
    from hook.node.sources import look_at, never_known, unreadable

    source, policy = compiled.source, compiled.policy()
    found = [*look_at(policy), *unreadable(policy)] if files else []
    found += never_known(policy, Record.read().engines())
    return [source.problem(source.origin(f.place), f.message, severity=f.severity) for f in found]


def _text(checked: list[Checked], node: bool) -> None:
    for each in checked:
        for problem in each.problems:
            if not problem.line:  # the file cannot be read
                print(printable(f"reassert: {problem.message}"), file=sys.stderr)
            elif problem.severity == "note":  # it has no place in the file
                print(printable(f"{each.path}: warning: {problem.message}"), file=sys.stderr)
            else:
                print(problem.at(each.path), file=sys.stderr)
        if each.compiled and not _has_error(each):
            valid = "valid on this node" if node else "valid"
            fingerprint = each.compiled.source.sha256
            rules = counted(len(each.compiled.lines), "rule")
            print(printable(f"{each.path}: {valid}, {rules}, sha256 {fingerprint}"))


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
                for p in each.problems
            ],
        }
        for each in checked
    ]
    print(json.dumps({"files": files, "node": node}, indent=2))


def _github(checked: list[Checked], node: bool) -> None:
    """Workflow commands of GitHub Actions: `::error file=F,line=L,col=C::MESSAGE`."""
    levels = {"error": "error", "warning": "warning", "note": "notice"}
    for each in checked:
        for p in each.problems:
            where = f"file={_escaped(each.path, ',:')},line={max(1, p.line)},col={max(1, p.column)}"
            print(printable(f"::{levels[p.severity]} {where}::{_escaped(p.message)}"))


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _sarif(checked: list[Checked], node: bool) -> None:
    driver = {"name": "reassert", "version": __version__, "rules": [{"id": "policy"}]}
    results: list[dict[str, Any]] = []
    for each in checked:
        for p in each.problems:
            region = {"startLine": max(1, p.line), "startColumn": max(1, p.column)}
            location = {"physicalLocation": {"artifactLocation": {"uri": each.path}, "region": region}}
            said = {"level": p.severity, "message": {"text": p.message}}
            results.append({"ruleId": "policy", **said, "locations": [location]})
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    print(json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2))
