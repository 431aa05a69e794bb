"""What is remembered of running containers: how each differs from the policy in force.

The timer of `status --record` runs each minute: it looks at the containers that started since, and every fifth time at
all. A container that differs gets one event.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, replace

from hook.core import events, report
from hook.core.policy.model import AUDIT
from hook.core.policy.store import SOURCE, STORE
from hook.inside.containers import of_directories, running
from hook.inside.traces import marks
from hook.node import kept
from hook.node.engines.facts import TRACES
from hook.node.kept import DRIFTED, Audited, Kept
from hook.ops.audit.audit import Audit, ContainerReport, Round, audit, read_round
from hook.ops.audit.remembered import PATIENCE, joined, new
from hook.resident import oplog

EVERY = 300
"""Seconds between two looks at all containers: 100 take about a second of CPU time."""


def record(store: str = STORE) -> None:
    """Look at the containers that started since, or at all, and log those that differ. Raises ReassertError."""
    known, there = read_round(SOURCE, store), marks(TRACES)
    last = kept.read(store).audited
    if kept.age(last.when) >= EVERY - 30 or last.policy != known.policy.fingerprint:
        found = audit(known, running(TRACES), PATIENCE)
        tell(found, last.told)
        after = _whole(found, there)
    else:
        directories = list(dict.fromkeys([*new(last, there), *_untold(last, there)]))
        found = audit(known, of_directories(directories, TRACES), PATIENCE)
        after = joined(last, found.as_kept(), there, directories)
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


def _untold(last: Audited, there: dict[str, str]) -> list[str]:
    """Those of containers that `audit` found to differ, and of which the event log does not know."""
    differ = {key: each.directory for key, each in last.containers.items() if each.state == DRIFTED}
    return [directory for key, directory in differ.items() if key not in last.told and directory in there]


def _whole(found: Audit, there: dict[str, str]) -> Audited:
    """What a look at all containers remembers."""
    return Audited(int(time.time()), found.round.policy.fingerprint, found.as_kept(), there)


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
