"""What a decision knows: the container, and what the node says about it."""

from __future__ import annotations

from typing import Protocol

from hook.core.container.allocation import Allocation
from hook.core.container.claims import Claim
from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.core.facts.exclusive import Devices


class Facts:
    """The node's data that the matching rules need, read before the decision."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        """The first line of each `valueFrom.file`, by path."""
        self.unreadable: dict[str, str] = {}
        """The error for each of these files that could not be read, by path."""
        self.absent_sources: set[str] = set()
        """The hostPaths that do not exist."""
        self.directories: set[str] = set()
        """The hostPaths that are directories."""
        self.without_place: dict[str, tuple[str, str, str]] = {}
        """Mounts that no runtime can make, by path: the rule, its read-only mount above, and the hostPath of that."""
        self.allocations: list[Allocation] = []
        """The device plugins' allocations to the container."""
        self.allocation_problem = ""
        """Why the allocations are unknown, or ""."""
        self.cdi_env: dict[str, list[str]] = {}
        """The values that CDI specs of the allocated devices set, by env name."""
        self.device_nodes: dict[str, dict[str, object] | None] = {}
        """OCI device objects without `path`, by host path; None for a directory."""
        self.claims: list[Claim] = []
        """The pod's resource claims that may be the container's."""
        self.inexact_claims = ""
        """Why the container may not have all devices of these claims, or ""."""
        self.claimed_env: dict[str, list[tuple[str, str]]] = {}
        """The values of env that CDI specs of the devices of claims set, by name, each with the claim."""
        self.shared: list[Allocation] = []
        """Allocations to pods whose devices the container may name (hook.core.facts.sharing)."""
        self.shared_devices: dict[str, dict[str, str]] = {}
        """By an env name, the devices that its value may name, each with the allocation."""
        self.devices: Devices | None = None
        """The devices that rules with `exclusive` name; None without such a rule."""

    def given(self) -> list[Allocation | Claim]:
        """What gave the container mounts and devices that are restored if they are missing."""
        return [*self.allocations, *[claim for claim in self.claims if claim.is_whole]]


class NodeAccess(Protocol):
    """How a decision reads files of the node, and asks its engine and kubelet: a part of hook.core.decide.Adapter."""

    @property
    def sockets(self) -> str:
        """The directory of the store, which names the engines' sockets; "": no engine is asked."""

    def read(self, path: str, limit: int) -> bytes:
        """A record of kubelet. Raises Undecided, OSError."""

    def ask(self, directory: str, method: str, asked_id: str, identity: Identity) -> dict[str, str] | None:
        """An answer of the engine or of kubelet; None without one in time."""


class Container:
    """A container before it starts: its identity, what it would start with, and the node's facts."""

    def __init__(self, identity: Identity, start: Start, facts: Facts | None = None) -> None:
        self.identity = identity
        self.start = start
        self.facts = facts or Facts()
