"""`reassert node status --record`: notes which handlers are wired, for metrics (hook.ops.metrics.node) and event log.

A timer runs it each minute. A handler counts from the moment at which it was seen wired, until the next install.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.system import make_directory, replace_file, timestamp, trusted
from hook.core.policy.store import STORE
from hook.node.change.record import OwnerRecord, Record
from hook.node.engines import registry
from hook.node.engines.base import CDI, NRI
from hook.node.services import PLUGIN_IS_OURS
from hook.node.status import NOT_KNOWN, handlers_in_force

FILE = "wired.json"
SECONDS = 300
"""The age from which a look is too old to be a sample."""

_Handlers = dict[str, dict[str, int]]
"""0 or 1 by engine and handler: the last that is known."""


def record(installed: Record, store: str = STORE) -> None:
    """Look at every wired engine, keep what was seen, and log each change. Raises OSError."""
    before = _read(store)[1]
    now: _Handlers = {}
    unknown: list[str] = []
    for engine in installed.engines():
        was = before.get(engine, {})
        wired = _seen(engine, installed.parts[engine])
        if wired is None:
            unknown.append(engine)
        now[engine] = was if wired is None else {handler: int(handler in wired) for handler in {*was} | wired}
        for handler, value in now[engine].items():
            if value != was.get(handler, 1):
                _log(engine, handler, bool(value))
    make_directory(store, 0o700)
    replace_file(f"{store}/{FILE}", json.dumps([int(time.time()), now, unknown]).encode())


def _seen(name: str, part: OwnerRecord) -> set[str] | None:
    """The handlers that have every adapter of the install; None if the engine does not tell."""
    wanted = {*part.adapters} - {CDI} - (set() if part.notes.get(PLUGIN_IS_OURS, True) else {NRI})
    try:
        engine = registry.engine(name)
        if not engine.running():
            return None
        handlers, _ = handlers_in_force(engine, engine.read(), part)
    except ReassertError:
        return None
    if any(handler.note == NOT_KNOWN for handler in handlers):
        return None
    return {handler.name for handler in handlers if wanted and wanted <= {*handler.wired}}


def _log(engine: str, handler: str, wired: bool) -> None:
    says = "is wired again" if wired else "is not wired any more: its containers start without reassert"
    event: dict[str, object] = {
        "timestamp": timestamp(time.time_ns()),
        "adapter": "node",
        "event": "handler.wired" if wired else "handler.unwired",
        "level": "info" if wired else "error",
        "message": f"handler {handler} of {engine} {says}",
        "engine": engine,
        "handler": handler,
    }
    events.write(events.EVENTS, event)


def last_look(store: str = STORE) -> dict[tuple[str, str], float]:
    """0 or 1 by engine and handler, of what is known; empty if the last look is older than SECONDS."""
    when, found, unknown = _read(store)
    if not 0 <= time.time() - when <= SECONDS:
        return {}
    known = {engine: handlers for engine, handlers in found.items() if engine not in unknown}
    return {(engine, handler): wired for engine, handlers in known.items() for handler, wired in handlers.items()}


def forget(store: str = STORE) -> None:
    """After an install: what was wired before may not be meant to be any more."""
    with contextlib.suppress(OSError):
        Path(store, FILE).unlink()


def _read(store: str) -> tuple[int, _Handlers, list[str]]:
    """When it was looked, what was seen, and the engines that did not tell."""
    try:
        trusted(f"{store}/{FILE}")
        when, found, unknown = json.loads(Path(store, FILE).read_bytes())
        return int(when), {str(engine): dict(handlers) for engine, handlers in found.items()}, list(unknown)
    except (OSError, ReassertError, ValueError, TypeError, AttributeError):
        return 0, {}, []
