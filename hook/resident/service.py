"""How the agent and the NRI plugin begin, and what both say of a container without a decision."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from hook.core.base.errors import Usage
from hook.core.events import ERROR
from hook.resident import oplog

SOCKET_PATH_BYTES = 107
"""The longest path of a socket, in bytes (unix(7))."""

_SWITCH_SECONDS = 0.0005
"""Seconds after which a thread yields to another one that waits; Python's default is 5 ms."""

_BUG = "internal error"


def check_paths(chosen: argparse.Namespace) -> None:
    """Check that the options of both services that are paths are absolute. Raises Usage."""
    for name in ("socket", "policy", "store", "events"):
        if not getattr(chosen, name).startswith("/"):
            raise Usage(f"--{name} takes an absolute path, not {getattr(chosen, name)!r}")


def begin(stop: Callable[..., object]) -> None:
    """Set up this process. `stop`: called by the handler of SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    os.chdir("/")
    sys.setswitchinterval(_SWITCH_SECONDS)


def tell_undecided(event: dict[str, Any]) -> None:
    """Say why there is no decision, if an event is about that; the event log has it too. Env values are not in it."""
    if event["event"] != ERROR or not event.get("errors"):
        return
    text = str(event["errors"][0]["message"])
    if text.startswith(_BUG):  # what follows the type may quote a container
        text = ": ".join(text.split(": ")[:2])
    known = event.get("container") or {}
    starts = event["level"] == "warning"
    (oplog.warning if starts else oplog.error)(
        "container.undecided",
        key=text,
        id=event["id"],
        **{name: known.get(name) for name in ("namespace", "pod", "container")},
        adapter=event["adapter"],
        refused=not starts,
        policy=(event.get("policy") or {}).get("sha256"),
        duration_ms=event.get("durationMs"),
        error=text,
    )
