"""`status --record`, which a timer runs each minute: keeps what is wired, and logs each difference to the last look.

An install keeps what it wired, so that an unwiring within the first minute is seen. A handler that an engine gets later
counts as not wired, unless an administrator left it out. A package replaces the program without `install`: this
notices it.
"""

from __future__ import annotations

import time

from hook.core.base.finding import ERROR, WARNING, Finding
from hook.core.policy.store import STORE
from hook.node import kept, services, systemd, wired
from hook.node.accepted import HANDLER
from hook.node.change import journal
from hook.node.change.record import Record
from hook.node.engines import registry
from hook.node.kept import LEFT_OUT, Answer, Gap, Kept, Wiring
from hook.ops.health import checks
from hook.ops.health.node import look
from hook.resident import oplog


def record(installed: Record, store: str = STORE) -> None:
    """Look at the node, keep what was seen, and log each change. Raises OSError.

    Nothing is kept of a look beside an install or uninstall: between its writes and the restart the engine has not
    loaded what the files say.
    """
    before = kept.read(store)
    is_changing = journal.is_locked()
    seen, findings, answers = ({}, None, before.answers) if is_changing else _look(installed)
    is_kept = False

    def change(now: Kept) -> None:
        nonlocal is_kept
        if now.wiring == before.wiring:
            now.wiring, is_kept = after, True
            now.findings = now.findings if findings is None else findings
            now.answers = answers

    after = _after(before.wiring, installed, seen)
    if not is_changing and not journal.is_locked():
        kept.change(change, store)
    if not is_kept:
        oplog.info("wiring.looked", notice=True, skipped="an install or uninstall is in progress")
        return
    _tell(before.wiring, after, installed)
    _tell_problems(before.findings, before.findings if findings is None else findings)


def _look(
    installed: Record,
) -> tuple[dict[str, dict[str, int] | None], list[Finding] | None, dict[str, Answer]]:
    """Which handlers of each engine are wired (hook.node.wired.look), what is wrong, and what engines' programs said.

    What is wrong is None where systemd does not answer.
    """
    with systemd.remembering([*services.UNITS, *services.TIMERS, services.PLUGIN, *registry.units()]) as told:
        node = look(installed)
        seen = {
            state.name: wired.values(state.loaded, state.part, node.accepted(state))
            for state in node.wired
            if told and state.engine.running()
        }
        found = [each for each in checks.all_of(node) if each.severity in (ERROR, WARNING)]
    return seen, found if told else None, node.kept.answers


def _after(before: Wiring, installed: Record, seen: dict[str, dict[str, int] | None]) -> Wiring:
    """What is known after a look. An engine that did not answer is as before."""
    now = int(time.time())
    after = Wiring(now, gaps=[*before.gaps], program=wired.program(), since=before.since)
    for engine in installed.engines():
        was, found = before.handlers.get(engine, {}), seen.get(engine)
        known = before.unknown.get(engine, before.when)
        if found is None:
            after.unknown[engine] = known
        after.handlers[engine] = was if found is None else found
        lacking = {handler for handler, value in after.handlers[engine].items() if not value}
        after.gaps = [
            gap._replace(until=now) if gap.engine == engine and not gap.until and gap.handler not in lacking else gap
            for gap in after.gaps
        ]
        new = [handler for handler, value in _changed(was, after.handlers[engine]) if not value]
        after.gaps += [Gap(engine, handler, known, 0) for handler in new]
    return after


def _changed(was: dict[str, int], now: dict[str, int]) -> list[tuple[str, int]]:
    """The handlers that are wired, or not wired, unlike before. A new one is one if it is not wired."""
    return [
        (handler, value) for handler, value in now.items() if value != LEFT_OUT and value != (was.get(handler, 1) != 0)
    ]


def _tell(before: Wiring, after: Wiring, installed: Record) -> None:
    """Logs each difference between two looks."""
    for engine, handlers in after.handlers.items():
        was = before.handlers.get(engine, {})
        for handler, value in _changed(was, handlers):
            lost = "is not wired any more" if handler in was else "is new and not wired"
            says = "is wired again" if value else f"{lost}: its containers start without reassert"
            event = ("handler.wired", "info") if value else ("handler.unwired", "error")
            wired.log(*event, f"handler {handler} of {engine} {says}", engine=engine, handler=handler)
        if before.program and before.program[1] != after.program[1]:
            wired.log_change("upgrade", engine, installed.parts[engine].adapters, before.program[0])
    lacking = [
        f"{engine}/{name}" for engine, found in after.handlers.items() for name, value in found.items() if not value
    ]
    (oplog.warning if lacking else oplog.info)(
        "wiring.looked",
        notice=not lacking,
        engines=installed.engines(),
        unwired=lacking or None,
        unknown=sorted(after.unknown) or None,
    )


def _tell_problems(before: list[Finding], after: list[Finding]) -> None:
    """Logs each error that is new, and each that is gone. Handlers and containers have events of their own."""
    was, now = (
        {(each.engine, each.part): each for each in found if each.severity == ERROR and not _has_events(each)}
        for found in (before, after)
    )
    for key, each in now.items():
        if key not in was:
            more = {"engine": each.engine or None, "part": each.part, "remedy": each.remedy or None}
            wired.log("node.problem", "error", each.text, **more)
    for key, each in was.items():
        if key not in now:
            wired.log("node.solved", "info", f"no more: {each.text}", engine=each.engine or None, part=each.part)


def _has_events(finding: Finding) -> bool:
    return finding.part == checks.CONTAINERS or finding.part.startswith(HANDLER)
