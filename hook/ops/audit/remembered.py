"""What is known of running containers now: what is remembered, and a look at those that started since.

`status` asks for it each time, and mostly none has started: all that judges containers is loaded when one has.
"""

from __future__ import annotations

from dataclasses import replace

from hook.core.policy.store import SOURCE, STORE
from hook.inside.traces import marks
from hook.node.engines.facts import TRACES
from hook.node.kept import Audited, Container

PATIENCE = 3.0
"""Seconds for a container: reassert-status.service has four minutes for all, also for a hundred that hang."""

MOST = 50
"""How many containers that started since `status` looks at: the newest."""


def now(last: Audited, policy: str, store: str = STORE) -> Audited:
    """What is known of running containers now; nothing is kept. Raises ReassertError, OSError.

    `policy`: the sha256 of the one in force; what was seen under another one does not count.
    """
    there = marks(TRACES)
    if last.policy != policy:
        last = Audited(policy=policy)
    directories = new(last, there)[:MOST]
    if not directories:
        return last if there.keys() == last.marks.keys() else joined(last, {}, there, [])
    from hook.inside.containers import of_directories
    from hook.ops.audit.audit import audit, read_round

    found = audit(read_round(SOURCE, store), of_directories(directories, TRACES), PATIENCE)
    return joined(last, found.as_kept(), there, directories)


def unseen(known: Audited) -> int:
    """How many containers started since, and were not looked at."""
    return len(new(known, marks(TRACES)))


def new(last: Audited, there: dict[str, str]) -> list[str]:
    """The runtimes' directories of containers that were not looked at, the newest first."""
    found = [directory for directory, mark in there.items() if last.marks.get(directory) != mark]
    return sorted(found, key=lambda directory: int(there[directory].rpartition("-")[2]), reverse=True)


def joined(last: Audited, found: dict[str, Container], there: dict[str, str], looked: list[str]) -> Audited:
    """What is known after a look at some directories: containers whose directory is gone have ended."""
    containers = {
        key: each
        for key, each in last.containers.items()
        if not each.directory or (each.directory in there and each.directory not in looked)
    }
    known = {directory: mark for directory, mark in last.marks.items() if directory in there}
    seen = {directory: there[directory] for directory in looked}
    return replace(last, containers={**containers, **found}, marks={**known, **seen})
