"""`reassert node status`: what is wired on this node, and its problems, as a table or JSON. Changes nothing."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError
from hook.core.base.logfile import LOST
from hook.core.base.system import timestamp
from hook.core.base.text import printable
from hook.core.events import EVENTS
from hook.core.policy import compiler, store
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.core.policy.store import KUBELET_ROOT
from hook.node import agent, services, systemd
from hook.node.artifacts import dispatchers
from hook.node.change import journal
from hook.node.change.files import LINK, TREE, Change, State, look
from hook.node.change.program import front_in_use, path_in_use, policy
from hook.node.change.record import OwnerRecord, Record
from hook.node.change.rewiring import planned
from hook.node.engines import registry
from hook.node.engines.base import HOOK, NRI, RUNTIME, AnyEngine, Choice, Handler
from hook.node.errors import NodeError
from hook.node.services import METRICS, PLUGIN_IS_OURS
from hook.node.sources import problems_and_hints
from hook.node.terminal import table
from hook.node.words import about

OUT_OF_DATE, NOT_WIRED, UNENFORCED = 1, 3, 4
"""Exit statuses of `status`. systemctl uses 3 for a unit that is not active. 4: there is only a remark."""

NOT_KNOWN = "not known"
"""The note of a handler whose engine does not tell what it has loaded."""

_CLAIM = b"ClaimUID"
"""A field that each claim in kubelet's dra_manager_state has."""


@dataclass
class Status:
    """The state of a node. `rows`: every handler with its engine. `starts`, `execs`: the last ones of each handler.

    `policy`: the one in force. `since`: when it took force. `remarks`: why a node without problems enforces nothing, or
    that newer settings are available. `exit_status`: 0, OUT_OF_DATE, NOT_WIRED or UNENFORCED.
    """

    record: Record
    rows: list[tuple[AnyEngine, Handler]] = field(default_factory=list)
    starts: dict[tuple[str, str], agent.Starts] = field(default_factory=dict)
    execs: dict[tuple[str, str], agent.Starts] = field(default_factory=dict)
    agent: agent.Agent | None = None
    policy: Policy | None = None
    since: str = ""
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    exit_status: int = NOT_WIRED

    def state(self) -> str:
        """Returns the state in a few words."""
        if self.exit_status == NOT_WIRED or any(" NOT WIRED" in problem for problem in self.problems):
            return "NOT WIRED"
        return "not certain" if self.problems else "; ".join(self.remarks) or "protected"

    def about(self) -> dict[str, Any]:
        """Returns what the evidence is about: node, time, version of the program, and the policy."""
        rules = self.policy.candidates(None) if self.policy else []
        audited = sum(rule.is_audited or bool(self.policy and self.policy.mode == AUDIT) for rule in rules)
        policy = self.policy and {
            "path": self.policy.path,
            "sha256": self.policy.fingerprint,
            "mode": self.policy.mode,
            "rules": {"enforced": len(rules) - audited, "tried": audited},
            "since": self.since or None,
            "heldBack": self.policy.warning or None,
        }
        return {**about(), "policy": policy or None}


def node_status(record: Record, name: str | None, old_files: Callable[[Policy], list[str]]) -> Status:
    """Returns the state of every engine, or of the engine with this name.

    `old_files`: hints about containers that have an old file of a hostPath.
    """
    found = Status(record)
    with suppress(ReassertError):  # `out_of_date` reports it for each engine
        found.policy = policy(seeded=False)
    for each in [name] if name else sorted({*registry.installed(), *record.engines()}):
        _look_at_engine(found, each)
    if not (found.rows or record.engines() or registry.installed()):
        found.hints.append(registry.none_installed())
    elif name is None:
        found.hints += registry.other_distributions()
    runtimes = [handler.runtime for _, handler in found.rows if handler.wired]
    for engine, handler in found.rows:  # events name the runtime, so those of two handlers of one runtime look the same
        if runtimes.count(handler.runtime) > 1:
            found.starts.pop((engine.name, handler.name), None)
            found.execs.pop((engine.name, handler.name), None)
    interrupted = journal.pending()
    _look_at_policy(found)
    if found.exit_status != NOT_WIRED:
        if found.policy:
            problems, hints = problems_and_hints(found.policy, record.engines())
            found.problems += problems
            found.hints += hints + old_files(found.policy)
        problems, hints = _event_log(EVENTS)
        found.problems += problems
        found.hints += hints
    if interrupted:
        found.problems.append(
            f"the last {interrupted.operation} of {interrupted.engine} was interrupted; "
            "run `reassert node install` or `uninstall`: both restore every file first"
        )
    if (found.problems and found.exit_status == 0) or interrupted:
        found.exit_status = OUT_OF_DATE
    if found.remarks and found.exit_status == 0:
        found.exit_status = UNENFORCED
    return found


