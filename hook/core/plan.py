"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O. Part of the start path: builtins only."""

from hook.core.container.identity import Identity
from hook.core.policy.model import AUDIT, FAIL, Match, Policy, excluded, select
from hook.core.reserve import OF_HOOKS, STEERING, Outcome, Reason, env, mounts
from hook.core.reserve.env import Reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from hook.core.container.allocation import Allocation
    from hook.core.container.claims import Claim
    from hook.core.facts.exclusive import Devices
    from hook.core.policy.model import Rule
    from hook.core.reserve.target import Editable, Entries

SHARED_PROCESSES = "sharedProcesses"
"""A rule's field, and the kind of its reasons to refuse a container."""

ALL = frozenset((env.KIND, mounts.KIND, "device", "annotation", SHARED_PROCESSES))
"""What can be reserved, and what can be refused."""


def kinds_of(rules: "list[Rule]") -> "tuple[ModuleType, ...]":
    """The kinds that rules may reserve, in the order in which edits are made. Each has `KIND`, `want` and `apply`."""
    if not any(rule.allocations or rule.plain for rule in rules):
        return env, mounts
    from hook.core.reserve import annotations, devices  # few rules reserve them

    return env, mounts, devices, annotations


class Facts:
    """The node's data that the matching rules need, read before the decision.

    `files`: the first line of each `valueFrom.file`, by path. `unreadable`: the error for each one that could not be
    read. `absent_sources`: hostPaths that do not exist. `directories`: hostPaths that are directories. `allocations`:
    the device plugins' allocations to the container. `allocation_problem`: why they are unknown, or "". `cdi_env`: the
    values that CDI specs of the allocated devices set, by env name. `device_nodes`: OCI device objects without `path`,
    by host path; None for a directory. `claims`: the pod's resource claims, for any container of it. `claimed_env`: the
    values of env that CDI specs of their devices set, by name, each with the claim. `shared`: allocations to pods whose
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
        self.claimed_env: dict[str, list[tuple[str, str]]] = {}
        self.shared: list[Allocation] = []
        self.devices: Devices | None = None


class Container:
    """A container before it starts: its identity, its OCI objects as the engine wrote them, and the node's facts.

    `env`: entries as in OCI process.env. `mounts`, `devices`, `device_rules`: objects as in OCI mounts, linux.devices
    and linux.resources.devices. `annotations`: by key. `pod_annotations`: the pod's, which only NRI shows.
    `shared_processes`: with whom it shares its processes, or ""; None where the adapter is not told.
    """

    pod_annotations: "dict[str, str]" = {}  # noqa: RUF012  # replaced, never changed
    shared_processes: "str | None" = None

    def __init__(
        self,
        identity: Identity,
        env: "Entries",
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


class Plan:
    """The decision about one container. It is never changed after `plan` returned it.

    `edits`: the differences between the container and the policy. `denials`: what the policy forbids. `errors`: what
    reassert could not find out. `env`: the reserved env, for every process of the container. `mounts`: every reserved
    mount, also those that need no edit. `closed`: the devices that the container must not have, None without such a
    rule. `excluded`: why the policy does not apply to the container, or "". `matches`: every candidate rule with its
    conditions.
    """

    def __init__(
        self,
        policy: Policy,
        matches: "list[Match]",
        outcome: Outcome,
        excluded: str = "",
        kinds: "tuple[ModuleType, ...]" = (),
    ) -> None:
        self._kinds = kinds
        self._outcome = outcome
        self.policy = policy
        self.matches = matches
        self.edits = tuple(outcome.edits)
        self.denials = tuple(outcome.denials)
        self.errors = tuple(outcome.errors)
        self.env = outcome.env
        self.mounts = tuple(outcome.mounts)
        self.closed = outcome.closed
        self.excluded = excluded

    def audit_only(self) -> bool:
        """Whether the policy is in Audit mode: the event says what would be done, and nothing is done."""
        return self.policy.mode == AUDIT

    def reasons(self) -> "tuple[Reason, ...]":
        """Why Enforce mode would not let the container start."""
        return self.denials + (self.errors if self.policy.failure_policy == FAIL else ())

    def refusal(self) -> str:
        """Why the container must not start, or "" if it may start."""
        reasons = self.reasons()
        if not reasons or self.audit_only():
            return ""
        from hook.core.base.text import joined

        return joined(reasons)

    def is_seen_in_the_container(self) -> bool:
        """Whether only a look into the container's mount namespace tells if the policy holds."""
        return bool(self.mounts) or (self.closed is not None and bool(self.closed.nodes))

    def is_empty(self) -> bool:
        """Whether the plan has no edits, no denials and no errors."""
        return not (self.edits or self.denials or self.errors)

    def apply(self, target: "Editable") -> None:
        """Make the edits in `target`."""
        for kind in self._kinds if self.edits else ():
            kind.apply(self._outcome, target)


def plan(
    policy: Policy, container: Container, matches: "list[Match] | None" = None, kinds: "frozenset[str]" = ALL
) -> Plan:
    """Decide about one container.

    `matches`: the result of `select`, if the caller already has it. `kinds`: the kinds that the adapter enforces.
    """
    outcome = Outcome(Reserved({}, []))
    identity = container.identity
    reason = excluded(policy, identity)
    if reason:
        return Plan(policy, [], outcome, reason)
    if policy.missing:
        outcome.deny("", "", f"no node policy: {policy.missing}")
        return Plan(policy, [], outcome)
    if matches is None:
        matches = select(policy, identity)
    rules = [match.rule for match in matches if match.applies]
    problem = container.facts.allocation_problem
    for rule in rules:
        if problem and rule.uses_allocations:
            outcome.cannot_tell(rule.name, "", problem)
        if SHARED_PROCESSES in rule.plain and SHARED_PROCESSES in kinds:
            _check_processes(rule, container, outcome)
    wanted = tuple([kind for kind in kinds_of(rules) if kind.KIND in kinds])
    for kind in wanted:
        kind.want(rules, container, outcome)
    steering = STEERING if rules else OF_HOOKS  # an engine may call our hook for each container
    if any(key.startswith(steering) for key in container.annotations):
        from hook.core.reserve import annotations  # few containers have one

        annotations.want_unsteered(steering, policy.allowed_annotations, container.annotations, outcome)
        wanted = (*[kind for kind in wanted if kind is not annotations], annotations)
    return Plan(policy, matches, outcome, kinds=wanted)


def _check_processes(rule: "Rule", container: Container, outcome: Outcome) -> None:
    """Refuse a container whose mounts others can take away by /proc/PID/root, or that could do so with theirs."""
    shared = container.shared_processes
    if shared is None:
        outcome.cannot_tell(rule.name, SHARED_PROCESSES, "the runtime does not say which namespaces the container has")
    elif shared:
        outcome.deny(rule.name, SHARED_PROCESSES, f"the container {shared}, and sharedProcesses is Refuse")
