"""The files that `uninstall` leaves on a node, and those of them that `--purge` removes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from hook.compile import stored
from hook.core import events
from hook.core.base.concealed import KEY
from hook.core.policy import store
from hook.node.change import tree
from hook.node.change.record import Record

_CONFIGURATION = os.path.dirname(store.SOURCE)

_STATE = {
    "node.json": "what status, verify and the metrics remember",
    "unchanged-starts": "starts that an earlier version has counted",
    KEY: "the key of the hashes in events",
}
"""Other files in the directory of compiled policies (hook.ops.metrics)."""


@dataclass(frozen=True)
class Leftover:
    """A file that stays after uninstall. `what`: its description. `purged`: whether `--purge` removes it."""

    path: str
    what: str
    purged: bool


def leftovers(record: Record) -> list[Leftover]:
    """Returns every file of reassert, and in its directories, on a node that is not wired."""
    found = [Leftover(store.SOURCE, "the node policy", True)] if os.path.lexists(store.SOURCE) else []
    found += [
        Leftover(path, "not written by reassert", False)
        for path in sorted(os.path.join(at, name) for at, _, names in os.walk(_CONFIGURATION) for name in names)
        if path != store.SOURCE and record.owned(path) is None
    ]
    found += [
        Leftover(path, _STATE.get(os.path.basename(path), "a compiled policy"), True)
        for pattern in ("*.json", "*.text", "unchanged-starts*", KEY)
        for path in sorted(glob(f"{store.STORE}/{pattern}"))
    ]
    trust = "a trust store, which running containers may have mounted; remove it when none has"
    found += [Leftover(path, trust, False) for path in sorted(glob(f"{store.STORE}/trust/*"))]
    found += [Leftover(path, "the event log", True) for path in sorted(glob(f"{events.EVENTS}*"))]
    for owner, part in sorted(record.parts.items()):
        needed = f"needed by running containers or commands of {owner}; the next uninstall removes it"
        found += [Leftover(path, needed, False) for path in sorted(part.files)]
    if record.parts:
        found.append(Leftover(record.path, "the record of the files above", False))
    for path in sorted(path for path in glob(f"{tree.PLACE}/*") if record.owned(path) is None):
        ours = tree.CONTENT.fullmatch(os.path.basename(path))
        what = "a program that still runs; the next uninstall removes it" if ours else "not written by reassert"
        found.append(Leftover(path, what, False))
    return found


def purge() -> None:
    """Removes the policy, its compiled forms, the metrics' state, the event log and marks of probes. Raises OSError."""
    stored.clear()
    for path in (store.SOURCE, *glob(f"{events.EVENTS}*"), *glob(f"{events.PROBES}/*")):
        Path(path).unlink(missing_ok=True)
    for directory in (
        _CONFIGURATION,
        os.path.dirname(events.EVENTS),
        events.PROBES,
        os.path.dirname(events.PROBES),
    ):
        for below in sorted((path for path, _, _ in os.walk(directory)), reverse=True):
            with suppress(OSError):  # not empty: it has files that reassert did not write
                os.rmdir(below)