def _look_at_policy(found: Status) -> None:
    """Adds when the policy took force and, on a node that is wired, why it enforces nothing."""
    if found.policy is None:
        return
    header = compiler.stored_header(store.SOURCE, store.STORE)[0] or {}
    found.since = str(header.get("since", ""))
    engines = found.record.engines()
    why = not_enforced(found.policy, engines)
    if engines and not any({RUNTIME, HOOK, NRI} & {*found.record.parts[name].adapters} for name in engines):
        why = "only the adapter cdi is wired, and pods need not ask for its devices"
    if why and found.exit_status != NOT_WIRED:
        found.remarks.insert(0, f"NOT ENFORCED: {why}")


def not_enforced(in_force: Policy, engines: list[str]) -> str:
    """Why a policy changes and refuses nothing, whatever containers start; "" if it may. `engines`: those wired."""
    if in_force.mode == AUDIT:
        return "the mode is Audit"
    if any(not pattern.strip("*") for pattern in in_force.excluded_namespaces):
        return "the policy excludes every namespace"
    rules = [rule for rule in in_force.candidates(None) if not rule.is_audited]
    if not rules:
        return "the policy has no rules"
    if all(_matches_nothing(rule, in_force, engines) for rule in rules):
        return f"no container matches a rule ({', '.join(rule.name for rule in rules)})"
    return ""


def _matches_nothing(rule: Rule, in_force: Policy, engines: list[str]) -> bool:
    """Whether `exclude` excludes all that a rule matches, or it is for pods and no engine has pods."""
    namespaces, types = rule.conditions.get("namespaces", []), rule.conditions.get("containerTypes", [])
    excluded = in_force.excluded_namespaces
    return (
        (bool(namespaces) and all(any(glob_match(glob, name) for glob in excluded) for name in namespaces))
        or (bool(types) and {*types} <= {*in_force.excluded_types})
        or (engines == ["podman"] and bool({"namespaces", "podSelector"} & {*rule.conditions}))
    )


def _look_at_engine(found: Status, name: str) -> None:
    """Adds the handlers, problems and hints of one engine to `found`."""
    record, is_wired = found.record, name in found.record.engines()
    # An engine that is not wired, such as docker's own containerd, is never out of date.
    wrong = found.problems if is_wired else found.hints
    try:
        engine = registry.engine(name)
        now = engine.read()
        part = record.parts.get(name, OwnerRecord())
        handlers, problems = handlers_in_force(engine, now, part)
        found.problems += [f"{name}: {problem}" for problem in problems]
        found.rows += [(engine, handler) for handler in handlers]
        wrong += [f"{name}: {warning}" for warning in engine.warnings(now)]
        found.hints += [f"{name}: {hint}" for hint in engine.hints(now)]
        lacking, hints = cdi_support(
            engine.without_cdi(now), found.policy.kubelet_root if found.policy else KUBELET_ROOT
        )
        wrong += [f"{name}: {problem}" for problem in lacking]
        found.hints += [f"{name}: {hint}" for hint in hints]
        if part.adapters:
            found.exit_status = min(found.exit_status, 0)
            wrong_now, newer = out_of_date(engine, now, record, part, handlers)
            found.problems += wrong_now
            found.remarks += newer
            _look_at_agent(found, engine, now, part, handlers)
            found.hints += [f"{name}: {hint}" for hint in preexisting(engine, now, part.adapters, part.runtime_class)]
        elif record.engines() and engine.running():
            found.hints.append(
                f"{engine.title} runs on this node too and is not wired: `reassert node install --engine {name}`"
            )
    except ReassertError as error:
        wrong.append(f"{name}: {error}")
        found.exit_status = min(found.exit_status, OUT_OF_DATE if is_wired else NOT_WIRED)


def handlers_in_force(engine: AnyEngine, now: object, part: OwnerRecord) -> tuple[list[Handler], list[str]]:
    """Returns the handlers as the running engine has loaded them, and the differences to its files."""
    files = engine.handlers(now, part.notes)
    if not ({RUNTIME, HOOK} & {*part.adapters} and engine.running()):
        return files, []
    try:
        loaded = engine.loaded(now)
    except NodeError as error:
        unknown = [replace(handler, wired=(), note=NOT_KNOWN) for handler in files]
        return unknown, [f"it is not known whether it is wired: {error}"]
    lacks = engine.not_loaded(now, loaded, part.notes)
    problem = (
        f"NOT WIRED, containers start without reassert: {engine.title} runs with other settings for {', '.join(lacks)} "
        f"than its files say: run `reassert node install`, which {engine.verb}s it"
    )
    has = engine.handlers(loaded, part.notes)
    names = {handler.name for handler in has}
    absent = [replace(each, wired=(), note="not loaded") for each in files if each.name not in names]
    return has + absent, [problem] if lacks else []


