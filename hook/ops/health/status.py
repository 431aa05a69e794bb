"""The state of this node, as text, as JSON, and as an exit status. Every view is made of the same findings."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from hook.compile.stored import header_of
from hook.core.base.errors import ReassertError
from hook.core.base.finding import ERROR, NOTE, SEVERITIES, WARNING, Finding, exit_status, having
from hook.core.base.system import timestamp
from hook.core.base.text import printable
from hook.core.policy import store
from hook.core.policy.model import AUDIT
from hook.node import agent, kept
from hook.node.change.record import OwnerRecord
from hook.node.engines.base import HOOK, RUNTIME
from hook.node.words import about
from hook.ops.health import checks
from hook.ops.health.node import EngineState, Node
from hook.resident.terminal import counted, hashed, line, table

NOTHING = 3
"""The exit status of a node that is not wired. systemctl uses it for a unit that is not active."""


_RESULTS = {0: "protected", 1: "not protected", NOTHING: "nothing to verify", 4: "protected, with warnings"}
"""What the exit statuses of `verify` mean."""


@dataclass
class Status:
    """The state of a node. `starts`, `execs`: the last ones of each handler. `since`: when the policy took force.

    `unwired`: whether containers of a handler that is to be wired start without reassert. `enforces_nothing`: why the
    policy changes no container, or "".
    """

    node: Node
    findings: list[Finding]
    starts: dict[tuple[str, str], agent.Starts] = field(default_factory=dict)
    execs: dict[tuple[str, str], agent.Starts] = field(default_factory=dict)
    since: str = ""
    unwired: bool = False
    enforces_nothing: str = ""

    @property
    def exit_status(self) -> int:
        """That of the worst finding; NOTHING on a node that is not wired."""
        severities = [each.severity for each in self.findings]
        return exit_status(severities) if self.node.is_wired or self.node.interrupted else NOTHING

    def state(self) -> str:
        """Returns the state in a few words."""
        if not self.node.is_wired or self.unwired:
            return "NOT WIRED"
        if having(ERROR, self.findings):
            return "not certain"
        if self.enforces_nothing:
            return f"NOT ENFORCED: {self.enforces_nothing}"
        return "protected, with warnings" if having(WARNING, self.findings) else "protected"

    def about(self) -> dict[str, Any]:
        """Returns what the evidence is about: node, time, version of the program, and the policy."""
        in_force = self.node.policy
        rules = in_force.candidates(None) if in_force else []
        audited = sum(rule.is_audited or bool(in_force and in_force.mode == AUDIT) for rule in rules)
        policy = in_force and {
            "path": in_force.path,
            "sha256": in_force.fingerprint,
            "mode": in_force.mode,
            "rules": {"enforced": len(rules) - audited, "tried": audited},
            "since": self.since or None,
            "heldBack": in_force.warning or None,
        }
        return {**about(), "policy": policy or None}


def status_of(node: Node) -> Status:
    """Returns the state of a node."""
    found = Status(node, checks.all_of(node))
    found.unwired = any(each.severity == ERROR for each in checks.guarded(checks.handlers, node))
    found.enforces_nothing = checks.enforces_nothing(node)
    found.since = str(header_of(store.SOURCE, store.STORE).get("since", ""))
    for state in node.wired:
        if state.meets_starts:
            _count_starts(found, state)
    runtimes = [handler.runtime for _, handler in node.handlers if handler.wired]
    for engine, handler in node.handlers:  # events name the runtime: those of two handlers of one look the same
        if runtimes.count(handler.runtime) > 1:
            found.starts.pop((engine.name, handler.name), None)
            found.execs.pop((engine.name, handler.name), None)
    return found


def _count_starts(found: Status, state: EngineState) -> None:
    """Adds which of an engine's last starts were warm."""
    unchanged = found.node.agent.last if found.node.agent else []
    starts = agent.with_unchanged(agent.last_starts(), unchanged)
    execs = agent.without_event(unchanged, True)
    called = cache(lambda container_id: state.engine.called_for(state.now, container_id))
    for handler in state.loaded.handlers:
        if {RUNTIME, HOOK} & set(handler.wired):
            found.starts[state.name, handler.name] = agent.starts_of(handler.runtime, starts, called)
            found.execs[state.name, handler.name] = agent.starts_of(handler.runtime, execs, called)


def as_table(found: Status, width: int = 0) -> str:
    """Returns the state, the policy, a table with one line per handler, the agent, and what is wrong.

    `width`: columns of the terminal, 0 for any number.
    """
    cells = [
        (
            engine.title,
            handler.name,
            handler.runtime or "-",
            ", ".join(handler.wired) or "no",
            found.starts.get((engine.name, handler.name), agent.Starts()).as_text(),
            found.execs.get((engine.name, handler.name), agent.Starts()).as_text(),
            handler.note,
        )
        for engine, handler in found.node.handlers
    ]
    handlers = table(cells, ["ENGINE", "HANDLER", "RUNTIME", "WIRED", "STARTS", "EXECS", ""], width)
    said = [each for each in found.findings if each.severity in (ERROR, WARNING)]
    notes = having(NOTE, found.findings)
    more = [f"{counted(len(notes), 'note')}: reassert status --all"] if notes else []
    rows = ["", _rows(said, width)] if said else []
    return "\n".join([*_head(found, width), "", handlers, *rows, *more])


