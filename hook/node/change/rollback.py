"""Undoes a change of an engine's wiring that failed or was interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hook.core.base.errors import describe
from hook.core.policy import compiler
from hook.node import systemd
from hook.node.artifacts.dispatchers import pass_through, real_of, script
from hook.node.change import journal as journals
from hook.node.change import tree, units
from hook.node.change.files import is_same, look, put
from hook.node.change.journal import Journal
from hook.node.change.record import OwnedFile, OwnerRecord, Record
from hook.node.engines.base import AnyEngine
from hook.node.errors import NodeError


def rollback(journal: Journal, engine: AnyEngine, restart: bool, directory: str, say: Callable[[str], None]) -> None:
    """Undoes a change and makes the engine read its old configuration. Raises NodeError if that fails too."""
    uninterruptible()
    trouble = None
    try:
        journal.undo()
        if restart:
            try:
                engine.restart()
            except NodeError as error:
                trouble = error
        _remove_new(journal, engine, directory, say)
    except OSError as error:
        raise NodeError(
            f"not everything could be restored: {describe(error)}; fix that, then run `reassert node uninstall`"
        ) from None
    if not Record.read(directory).engines():
        compiler.clear()
    if systemd.available() and journal.units:
        units.roll_back(journal.units)
    if trouble is not None:
        raise NodeError(f"every file was restored, but {engine.title} does not start again: {trouble}")
    tree.tidy()
    journals.remove_directories(journal.directories)
    journal.end(directory)


def _remove_new(journal: Journal, engine: AnyEngine, directory: str, say: Callable[[str], None]) -> None:
    """Removes programs that a change added, unless containers that started meanwhile call them. Raises OSError."""
    try:
        engine.clear_probes()
    except NodeError as error:
        say(f"Note: leftovers of an interrupted test container in {engine.name} could not be removed: {error}")
    record = Record.read(directory)
    part = record.parts.setdefault(engine.name, OwnerRecord())
    new = list(reversed(journal.new()))
    scripts = [path for path in new if script(path)]
    if scripts:
        engine.settle()
    now = engine.read() if scripts else None
    waited = not scripts
    for path in new:
        real = real_of(path)
        if not (real or waited):  # the dispatchers have gone, what they call goes next
            tree.let_starts_end()
            waited = True
        users = engine.users(now, path) if path in scripts else 0
        state = pass_through(real) if real and users else None
        if state:
            say(still_called(path, users))
            part.files[path] = OwnedFile(None, state.sha256())
            made = [above for above in journal.directories if path.startswith(f"{above}/")]
            part.directories = sorted({*part.directories, *made})
        if not is_same(state, look(path)):
            put(path, state)
    path, wanted = record.change()
    if not is_same(wanted, look(path)):
        put(path, wanted)


def still_called(path: str, users: int) -> str:
    """Says that a dispatcher stays."""
    return f"{users} running containers or commands still call {path}: it stays and only calls {real_of(path)}"


def uninterruptible() -> None:
    """Ignores signals, since the steps that follow must finish. After a SIGKILL, the next run repeats them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