def _look_at_agent(found: Status, engine: AnyEngine, now: object, part: OwnerRecord, handlers: list[Handler]) -> None:
    """Add which of an engine's last starts were warm, and the agent itself, which all engines share."""
    if {RUNTIME, HOOK, NRI} & set(part.adapters) and (found.agent is None or found.agent.cold):
        found.agent = agent.look(services.is_wanted(part.notes))
        found.problems += found.agent.problems()
    unchanged = found.agent.last if found.agent else []
    starts = agent.with_unchanged(agent.last_starts(), unchanged)
    execs = agent.without_event(unchanged, True)
    called = cache(lambda container_id: engine.called_for(now, container_id))
    for handler in handlers:
        if {RUNTIME, HOOK} & set(handler.wired):
            found.starts[engine.name, handler.name] = agent.starts_of(handler.runtime, starts, called)
            found.execs[engine.name, handler.name] = agent.starts_of(handler.runtime, execs, called)


def _event_log(path: str) -> tuple[list[str], list[str]]:
    """Problem and hint: why no event can be appended to the log, and how many were lost since the node was booted.

    A missing log is made with its first event.
    """
    try:
        why = _not_a_log(os.lstat(path))
        if not why:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            system = os.statvfs(path)
            why = "the disk is full" if system.f_blocks and not system.f_bfree else ""
    except FileNotFoundError:
        directory = os.path.dirname(path)
        while not os.path.lexists(directory):
            directory = os.path.dirname(directory)
        may = os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)
        why = "" if may else f"it is missing, and cannot be created in {directory}"
    except OSError as error:
        why = error.strerror or str(error)
    problems = [f"the event log {path} cannot be written: {why}; no event is logged"] if why else []
    try:
        lost = os.stat(LOST)
        last = timestamp(lost.st_mtime_ns)
        told = f"{path} did not take {lost.st_size} of the events since the node was booted, the last at {last}"
        return ([*problems, told], []) if lost.st_mtime >= os.stat(path).st_mtime else (problems, [told])
    except OSError:
        return problems, []


