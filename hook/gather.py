"""Read the node's data that the matching rules need, before the decision. Part of the start path: builtins only."""

import posix

from hook.base.system import read_file
from hook.container.identity import Identity
from hook.policy.model import AUDIT, Match, Policy
from hook.reserve.env import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.container.allocation import Allocation
    from hook.container.claims import Claim
    from hook.exclusivefacts import Devices

_S_IFMT, _S_IFDIR = 0o170000, 0o040000


class Facts:
    """The node's data that the matching rules need, read before the decision.

    `files`: the first line of each `valueFrom.file`, by path. `unreadable`: the error for each one that could not be
    read. `absent_sources`: hostPaths that do not exist. `directories`: hostPaths that are directories. `allocations`:
    the device plugins' allocations to the container. `allocation_problem`: why they are unknown, or "". `cdi_env`: the
    values that CDI specs of the allocated devices set, by env name. `device_nodes`: OCI device objects without `path`,
    by host path; None for a directory. `claims`: the pod's resource claims, for any container of it. `claimed_env`: the
    values of env that CDI specs of their devices set, by name, each with the claim. `shared`: allocations to pods whose
    devices the container may name (hook.sharing). `devices`: for `exclusive` rules.
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
        self.claimed_env: dict[str, list[tuple[str, str]]] = {}
        self.shared: list[Allocation] = []
        self.devices: Devices | None = None


def gather(
    policy: Policy, identity: Identity, matches: "list[Match]", read: "Callable[[str, int], bytes]" = read_file
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `read`: reads kubelet's device checkpoint, and its record of resource claims.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if any(rule.uses_allocations() for rule in rules):
        from hook.allocated import gather_allocated

        gather_allocated(facts, policy, identity, rules, read)
    skipped: dict[str, str] = {}
    if policy.mode == AUDIT or any(rule.tried for rule in rules):
        from hook.remote import untouched

        skipped = untouched(rules, facts)
    for rule in rules:
        for env in rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files | skipped:
                from hook.valuefile import read_value

                read_value(facts, env.text)
        for mount in rule.mounts:
            if mount.source and mount.source not in skipped:
                check_source(facts, mount.source)
    return facts


def check_source(facts: Facts, source: str) -> None:
    """Note whether a hostPath is a directory, or does not exist."""
    try:
        if posix.stat(source).st_mode & _S_IFMT == _S_IFDIR:
            facts.directories.add(source)
    except OSError:
        facts.absent_sources.add(source)
