"""What a decision knows: the container, and what the node says about it. Part of the start path: builtins only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.allocation import Allocation
    from hook.core.container.claims import Claim
    from hook.core.container.identity import Identity
    from hook.core.container.start import Start
    from hook.core.facts.exclusive import Devices


class Facts:
    """The node's data that the matching rules need, read before the decision.

    `files`: the first line of each `valueFrom.file`, by path. `unreadable`: the error for each one that could not be
    read. `absent_sources`: hostPaths that do not exist. `directories`: hostPaths that are directories. `allocations`:
    the device plugins' allocations to the container. `allocation_problem`: why they are unknown, or "". `cdi_env`: the
    values that CDI specs of the allocated devices set, by env name. `device_nodes`: OCI device objects without `path`,
    by host path; None for a directory. `claims`: the pod's resource claims that may be the container's.
    `inexact_claims`: why it may not have all of their devices, or "". `claimed_env`: the values of env that CDI specs
    of their devices set, by name, each with the claim. `shared`: allocations to pods whose
    devices the container may name (hook.core.facts.sharing). `devices`: for `exclusive` rules.
    """

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
        self.inexact_claims = ""
        self.claimed_env: dict[str, list[tuple[str, str]]] = {}
        self.shared: list[Allocation] = []
        self.devices: Devices | None = None

    def given(self) -> "list[Allocation | Claim]":
        """What gave the container mounts and devices that are restored if they are missing."""
        return [*self.allocations, *[claim for claim in self.claims if claim.is_whole]]


class Container:
    """A container before it starts: its identity, what it would start with, and the node's facts."""

    def __init__(self, identity: "Identity", start: "Start", facts: "Facts | None" = None) -> None:
        self.identity = identity
        self.start = start
        self.facts = facts or Facts()
