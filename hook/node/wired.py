"""`reassert node status --record`: notes which handlers are wired, for metrics (hook.ops.metrics.node) and event log.

A timer runs it each minute. A handler counts from the moment at which it was seen wired, until the next install. A
package replaces the program without `node install`: this notices it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.logfile import try_to_append
from hook.core.base.system import make_directory, replace_file, timestamp, trusted
from hook.core.policy.store import STORE
from hook.node import systemd
from hook.node.change import journal
from hook.node.change.program import path_in_use
from hook.node.change.record import OwnerRecord, Record
from hook.node.engines import registry
from hook.node.engines.base import CDI, NRI
from hook.node.errors import NodeError
from hook.node.services import PLUGIN, PLUGIN_IS_OURS, SERVICE
from hook.node.status import NOT_KNOWN, handlers_in_force

FILE = "wired.json"
SECONDS = 300
"""The age from which a look is too old to be a sample."""

_Handlers = dict[str, dict[str, int]]
"""0 or 1 by engine and handler: the last that is known."""

_Gap = list[Any]
_GAPS = 100
"""How many gaps are kept at most: the newest."""


def record(installed: Record, store: str = STORE) -> None:
    """Look at every wired engine, keep what was seen, and log each change. Raises OSError.

    Nothing is kept of a look beside an install or uninstall: between its writes and the restart the engine has not
    loaded what the files say.
    """
    kept = when, before, was_unknown, gaps, program = _read(store)
    is_changing = journal.is_locked()
    seen = {} if is_changing else {engine: _seen(engine, installed.parts[engine]) for engine in installed.engines()}
    if is_changing or journal.is_locked() or _read(store) != kept:
        return
    now: _Handlers = {}
    unknown: dict[str, int] = {}
    for engine in installed.engines():
        was = before.get(engine, {})
        wired = seen[engine]
        known = was_unknown.get(engine, when)
        if wired is None:
            unknown[engine] = known
        now[engine] = was if wired is None else {handler: int(handler in wired) for handler in {*was} | wired}
        for handler, value in now[engine].items():
            if value == was.get(handler, 1):
                continue
            if not value:
                gaps.append([engine, handler, known, 0])
            for gap in gaps if value else []:
                gap[3] = gap[3] or (int(time.time()) if gap[:2] == [engine, handler] else 0)
            says = "is wired again" if value else "is not wired any more: its containers start without reassert"
            event = ("handler.wired", "info") if value else ("handler.unwired", "error")
            log(*event, f"handler {handler} of {engine} {says}", engine=engine, handler=handler)
        if program and program[1] != _program()[1]:
            log_change("upgrade", engine, installed.parts[engine].adapters, program[0])
    _keep(store, int(time.time()), now, unknown, gaps, _program())


def _program() -> list[str]:
    """The version, and the program that engines call: each build lies in a directory of its own."""
    try:
        return [__version__, os.path.realpath(path_in_use())]
    except NodeError:  # not frozen
        return [__version__, ""]


def _keep(store: str, when: int, now: _Handlers, unknown: dict[str, int], gaps: list[_Gap], program: list[str]) -> None:
    make_directory(store, 0o700)
    replace_file(f"{store}/{FILE}", json.dumps([when, now, unknown, gaps[-_GAPS:], program]).encode())


def _seen(name: str, part: OwnerRecord) -> set[str] | None:
    """The handlers that have every adapter of the install; None if the engine or systemd does not answer."""
    wanted = {*part.adapters} - {CDI} - (set() if part.notes.get(PLUGIN_IS_OURS, True) else {NRI})
    try:
        engine = registry.engine(name)
        with systemd.remembering([unit for unit in (engine.service, PLUGIN, SERVICE) if unit]) as told:
            if not told or not engine.running():
                return None
            handlers, _ = handlers_in_force(engine, engine.read(), part)
    except ReassertError:
        return None
    if any(handler.note == NOT_KNOWN for handler in handlers):
        return None
    return {handler.name for handler in handlers if wanted and wanted <= {*handler.wired}}


def log(event: str, level: str, message: str, **more: object) -> None:
    """Write an event about the wiring of this node, to the journal too: an uninstall can delete the log."""
    head = {"timestamp": timestamp(time.time_ns()), "adapter": "node", "event": event, "level": level}
    try_to_append(events.EVENTS, events.line({**head, "message": message, **more}), journal=True)


def log_change(what: str, engine: str, adapters: list[str], before: str) -> None:
    """Write that an engine was wired, that its program was replaced, or that it was unwired.

    `what`: install, upgrade or uninstall. `before`: the version that was in use, "" if there was none.
    """
    more = {"engine": engine, "adapters": adapters, "version": __version__, "before": before or None}
    log(f"node.{what}", "info", f"reassert node {what} of {engine}", **more)


def last_look(store: str = STORE) -> dict[tuple[str, str], float]:
    """0 or 1 by engine and handler, as far as it is known; empty if the last look is older than SECONDS."""
    when, found, unknown, _, _ = _read(store)
    if not 0 <= time.time() - when <= SECONDS:
        return {}
    known = {engine: handlers for engine, handlers in found.items() if engine not in unknown}
    return {(engine, handler): wired for engine, handlers in known.items() for handler, wired in handlers.items()}


def gaps(store: str = STORE) -> list[_Gap]:
    """When handlers were not wired: engine, handler, the last look that saw it wired, and the first look after or 0."""
    return _read(store)[3]


def forget(store: str = STORE) -> None:
    """After an install: what was wired before may not be meant to be any more. It ends the gaps."""
    now = int(time.time())
    with contextlib.suppress(OSError):
        _keep(store, 0, {}, {}, [[*gap[:3], gap[3] or now] for gap in gaps(store)], _program())


def _read(store: str) -> tuple[int, _Handlers, dict[str, int], list[_Gap], list[str]]:
    """The last look: its time, what was seen, engines that did not answer, with the last look at which they did; gaps.

    The last are version and path of the program that looked.
    """
    try:
        trusted(f"{store}/{FILE}")
        said = json.loads(Path(store, FILE).read_bytes())
        when, found, unknown, gaps, program = [*said, [], []][:5]  # an earlier version wrote less
        seen = {str(engine): dict(handlers) for engine, handlers in found.items()}
        told = unknown if isinstance(unknown, dict) else dict.fromkeys(unknown, when)  # a list before 0.4.0
        rows = [[str(engine), str(handler), int(since), int(until)] for engine, handler, since, until in gaps]
        last = {str(engine): int(look) for engine, look in told.items()}
        return int(when), seen, last, rows, [str(word) for word in program]
    except (OSError, ReassertError, ValueError, TypeError, AttributeError):
        return 0, {}, {}, [], []
