"""The output of `reassert verify`: the result of each handler, the parts that were not tried, and the verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from hook.core.base.compare import glob_match
from hook.core.base.finding import ERROR, NOTE, OK, WARNING, Finding, exit_status
from hook.core.policy.model import Policy
from hook.node.engines.base import AnyEngine, Handler
from hook.node.probe.readable import Unreadable
from hook.node.words import about
from hook.resident.terminal import line, table

PROTECTED, EXPOSED, BLOCKED, UNTRIED = "protected", "not protected", "starts nothing", "not tried"
"""The result for a handler. BLOCKED: a container that overrides nothing does not start."""

WARM, COLD = "warm", "cold"
"""Whether the resident agent answered a container's starts (docs/internals/agent.md)."""

NOTHING = 3
"""The exit status if the policy reserves nothing for a test container: neither protected nor exposed."""

VERIFY = "verify"
"""The part of a finding about all of it."""

_NONE = "no handler calls an OCI runtime of this node"

ABSENT = "not there"
"""The result of a way that this engine or this node does not have, so that no pod can take it."""


@dataclass(frozen=True)
class Tried:
    """The result of a way to ask for more: PROTECTED, EXPOSED, UNTRIED or ABSENT. `saw`: what was seen, or why not."""

    name: str
    result: str
    saw: str = ""


