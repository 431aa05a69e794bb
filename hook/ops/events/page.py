"""`reassert report -o html`: one file without scripts, for readers who look rather than read."""

from __future__ import annotations

import html
import re
import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from hook.core.base.text import printable, shortened
from hook.ops.events.summary import GRADES, OUTCOME_WORDS, OUTSIDE, Summary, Workload
from hook.resident.terminal import counted

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy: the page loads nothing and runs nothing."""

_STYLE = """
:root { color-scheme: light dark; --line: #d7dae0; --soft: #5c6370; --card: #f5f6f8;
  --refused: #b3261e; --changed: #c77700; --other: #4a7ebb; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3f4a; --soft: #a2a9b6; --card: #20242b;
  --refused: #ff8a80; --changed: #f0b457; --other: #7fb0ea; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p.lead { font-size: 1.05rem; }
.small, figcaption, th { color: var(--soft); font-size: .85rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile.refused b { color: var(--refused); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1.5rem; }
figure { margin: 0 0 1rem; }
svg { display: block; width: 100%; height: auto; }
svg.time { height: 9rem; border-bottom: 1px solid var(--line); }
.ends { display: flex; justify-content: space-between; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.key::before { content: ""; display: inline-block; width: .7rem; height: .7rem; margin: 0 .3rem 0 .8rem;
  border-radius: 2px; background: var(--other); }
.key.refused::before { background: var(--refused); }
.key.changed::before { background: var(--changed); }
rect.refused { fill: var(--refused); }
rect.changed { fill: var(--changed); }
rect.other { fill: var(--other); }
details { border-top: 1px solid var(--line); }
summary { cursor: pointer; padding: .5rem 0; font-weight: 600; }
summary .small { font-weight: 400; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1rem; }
th { text-align: left; white-space: nowrap; font-weight: 600; }
th, td { padding: .4rem .6rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
ul { margin: .2rem 0; padding-left: 1.1rem; }
.refused-text { color: var(--refused); font-weight: 600; }
@media (max-width: 48rem) {
  thead { display: none; }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, td.number { display: block; border: 0; padding: .1rem 0; text-align: left; }
  td::before { content: attr(data-name) ": "; color: var(--soft); font-size: .85rem; }
}
@media print { body { margin: 0; max-width: none; } tr, figure { break-inside: avoid; } }
"""

_SHOWN = 1000
"""Workloads that the page has; further ones are only counted."""
_BARS = 12
"""Rules and namespaces that have a bar; the rest is one bar."""
_NAMED = 12
"""Workloads that one advice names; further ones are counted."""
_OPEN = 12
"""Namespaces up to which all tables are open."""
_NODES = 3
"""Nodes that a row names; further ones are counted."""
_CELL = 400
"""Characters of a text of a pod's author."""

_STEPS = (600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400)
"""Seconds that a column of the time line may stand for."""
_COLUMNS = 72
"""Columns of the time line, at most."""

NOTES = (
    "A workload is the pod's name without the suffixes of Deployments, DaemonSets, StatefulSets, Jobs and CronJobs.",
    "A container that needs no edit leaves no event and is not counted, nor is a probe of reassert verify.",
)


def page(summary: Summary, lead: str, nodes: Sequence[str], since: str, now: str) -> str:
    """The whole page.

    `lead`: a sentence about it all. `nodes`: those whose logs were read. `since`: "" for all of the logs. `now`: the
    time, as it is shown.
    """
    where = nodes[0] if len(nodes) == 1 else counted(len(nodes), "node")
    span = f"events since {since} UTC" if since else "all events"
    parts = [
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>reassert report: {_text(where)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>What the node policy changes on {_text(where)}</h1>\n"
        f'<p class="small">{_text(span)}; written {_text(now)}; modes: {_text(", ".join(sorted(summary.modes)) or "-")}'
        "</p>\n"
        f'<p class="lead">{_text(lead)}</p>\n'
    ]
    if summary.workloads:
        shown = summary.workloads[:_SHOWN]
        parts += [
            _tiles(summary),
            _time_line(summary.times),
            '<div class="charts">',
            _bars("Container starts by rule", _by_rule(summary.workloads)),
            _bars("Container starts by namespace", _by_namespace(summary.workloads)),
            "</div>\n",
            "".join(_advice(shown)),
            "<h2>Workloads</h2>\n",
            "".join(_namespaces(shown)),
        ]
        if len(summary.workloads) > _SHOWN:
            parts.append(
                f"<p>{len(summary.workloads) - _SHOWN} further workloads are left out; "
                "<code>reassert report -o json</code> has them.</p>\n"
            )
    parts.append(f'<p class="small">{" ".join(map(_text, NOTES))}</p>\n</body></html>\n')
    return "".join(parts)


def _tiles(summary: Summary) -> str:
    totals: dict[str, int] = {}
    for workload in summary.workloads:
        for name, number in workload.outcomes.items():
            totals[name] = totals.get(name, 0) + number
    tiles = [
        ("", len(summary.workloads), "workloads"),
        ("refused" if summary.refused() else "", summary.refused(), "of them with a refused container"),
        ("", sum(workload.starts for workload in summary.workloads), "container starts"),
        *(("", number, OUTCOME_WORDS[name]) for name, number in totals.items() if number),
        ("", len(summary.nodes), "nodes with such a container"),
    ]
    cells = "".join(
        f'<div class="tile {_class}"><b>{number:,}</b>{_text(words)}</div>' for _class, number, words in tiles
    )
    return f'<div class="tiles">{cells}</div>\n'


_KEYS = (
    '<span class="key refused">refused, or would be</span><span class="key changed">overridden, or would be</span>'
    '<span class="key other">other</span>'
)


def _time_line(times: dict[tuple[str, str], int]) -> str:
    """Columns of events over time, stacked by GRADES; "" where all events are of one moment."""
    placed = [(moment, grade, number) for (when, grade), number in times.items() if (moment := _moment(when))]
    if len({moment for moment, _, _ in placed}) < 2:
        return ""
    first, last = min(placed)[0], max(placed)[0]
    step = next((step for step in _STEPS if (last - first) // step < _COLUMNS), _STEPS[-1])
    first -= first % step
    columns = [dict.fromkeys(GRADES, 0) for _ in range((last - first) // step + 1)][: 10 * _COLUMNS]
    for moment, grade, number in placed:
        columns[min((moment - first) // step, len(columns) - 1)][grade] += number
    most = max(sum(column.values()) for column in columns)
    each = 1000.0 / len(columns)
    drawn = []
    for at, column in enumerate(columns):
        y = 100.0
        for grade in GRADES:
            if column[grade]:
                tall = 100.0 * column[grade] / most
                y -= tall
                drawn.append(_rect(grade, at * each, y, max(each - 1.5, 0.5), tall))
    marks = "".join(f"<span>{_utc(moment)}</span>" for moment in (first, first + step * len(columns)))
    label = f"Events per {_period(step)}, UTC; the highest column has {most:,}"
    return (
        f'<h2>Over time</h2>\n<figure><svg class="time" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(drawn)}</svg><div class="small ends">{marks}</div>'
        f"<figcaption>{label}.{_KEYS}</figcaption></figure>\n"
    )


def _moment(when: str) -> int:
    """Seconds since the epoch of the first 16 characters of a timestamp; 0 for what is none."""
    if not re.fullmatch(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:\d0", when):
        return 0
    return timegm((int(when[:4]), int(when[5:7]), int(when[8:10]), int(when[11:13]), int(when[14:16]), 0))


def _utc(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))


def _period(step: int) -> str:
    for seconds, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if step >= seconds:
            return name if step == seconds else f"{step // seconds} {name}s"
    return f"{step} seconds"


def _by_rule(workloads: Iterable[Workload]) -> dict[str, list[int]]:
    """Starts by rule: those that it refuses, and others."""
    found: dict[str, list[int]] = {}
    for workload in workloads:
        for rule in {item.rule for item in workload.items.values() if item.rule}:
            refusing, others = (
                max((i.starts for i in workload.items.values() if i.rule == rule and i.refuses is refuses), default=0)
                for refuses in (True, False)
            )
            refused = min(refusing, workload.refusals(), workload.starts)
            counts = found.setdefault(rule, [0, 0])
            counts[0] += refused
            counts[1] += min(refusing + others, workload.starts) - refused
    return found


def _by_namespace(workloads: Iterable[Workload]) -> dict[str, list[int]]:
    """Starts by namespace: those that are refused, and others."""
    found: dict[str, list[int]] = {}
    for workload in workloads:
        counts = found.setdefault(workload.namespace or OUTSIDE, [0, 0])
        refused = min(workload.refusals(), workload.starts)
        counts[0] += refused
        counts[1] += workload.starts - refused
    return found


def _bars(title: str, counts: dict[str, list[int]]) -> str:
    ordered = sorted(counts.items(), key=lambda row: (-sum(row[1]), row[0]))
    rest = ordered[_BARS:]
    rows = ordered[:_BARS]
    if rest:
        rows.append((f"{len(rest)} others", [sum(row[1][0] for row in rest), sum(row[1][1] for row in rest)]))
    if not rows:
        return ""
    most = max(sum(row[1]) for row in ordered[:_BARS]) or 1
    drawn = []
    for at, (name, (refused, others)) in enumerate(rows):
        y, x = at * 34.0, 0.0
        label = f"{shortened(name, 44)}: {refused + others:,}" + (f", {refused:,} refused" if refused else "")
        drawn.append(f'<text x="0" y="{y + 13:.0f}">{_text(label)}</text>')
        for grade, number in (("refused", refused), ("changed", others)):
            if number:
                wide = min(400.0 * number / most, 400.0 - x)  # the others together may be more than the first
                drawn.append(_rect(grade, x, y + 18, max(wide, 1), 9))
                x += wide
    return (
        f'<figure><h3>{_text(title)}</h3><svg viewBox="0 0 400 {len(rows) * 34}" role="img" '
        f'aria-label="{_text(title)}">{"".join(drawn)}</svg></figure>\n'
    )


def _rect(grade: str, x: float, y: float, wide: float, tall: float) -> str:
    return f'<rect class="{grade}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'


def _advice(workloads: Iterable[Workload]) -> Iterator[str]:
    """What to ask owners and administrators for: each advice once for a rule, with the workloads that it is about."""
    asked: dict[str, dict[str, list[str]]] = {}
    graves: set[tuple[str, str]] = set()
    for workload in workloads:
        for item in workload.items.values():
            for text in (item.advice(), f"node's administrator: {item.task}" if item.task else ""):
                if text:
                    names = asked.setdefault(item.rule, {}).setdefault(text, [])
                    if workload.owned() not in names:
                        names.append(workload.owned())
                    graves |= {(item.rule, text)} if item.refuses else set()
        for text in workload.died():
            asked.setdefault("", {}).setdefault(text, []).append(workload.owned())
    if asked:
        yield "<h2>What to ask for</h2>\n"
    for rule, texts in sorted(asked.items(), key=lambda row: (not any((row[0], t) in graves for t in row[1]), row[0])):
        yield f"<h3>{_text(f'Rule {rule}' if rule else 'Without a rule')}</h3>\n<ul>\n"
        for text, names in sorted(texts.items(), key=lambda row: ((rule, row[0]) not in graves, -len(row[1]), row[0])):
            shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
            grave = ' class="refused-text"' if (rule, text) in graves else ""
            yield f'<li><span{grave}>{_text(text[:1].upper() + text[1:])}.</span> <span class="small">'
            yield f"{_text(counted(len(names), 'workload'))}: {_text(shown)}</span></li>\n"
        yield "</ul>\n"


_HEADER = ("Workload", "Containers", "What", "Nodes", "Starts", "First seen", "Last seen")


def _namespaces(workloads: Iterable[Workload]) -> Iterator[str]:
    """A table for each namespace, those with a refused container first."""
    grave = {workload.namespace for workload in workloads if workload.is_refused()}
    ordered = sorted(workloads, key=lambda each: (each.namespace not in grave, each.namespace))
    groups = [(name, list(found)) for name, found in groupby(ordered, key=lambda each: each.namespace)]
    for name, found in groups:
        refused = sum(workload.is_refused() for workload in found)
        told = counted(len(found), "workload") + (f", {refused} with a refused container" if refused else "")
        is_open = " open" if len(groups) <= _OPEN or refused else ""
        head = "".join(f"<th>{column}</th>" for column in _HEADER)
        yield f'<details{is_open}><summary>{_text(name or OUTSIDE)} <span class="small">{_text(told)}</span></summary>'
        yield f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n"
        yield from map(_row, found)
        yield "</tbody></table></details>\n"


def _row(workload: Workload) -> str:
    items = "".join(
        f"<li{_grave(item.refuses)}>{_text((item.rule + ': ' if item.rule else '') + item.what)}"
        f' <span class="small">×{item.starts}</span></li>'
        for item in workload.items.values()
    )
    if workload.omitted:
        items += f"<li>{workload.omitted} further entries are left out</li>"
    outcomes = ", ".join(f"{number} {OUTCOME_WORDS[name]}" for name, number in workload.outcomes.items() if number)
    names = sorted(workload.nodes)
    nodes = ", ".join(names[:_NODES]) + (f" and {len(names) - _NODES} more" if len(names) > _NODES else "")
    cells = [
        ("", _text(workload.title())),
        (_grave(workload.is_refused()), _text(outcomes)),
        ("", f"<ul>{items}</ul>"),
        ("", _text(nodes or "-")),
        (' class="number"', f"{workload.starts:,}"),
        (' class="time"', _text(seen(workload.first))),
        (' class="time"', _text(seen(workload.last))),
    ]
    row = "".join(f'<td data-name="{n}"{more}>{cell}</td>' for n, (more, cell) in zip(_HEADER, cells, strict=True))
    return f"<tr>{row}</tr>\n"


def seen(when: str) -> str:
    """A time to the minute, UTC."""
    return when[:16].replace("T", " ") + "Z"


def _grave(yes: bool) -> str:
    return ' class="refused-text"' if yes else ""


def _text(text: str) -> str:
    return html.escape(printable(shortened(text, _CELL)), quote=True)
