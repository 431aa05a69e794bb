"""Which handlers of an engine are wired, as the running engine has them, and the events about it."""

from __future__ import annotations

import contextlib
import os
import time

from hook import __version__
from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.logfile import try_to_append
from hook.core.policy.store import STORE
from hook.node import kept, systemd
from hook.node.accepted import Accepted, accepted_of
from hook.node.change.program import path_in_use
from hook.node.change.record import OwnerRecord, Record
from hook.node.engines import registry
from hook.node.engines.base import CDI, HOOK, NRI, Handler
from hook.node.errors import NodeError
from hook.node.kept import LEFT_OUT, Kept, Wiring
from hook.node.loaded import Loaded, loaded
from hook.node.nodefiles import THIS_NODE
from hook.node.services import PLUGIN, SERVICE, plugin_is_ours


def look(name: str, part: OwnerRecord, store: str = STORE) -> dict[str, int] | None:
    """Returns 1 for each handler that has every adapter of the install, 0 for one that lacks one, else LEFT_OUT.

    A handler whose runtime is not installed is not in it, since no container starts under it. None if the engine or
    systemd does not answer.
    """
    try:
        engine = registry.engine(name)
        with systemd.remembering([unit for unit in (engine.service, PLUGIN, SERVICE) if unit]) as told:
            if not told or not engine.running():
                return None
            has = loaded(engine, engine.read(), part)
    except ReassertError:
        return None
    return values(has, part, accepted_of(name, part, kept.read(store)))


def values(has: Loaded, part: OwnerRecord, accepted: Accepted) -> dict[str, int] | None:
    """Returns what `look` returns of the handlers that an engine has loaded."""
    if has.unknown:
        return None
    found = {handler.name: value(handler, part, accepted) for handler in has.handlers}
    return {handler: known for handler, known in found.items() if known is not None}


def value(handler: Handler, part: OwnerRecord, accepted: Accepted) -> int | None:
    """Returns what `look` returns of a handler; None for one that is not in it."""
    if not ({*part.adapters} - {CDI}):
        return None
    if not lacking(handler, part):
        return 1
    if accepted.leaves_out(handler.name):
        return LEFT_OUT
    return 0 if handler.is_installed else None


def lacking(handler: Handler, part: OwnerRecord) -> set[str]:
    """Returns the adapters of the install that a handler is to have and does not have.

    A handler that can have none of them lacks all. The NRI plugin counts where it is a service of this node.
    """
    wanted = {*part.adapters} - {CDI}
    is_full = handler.runtime and not THIS_NODE.is_gvisor(handler.runtime)
    can_have = wanted if is_full else wanted - {HOOK} if handler.runtime else wanted & {NRI}
    left = can_have - {*handler.wired} - (set() if plugin_is_ours(part.notes) else {NRI})
    return left if can_have else wanted


def program() -> list[str]:
    """Returns the version, and the program that engines call: each build lies in a directory of its own."""
    try:
        return [__version__, os.path.realpath(path_in_use())]
    except NodeError:  # not frozen
        return [__version__, ""]


def begin(installed: Record, store: str = STORE) -> None:
    """After an install: keep what it wired, so that the next look sees each loss, and end the gaps.

    What was wired before may not be meant to be any more. An engine that does not answer has no baseline. What was
    verified before says nothing about the node now.
    """
    now = int(time.time())
    seen = {engine: look(engine, installed.parts[engine], store) for engine in installed.engines()}

    def change(kept: Kept) -> None:
        kept.wiring = Wiring(
            now,
            {engine: handlers or {} for engine, handlers in seen.items()},
            {engine: now for engine, handlers in seen.items() if handlers is None},
            [gap._replace(until=gap.until or now) for gap in kept.wiring.gaps],
            program(),
            {engine: _since(engine, installed, kept.wiring.since, now) for engine in seen},
        )
        for found in kept.verified.values():
            found.is_current = False

    with contextlib.suppress(OSError):
        kept.change(change, store)


def _since(engine: str, installed: Record, before: dict[str, int], now: int) -> int:
    """When the first install of an engine had ended. `before`: the same, as far as it was known; `now`: it is."""
    first = installed.parts[engine].since
    return before[engine] if first <= before.get(engine, -1) else now + 1


def log(event: str, level: str, message: str, **more: object) -> None:
    """Write an event about the wiring of this node, to the journal too: an uninstall can delete the log."""
    try_to_append(events.EVENTS, events.line(events.of_adapter("node", event, level, message, **more)), journal=True)


def log_change(what: str, engine: str, adapters: list[str], before: str) -> None:
    """Write that an engine was wired, that its program was replaced, or that it was unwired.

    `what`: install, upgrade or uninstall. `before`: the version that was in use, "" if there was none.
    """
    more = {"engine": engine, "adapters": adapters, "version": __version__, "before": before or None}
    log(f"node.{what}", "info", f"reassert {what} of {engine}", **more)