@dataclass(frozen=True)
class HandlerResult:
    """The result for the containers under one handler.

    `result`: PROTECTED, EXPOSED, BLOCKED, UNTRIED or ABSENT. `saw`: the observations, as text. `executed`: the result
    for a process that was executed in the hostile container; "" if no such container ran. `started`: the result for its
    first process alone. `ways`: the result by the way of the start, WARM or COLD, if the node has an agent.
    `not_executed`: why nothing could be executed in it, or "". `never_warm`: why the agent answered no start that it
    should have answered, or "". `asked`: each way to ask for devices, and env that the caller of an exec sets.
    `unreadable`: the reserved files that a process cannot read. `unread`: why none could be opened, or "".
    """

    handler: Handler
    result: str
    saw: list[str]
    executed: str = ""
    started: str = ""
    ways: dict[str, str] = field(default_factory=dict)
    never_warm: str = ""
    not_executed: str = ""
    asked: tuple[Tried, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    unread: str = ""


@dataclass(frozen=True)
class Report:
    """The result of one `verify`.

    `rules`: the rules that were not tried, with the reason. `accepted`: patterns of parts that the operator accepts as
    not tried: `handler/NAME`, `exec/NAME`, `read/NAME`, `warm/NAME`, `rule/NAME`, `way/NAME`; `file/PATH` of one that
    cannot be read. `beside`: a line for each other engine
    that runs on this node. `nothing`: why there was nothing to verify, or "". `remountable`: hostPaths that containers
    with CAP_SYS_ADMIN can write to through a read-only mount, each with why.
    """

    engine: AnyEngine
    policy: Policy
    results: list[HandlerResult]
    rules: dict[str, str]
    accepted: Sequence[str] = ()
    beside: Sequence[str] = ()
    nothing: str = ""
    remountable: dict[str, str] = field(default_factory=dict)

    def status(self) -> int:
        """Returns the exit status: that of the worst finding, or NOTHING."""
        return NOTHING if self.nothing else exit_status(each.severity for each in self.findings())

    def findings(self) -> list[Finding]:
        """Returns what `status` shows of it from now on."""
        return [*self._findings()]

    def _findings(self) -> Iterator[Finding]:
        name = self.engine.name
        if self.nothing:
            yield Finding(NOTE, VERIFY, f"there was nothing to verify: {self.nothing}", engine=name)
            return
        for each in self.results:
            part, said = f"handler/{each.handler.name}", f"handler {each.handler.name}: {each.result}: {each.saw[0]}"
            if each.result in (EXPOSED, BLOCKED):
                yield Finding(ERROR, part, said, engine=name)
            elif each.result == PROTECTED:
                yield Finding(OK, part, said, engine=name)
        for part, why in self.untried().items():
            if self._accepts(part):
                yield Finding(NOTE, part, f"{part} was not tried, which is accepted: {why}", engine=name)
            else:
                accept = f"reassert install --engine {name} --except {shlex.quote(part)}"
                yield Finding(ERROR, part, f"{part} was not tried: {why}", accept, engine=name)
        for part, why in self.absent().items():
            yield Finding(NOTE, part, f"{part} is not there: {why}", engine=name)
        for part, file in self.unreadable().items():
            severity, remedy = (NOTE, "") if self._accepts(part) else (WARNING, file.remedy)
            yield Finding(severity, part, str(file), remedy, place=file.source, engine=name)
        for path, why in self.remountable.items():
            text = f"a container with CAP_SYS_ADMIN can write to {path}: {why}"
            yield Finding(NOTE, "remount", text, place=path, engine=name)
        if not (self._of(PROTECTED) or self._of(EXPOSED) or self._of(BLOCKED) or self._missing()):
            yield Finding(ERROR, VERIFY, _NONE, engine=name)

    def untried(self) -> dict[str, str]:
        """Returns every part that was not tried, with the reason."""
        found: dict[str, str] = {}
        for finding in self.results if not self.nothing else []:
            if finding.result == UNTRIED:
                found[f"handler/{finding.handler.name}"] = finding.saw[0]
            elif finding.executed == UNTRIED:
                found[f"exec/{finding.handler.name}"] = finding.not_executed or finding.saw[-1]
            if finding.unread:
                found[f"read/{finding.handler.name}"] = finding.unread
            if finding.never_warm:
                found[f"warm/{finding.handler.name}"] = finding.never_warm
            found |= {f"way/{way.name}": way.saw for way in finding.asked if way.result == UNTRIED}
        return {**found, **{f"rule/{name}": reason for name, reason in self.rules.items()}}

    def absent(self) -> dict[str, str]:
        """Returns every way that this engine or node does not have, with the reason."""
        ways = [way for finding in self.results for way in finding.asked]
        handlers = {f"handler/{each.handler.name}": each.saw[0] for each in self.results if each.result == ABSENT}
        return handlers | {f"way/{way.name}": way.saw for way in ways if way.result == ABSENT}

    def unreadable(self) -> dict[str, Unreadable]:
        """Returns every reserved file that a process of a container cannot read, by its part."""
        return {f"file{file.path}": file for finding in self.results for file in finding.unreadable}

    def _accepts(self, part: str) -> bool:
        return any(glob_match(pattern, part) for pattern in self.accepted)

    def _missing(self) -> list[str]:
        """Returns the parts that were not tried and are not accepted."""
        return [part for part in self.untried() if not self._accepts(part)]

    def _of(self, result: str) -> list[str]:
        return [finding.handler.name for finding in self.results if finding.result == result]

    def _is_good(self) -> bool:
        return self.status() in (0, exit_status([WARNING]))

    def as_json(self) -> str:
        """Returns the report as JSON."""
        report = {
            **about(),
            "engine": self.engine.title,
            "enginesBeside": list(self.beside),
            "policy": {
                "path": self.policy.path,
                "sha256": self.policy.fingerprint,
                "heldBack": self.policy.warning or None,
            },
            "handlers": [
                {
                    "name": finding.handler.name,
                    "runtime": finding.handler.runtime or None,
                    "wired": list(finding.handler.wired),
                    "result": finding.result,
                    "saw": finding.saw,
                    "exec": finding.executed or None,
                    "starts": finding.ways or None,
                    "ways": {way.name: way.result for way in finding.asked} or None,
                }
                for finding in self.results
            ],
            "rulesNotTried": [{"name": name, "because": reason} for name, reason in self.rules.items()],
            "notTried": [
                {"part": part, "because": reason, "accepted": self._accepts(part)}
                for part, reason in self.untried().items()
            ],
            "notThere": [{"part": part, "because": reason} for part, reason in self.absent().items()],
            "unreadable": [
                {"path": file.path, "hostPath": file.source, "because": file.why, "accepted": self._accepts(part)}
                for part, file in self.unreadable().items()
            ],
            "remountable": [{"hostPath": path, "because": why} for path, why in self.remountable.items()],
            "protected": self._is_good(),
            "exitStatus": self.status(),
            "findings": [asdict(each) for each in self.findings()],
            "nothingToVerify": self.nothing or None,
        }
        return json.dumps(report, indent=2)

    def as_table(self, width: int = 0) -> str:
        """Returns the report as a table, of at most `width` columns; 0: of any number."""
        result = f"nothing to verify: {self.nothing}" if self.nothing else self._verdict()
        parts = [("result", result), ("engine", self.engine.title), *(("beside", text) for text in self.beside)]
        parts.append(("policy", self.policy.path))
        if self.policy.warning:
            parts.append(("WARNING", self.policy.warning))
        if self.nothing:
            return _labelled(parts, width)
        rows = []
        for finding in self.results:
            first, *more = finding.saw
            rows.append([finding.handler.name, ",".join(finding.handler.wired) or "-", finding.result, first])
            rows += [["", "", "", text] for text in more]
        said = []
        for part, reason in self.untried().items():
            accepted = " (accepted by --except)" if self._accepts(part) else ""
            said.append(("not tried", f"{part}: {reason}{accepted}"))
        said += [("not there", f"{part}: {reason}") for part, reason in self.absent().items()]
        for part, file in self.unreadable().items():
            accepted = " (accepted by --except)" if self._accepts(part) else ""
            remedy = f": run `{file.remedy}`" if file.remedy and not accepted else ""
            said.append(("unreadable", f"{file}{accepted}{remedy}"))
        for path, why in self.remountable.items():
            said.append(("remount", f"a container with CAP_SYS_ADMIN can write to {path}: {why}"))
        results = table(rows, ["HANDLER", "WIRED", "RESULT", "SEEN"], width)
        return "\n".join([_labelled(parts, width), "", results, *(["", _labelled(said, width)] if said else [])])

    def _verdict(self) -> str:
        missing = self._missing()
        said = [f"{result}: {', '.join(self._of(result))}" for result in (EXPOSED, BLOCKED) if self._of(result)]
        said += [f"{UNTRIED}: {', '.join(missing)} (--except PART accepts that)"] if missing else []
        if said:
            return "; ".join(said)
        if not self._is_good():
            return _NONE
        untried = ", ".join(self.untried())
        unreadable = ", ".join(file.path for part, file in self.unreadable().items() if not self._accepts(part))
        said = ["every handler is protected"]
        said += [f"{UNTRIED}, and accepted: {untried}"] if untried else []
        said += [f"not readable in every container: {unreadable}"] if unreadable else []
        return "; ".join(said)


def _labelled(parts: list[tuple[str, str]], width: int) -> str:
    return "\n".join(line(text, width, 11, label) for label, text in parts)
