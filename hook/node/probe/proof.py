"""That containers run on this node, before it is wired and after, and that a hostile one is put right."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from hook.node.engines.base import RUNTIME, AnyEngine, Wiring
from hook.node.errors import NodeError
from hook.node.probe.report import BLOCKED, EXPOSED, PROTECTED, UNTRIED, Finding
from hook.node.probe.starter import Starter, traces
from hook.node.probe.verify import NothingToVerify, examine, probe
from hook.policy.model import Policy


def clear(engine: AnyEngine) -> None:
    """Remove probes whose command was killed: they end by themselves, but stay. Raises NodeError."""
    if traces() and engine.running():
        with closing(engine.starter(engine.read())) as starter:
            starter.clean()


@dataclass
class Proof:
    """Probe containers through an engine, before a change and after it.

    `wiring`: the new one; it gets remarks for the administrator. `broken`: handlers under which no container started
    before the change, with the reason.
    """

    engine: AnyEngine
    policy: Policy
    wiring: Wiring
    broken: dict[str, str] = field(default_factory=dict)

    def before(self, now: Any) -> None:
        """Start a container under each handler as it is. Raises NodeError where none starts: which reassert cannot fix.

        A handler whose containers do not start now is not held against the change; a remark says so.
        """
        with closing(self.engine.starter(now)) as starter:
            handlers = [handler for handler in self.engine.handlers(now, {}) if handler.runtime]
            for handler in handlers:
                try:
                    probe(starter, handler.name)
                except NodeError as error:
                    self.broken[handler.name] = str(error)
        if handlers and len(self.broken) == len(handlers):
            reason = next(iter(self.broken.values()))
            raise NodeError(
                f"no container starts on this node, even without reassert: {reason}\n"
                "Nothing was changed. --no-probe wires it without starting containers."
            )
        for name, reason in self.broken.items():
            self.wiring.remarks.append(
                f"handler {name} was not tried, its containers did not start before either: {reason}"
            )

    def after(self, now: Any) -> None:
        """Start containers under each wired handler, innocent and hostile. Raises NodeError where one is not right."""
        handlers = [
            handler
            for handler in self.engine.handlers(now, self.wiring.notes)
            if handler.wired and handler.name not in self.broken
        ]
        with closing(self.engine.starter(now)) as starter:
            try:
                findings, _ = examine(handlers, self.policy, starter)
            except NothingToVerify as error:
                for handler in handlers:
                    _start(starter, handler.name)
                self.wiring.remarks.append(f"containers start, and no hostile one was tried: {error}")
                return
        for finding in findings:
            self._judge(finding)

    def _judge(self, finding: Finding) -> None:
        """Remark on what is no fault of the wiring. Raises NodeError for what is."""
        name, saw = finding.handler.name, "; ".join(finding.saw)
        if finding.result == BLOCKED:
            raise NodeError(f"handler {name}: {saw}")
        if finding.started == PROTECTED and RUNTIME not in finding.handler.wired:
            self.wiring.remarks.append(f"handler {name}: {saw}; only --adapter runtime reaches that")
        elif finding.result == EXPOSED:
            raise NodeError(f"handler {name} is not protected: {saw}")
        elif UNTRIED in (finding.result, finding.executed):
            self.wiring.remarks.append(f"handler {name}: not everything was tried: {saw}")


def _start(starter: Starter, handler: str) -> None:
    try:
        probe(starter, handler)
    except NodeError as error:
        raise NodeError(f"a container under handler {handler} does not start: {error}") from None
