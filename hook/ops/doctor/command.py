"""The command `reassert doctor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict

from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.text import printable
from hook.entry.parser import add_policy_options
from hook.node import status
from hook.node.agent import tail
from hook.node.change.record import Record
from hook.node.terminal import table
from hook.node.words import about
from hook.ops.audit import stale
from hook.ops.audit.audit import Audit, audit, read_round
from hook.ops.audit.inventory import running
from hook.ops.doctor.checks import BAD, ERRORS, TAIL, Check, NodeState, checks

_MARK = {"ok": "ok", "warning": "WARNING", "bad": "BAD"}


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert doctor` to the parser."""
    parser.add_argument(
        "--bundle",
        metavar="FILE.tar.gz",
        help="also write a new file for a bug report; it holds no env value that the policy file does not have",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the page, and write the bundle. Returns 1 if a line is bad. Needs root: raises ReassertError without."""
    if os.geteuid() != 0:
        raise ReassertError("this needs root: sudo reassert doctor")
    known = read_round(os.path.abspath(options.policy), options.store)
    found: Audit | None = None
    with suppress(ReassertError, OSError):  # `checks` says so
        found = audit(known, running())
    seen = NodeState(status.node_status(Record.read(), None, stale.hints), known, found, tail(events.EVENTS, TAIL))
    lines = checks(seen)
    found_json = {**about(), "checks": [asdict(line) for line in lines]}
    print(json.dumps(found_json, indent=2) if options.output == "json" else as_table(lines))
    if options.bundle:
        from hook.ops.doctor import bundle

        harmless = [line for line in lines if line.part != ERRORS]  # these contain messages of events
        data = {"checks": [asdict(line) for line in harmless]}
        count = bundle.write(options.bundle, as_table(harmless) + "\n", data, seen)
        print(printable(f"{options.bundle}: {count} files; look through it before you pass it on"), file=sys.stderr)
    return int(any(line.state == BAD for line in lines))


def as_table(lines: list[Check]) -> str:
    """One line for each check; below it the command that fixes it, unless the line has it already."""
    rows: list[list[str]] = []
    part = ""
    for line in lines:
        rows.append([line.part if line.part != part else "", _MARK[line.state], line.text])
        part = line.part
        if line.remedy and line.remedy not in line.text:
            rows.append(["", "", f"  -> {line.remedy}"])
    return table(rows, ["PART", "STATE", ""])
