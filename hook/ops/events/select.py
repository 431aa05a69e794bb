"""Which events a command is about: `--since`, `--namespace`, `--pod`, `--rule`, `--event`."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime

from hook.core import events
from hook.core.base.compare import glob_match
from hook.core.base.errors import Usage
from hook.core.base.system import timestamp
from hook.core.policy.model import AUDIT
from hook.core.reserve.node_paths import KIND as NODE_PATHS
from hook.ops.events.reader import Event

_ENTRIES = ("edits", "denials", "errors", "differences")
"""The lists of an event whose entries name a rule."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_options(parser: argparse.ArgumentParser, since: str = "") -> None:
    """Add the options of both commands. `since`: the default of --since, "" for all of the log."""
    parser.add_argument("--events", metavar="FILE", default=events.EVENTS, help=f"event log (default: {events.EVENTS})")
    parser.add_argument(
        "--since",
        metavar="TIME",
        default=since,
        help=f"30s, 10m, 1h, 7d, 2w, or a date (2026-01-31, 2026-01-31T12:00Z) (default: {since or 'the whole log'})",
    )
    parser.add_argument("--namespace", metavar="NAME", help="only this namespace; * and ? are wildcards")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose events."""
    parser.add_argument("--pod", metavar="NAME", help="only this pod; * and ? are wildcards")
    parser.add_argument("--rule", metavar="NAME", help="only events that name this rule; * and ? are wildcards")
    parser.add_argument(
        "--event", metavar="NAME", help="only this event, such as container.denied; * and ? are wildcards"
    )
    parser.add_argument(
        "--conflicts", action="store_true", help="only containers with something that a rule overrides or refuses"
    )


def since(text: str, now: float | None = None) -> str:
    """The value of --since as a timestamp of an event, "" for none. Raises Usage."""
    if not text:
        return ""
    if found := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        seconds = (time.time() if now is None else now) - int(found[1]) * _UNITS[found[2]]
        return timestamp(max(0, int(seconds * 1e6) * 1000))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone()  # the node's time zone, as in journalctl
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError):
        raise Usage(f"--since takes 30s, 10m, 1h, 7d, 2w or a date such as 2026-01-31, not {text!r}") from None


def chosen(event: Event, options: argparse.Namespace) -> bool:
    """Whether the options choose this event."""
    container = container_of(event)
    named = (
        ("namespace", container.get("namespace", "")),
        ("pod", container.get("pod", "")),
        ("event", event["event"]),
    )
    for option, actual in named:
        wanted = getattr(options, option, None)
        if wanted and not glob_match(wanted, actual):
            return False
    if getattr(options, "conflicts", False) and not (
        entries(event, "denials") or any(map(overrides, entries(event, "edits")))
    ):
        return False
    rule = getattr(options, "rule", None)
    return not rule or any(glob_match(rule, name) for name in rules_of(event))


def container_of(event: Event) -> dict[str, str]:
    """The names of the event's container; {} for an event about reassert itself."""
    found = event.get("container")
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def entries(event: Event, key: str) -> list[Event]:
    """The edits, denials or errors of an event."""
    found = event.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def entry_is_audited(entry: Event) -> bool:
    """Whether an edit, denial or error comes from a rule in Audit mode: it changed or refused nothing."""
    return entry.get("mode") == AUDIT


def overrides(edit: Event) -> bool:
    """Whether an edit replaces or removes what the container came with; else it only adds what the container lacks."""
    before = edit.get("before")
    return before not in (None, []) and before != [edit.get("after")]


def is_audited(event: Event) -> bool:
    """Whether no edit of an event was to be made: the policy is in Audit mode, or every rule that wants one is."""
    edits = entries(event, "edits")
    audited = event.get("tried") is True and not event.get("applied") and all(map(entry_is_audited, edits))
    return event.get("mode") == AUDIT or audited


def rules_of(event: Event) -> list[str]:
    """The rules that the event names, each once; `nodePaths` for a reason of that field."""
    named = [entry.get("rule") for key in _ENTRIES for entry in entries(event, key)]
    named += [NODE_PATHS for entry in entries(event, "denials") if entry.get("kind") == NODE_PATHS]
    return [name for name in dict.fromkeys(named) if isinstance(name, str) and name]


def subject(event: Event) -> str:
    """The container as NAMESPACE/POD/CONTAINER; outside Kubernetes its name or id; "" for other events."""
    container = container_of(event)
    names = [container[key] for key in ("namespace", "pod", "container") if container.get(key)]
    return "/".join(names) or str(event.get("id", ""))[:12]