def _not_a_log(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "it is a directory" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
    return "" if status.st_uid in (0, os.geteuid()) else f"it belongs to the user {status.st_uid}, not to root"


def out_of_date(
    engine: AnyEngine, now: object, record: Record, part: OwnerRecord, handlers: list[Handler]
) -> tuple[list[str], list[str]]:
    """Returns what `node install` with the same options would correct, and what does not run; and newer settings.

    `handlers`: as they are in force.
    """
    in_force = policy(seeded=False)
    wanted = services.is_wanted(part.notes)
    front = "" if services.why_cold(wanted, front_in_use()) else front_in_use()
    adapters = tuple(part.adapters)
    choice = Choice(
        adapters,
        part.runtime_class,
        path_in_use(),
        in_force,
        plugin_is_ours(part),
        wanted,
        front,
        part.notes.get(METRICS),
    )
    rewiring = planned(engine, record, choice, now)
    # A user's edit of an engine's file changes only its backup, which the next install writes: nothing is out of date.
    paths = [path for path, _ in rewiring.differences() if not path.startswith(f"{journal.DIRECTORY}/")]
    restart = f", which {engine.verb}s {engine.title}" if paths and rewiring.restarts() else ""
    run = f"run `reassert node install`{restart}"
    found, newer = [], []
    # Without its dispatcher a handler starts nothing.
    other = [path for path in paths if path.startswith(f"{dispatchers.DIRECTORY}/") and rewiring.disk.at(path)]
    calls = rewiring.references_differ() or other
    unwired = [each.name for each in handlers if calls and _lacks_all(each, part)]
    if unwired:
        found.append(f"{engine.name}: NOT WIRED, containers of {', '.join(unwired)} start without reassert: {run}")
    elif paths and (NRI in part.adapters or any(map(rewiring.was_changed, paths))):
        found.append(f"{engine.name}: {', '.join(paths)} out of date: {run}")
    elif paths:
        newer.append(f"protected, and newer settings are available for {engine.name} ({', '.join(paths)}): {run}")
    missing = [path for path in (choice.program, front) if path and not os.access(path, os.X_OK)]
    told = "is missing, so no container starts: run `reassert node install`"
    found += [f"{engine.name}: {path} {told}" for path in missing]
    found += [f"{engine.name}: {in_force.warning}"] if in_force.warning else []
    found += [f"{engine.name}: {unit} does not run" for unit in part.units if not systemd.is_active(unit)]
    if not engine.running():
        found.append(f"{engine.name}: {engine.title} does not run")
    return found, newer


def _lacks_all(handler: Handler, part: OwnerRecord) -> bool:
    """Whether a handler that is to be wired calls its runtime without reassert."""
    in_scope = part.runtime_class in (None, handler.name)
    return in_scope and bool(handler.runtime) and not {RUNTIME, HOOK, NRI} & {*handler.wired}


def plugin_is_ours(part: OwnerRecord) -> bool:
    """Whether the NRI plugin, if it is wired, runs as a systemd service of this node."""
    return bool(part.notes.get(PLUGIN_IS_OURS, True))


def preexisting(engine: AnyEngine, now: object, adapters: list[str], runtime_class: str | None) -> list[str]:
    """Returns warnings about pods and containers that were created before the install. With NRI there are none."""
    if RUNTIME not in adapters or NRI in adapters or runtime_class is not None:
        return []
    try:
        in_force: Policy = policy()
        return engine.preexisting(now, in_force, HOOK in adapters and in_force.mode != AUDIT)
    except ReassertError as error:
        return [f"pods and containers from before the install cannot be listed: {error}"]


def shown(changes: list[Change]) -> str:
    """Returns the changes in text: a diff for each text file, one line for anything else."""
    lines = [line for path, state in changes for line in _diff(path, look(path), state)]
    return "\n".join([printable(line, "\t") for line in lines])


def _diff(path: str, before: State | None, after: State | None) -> list[str]:
    kinds = {state.kind for state in (before, after) if state}
    if TREE in kinds:
        # The name of a program's directory means nothing to people.
        what = f"the program in {os.path.dirname(path)}"
        return [f"{what}: reassert {__version__}" if after else f"{what}: removed"]
    if LINK in kinds:
        return [f"{path} -> {after.content.decode()}" if after else f"{path}: removed"]
    if after is None:
        return [f"{path}: removed"]
    import difflib

    old = (before.content if before else b"").decode(errors="replace").splitlines()
    new = after.content.decode(errors="replace").splitlines()
    if before and old == new:
        return [f"{path}: mode {before.mode:04o} -> {after.mode:04o}"]
    name = path if before else "/dev/null"
    return list(difflib.unified_diff(old, new, name, path, n=2, lineterm=""))


def as_table(found: Status) -> str:
    """Returns node, policy and state, a table with one line per handler, then the agent, the problems and hints."""
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
        for engine, handler in found.rows
    ]
    remarks = [
        *([found.agent.as_text()] if found.agent else []),
        *(f"! {problem}" for problem in found.problems),
        *(f"Hint: {hint}" for hint in found.hints),
    ]
    rows = table(cells, ["ENGINE", "HANDLER", "RUNTIME", "WIRED", "STARTS", "EXECS", ""])
    about, line = found.about(), "none"
    if policy := about["policy"]:
        rules = f"rules: {policy['rules']['enforced']} enforced, {policy['rules']['tried']} tried"
        since = f", since {policy['since']}" if policy["since"] else ""
        line = f"{policy['path']}, sha256 {policy['sha256']}, {policy['mode']}, {rules}{since}"
    head = [
        f"reassert   {about['version']} on {about['node']}, {about['time']}",
        f"policy     {line}",
        f"state      {found.state()}",
    ]
    return "\n".join([*map(printable, head), "", rows, *map(printable, remarks)])


def as_json(found: Status) -> str:
    """Returns the content of `as_table` as JSON."""
    engines: dict[str, Any] = {}
    for engine, handler in found.rows:
        entry = engines.setdefault(engine.name, {"title": engine.title, "running": engine.running(), "handlers": []})
        entry["adapters"] = found.record.parts.get(engine.name, OwnerRecord()).adapters
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
    about = found.agent.as_dict() if found.agent else None
    state = {"state": found.state(), "problems": found.problems, "remarks": found.remarks, "hints": found.hints}
    return json.dumps({**found.about(), **state, "engines": engines, "agent": about}, indent=2)


def cdi_support(lack: str, kubelet_root: str) -> tuple[list[str], list[str]]:
    """Returns problems and hints of an engine that gives no container CDI devices.

    `lack`: why the engine gives containers no CDI devices, with the remedy; "" if it does. It is a problem if kubelet
    has claims on this node.
    """
    if not lack:
        return [], []
    path = Path(kubelet_root, "dra_manager_state")
    try:
        has_claims = _CLAIM in path.read_bytes()
    except OSError:
        return [], []  # kubelet knows no claims: it is older, or runs elsewhere
    said = f"resource claims (DRA) do nothing on this node, their containers start without the devices: {lack}"
    return ([said], []) if has_claims else ([], [said])
