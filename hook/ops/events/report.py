"""`reassert report`: which workloads the policy changes or refuses, and what to ask their owners for."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

from hook.core.base.system import timestamp
from hook.core.base.terminal import counted, table
from hook.core.base.text import printable, shortened
from hook.ops.events import reader, select
from hook.ops.events.summary import CHANGED, FAILED, REFUSED, WOULD_CHANGE, WOULD_REFUSE, Summary, Workload, summarise

_WORDS = {
    WOULD_REFUSE: "would be refused",
    REFUSED: "refused",
    WOULD_CHANGE: "would be changed",
    CHANGED: "changed",
    FAILED: "not decided",
}

_CELL = 100


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert report`."""
    select.add_options(parser, since="7d")
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "html"), default="table", help="html: one file, without scripts"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report. Raises Usage, OSError."""
    since = select.since(options.since)
    found = (event for event in reader.read(options.events, since) if select.chosen(event, options))
    summary = summarise(found)
    if options.output == "json":
        print(json.dumps({"node": socket.gethostname(), "since": since, **summary.as_json()}, indent=2))
    elif options.output == "html":
        from hook.ops.events.page import page

        now = timestamp(time.time_ns())[:16].replace("T", " ") + " UTC"
        sys.stdout.write(page(summary, socket.gethostname(), since[:16].replace("T", " "), now))
    else:
        sys.stdout.write(as_text(summary))
    return 0


def as_text(summary: Summary) -> str:
    """For a terminal."""
    parts = [heading(summary)]
    if summary.workloads:
        rows = [
            [
                workload.namespace or "-",
                shortened(workload.title(), _CELL),
                ", ".join(outcomes(workload)),
                ", ".join(shortened(rule, _CELL) for rule in rules(workload)) or "-",
                str(workload.starts),
                seen(workload.first),
                seen(workload.last),
            ]
            for workload in summary.workloads
        ]
        parts.append(table(rows, ["NAMESPACE", "WORKLOAD", "CONTAINERS", "RULES", "STARTS", "FIRST SEEN", "LAST SEEN"]))
    asked = [printable(f"- {sentence}") for workload in summary.workloads for sentence in sentences(workload)]
    if asked:
        parts.append("\n".join(["What to ask for:", *asked]))
    parts.append(NOTE)
    return "\n\n".join(parts) + "\n"


NOTE = (
    "A workload is the pod's name without the suffixes of Deployments, DaemonSets, StatefulSets, Jobs and CronJobs.\n"
    "Containers that need no edit leave no event and are not counted."
)


def heading(summary: Summary) -> str:
    """What was read, and how many workloads are refused, in a sentence or two."""
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


def seen(when: str) -> str:
    """A time to the minute, UTC."""
    return when[:16].replace("T", " ") + "Z"


def outcomes(workload: Workload) -> list[str]:
    """`12 would be refused`, for each outcome that occurs."""
    return [f"{number} {_WORDS[name]}" for name, number in workload.outcomes.items() if number]


def rules(workload: Workload) -> list[str]:
    """The names of the rules, each once."""
    return list(dict.fromkeys(item.rule for item in workload.items.values() if item.rule))


def sentences(workload: Workload) -> list[str]:
    """For the workload's owner."""
    name = workload.owned()
    said = [f"Ask the owner of {shortened(name, _CELL)} to {request}." for request in workload.requests()]
    if workload.omitted:
        said.append(f"{name}: {workload.omitted} further entries are left out; `reassert events` has them.")
    return said
