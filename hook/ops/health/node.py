"""What is read of this node, once, for all checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from hook.core.base.errors import ReassertError
from hook.core.policy.model import Policy
from hook.node import agent, answers, kept, services
from hook.node.accepted import Accepted, accepted_of
from hook.node.change import journal
from hook.node.change.program import policy
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import Rewiring
from hook.node.engines import registry
from hook.node.engines.base import AnyEngine, Config, Handler
from hook.node.kept import Audited, Kept
from hook.node.loaded import STARTS, Loaded, installed_again, loaded
from hook.ops.audit import remembered


@dataclass(frozen=True)
class EngineState:
    """An engine. `part`: what the last install did to it, empty if it is not wired. `now`: its configuration.

    `loaded`: its handlers as they are in force.
    """

    engine: AnyEngine
    part: OwnerRecord
    now: Config
    loaded: Loaded

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def is_wired(self) -> bool:
        """Whether an install has wired it."""
        return bool(self.part.adapters)

    @property
    def meets_starts(self) -> bool:
        """Whether its container starts are to meet reassert."""
        return bool(STARTS & {*self.part.adapters})


@dataclass
class Node:
    """A node. `engines`: those that are installed or wired and could be asked. `broken`: why, for those that could not.

    `is_whole`: whether every engine was looked at. `no_policy`: why there is no policy, or "". `interrupted`: a change
    that was killed. `kept`: what is remembered of earlier looks.
    """

    record: Record
    engines: list[EngineState]
    broken: dict[str, str]
    is_whole: bool = True
    policy: Policy | None = None
    no_policy: str = ""
    interrupted: journal.Journal | None = None
    kept: Kept = field(default_factory=Kept)
    _again: dict[str, Rewiring] = field(default_factory=dict)

    @property
    def wired(self) -> list[EngineState]:
        """The engines that are wired and could be asked."""
        return [state for state in self.engines if state.is_wired]

    @property
    def is_wired(self) -> bool:
        """Whether one of the engines that were looked at is wired."""
        return bool(self.wired or {*self.broken} & {*self.record.engines()})

    @property
    def handlers(self) -> list[tuple[AnyEngine, Handler]]:
        """Every handler of every engine."""
        return [(state.engine, handler) for state in self.engines for handler in state.loaded.handlers]

    @cached_property
    def agent(self) -> agent.Agent | None:
        """The resident agent, which all engines share; None where no engine uses it. Raises NodeError."""
        wanted = [services.is_wanted(state.part.notes) for state in self.wired if state.meets_starts]
        return agent.look(any(wanted)) if wanted else None

    @property
    def names(self) -> list[str]:
        """The engines that were looked at."""
        return sorted([*self.broken, *(state.name for state in self.engines)])

    @cached_property
    def audited(self) -> Audited:
        """What is known of running containers now. Raises ReassertError, OSError."""
        return remembered.now(self.kept.audited, self.policy.fingerprint if self.policy else "")

    def accepted(self, state: EngineState) -> Accepted:
        """Returns what an administrator has accepted for an engine."""
        return accepted_of(state.name, state.part, self.kept)

    def again(self, state: EngineState, in_force: Policy) -> Rewiring:
        """Returns what an install with the options of the last one would change. Raises ReassertError."""
        if state.name not in self._again:
            self._again[state.name] = installed_again(state.engine, state.now, self.record, state.part, in_force)
        return self._again[state.name]


def look(record: Record, name: str | None = None) -> Node:
    """Returns the node with every engine, or with the engine of this name."""
    node = Node(record, [], {}, name is None, kept=kept.read())
    with answers.known(node.kept.answers):
        for each in [name] if name else sorted({*registry.installed(), *record.engines()}):
            part = record.parts.get(each, OwnerRecord())
            try:
                engine = registry.engine(each)
                now = engine.read()
                node.engines.append(EngineState(engine, part, now, loaded(engine, now, part)))
            except ReassertError as error:
                node.broken[each] = str(error)
    try:
        node.policy = policy(seeded=False)
    except ReassertError as error:
        node.no_policy = str(error)
    node.interrupted = journal.pending()
    return node
