"""`reassert events`: print the event log, with its rotated files, and follow it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from hook.core.base.text import printable, shortened
from hook.ops.events import reader, select
from hook.ops.events.reader import Event
from hook.resident.terminal import WIDE, columns, counted, line

_WIDTHS = {"TIME": 20, "EVENT": 20, "START": 5, "RULES": 20, "CONTAINER": 40}
"""Fixed widths: a log that is followed has no last line. A longer cell moves the rest of its line."""

_SHOWN = 3
"""Edits or reasons that a line of the table has; `-o wide` has all."""

_CELL = 120
"""Bytes of one value in the table."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `reassert events`."""
    parser.add_argument("--probes", action="store_true", help="also the events of reassert's own test containers")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with each event as it is logged")
    select.add_options(parser)
    select.add_filters(parser)
    parser.add_argument(
        "-o", "--output", choices=("table", "wide", "json"), default="table", help="json: one object per line"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the events that the options choose. Raises Usage, OSError."""
    since = select.since(options.since)
    found = reader.follow(options.events, since) if options.follow else _begun(reader.read(options.events, since))
    chosen = (event for event in found if _is_chosen(event, options))
    for text in lines(chosen, options.output, columns(options.output)):
        print(text, flush=options.follow)
    return 0


def _is_chosen(event: Event, options: argparse.Namespace) -> bool:
    """Whether an event is shown: of 41 lines after an install, 36 are of its test containers."""
    return (options.probes or event.get("probe") is not True) and select.chosen(event, options)


def _begun(found: Iterator[Event]) -> Iterator[Event]:
    """The same events. A log that cannot be opened is an error before the head of the table is printed."""
    first = list(itertools.islice(found, 1))
    return itertools.chain(first, found)


def lines(found: Iterator[Event], output: str, width: int = 0) -> Iterator[str]:
    """The lines of the output. `width`: columns of the terminal, in which a message is below its event; 0: whole."""
    if output == "json":
        node = os.uname().nodename  # a version before 0.4 did not write it
        yield from (json.dumps({**event, "node": event.get("node", node)}) for event in found)
        return
    names = [name for name in _WIDTHS if output == WIDE or name not in ("START", "RULES")]
    if width:
        yield from ("TIME                 EVENT  CONTAINER", "  MESSAGE")
        for event in found:
            cells = _cells(event)
            yield line(f"{cells['TIME']} {cells['EVENT']}  {cells['CONTAINER']}", width, 21)
            yield line("  " + message(event), width, 2)
        return
    yield " ".join(f"{name:{_WIDTHS[name]}}" for name in names) + " MESSAGE"
    for event in found:
        cells = _cells(event)
        text = message(event, output == WIDE)
        yield " ".join(f"{printable(cells[name]):{_WIDTHS[name]}}" for name in names) + " " + printable(text)


def _cells(event: Event) -> dict[str, str]:
    start = str(event.get("start", ""))
    return {
        "TIME": str(event.get("timestamp", ""))[:19] + "Z",
        "EVENT": str(event["event"]),
        "START": f"{start}:{event['cold']}" if event.get("cold") else start or "-",
        "RULES": ",".join(select.rules_of(event)) or "-",
        "CONTAINER": select.subject(event) or f"({event.get('adapter', '')})",
    }


def message(event: Event, all_of_it: bool = False) -> str:
    """What the event says, in one line."""
    limit = None if all_of_it else _SHOWN
    reasons = [_reason(entry) for key in ("denials", "errors") for entry in select.entries(event, key)]
    edits = [f"{_done(event, edit)} {edit_text(edit)}" for edit in select.entries(event, "edits")]
    closed = {"madeReadOnly": "made read-only", "wouldMakeReadOnly": "would make read-only", "nodePaths": "reaches"}
    volumes = [f"{verb} {path}" for key, verb in closed.items() for path in event.get(key) or ()]
    parts = _some(reasons, limit) + _some(edits, limit) + _some(volumes, limit)
    parts += [str(event[key]) for key in ("message", "warning") if event.get(key)]
    if event.get("probe") is True:
        parts.append("(probe of reassert verify)")
    return "; ".join(part if all_of_it else shortened(part, 2 * _CELL) for part in parts)


def _some(said: list[str], limit: int | None) -> list[str]:
    return said if limit is None or len(said) <= limit else [*said[:limit], f"and {len(said) - limit} more"]


def _reason(entry: Event) -> str:
    rule = entry.get("rule")
    would = "would refuse: " if select.entry_is_audited(entry) else ""
    return would + (f"rule {rule}: " if rule else "") + str(entry.get("message", ""))


def _done(event: Event, edit: Event) -> str:
    """What was done about an edit."""
    if select.entry_is_audited(edit):
        return "would set"
    if event.get("applied"):
        return "set"
    return "asked for" if event.get("asked") else "would set" if event.get("mode") == "Audit" else "not set:"


def edit_text(edit: Event) -> str:
    """One edit: what the container came with, and what the policy wants."""
    before, after = edit.get("before"), edit.get("after")
    now = f"to {_value(after)}" if after is not None else "absent"
    was = f" (was {_value(before)})" if before not in (None, []) else ""
    return f"{edit.get('kind')} {shortened(str(edit.get('name')), _CELL)} {now}{was}"


def _value(value: Any) -> str:
    """An env value, or a mount's source."""
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    if isinstance(value, dict) and "bytes" in value:  # of a value that is not the policy's
        return ", ".join([counted(value["bytes"], "byte"), *([f"hash {value['hash']}"] if "hash" in value else [])])
    if isinstance(value, dict):
        return shortened(str(value.get("source") or value.get("type") or json.dumps(value)), _CELL)
    return shortened(str(value) if isinstance(value, str) else json.dumps(value), _CELL)