def _head(found: Status, width: int) -> list[str]:
    """What it is about, line by line."""
    about, said = found.about(), "none"
    if policy := about["policy"]:
        rules = f"rules: {policy['rules']['enforced']} enforced, {policy['rules']['tried']} tried"
        since = f", since {policy['since'][:19]}Z" if policy["since"] else ""
        sha256 = hashed(policy["sha256"], width)
        said = f"{policy['path']}, sha256 {sha256}, {policy['mode']}, {rules}{since}"
    head = [
        ("state", found.state()),
        ("reassert", f"{about['version']} on {about['node']}, {about['time'][:19]}Z"),
        ("policy", said),
    ]
    head += [("verify", _verified(found.node, state)) for state in found.node.wired]
    if found.node.is_wired:
        head.append(("containers", _containers(found.node)))
    if found.node.agent:
        head.append(("agent", found.node.agent.as_text()))
    return [line(text, width, 11, label) for label, text in head]


def _verified(node: Node, state: EngineState) -> str:
    """What the last `verify` of an engine said, when, and what it left untried."""
    last = node.kept.verified.get(state.name)
    if last is None:
        return f"{state.name}: never"
    result = _RESULTS.get(last.status, "not known")
    left = f"; not tried: {', '.join(last.untried)}" if last.untried else ""
    before = "" if last.is_current else ", before the last install"
    return f"{state.name}: {checks.since(last.when)}{before}: {result}{left}"


def _containers(node: Node) -> str:
    """How many containers run, how many are in each state, and how old the last look at all is."""
    try:
        known = node.audited
    except (ReassertError, OSError):
        return "not known"
    counts = Counter(each.state for each in known.containers.values())
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    when = f"all looked at {checks.since(known.when)}" if known.when else "never all looked at"
    return f"{len(known.containers)}{': ' if told else ''}{told}; {when}"


def _containers_json(node: Node) -> dict[str, Any] | None:
    try:
        known = node.audited
    except (ReassertError, OSError):
        return None
    counts = Counter(each.state.replace(" ", "-") for each in known.containers.values())
    return {"lookedAt": timestamp(known.when * 10**9) if known.when else None, "counts": dict(sorted(counts.items()))}


def _verify_json(node: Node, state: EngineState) -> dict[str, Any] | None:
    last = node.kept.verified.get(state.name)
    if last is None:
        return None
    return {
        "time": timestamp(last.when * 10**9),
        "ageSeconds": int(kept.age(last.when)) if last.when <= time.time() else None,
        "exitStatus": last.status,
        "sinceInstall": last.is_current,
        "notTried": last.untried,
        "accepted": list(node.accepted(state).patterns),
    }


def as_condition(found: Status) -> str:
    """Returns `REASON MESSAGE`, as the node's condition has it: what is wrong, without times and counts."""
    said = [str(each) for each in found.findings if each.severity in (ERROR, WARNING)]
    reason = "NotReady" if found.exit_status in (1, NOTHING) else "Enforcing"
    if reason == "Enforcing" and found.enforces_nothing:
        reason = "NothingToVerify"
    return printable(f"{reason} {'; '.join(said) or found.state()}")


def as_page(found: Status, width: int = 0) -> str:
    """Returns every finding, also what is well, by part. `width`: as of `as_table`."""
    return "\n".join([*_head(found, width), "", _rows(found.findings, width)])


def _rows(findings: Iterable[Finding], width: int) -> str:
    """One row for each finding, the worst first; below it the command."""
    rows: list[list[str]] = []
    for each in sorted(findings, key=lambda one: SEVERITIES.index(one.severity)):
        said = f"{each.engine}: {each.text}" if each.engine else each.text
        rows.append([each.severity, each.part, said])
        if each.remedy:
            rows.append(["", "", f"-> {each.remedy}"])
    return table(rows, ["", "PART", ""], width)


def as_json(found: Status) -> str:
    """Returns the state with every finding as JSON. `problems`, `remarks` and `hints` are the findings by severity."""
    engines: dict[str, Any] = {}
    for engine, handler in found.node.handlers:
        entry = engines.setdefault(engine.name, {"title": engine.title, "running": engine.running(), "handlers": []})
        entry["adapters"] = found.node.record.parts.get(engine.name, OwnerRecord()).adapters
        made, executed = (each.get((engine.name, handler.name)) for each in (found.starts, found.execs))
        entry["handlers"].append(
            {
                "name": handler.name,
                "runtime": handler.runtime,
                "wired": list(handler.wired),
                "starts": made.as_dict() if made else None,
                "execs": executed.as_dict() if executed else None,
                "note": handler.note,
            }
        )
    lists = {"problems": ERROR, "remarks": WARNING, "hints": NOTE}
    return json.dumps(
        {
            **found.about(),
            "state": found.state(),
            "exitStatus": found.exit_status,
            **{name: [str(each) for each in having(severity, found.findings)] for name, severity in lists.items()},
            "findings": [asdict(each) for each in found.findings],
            "verify": {state.name: _verify_json(found.node, state) for state in found.node.wired},
            "containers": _containers_json(found.node) if found.node.is_wired else None,
            "engines": engines,
            "agent": found.node.agent.as_dict() if found.node.agent else None,
        },
        indent=2,
    )
