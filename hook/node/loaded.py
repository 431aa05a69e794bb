"""What of an engine's wiring is in force: what the running engine has loaded, and what its files say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hook.core.base.errors import ReassertError
from hook.core.policy.model import AUDIT, Policy
from hook.node import services
from hook.node.change import journal
from hook.node.change.program import front_in_use, path_in_use, policy
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, planned
from hook.node.engines.base import HOOK, NRI, RUNTIME, AnyEngine, Choice, Config, Handler
from hook.node.errors import NodeError
from hook.node.services import LOG, METRICS

STARTS = frozenset((RUNTIME, HOOK, NRI))
"""The adapters that a container start meets. The others change what containers may ask for."""

NOT_KNOWN = "not known"
"""The note of a handler whose engine does not tell what it has loaded."""


@dataclass(frozen=True)
class Loaded:
    """The handlers of an engine as they are in force.

    `other`: names of those that the engine has loaded otherwise than its files say. `unknown`: why it does not tell; ""
    if it does.
    """

    handlers: list[Handler]
    other: tuple[str, ...] = ()
    unknown: str = ""


def loaded(engine: AnyEngine, now: Config, part: OwnerRecord) -> Loaded:
    """Returns the handlers as the running engine has loaded them; as in its files, if it runs no wiring of ours."""
    files = now.handlers(part.notes)
    if not ({RUNTIME, HOOK} & {*part.adapters} and engine.running()):
        return Loaded(files)
    try:
        running = engine.loaded(now)
    except NodeError as error:
        return Loaded([replace(handler, wired=(), note=NOT_KNOWN) for handler in files], unknown=str(error))
    other = now.not_loaded(running, part.notes)
    has = running.handlers(part.notes)
    names = {handler.name for handler in has}
    absent = [replace(each, wired=(), note="not loaded") for each in files if each.name not in names]
    return Loaded(has + absent, tuple(other))


def front_of(part: OwnerRecord) -> str:
    """Returns the path of front that an install with the options of the last one would wire; "" for none."""
    return "" if services.why_cold(services.is_wanted(part.notes), front_in_use()) else front_in_use()


def installed_again(engine: AnyEngine, now: Config, record: Record, part: OwnerRecord, in_force: Policy) -> Rewiring:
    """Returns the change that an install with the options of the last one would make. Raises NodeError."""
    choice = Choice(
        tuple(part.adapters),
        part.runtime_class,
        path_in_use(),
        in_force,
        services.plugin_is_ours(part.notes),
        services.is_wanted(part.notes),
        front_of(part),
        part.notes.get(METRICS),
        part.notes.get(LOG),
    )
    return planned(engine, record, choice, now)


def differing(rewiring: Rewiring) -> list[str]:
    """Returns the files that an install would write.

    A user's edit of an engine's file changes only its backup, which the next install writes: it does not count.
    """
    return [path for path, _ in rewiring.differences() if not path.startswith(f"{journal.DIRECTORY}/")]


def preexisting(engine: AnyEngine, now: Config, adapters: list[str], runtime_class: str | None) -> list[str]:
    """Returns warnings about pods and containers that were created before the install. With NRI there are none."""
    if RUNTIME not in adapters or NRI in adapters or runtime_class is not None:
        return []
    try:
        in_force: Policy = policy()
        return engine.preexisting(now, in_force, HOOK in adapters and in_force.mode != AUDIT)
    except ReassertError as error:
        return [f"pods and containers from before the install cannot be listed: {error}"]
