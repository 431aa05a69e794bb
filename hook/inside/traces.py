"""Where the containers of a node leave traces, by which they are found without asking an engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import glob


@dataclass(frozen=True)
class Traces:
    """The traces of one engine's containers, as patterns of paths.

    Each engine has a row with them in hook.node.engines.facts.
    """

    states: tuple[str, ...]
    """Directories with a directory for each container of an OCI runtime that the engine calls."""

    bundles: tuple[str, ...]
    """Bundles of containerd's shims. `init.pid` in one has the number of the container's first process."""

    names: tuple[str, ...]
    """JSON files with an object, or a list of objects, that has the id and the name of a container."""


BY_HAND = Traces(states=("/run/runc", "/run/crun", "/run/youki", "/run/runsc"), bundles=(), names=())
"""Of runtimes that a person calls, and of engines that leave a runtime its own directory."""


def states(traces: Collection[Traces]) -> Iterator[str]:
    """Yields the directories that runtimes have for containers."""
    for pattern in dict.fromkeys(pattern for each in traces for pattern in each.states):
        for root in sorted(glob(pattern)):
            try:
                inside = os.listdir(root)
            except OSError:
                continue
            # runsc's record is a file, ID_sandbox:SANDBOX.state
            yield from (f"{root}/{name.partition('_sandbox:')[0]}" for name in inside if not name.endswith(".lock"))


def marks(traces: Collection[Traces]) -> dict[str, str]:
    """Returns the directories that runtimes have for containers, each with what is another one for another container.

    Nothing of a container is read, so this takes a few microseconds for each.
    """
    found: dict[str, str] = {}
    for directory in states(traces):
        with suppress(OSError):
            status = os.stat(directory)
            found[directory] = f"{status.st_ino}-{status.st_ctime_ns}"
    return found
