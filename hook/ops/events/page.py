"""The report as one HTML file that needs nothing else: no script, no picture, no font, no link.

Pod authors choose the names in it. Every text is escaped, and characters that turn the direction of text or are not
seen are shown as escapes. The page's own policy (Content-Security-Policy) allows its style sheet and nothing else.
"""

from __future__ import annotations

import html

from hook.core.base.text import printable, shortened
from hook.ops.events.report import heading, outcomes, seen, sentences
from hook.ops.events.summary import Summary, Workload

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

_CELL = 200


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
        f"{_requests(summary)}{_table(summary)}"
        '<p class="small">A workload is the pod\'s name without the suffixes of Deployments, DaemonSets, StatefulSets, '
        "Jobs and CronJobs. A container that needs no edit leaves no event and is not counted. Probes of "
        "<code>reassert node verify</code> are not counted.</p>\n</body></html>\n"
    )


def _requests(summary: Summary) -> str:
    asked = [sentence for workload in summary.workloads[:_SHOWN] for sentence in sentences(workload)]
    if not asked:
        return ""
    items = "".join(f"<li>{_text(sentence)}</li>\n" for sentence in asked)
    return f"<h2>What to ask for</h2>\n<ul>\n{items}</ul>\n"


def _table(summary: Summary) -> str:
    if not summary.workloads:
        return ""
    names = ("Namespace", "Workload", "Containers", "Rules", "Starts", "First seen", "Last seen")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(_row(workload) for workload in summary.workloads[:_SHOWN])
    more = len(summary.workloads) - _SHOWN
    rest = f"<p>{more} further workloads are left out; <code>reassert report -o json</code> has them.</p>\n"
    return (
        f"<h2>Workloads</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n"
        f"{rest if more > 0 else ''}"
    )


def _row(workload: Workload) -> str:
    items = "".join(
        f"<li{_refused(item.refuses)}>{_text((item.rule + ': ' if item.rule else '') + item.what)}"
        f' <span class="small">×{item.starts}</span></li>'
        for item in workload.items.values()
    )
    return (
        f"<tr><td>{_text(workload.namespace or '-')}</td><td>{_text(workload.title())}</td>"
        f"<td{_refused(workload.is_refused())}>{_text(', '.join(outcomes(workload)))}</td><td><ul>{items}</ul></td>"
        f'<td class="number">{workload.starts}</td>'
        f'<td class="time">{_text(seen(workload.first))}</td><td class="time">{_text(seen(workload.last))}</td></tr>\n'
    )


def _refused(yes: bool) -> str:
    return ' class="refused"' if yes else ""


def _text(text: str) -> str:
    return html.escape(printable(shortened(text, _CELL * 2)), quote=True)
