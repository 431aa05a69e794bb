"""`reassert audit`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

from hook.core.base.errors import ReassertError, Usage
from hook.core.base.text import printable
from hook.entry.parser import add_policy_options
from hook.node.terminal import counted, table
from hook.ops.audit.audit import EXEMPT, NOT_ALL_SEEN, UNKNOWN, Audit, ContainerReport, audit, read_round
from hook.ops.audit.inventory import chosen, running

_SECONDS = 10.0
_SHOWN = 3
"""How many differences of a container the table shows if no container was named: with `trust`, one can have 30."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert audit` to the parser."""
    parser.add_argument("container", nargs="*", metavar="CONTAINER", help="only these: an id, its beginning, or a name")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=_SECONDS,
        metavar="SECONDS",
        help=f"repeat, so many seconds after the last round (default: {_SECONDS:.0f}), until it is interrupted",
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="with --watch, json is one line a round"
    )
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Audit once, or repeatedly. Returns the exit status of the last round."""
    if options.watch is not None and options.watch < 0:
        raise Usage("--watch takes a number of seconds from 0 on")
    while True:
        try:
            there = running()
            if options.container:
                there = [chosen(word, there) for word in dict.fromkeys(options.container)]
        except ReassertError as error:
            print(printable(f"reassert: {error}"), file=sys.stderr)
            return NOT_ALL_SEEN  # 1 would mean that a container differs
        found = audit(read_round(os.path.abspath(options.policy), options.store), there)
        if options.output == "json":
            print(json.dumps(found.as_dict(), indent=None if options.watch is not None else 2), flush=True)
        else:
            if options.watch is not None and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            print(as_table(found, None if options.container else _SHOWN), flush=True)
        if options.watch is None:
            return found.exit_status()
        time.sleep(options.watch)


def as_table(found: Audit, limit: int | None = None) -> str:
    """One line for each difference and for each container that is exempt or could not be seen; then the numbers.

    `limit`: of the differences of one container; all if it is None.
    """
    rows = [row for finding in found.findings for row in _some(_rows(finding), finding, limit)]
    counts = found.counts()
    numbers = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    policy = found.round.policy
    remarks = [f"{len(found.findings)} containers: {numbers or 'none'}. Policy {policy.path} ({policy.mode})"]
    if policy.warning or policy.missing:
        remarks.insert(0, f"! {policy.warning or 'no policy: ' + policy.missing}")
    seen = Counter(trust for finding in found.findings for trust in finding.trusts)
    remarks += [f"{trust}: seen by {counted(count, 'container')}" for trust, count in seen.items()]
    lines = [table(rows, ["STATE", "CONTAINER", "ID", "ENGINE", "WHAT", "WHY"]), ""] if rows else []
    return "\n".join([*lines, *map(printable, remarks)])


def _rows(finding: ContainerReport) -> list[list[str]]:
    about = [finding.state, finding.title, finding.id[:12], finding.engine or "-"]
    if finding.state in (EXEMPT, UNKNOWN):
        return [[*about, finding.because, finding.line]]
    said = [(f"rule {d.rule}: {d.message}" if d.rule else d.message, d.why) for d in finding.differences]
    said += [(f"a volume reaches {path}", "the policy's nodePaths only report it") for path in finding.reaches]
    return [[*about, what, why] for what, why in said]


def _some(rows: list[list[str]], finding: ContainerReport, limit: int | None) -> list[list[str]]:
    if limit is None or len(rows) <= limit + 1:
        return rows
    more = f"and {len(rows) - limit} more: reassert audit {finding.id[:12]}"
    return [*rows[:limit], [*rows[0][:4], more, ""]]
