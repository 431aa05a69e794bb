"""The output of `reassert node verify`: a finding per handler, the parts that were not tried, and the verdict.

The last result is kept for the metrics.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError
from hook.core.base.system import make_directory, replace_file, trusted
from hook.core.base.text import printable
from hook.core.policy.model import Policy
from hook.core.policy.store import STORE
from hook.node.engines.base import AnyEngine, Handler
from hook.node.terminal import table
from hook.node.words import about

PROTECTED, EXPOSED, BLOCKED, UNTRIED = "protected", "not protected", "starts nothing", "not tried"
"""The result for a handler. BLOCKED: a container that overrides nothing does not start."""

WARM, COLD = "warm", "cold"
"""Whether the resident agent answered a container's starts (docs/agent.md)."""

NOTHING = 3
"""The exit status if the policy reserves nothing for a test container: neither protected nor exposed."""


ABSENT = "not there"
"""The result of a way that this engine or this node does not have, so that no pod can take it."""

LAST_VERIFY = "last-verify.json"
"""In the directory of compiled policies."""


@dataclass(frozen=True)
class Tried:
    """The result of a way to ask for more: PROTECTED, EXPOSED, UNTRIED or ABSENT. `saw`: what was seen, or why not."""

    name: str
    result: str
    saw: str = ""


