"""`reassert node status`: what is wired on this node, and what is not as it should be. Changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache

from hook.base.errors import ReassertError
from hook.node import agent, systemd
from hook.node.change import journal
from hook.node.change.files import Disk
from hook.node.change.program import front_in_use, path_in_use, policy
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring, Target, base_of, prepare
from hook.node.engines import registry
from hook.node.engines.artifacts import agent_unit
from hook.node.engines.artifacts.nri_unit import PLUGIN_IS_OURS
from hook.node.engines.base import HOOK, NRI, RUNTIME, AnyEngine, Choice, Handler
from hook.node.sources import problems_and_hints
from hook.policy.model import AUDIT, Policy

OUT_OF_DATE, NOT_WIRED = 1, 3
"""Exit statuses of `status`; 3 as systemctl has it for what is not active."""


@dataclass
class Status:
    """What was found. `rows`: every handler with its engine. `starts`: its last ones, by engine and handler.

    `exit_status`: 0, OUT_OF_DATE or NOT_WIRED.
    """

    record: Record
    rows: list[tuple[AnyEngine, Handler]] = field(default_factory=list)
    starts: dict[tuple[str, str], agent.Starts] = field(default_factory=dict)
    agent: agent.Agent | None = None
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    exit_status: int = NOT_WIRED


def look(record: Record, name: str | None) -> Status:
    """The state of every engine, or of one by its name."""
    found = Status(record)
    for each in [name] if name else sorted({*registry.installed(), *record.engines()}):
        _look_at_engine(found, each)
    interrupted = journal.pending()
    if found.exit_status != NOT_WIRED:
        problems, hints = _named_files()
        found.problems += problems
        found.hints += hints
    if interrupted:
        found.problems.append(
            f"an interrupted {interrupted.operation} of {interrupted.engine}: run it again to finish or undo it"
        )
    if (found.problems and found.exit_status == 0) or interrupted:
        found.exit_status = OUT_OF_DATE
    return found


def _look_at_engine(found: Status, name: str) -> None:
    """Add what there is to say of one engine."""
    record, is_wired = found.record, name in found.record.engines()
    # An engine that is not wired, such as docker's own containerd, is never out of date.
    wrong = found.problems if is_wired else found.hints
    try:
        engine = registry.engine(name)
        now = engine.read()
        part = record.parts.get(name, OwnerRecord())
        handlers = engine.handlers(now, part.notes)
        found.rows += [(engine, handler) for handler in handlers]
        wrong += [f"{name}: {warning}" for warning in engine.warnings(now)]
        found.hints += [f"{name}: {hint}" for hint in engine.hints(now)]
        if part.adapters:
            found.exit_status = min(found.exit_status, 0)
            found.problems += out_of_date(engine, now, record, part)
            _look_at_agent(found, engine, now, part, handlers)
            found.hints += [f"{name}: {hint}" for hint in preexisting(engine, now, part.adapters, part.runtime_class)]
        elif record.engines() and engine.running():
            found.hints.append(f"{name}: {engine.title} runs on this node too, and is not wired")
    except ReassertError as error:
        wrong.append(f"{name}: {error}")
        found.exit_status = min(found.exit_status, OUT_OF_DATE if is_wired else NOT_WIRED)


def _look_at_agent(found: Status, engine: AnyEngine, now: object, part: OwnerRecord, handlers: list[Handler]) -> None:
    """Add which of an engine's last starts were warm, and the agent itself, which all engines share."""
    last = agent.last_starts()
    called = cache(lambda container_id: engine.called_for(now, container_id))
    for handler in handlers:
        if {RUNTIME, HOOK} & set(handler.wired):
            found.starts[engine.name, handler.name] = agent.starts_of(handler.runtime, last, called)
    if {RUNTIME, HOOK, NRI} & set(part.adapters) and (found.agent is None or found.agent.cold):
        found.agent = agent.look(agent_unit.is_wanted(part.notes))
        found.problems += found.agent.problems()


def _named_files() -> tuple[list[str], list[str]]:
    """Problems and hints about the files of this node that the policy names."""
    try:
        return problems_and_hints(policy(seeded=False))
    except ReassertError:  # that there is no policy is a problem of each engine's (`out_of_date`)
        return [], []


def out_of_date(engine: AnyEngine, now: object, record: Record, part: OwnerRecord) -> list[str]:
    """What `node install` would change although nothing else is asked for, and what does not run."""
    in_force = policy(seeded=False)
    wanted = agent_unit.is_wanted(part.notes)
    front = "" if agent_unit.why_cold(wanted, front_in_use()) else front_in_use()
    adapters = tuple(part.adapters)
    choice = Choice(adapters, part.runtime_class, path_in_use(), in_force, plugin_is_ours(part), wanted, front)
    rewiring = _as_installed(engine, now, record, part, choice)
    # Somebody's edit of a file is no matter of ours, and the copy of it without our lines can wait.
    paths = [path for path, _ in rewiring.differences() if not path.startswith(f"{journal.DIRECTORY}/")]
    restart = f", which {engine.verb}s {engine.title}" if rewiring.restarts() else ""
    found = [f"{engine.name}: {', '.join(paths)} out of date: run `reassert node install`{restart}"] if paths else []
    if not os.access(choice.program, os.X_OK):
        found.append(f"{engine.name}: {choice.program} is gone, so no container starts: run `reassert node install`")
    if front and not os.access(front, os.X_OK):
        found.append(f"{engine.name}: {front} is gone, so no container starts: run `reassert node install`")
    found += [f"{engine.name}: {in_force.warning}"] if in_force.warning else []
    found += [f"{engine.name}: {unit} does not run" for unit in part.units if not systemd.is_active(unit)]
    if not engine.running():
        found.append(f"{engine.name}: {engine.title} does not run")
    return found


def _as_installed(engine: AnyEngine, now: object, record: Record, part: OwnerRecord, choice: Choice) -> Rewiring:
    """The change to what is installed already."""
    disk = Disk()
    wiring = engine.wire(now, choice, base_of(record, engine, disk), part.notes)
    agent_unit.add_agent(wiring, choice)
    return prepare(engine, record, Target(wiring, part.adapters, part.runtime_class), lambda: now, disk)


def plugin_is_ours(part: OwnerRecord) -> bool:
    """Whether the NRI plugin, if it is wired, is a service of this node."""
    return bool(part.notes.get(PLUGIN_IS_OURS, True))


def preexisting(engine: AnyEngine, now: object, adapters: list[str], runtime_class: str | None) -> list[str]:
    """Warnings about pods and containers from before the install. NRI reaches those too."""
    if RUNTIME not in adapters or NRI in adapters or runtime_class is not None:
        return []
    try:
        in_force: Policy = policy()
        return engine.preexisting(now, in_force, HOOK in adapters and in_force.mode != AUDIT)
    except ReassertError as error:
        return [f"pods and containers from before the install cannot be listed: {error}"]
