"""How many running containers differ from the policy, for the metrics: `node status --record` compares them.

The timer of that command runs each minute. Every fifth time it audits, whatever the adapters. A container that differs
gets one event.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from hook.core import events
from hook.core.base.errors import ReassertError
from hook.core.base.system import make_directory, replace_file, timestamp, trusted
from hook.core.policy.model import AUDIT
from hook.core.policy.store import SOURCE, STORE
from hook.ops.audit.audit import DRIFTED, UNKNOWN, ContainerReport, Round, audit, read_round
from hook.ops.audit.inventory import running

EVENT = "container.drifted"

FILE = "drift.json"
EVERY = 300
"""Seconds between two looks: 100 containers take about a second of CPU time."""

PATIENCE = 3.0
"""Seconds for a container: reassert-status.service has four minutes for all, also for a hundred that hang."""

SECONDS = 3 * EVERY
"""The age from which a look is too old to be a sample."""


class Look(NamedTuple):
    """The last look: its time, how many containers differ, how many were not seen, and the ids of the former."""

    when: int = 0
    drifted: int = 0
    unknown: int = 0
    ids: tuple[str, ...] = ()

    def age(self) -> float:
        """Infinite for a time in the future: the clock was set back."""
        age = time.time() - self.when
        return age if age >= 0 else float("inf")


def record() -> None:
    """Audit all running containers, and keep how many differ, unless the last look is recent. Raises ReassertError."""
    last = _read(STORE)
    if last.age() < EVERY - 30:
        return
    found = audit(read_round(SOURCE, STORE), running(), PATIENCE)
    counts, drifted = found.counts(), [each for each in found.findings if each.state == DRIFTED]
    for each in drifted:
        if each.id not in last.ids and found.round.policy.mode != AUDIT:  # in Audit mode all containers differ
            _tell(found.round, each)
    make_directory(STORE, 0o700)
    look = Look(int(time.time()), counts[DRIFTED], counts[UNKNOWN], tuple(each.id for each in drifted))
    replace_file(f"{STORE}/{FILE}", json.dumps(look).encode())


def _tell(known: Round, found: ContainerReport) -> None:
    policy = known.policy
    names = {"namespace": found.namespace, "pod": found.pod, "container": found.title.rpartition("/")[2]}
    event: dict[str, object] = {
        "timestamp": timestamp(time.time_ns()),
        "adapter": "audit",
        "event": EVENT,
        "level": "warning",
        "id": found.id,
        "container": {key: name for key, name in names.items() if name},
        "mode": policy.mode,
        "policy": {"path": policy.path, "sha256": policy.fingerprint},
        "message": "; ".join(f"{each.message} ({each.why})" for each in found.differences[:3]),
        "differences": [asdict(each) for each in found.differences],
    }
    events.SETTINGS[:] = policy.event_log
    events.write(events.EVENTS, event)


def last_look(store: str) -> Look | None:
    """None if the last look is older than SECONDS."""
    look = _read(store)
    return look if look.age() <= SECONDS else None


def _read(store: str) -> Look:
    try:
        trusted(f"{store}/{FILE}")
        when, drifted, unknown, ids = json.loads(Path(store, FILE).read_bytes())
        return Look(int(when), int(drifted), int(unknown), tuple(map(str, ids)))
    except (OSError, ReassertError, ValueError, TypeError):
        return Look()
