"""What is remembered of running containers: how each differs from the policy in force.

The timer of `status --record` runs each minute: it looks at the containers that started since, and every fifth time at
all. A container that differs gets one event. `status` looks at those that started since, too, and keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, replace

from hook.core import events, report
from hook.core.policy.model import AUDIT
from hook.core.policy.store import SOURCE, STORE
from hook.inside.containers import Running, from_state, marks, names_of, running
from hook.node import kept
from hook.node.engines.facts import TRACES
from hook.node.kept import Audited, Container, Kept
from hook.ops.audit.audit import DRIFTED, Audit, ContainerReport, Round, audit, read_round
from hook.resident import oplog

EVERY = 300
"""Seconds between two looks at all containers: 100 take about a second of CPU time."""

PATIENCE = 3.0
"""Seconds for a container: reassert-status.service has four minutes for all, also for a hundred that hang."""

MOST = 50
"""How many containers that started since `status` looks at: the newest."""


def record(store: str = STORE) -> None:
    """Look at the containers that started since, or at all, and log those that differ. Raises ReassertError."""
    known, there = read_round(SOURCE, store), marks(TRACES)
    last = kept.read(store).audited
    if kept.age(last.when) >= EVERY - 30 or last.policy != known.policy.fingerprint:
        found = audit(known, running(TRACES), PATIENCE)
        tell(found, last.told)
        after = _whole(found, there)
    else:
        directories = list(dict.fromkeys([*_new(last, there), *_untold(last, there)]))
        found = audit(known, [*_started(directories)], PATIENCE)
        after = _joined(last, found, there, directories)
    after.told = [key for key, each in after.containers.items() if each.state == DRIFTED]
    for each in found.findings:
        told = each.id in last.told or known.policy.mode == AUDIT  # in Audit mode all containers differ
        if each.state == DRIFTED and not told:
            _tell(known, each)

    def change(now: Kept) -> None:
        now.audited = after

    kept.change(change, store)


def keep(found: Audit, there: dict[str, str], store: str = STORE) -> Audited:
    """Keep a look at all containers, and return it. `there`: the marks before it.

    A directory that cannot be written is no error.
    """
    after = _whole(found, there)

    def change(now: Kept) -> None:
        now.audited = replace(after, told=now.audited.told)

    with suppress(OSError):
        kept.change(change, store)
    return after


def now(last: Audited, policy: str, store: str = STORE) -> Audited:
    """What is known of running containers now: of those that started since, by a look. Raises ReassertError, OSError.

    `policy`: the sha256 of the one in force; what was seen under another one does not count.
    """
    there = marks(TRACES)
    if last.policy != policy:
        last = Audited(policy=policy)
    directories = _new(last, there)[:MOST]
    if not directories and there.keys() == last.marks.keys():
        return last
    return _joined(last, audit(read_round(SOURCE, store), [*_started(directories)], PATIENCE), there, directories)


def unseen(known: Audited) -> int:
    """How many containers started since, and were not looked at."""
    return len(_new(known, marks(TRACES)))


def _new(last: Audited, there: dict[str, str]) -> list[str]:
    """The runtimes' directories of containers that were not looked at, the newest first."""
    new = [directory for directory, mark in there.items() if last.marks.get(directory) != mark]
    return sorted(new, key=lambda directory: int(there[directory].rpartition("-")[2]), reverse=True)


def _untold(last: Audited, there: dict[str, str]) -> list[str]:
    """Those of containers that `audit` found to differ, and of which the event log does not know."""
    differ = {key: each.directory for key, each in last.containers.items() if each.state == DRIFTED}
    return [directory for key, directory in differ.items() if key not in last.told and directory in there]


def _started(directories: list[str]) -> Iterator[Running]:
    """The containers of some of a runtime's directories that run."""
    names = names_of(TRACES) if directories else {}
    for directory in directories:
        if container := from_state(directory, names):
            yield container


def _whole(found: Audit, there: dict[str, str]) -> Audited:
    """What a look at all containers remembers."""
    return Audited(int(time.time()), found.round.policy.fingerprint, _containers(found), there)


def _joined(last: Audited, found: Audit, there: dict[str, str], looked: list[str]) -> Audited:
    """What is known after a look at some directories: containers whose directory is gone have ended."""
    containers = {
        key: each
        for key, each in last.containers.items()
        if not each.directory or (each.directory in there and each.directory not in looked)
    }
    known = {directory: mark for directory, mark in last.marks.items() if directory in there}
    seen = {directory: there[directory] for directory in looked}
    return replace(last, containers={**containers, **_containers(found)}, marks={**known, **seen})


def _containers(found: Audit) -> dict[str, Container]:
    return {
        each.id: Container(
            each.state, found.directories.get(each.id, ""), each.engine, each.title, each.severity(), each.cause()
        )
        for each in found.findings
    }


def tell(found: Audit, known: Collection[str] = ()) -> None:
    """Says in the operation log what an audit has seen: how many containers are how, and which differ. No env value.

    `known`: ids of containers of which an earlier audit has said so. In Audit mode all containers differ.
    """
    counts = {state: count for state, count in found.counts().items() if count}
    oplog.info("audit.ended", notice=True, containers=len(found.findings), states=counts, mode=found.round.policy.mode)
    for each in found.findings:
        if each.state == DRIFTED and each.id not in known and found.round.policy.mode != AUDIT:
            who = {"id": each.id, "engine": each.engine, "namespace": each.namespace, "pod": each.pod}
            rules = sorted({difference.rule for difference in each.differences if difference.rule})
            oplog.warning("container.differs", **who, container=each.title.rpartition("/")[2], rules=rules or None)


def _tell(known: Round, found: ContainerReport) -> None:
    policy = known.policy
    names = {"namespace": found.namespace, "pod": found.pod, "container": found.title.rpartition("/")[2]}
    event = report.of_drift(policy, found.id, names, [asdict(each) for each in found.differences])
    events.write(events.EVENTS, event, policy.event_log)
