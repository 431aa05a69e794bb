"""Data classes of the container that a decision is about. Part of the start path: builtins only."""

from hook.container.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.container.allocation import Allocation
    from hook.container.claims import Claim
    from hook.exclusivefacts import Devices
    from hook.reserve.outcome import Target


class Facts:
    """The node's data that the matching rules need, read before the decision (`hook.gather.gather`).

    `files`: the first line of each `valueFrom.file`, by path. `unreadable`: the error for each one that could not be
    read. `absent_sources`: hostPaths that do not exist. `directories`: hostPaths that are directories. `allocations`:
    the device plugins' allocations to the container. `allocation_problem`: why they are unknown, or "". `cdi_env`: the
    values that CDI specs of the allocated devices set, by env name. `device_nodes`: OCI device objects without `path`,
    by host path; None for a directory.

    `claims`: the pod's resource claims, which may be for another container of it. `claimed_env`: by name, the values
    that CDI specs of the claims' devices set, with the claim. `devices`: what rules with `exclusive` need, None without
    one.
    """

    __slots__ = (
        "absent_sources",
        "allocation_problem",
        "allocations",
        "cdi_env",
        "claimed_env",
        "claims",
        "device_nodes",
        "devices",
        "directories",
        "files",
        "unreadable",
    )

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.absent_sources: set[str] = set()
        self.directories: set[str] = set()
        self.allocations: list[Allocation] = []
        self.allocation_problem = ""
        self.cdi_env: dict[str, list[str]] = {}
        self.device_nodes: dict[str, dict[str, object] | None] = {}
        self.claims: list[Claim] = []
        self.claimed_env: dict[str, list[tuple[str, str]]] = {}
        self.devices: Devices | None = None


class Container:
    """A container before it starts: its identity, its OCI objects as the engine wrote them, and the node's facts.

    `env`: entries as in OCI process.env. `mounts`, `devices`, `device_rules`: objects as in OCI mounts, linux.devices
    and linux.resources.devices. `annotations`: by key.
    """

    __slots__ = ("annotations", "device_rules", "devices", "env", "facts", "identity", "mounts")

    def __init__(
        self,
        identity: Identity,
        env: "list[str]",
        mounts: "list[dict[str, object]]",
        facts: "Facts | None" = None,
        annotations: "dict[str, str] | None" = None,
        devices: "list[dict[str, object]] | None" = None,
        device_rules: "list[dict[str, object]] | None" = None,
    ) -> None:
        self.identity = identity
        self.env = env
        self.mounts = mounts
        self.facts = facts or Facts()
        self.annotations = annotations or {}
        self.devices = devices or []
        self.device_rules = device_rules or []

    @classmethod
    def of(cls, identity: Identity, target: "Target", facts: Facts) -> "Container":
        """The container that an adapter read."""
        return cls(identity, target.env, target.mounts, facts, target.annotations, target.devices, target.device_rules)
