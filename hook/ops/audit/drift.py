"""How many running containers differ from the policy, for the metrics: `node status --record` compares them.

The timer of that command runs each minute. Every fifth time it audits, whatever the adapters.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from hook.core.base.errors import ReassertError
from hook.core.base.system import make_directory, replace_file, trusted
from hook.core.policy.store import SOURCE, STORE
from hook.ops.audit.audit import DRIFTED, UNKNOWN, audit, read_round
from hook.ops.audit.inventory import running

FILE = "drift.json"
EVERY = 300
"""Seconds between two looks: 100 containers take about a second of CPU time."""

SECONDS = 3 * EVERY
"""The age from which a look is too old to be a sample."""


def record() -> None:
    """Audit all running containers, and keep how many differ; not if the last look is new. Raises ReassertError."""
    if _age(_read(STORE)[0]) < EVERY - 30:
        return
    counts = audit(read_round(SOURCE, STORE), running()).counts()
    make_directory(STORE, 0o700)
    found = [int(time.time()), counts[DRIFTED], counts[UNKNOWN]]
    replace_file(f"{STORE}/{FILE}", json.dumps(found).encode())


def last_look(store: str) -> tuple[int, int] | None:
    """How many differ, and how many could not be looked at. None if nobody looked in the last SECONDS."""
    when, drifted, unknown = _read(store)
    return (drifted, unknown) if _age(when) <= SECONDS else None


def _age(when: int) -> float:
    """Infinite for a time in the future: the clock was set back."""
    age = time.time() - when
    return age if age >= 0 else float("inf")


def _read(store: str) -> tuple[int, int, int]:
    try:
        trusted(f"{store}/{FILE}")
        when, drifted, unknown = json.loads(Path(store, FILE).read_bytes())
        return int(when), int(drifted), int(unknown)
    except (OSError, ReassertError, ValueError, TypeError):
        return 0, 0, 0
