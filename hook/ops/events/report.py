"""`reassert report`: which workloads the policy changes or refuses, and what to ask their owners for."""

from __future__ import annotations

import argparse
import html
import json
import socket
import sys
import time

from hook.core.base.system import timestamp
from hook.core.base.text import printable, shortened
from hook.node.terminal import counted, table
from hook.ops.events import reader, select
from hook.ops.events.summary import (
    ADDED,
    FAILED,
    OVERRIDDEN,
    REFUSED,
    REPORTED,
    WOULD_ADD,
    WOULD_OVERRIDE,
    WOULD_REFUSE,
    Summary,
    Workload,
    summarise,
)

_WORDS = {
    WOULD_REFUSE: "would be refused",
    REFUSED: "refused",
    WOULD_OVERRIDE: "would be overridden",
    OVERRIDDEN: "overridden",
    WOULD_ADD: "would be added to",
    ADDED: "added to",
    FAILED: "not decided",
    REPORTED: "reported",
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
        now = timestamp(time.time_ns())[:16].replace("T", " ") + " UTC"
        sys.stdout.write(page(summary, socket.gethostname(), since[:16].replace("T", " "), now))
    else:
        sys.stdout.write(as_text(summary))
    return 0


def as_text(summary: Summary) -> str:
    """For a terminal."""
    parts = [heading(summary)]
    if summary.workloads:
        rows = []
        for workload in summary.workloads:
            rules = dict.fromkeys(item.rule for item in workload.items.values() if item.rule)
            cells = _cells(workload)
            cells[3:3] = [", ".join(shortened(rule, _CELL) for rule in rules) or "-"]
            rows.append(cells)
        parts.append(table(rows, [name.upper() for name in _COLUMNS]))
    asked = [printable(f"- {sentence}") for workload in summary.workloads for sentence in sentences(workload)]
    if asked:
        parts.append("\n".join(["What to ask for:", *asked]))
    return "\n\n".join([*parts, *_NOTES]) + "\n"


_COLUMNS = ("Namespace", "Workload", "Containers", "Rules", "Starts", "First seen", "Last seen")

_NOTES = (
    "A workload is the pod's name without the suffixes of Deployments, DaemonSets, StatefulSets, Jobs and CronJobs.",
    "A container that needs no edit leaves no event and is not counted, nor is a probe of reassert node verify.",
)


def _cells(workload: Workload) -> list[str]:
    """The row of a workload, without its rules."""
    outcomes = ", ".join(f"{number} {_WORDS[name]}" for name, number in workload.outcomes.items() if number)
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


def seen(when: str) -> str:
    """A time to the minute, UTC."""
    return when[:16].replace("T", " ") + "Z"


def sentences(workload: Workload) -> list[str]:
    """For the workload's owner."""
    name = workload.owned()
    said = [f"Ask the owner of {shortened(name, _CELL)} to {request}." for request in workload.requests()]
    if workload.omitted:
        said.append(f"{name}: {workload.omitted} further entries are left out; `reassert events` has them.")
    return said


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.lead { font-size: 1.05rem; }
.small { color: #667; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; white-space: nowrap; font-size: .8rem; color: #667; font-weight: 600; }
th, td { padding: .4rem .6rem .4rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
td ul { margin: 0; padding-left: 1.1rem; }
.refused { color: #b3261e; font-weight: 600; }
.refused .small { font-weight: 400; }
@media (prefers-color-scheme: dark) { .refused { color: #ff8a80; } .small, th { color: #99a; } }
@media print { body { margin: 0; max-width: none; } tr { break-inside: avoid; } }
"""

_SHOWN = 1000
"""Workloads that the page has; further ones are only counted."""

_PAGE_CELL = 200


def page(summary: Summary, node: str, since: str, now: str) -> str:
    """The whole page. `since`: "" for the whole log."""
    span = f"events since {since} UTC" if since else "all events of the log"
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>reassert report: {_text(node)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>What the node policy changes on {_text(node)}</h1>\n"
        f'<p class="small">{_text(span)}; written {_text(now)}; modes: {_text(", ".join(sorted(summary.modes)) or "-")}'
        "</p>\n"
        f'<p class="lead">{_text(heading(summary))}</p>\n'
        f"{_lists(summary)}"
        f'<p class="small">{" ".join(map(_text, _NOTES))}</p>\n</body></html>\n'
    )


def _lists(summary: Summary) -> str:
    """The requests to owners, and the table of workloads."""
    shown, more = summary.workloads[:_SHOWN], len(summary.workloads) - _SHOWN
    asked = "".join(f"<li>{_text(sentence)}</li>\n" for workload in shown for sentence in sentences(workload))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    parts = [
        f"<h2>What to ask for</h2>\n<ul>\n{asked}</ul>\n" if asked else "",
        f"<h2>Workloads</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n" if shown else "",
        *map(_row, shown),
        "</tbody></table>\n" if shown else "",
        f"<p>{more} further workloads are left out; <code>reassert report -o json</code> has them.</p>\n",
    ]
    return "".join(parts if more > 0 else parts[:-1])


def _row(workload: Workload) -> str:
    items = "".join(
        f"<li{_refused(item.refuses)}>{_text((item.rule + ': ' if item.rule else '') + item.what)}"
        f' <span class="small">×{item.starts}</span></li>'
        for item in workload.items.values()
    )
    namespace, title, outcomes, starts, first, last = map(_text, _cells(workload))
    return (
        f"<tr><td>{namespace}</td><td>{title}</td><td{_refused(workload.is_refused())}>{outcomes}</td>"
        f'<td><ul>{items}</ul></td><td class="number">{starts}</td>'
        f'<td class="time">{first}</td><td class="time">{last}</td></tr>\n'
    )


def _refused(yes: bool) -> str:
    return ' class="refused"' if yes else ""


def _text(text: str) -> str:
    return html.escape(printable(shortened(text, _PAGE_CELL * 2)), quote=True)
