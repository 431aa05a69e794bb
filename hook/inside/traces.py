"""Where the containers of a node leave traces, by which they are found without asking an engine."""

from __future__ import annotations

from dataclasses import dataclass


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