@dataclass(frozen=True)
class Finding:
    """The result for the containers under one handler.

    `result`: PROTECTED, EXPOSED, BLOCKED or UNTRIED. `saw`: the observations, as text. `executed`: the result for a
    process that was executed in the hostile container; "" if no such container ran. `started`: the result for its
    first process alone. `ways`: the result by the way of the start, WARM or COLD, if the node has an agent.
    `never_warm`: why the agent answered no start that it should have answered, or "". `asked`: each way to ask for
    devices, and env that the caller of an exec sets.
    """

    handler: Handler
    result: str
    saw: list[str]
    executed: str = ""
    started: str = ""
    ways: dict[str, str] = field(default_factory=dict)
    never_warm: str = ""
    asked: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of one `verify`.

    `rules`: the rules that were not tried, with the reason. `accepted`: patterns of parts that the operator accepts as
    not tried: `handler/NAME`, `exec/NAME`, `warm/NAME`, `rule/NAME`, `way/NAME`. `beside`: a line for each other engine
    that runs on this node. `nothing`: why there was nothing to verify, or "". `remountable`: hostPaths that containers
    with CAP_SYS_ADMIN can write to through a read-only mount, each with why.
    """

    engine: AnyEngine
    policy: Policy
    findings: list[Finding]
    rules: dict[str, str]
    accepted: Sequence[str] = ()
    beside: Sequence[str] = ()
    nothing: str = ""
    remountable: dict[str, str] = field(default_factory=dict)

    def status(self) -> int:
        """Returns the exit status."""
        if self.nothing:
            return NOTHING
        return 0 if self._is_good() else 1

    def untried(self) -> dict[str, str]:
        """Returns every part that was not tried, with the reason."""
        found: dict[str, str] = {}
        for finding in self.findings if not self.nothing else []:
            if finding.result == UNTRIED:
                found[f"handler/{finding.handler.name}"] = finding.saw[0]
            elif finding.executed == UNTRIED:
                said = [text for text in finding.saw if f"exec {UNTRIED}" in text]
                found[f"exec/{finding.handler.name}"] = (said or finding.saw)[-1]
            if finding.never_warm:
                found[f"warm/{finding.handler.name}"] = finding.never_warm
            found |= {f"way/{way.name}": way.saw for way in finding.asked if way.result == UNTRIED}
        return {**found, **{f"rule/{name}": reason for name, reason in self.rules.items()}}

    def absent(self) -> dict[str, str]:
        """Returns every way that this engine or node does not have, with the reason."""
        ways = [way for finding in self.findings for way in finding.asked]
        return {f"way/{way.name}": way.saw for way in ways if way.result == ABSENT}

    def _accepts(self, part: str) -> bool:
        return any(glob_match(pattern, part) for pattern in self.accepted)

    def _missing(self) -> list[str]:
        """Returns the parts that were not tried and are not accepted."""
        return [part for part in self.untried() if not self._accepts(part)]

    def _of(self, result: str) -> list[str]:
        return [finding.handler.name for finding in self.findings if finding.result == result]

    def _is_good(self) -> bool:
        return bool(self._of(PROTECTED)) and not (self._of(EXPOSED) or self._of(BLOCKED) or self._missing())

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
                for finding in self.findings
            ],
            "rulesNotTried": [{"name": name, "because": reason} for name, reason in self.rules.items()],
            "notTried": [
                {"part": part, "because": reason, "accepted": self._accepts(part)}
                for part, reason in self.untried().items()
            ],
            "notThere": [{"part": part, "because": reason} for part, reason in self.absent().items()],
            "remountable": [{"hostPath": path, "because": why} for path, why in self.remountable.items()],
            "protected": not self.nothing and self._is_good(),
            "nothingToVerify": self.nothing or None,
        }
        return json.dumps(report, indent=2)

    def as_table(self) -> str:
        """Returns the report as a table."""
        parts = [f"engine     {self.engine.title}", *(f"beside     {text}" for text in self.beside)]
        parts.append(f"policy     {self.policy.path}")
        if self.policy.warning:
            parts.append(f"WARNING    {self.policy.warning}")
        parts = [printable(part) for part in parts]
        if self.nothing:
            return "\n".join([*parts, printable(f"result     nothing to verify: {self.nothing}")])
        rows = []
        for finding in self.findings:
            first, *more = finding.saw
            rows.append([finding.handler.name, ",".join(finding.handler.wired) or "-", finding.result, first])
            rows += [["", "", "", line] for line in more]
        parts += ["", table(rows, ["HANDLER", "WIRED", "RESULT", "SEEN"]), ""]
        for part, reason in self.untried().items():
            accepted = " (accepted by --except)" if self._accepts(part) else ""
            parts.append(printable(f"not tried  {part}: {reason}{accepted}"))
        parts += [printable(f"not there  {part}: {reason}") for part, reason in self.absent().items()]
        for path, why in self.remountable.items():
            parts.append(printable(f"remount    a container with CAP_SYS_ADMIN can write to {path}: {why}"))
        return "\n".join([*parts, printable(f"result     {self._verdict()}")])

    def _verdict(self) -> str:
        missing = self._missing()
        said = [f"{result}: {', '.join(self._of(result))}" for result in (EXPOSED, BLOCKED) if self._of(result)]
        said += [f"{UNTRIED}: {', '.join(missing)} (--except PART accepts that)"] if missing else []
        if said:
            return "; ".join(said)
        if not self._is_good():
            return "no handler calls an OCI runtime of this node"
        untried = ", ".join(self.untried())
        return "every handler is protected" + (f"; {UNTRIED}, and accepted: {untried}" if untried else "")


class LastResult(NamedTuple):
    """Time and exit status of an engine's last `verify`, and what it was to accept (`--except`)."""

    when: int
    status: int
    accepted: list[str]


def record_result(engine: str, status: int, accepted: list[str], store: str = STORE) -> None:
    """Keep the exit status, and the parts that were to be accepted. A directory that cannot be written is no error."""
    found = {**last_results(store), engine: LastResult(int(time.time()), status, list(dict.fromkeys(accepted)))}
    with contextlib.suppress(OSError):
        make_directory(store, 0o700)
        replace_file(f"{store}/{LAST_VERIFY}", json.dumps(found).encode())


def last_results(store: str = STORE) -> dict[str, LastResult]:
    """The last result by engine."""
    try:
        trusted(f"{store}/{LAST_VERIFY}")
        found = json.loads(Path(store, LAST_VERIFY).read_bytes())
        return {
            str(engine): LastResult(int(when), int(status), [str(part) for parts in accepted for part in parts])
            for engine, (when, status, *accepted) in found.items()  # an earlier version wrote no `accepted`
        }
    except (OSError, ReassertError, ValueError, TypeError, AttributeError):
        return {}
