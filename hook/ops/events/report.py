"""`reassert report`: which workloads the policy changes or refuses, and what to ask their owners for."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

from hook.core.base.system import timestamp
from hook.core.base.text import shortened
from hook.ops.events import reader, select
from hook.ops.events.page import NOTES, page, seen
from hook.ops.events.summary import OUTCOME_WORDS, Summary, Workload, summarise
from hook.resident.terminal import columns, counted, line, table

_CELL = 100


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert report`."""
    parser.add_argument(
        "logs", metavar="LOG", nargs="*", help="event logs, of this node or of many, in place of --events"
    )
    select.add_options(parser, since="7d")
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "html"),
        default="table",
        help="html: one file, without scripts",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report. Raises Usage, OSError."""
    since = select.since(options.since)
    logs = options.logs or [options.events]
    found = (event for log in logs for event in reader.read(log, since) if select.chosen(event, options))
    summary = summarise(found)
    nodes = sorted(summary.nodes) or [socket.gethostname()]
    if options.output == "json":
        print(json.dumps({"node": nodes[0] if len(nodes) == 1 else "", "since": since, **summary.as_json()}, indent=2))
    elif options.output == "html":
        now = timestamp(time.time_ns())[:16].replace("T", " ") + " UTC"
        sys.stdout.write(page(summary, heading(summary), nodes, since[:16].replace("T", " "), now))
    else:
        sys.stdout.write(as_text(summary, columns(options.output)))
    return 0


def as_text(summary: Summary, width: int = 0) -> str:
    """For a terminal of so many columns; 0: for any."""
    parts = [line(heading(summary), width)]
    if summary.workloads:
        rows = []
        for workload in summary.workloads:
            rules = dict.fromkeys(item.rule for item in workload.items.values() if item.rule)
            cells = _cells(workload)
            cells[3:3] = [", ".join(shortened(rule, _CELL) for rule in rules) or "-"]
            rows.append(cells)
        parts.append(table(rows, [name.upper() for name in _COLUMNS], width))
    asked = [line(f"- {sentence}", width, 2) for workload in summary.workloads for sentence in sentences(workload)]
    if asked:
        parts.append("\n".join(["What to ask for:", *asked]))
    return "\n\n".join([*parts, *(line(note, width) for note in NOTES)]) + "\n"


_COLUMNS = ("Namespace", "Workload", "Containers", "Rules", "Starts", "First seen", "Last seen")


def _cells(workload: Workload) -> list[str]:
    """The row of a workload, without its rules."""
    outcomes = ", ".join(f"{number} {OUTCOME_WORDS[name]}" for name, number in workload.outcomes.items() if number)
    times = seen(workload.first), seen(workload.last)
    return [workload.namespace or "-", shortened(workload.title(), _CELL), outcomes, str(workload.starts), *times]


def heading(summary: Summary) -> str:
    """One or two sentences: what was read, and how many workloads are refused."""
    if not summary.read:
        return "No container was changed or refused."
    audit, count = summary.is_audited(), len(summary.workloads)
    would = summary.would_refuse_only()
    refused = summary.refused() if audit else summary.refused() - would
    verb = "would change or refuse" if audit else "changed or refused"
    text = f"From {seen(summary.first)} to {seen(summary.last)} the policy {verb} containers of "
    text += counted(count, "workload")
    text += f"; {refused} of them {'would have' if audit else 'had'} a refused container." if refused else "."
    if would and not audit:
        text += f" {counted(would, 'workload')} would have a refused container if all rules were enforced."
    if summary.omitted:
        text += f" {summary.omitted} events of further workloads are left out."
    return text


def sentences(workload: Workload) -> list[str]:
    """For the workload's owner, and for the node's administrator."""
    name = workload.owned()
    said = [f"Ask the owner of {shortened(name, _CELL)} to {request}." for request in workload.requests()]
    said += [f"For the node's administrator, about {shortened(name, _CELL)}: {task}." for task in workload.tasks()]
    said += [f"{shortened(name, _CELL)}: {text}." for text in workload.died()]
    if workload.omitted:
        said.append(f"{name}: {workload.omitted} further entries are left out; `reassert events` has them.")
    return said
