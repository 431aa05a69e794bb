"""Containers that still have the old file of a hostPath: a bind mount keeps it when the node replaces it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hook.core.base.errors import ReassertError
from hook.core.base.mountinfo import mount_table
from hook.core.policy.model import Policy
from hook.inside.containers import Running, running
from hook.inside.process import Process
from hook.inside.running import Node
from hook.node.engines.facts import TRACES
from hook.ops.audit.judge import has_mount


@dataclass(frozen=True)
class Stale:
    """A container, and the hostPath that it has an old file of."""

    container: Running
    source: str


def stale(policy: Policy, containers: list[Running] | None = None) -> list[Stale]:
    """The containers that have an old file or directory of a policy's hostPath, by their mountinfo.

    Nothing else is looked at. Empty at once for a policy without mounts. Raises ReassertError, OSError.
    """
    mounts = [] if policy.missing else [m for rule in policy.candidates(None) for m in rule.mounts if m.source]
    wanted = sorted({(mount.source, mount.destination) for mount in mounts})
    if not wanted:
        return []
    node = Node()
    found: list[Stale] = []
    for container in running(TRACES) if containers is None else containers:
        with suppress(ReassertError, OSError):  # it has ended
            with Process(container.pid, container.started) as process:
                rows = list(mount_table(container.pid).values())
                process.check()
            for source, destination in wanted:
                here = [row for row in rows if row.point == destination]
                if len(here) == 1 and node.is_stale(
                    here[0], source, partial(_has_mount, container, destination, source)
                ):
                    found.append(Stale(container, source))
    return found


def _has_mount(container: Running, destination: str, source: str) -> bool:
    """Whether config.json has the mount; False if it cannot be read."""
    with suppress(ReassertError, OSError):
        return has_mount(container.spec(), destination, source)
    return False
