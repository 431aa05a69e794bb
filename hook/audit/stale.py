"""Containers that still have the old file of a hostPath: a bind mount of a file keeps it when the node replaces it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from hook.audit.inventory import Running, running
from hook.audit.process import Gone, Process
from hook.base.errors import ReassertError
from hook.linux.running import DELETED, Node
from hook.linux.walk import mount_table
from hook.policy.model import Policy


@dataclass(frozen=True)
class Stale:
    """A container, and the hostPath that it has an old file of."""

    container: Running
    source: str

    def __str__(self) -> str:
        name = f"{self.container.title} ({self.container.id[:12]})"
        return f"container {name} still has the file that {self.source} was before it was replaced: restart it"


def stale(policy: Policy, containers: list[Running] | None = None) -> list[Stale]:
    """The containers that have an old file of a policy's hostPath, by their mountinfo; nothing else is looked at.

    Empty at once for a policy that mounts directories only. Raises ReassertError, OSError.
    """
    sources = {mount.source for rule in policy.candidates(None) for mount in rule.mounts if _is_file(mount.source)}
    found: list[Stale] = []
    if not sources:
        return found
    node = Node()
    for container in running() if containers is None else containers:
        try:
            if not container.pid:
                continue
            with Process(container.pid, container.started) as process:
                rows = [row for row in mount_table(container.pid).values() if row.root.endswith(DELETED)]
                process.check()
        except (Gone, OSError):
            continue
        found += [
            Stale(container, source) for source in sorted(sources) if any(node.is_stale(row, source) for row in rows)
        ]
    return found


def hints(policy: Policy) -> list[str]:
    """The same as lines for `node status`."""
    try:
        return [str(each) for each in stale(policy)]
    except (ReassertError, OSError) as error:
        return [f"containers with old files cannot be looked for: {error}"]


def _is_file(source: str) -> bool:
    try:
        return bool(source) and stat.S_ISREG(os.stat(source).st_mode)
    except OSError:
        return False
