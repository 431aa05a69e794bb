"""The test containers of an install: started before the change, and after it, when a hostile one must be corrected."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from hook.core.policy.model import Policy
from hook.inside.process import ContainerGone
from hook.node.engines.base import RUNTIME, AnyEngine, Config, Wiring
from hook.node.errors import NodeError
from hook.node.probe.report import BLOCKED, EXPOSED, PROTECTED, UNTRIED, HandlerResult
from hook.node.probe.starter import Starter
from hook.node.probe.verify import NothingToVerify, examine, probe


@dataclass
class Proof:
    """Test containers through an engine, before a change and after it.

    `wiring`: the new one, to which remarks for the administrator are added. `broken`: handlers under which no container
    started before the change, with the reason.
    """

    engine: AnyEngine
    policy: Policy
    wiring: Wiring
    broken: dict[str, str] = field(default_factory=dict)

    def before(self, now: Config) -> None:
        """Starts a container under each handler before the change. Raises NodeError if none starts under any handler.

        The test after the change leaves out a handler whose containers do not start now. A remark says so.
        """
        with closing(self.engine.starter(now)) as starter:
            handlers = [each for each in now.handlers({}) if each.runtime and each.is_installed]
            for handler in handlers:
                try:
                    probe(starter, handler.name)
                except (NodeError, ContainerGone) as error:
                    self.broken[handler.name] = str(error)
        if handlers and len(self.broken) == len(handlers):
            reason = next(iter(self.broken.values()))
            raise NodeError(
                f"no container starts on this node, even without reassert: {reason}",
                "Nothing was changed. With --no-probe, install starts no test containers.",
            )
        for name, reason in self.broken.items():
            self.wiring.remarks.append(
                f"handler {name} was not tried: its containers did not start before the install either: {reason}"
            )

    def after(self, now: Config) -> None:
        """Starts normal and hostile containers under each wired handler. Raises NodeError if a result is wrong."""
        handlers = [
            handler
            for handler in now.handlers(self.wiring.notes)
            if handler.wired and handler.is_installed and handler.name not in self.broken
        ]
        with closing(self.engine.starter(now)) as starter:
            try:
                findings, _ = examine(handlers, self.policy, starter)
            except NothingToVerify as error:
                for handler in handlers:
                    _start(starter, handler.name)
                self.wiring.remarks.append(f"containers start; no hostile container was tried: {error}")
                return
        for finding in findings:
            self._judge(finding)

    def _judge(self, finding: HandlerResult) -> None:
        """Raises NodeError if the wiring is at fault; adds a remark for a result that it cannot change."""
        name, saw = finding.handler.name, "; ".join(finding.saw)
        if finding.result == BLOCKED:
            raise NodeError(f"handler {name}: {saw}")
        if finding.started == PROTECTED and RUNTIME not in finding.handler.wired:
            self.wiring.remarks.append(f"handler {name}: {saw}; only --adapter runtime prevents that")
        elif finding.result == EXPOSED:
            raise NodeError(f"handler {name} is not protected: {saw}")
        elif UNTRIED in (finding.result, finding.executed):
            self.wiring.remarks.append(f"handler {name}: not everything was tried: {saw}")
        self.wiring.remarks += [f"handler {name}: {file}" for file in finding.unreadable]
        if finding.unread:
            self.wiring.remarks.append(f"handler {name}: no reserved file was opened in it: {finding.unread}")
        for way in finding.asked:
            if way.result == UNTRIED:
                self.wiring.remarks.append(f"handler {name}: way {way.name} was not tried: {way.saw}")


def _start(starter: Starter, handler: str) -> None:
    try:
        probe(starter, handler)
    except (NodeError, ContainerGone) as error:
        raise NodeError(f"a container under handler {handler} does not start: {error}") from None
