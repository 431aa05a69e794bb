"""What a NodeEnforcement says of a node (the chart's files/nodeenforcements.yaml): a view of the node's status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.system import timestamp
from hook.core.policy.trust_layout import STORES
from hook.node.engines.base import Handler
from hook.node.loaded import NOT_KNOWN
from hook.ops.health.status import NOTHING, Status

_TEXT = 1024
"""The longest text of the definition."""

_RESULTS = {0: "Protected", 1: "NotProtected", NOTHING: "NothingToVerify", 4: "Protected"}
"""`result` of a verify, by its exit status."""


def as_enforcement(found: Status, state: str, message: str, wanted: str) -> str:
    """Returns the object's status as JSON. A fact that cannot be looked at is left out.

    `state`, `message`: the reason and the text of the node's condition. `wanted`: the sha256 of the policy that the
    node is to have, or "".
    """
    facts: dict[str, Callable[[], Any]] = {
        "policy": lambda: _policy(found, wanted),
        "handlers": lambda: _handlers(found),
        "engine": lambda: ", ".join(each.engine.title for each in found.node.wired),
        "engines": lambda: _engines(found),
        "verify": lambda: _verify(found),
        "containers": lambda: _containers(found),
        "lastDay": _last_day,
        "trustStores": _trust_stores,
    }
    said: dict[str, Any] = {"lookedAt": _seconds(found.about()["time"]), "state": state, "message": message[:_TEXT]}
    for name, fact in facts.items():
        try:
            value = fact()
        except (ReassertError, OSError, ValueError, KeyError, TypeError):
            continue
        if value not in (None, "", {}):
            said[name] = value
    return json.dumps({**said, "kernel": os.uname().release, "reassert": __version__})


def _seconds(time: str) -> str:
    """A timestamp without fractions of a second, as Kubernetes has it."""
    return f"{time[:19]}Z"


def _policy(found: Status, wanted: str) -> dict[str, Any]:
    known = found.about()["policy"] or {}
    said: dict[str, Any] = {"wanted": _hash(wanted)} if wanted else {}
    if known:
        rules = {"enforcedRules": known["rules"]["enforced"], "triedRules": known["rules"]["tried"]}
        since = {"since": known["since"]} if known["since"] else {}
        said["inForce"] = {**_hash(known["sha256"]), **since, "mode": known["mode"], **rules}
    if known.get("heldBack"):
        said["heldBack"] = known["heldBack"][:_TEXT]
    return said


def _hash(sha256: str) -> dict[str, str]:
    return {"sha256": sha256, "hash": sha256[:12]}


def _engines(found: Status) -> list[dict[str, Any]]:
    return [
        {
            "name": state.name,
            "version": state.engine.title,
            "running": state.engine.running(),
            "adapters": state.part.adapters,
            "wired": [each.name for each in state.loaded.handlers if each.wired],
            "notWired": [each.name for each in state.loaded.handlers if _starts_without_us(each)],
            "notKnown": [each.name for each in state.loaded.handlers if each.note == NOT_KNOWN],
        }
        for state in found.node.engines
    ]


def _starts_without_us(handler: Handler) -> bool:
    return handler.is_installed and not handler.wired and handler.note != NOT_KNOWN


def _handlers(found: Status) -> dict[str, int]:
    """The numbers of handlers of wired engines."""
    ours = [each for each in _engines(found) if each["adapters"]]
    return {name: sum(len(each[name]) for each in ours) for name in ("wired", "notWired", "notKnown")} if ours else {}


def _verify(found: Status) -> dict[str, Any]:
    last = found.node.kept.verified
    if not last:
        return {}
    statuses = [each.status for each in last.values()]
    worst = next((status for status in (1, NOTHING) if status in statuses), max(statuses))
    engines = [
        {"engine": engine, "at": _seconds(timestamp(each.when * 10**9)), "exitStatus": each.status}
        for engine, each in sorted(last.items())
    ]
    return {
        "at": min(str(each["at"]) for each in engines),
        "result": _RESULTS.get(worst, "Unknown"),
        "engines": engines,
    }


def _containers(found: Status) -> dict[str, int]:
    names = {"inPolicy": "in policy", "drifted": "drifted", "exempt": "exempt", "unknown": "unknown"}
    return {name: found.node.audited.count(state) for name, state in names.items()}


def _last_day() -> dict[str, int]:
    from hook.ops.events import reader, select, summary  # with it comes all that reads events

    workloads = summary.summarise(reader.read(events.EVENTS, select.since("24h"))).workloads
    outcomes = [each.outcomes for each in workloads]
    names = {"refusals": "refused", "overrides": "overridden"}
    return {name: sum(each[of] for each in outcomes) for name, of in names.items()}


def _trust_stores() -> list[dict[str, Any]]:
    found = []
    for path in sorted(Path(STORES).glob("*/live/manifest.json")):
        manifest = json.loads(path.read_bytes())
        about = {"generation": manifest["generation"], "builtAt": manifest["built"]}
        found.append({"name": path.parts[-3], **about, "certificates": len(manifest["certificates"])})
    return found
