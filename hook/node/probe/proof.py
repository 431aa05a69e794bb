"""That containers run on this node, before it is wired and after, and that a hostile one is put right."""

from __future__ import annotations

from hook.node.engines.base import RUNTIME, Engine, Wiring
from hook.node.errors import NodeError
from hook.node.probe.report import BLOCKED, EXPOSED, PROTECTED, UNTRIED, Finding
from hook.node.probe.starter import Starter, traces
from hook.node.probe.verify import NothingToVerify, examine, probe
from hook.policy.model import Policy


def clear(engine: Engine) -> None:
    """Remove probes whose command was killed: they end by themselves, but stay. Raises NodeError."""
    if traces() and engine.running():
        starter = engine.starter()
        try:
            starter.clean()
        finally:
            starter.close()


class Proof:
    """Probe containers through an engine. Made before a change; `again` is for after it.

    `wired`: whether reassert is in their path already; then how they fare is no measure of the node.
    """

    def __init__(self, engine: Engine, policy: Policy, wiring: Wiring, wired: bool) -> None:
        """Start a container under each handler as it is. Raises NodeError where none starts: that is not ours to mend.

        A handler whose containers do not start now is not held against the change; `wiring` gets a remark.
        """
        self._engine = engine
        self._policy = policy
        self._wiring = wiring
        self._broken: dict[str, str] = {}
        if wired:
            return
        starter = engine.starter()
        try:
            handlers = [handler for handler in engine.handlers({}) if handler.runtime]
            for handler in handlers:
                try:
                    probe(starter, handler.name)
                except NodeError as error:
                    self._broken[handler.name] = str(error)
        finally:
            starter.close()
        if handlers and len(self._broken) == len(handlers):
            reason = next(iter(self._broken.values()))
            raise NodeError(
                f"no container starts on this node as it is, reassert has no part in it: {reason}\n"
                "Nothing was changed. --no-probe wires it without starting containers."
            )
        for name, reason in self._broken.items():
            wiring.remarks.append(f"handler {name} was not tried, its containers did not start before either: {reason}")

    def again(self) -> None:
        """Start a container under each wired handler, and a hostile one. Raises NodeError where one is not right."""
        starter = self._engine.starter()
        try:
            handlers = [
                handler
                for handler in self._engine.handlers(self._wiring.notes)
                if handler.wired and handler.name not in self._broken
            ]
            try:
                findings, _ = examine(handlers, self._policy, starter)
            except NothingToVerify as error:
                for handler in handlers:
                    _start(starter, handler.name)
                self._wiring.remarks.append(f"containers start, and no hostile one was tried: {error}")
                return
            for finding in findings:
                self._judge(finding)
        finally:
            starter.close()

    def _judge(self, finding: Finding) -> None:
        """Remark on what is no fault of the wiring. Raises NodeError for what is."""
        name, saw = finding.handler.name, "; ".join(finding.saw)
        if finding.result == BLOCKED:
            raise NodeError(f"handler {name}: {saw}")
        if finding.started == PROTECTED and RUNTIME not in finding.handler.wired:
            self._wiring.remarks.append(f"handler {name}: {saw}; only --adapter runtime reaches that")
        elif finding.result == EXPOSED:
            raise NodeError(f"handler {name} is not protected: {saw}")
        elif UNTRIED in (finding.result, finding.executed):
            self._wiring.remarks.append(f"handler {name}: not everything was tried: {saw}")


def _start(starter: Starter, handler: str) -> None:
    try:
        probe(starter, handler)
    except NodeError as error:
        raise NodeError(f"a container under handler {handler} does not start: {error}") from None
