"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O. Part of the start path: builtins only."""

from hook.core.base.compare import clean, glob_match
from hook.core.policy.model import AUDIT, FAIL, Match, Policy, excluded, select
from hook.core.reserve import OF_HOOKS, STEERING, Outcome, Reason, Reserved, env, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set
    from types import ModuleType

    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.policy.model import Rule

SHARED_PROCESSES = "sharedProcesses"
"""A rule's field, and the kind of its reasons to refuse a container."""

NODE_PATHS = "nodePaths"
"""A field of the policy, and the kind of its reasons to refuse a container."""

ALL = frozenset((env.KIND, mounts.KIND, "device", "annotation", SHARED_PROCESSES, NODE_PATHS))
"""What can be reserved, and what can be refused."""


def kinds_of(rules: "list[Rule]") -> "tuple[ModuleType, ...]":
    """The kinds that rules may reserve, in the order in which edits are made. Each has `KIND`, `want` and `apply`."""
    if not any(rule.allocations or rule.raw_lists for rule in rules):
        return env, mounts
    from hook.core.reserve import annotations, devices  # few rules reserve them

    return env, mounts, devices, annotations


class Plan:
    """The decision about one container. It is never changed after `plan` returned it.

    `edits`: the differences between the container and the policy. `denials`: what the policy forbids. `errors`: what
    reassert could not find out. `env`: the reserved env, for every process of the container. `mounts`: every reserved
    mount, also those that need no edit. `closed`: the devices that the container must not have, None without such a
    rule. `alone`: a rule whose `sharedProcesses` is Refuse, or "". `excluded`: why the policy does not apply to the
    container, or "". `matches`: every candidate rule with its conditions. `node_paths_of_reassert`: none if no volume
    can be of these; `node_paths`: those of an engine or of reassert that volumes reach and that are only reported.
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
        self.alone = outcome.alone
        self.node_paths_of_reassert = outcome.node_paths_of_reassert
        self.node_paths = tuple(outcome.node_paths)
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
        has_nodes = self.closed is not None and bool(self.closed.nodes)
        return bool(self.mounts or self.alone or self.node_paths_of_reassert or has_nodes)

    def is_empty(self) -> bool:
        """Whether the plan has no edits, no denials and no errors."""
        return not (self.edits or self.denials or self.errors)

    def apply(self, target: "Start") -> None:
        """Make the edits in `target`."""
        for kind in self._kinds if self.edits or self._outcome.moves else ():
            kind.apply(self._outcome, target)


def plan(
    policy: Policy, container: "Container", matches: "list[Match] | None" = None, kinds: "frozenset[str]" = ALL
) -> Plan:
    """Decide about one container.

    `matches`: the result of `select`, if the caller already has it. `kinds`: the kinds that the adapter enforces.
    """
    outcome = Outcome(Reserved({}, []))
    identity = container.identity
    reason = excluded(policy, identity)
    if reason:
        of_pod: tuple[ModuleType, ...] = ()
        if STEERING[-1] in "".join(container.start.annotations):
            from hook.core.reserve import annotations

            of_pod = annotations.of_sandbox(reason, policy, container, outcome)
        return Plan(policy, [], outcome, reason, of_pod)
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
        if SHARED_PROCESSES in rule.raw_lists and SHARED_PROCESSES in kinds:
            from hook.core.reserve import processes  # few rules have it

            processes.check(rule, container.start, outcome)
    wanted = tuple([kind for kind in kinds_of(rules) if kind.KIND in kinds])
    for kind in wanted:
        kind.want(rules, container, outcome)
    steering = STEERING if rules else OF_HOOKS  # an engine may call our hook for each container
    if any(key.startswith(steering) for key in container.start.annotations):
        from hook.core.reserve import annotations  # few containers have one

        annotations.want_unsteered(steering, policy.allowed_annotations, container.start.annotations, outcome)
        wanted = (*[kind for kind in wanted if kind is not annotations], annotations)
    placed = {edit.name for edit in outcome.mounts}  # no name of env or of a device, which a pod may choose
    if NODE_PATHS in kinds and nodes_own(container.start.mounts, policy.kubelet_root, placed):
        from hook.core.reserve import nodepaths  # only containers with hostPaths

        nodepaths.check(policy, identity, container.start, placed, outcome)
    return Plan(policy, matches, outcome, kinds=wanted)


_MADE = "/var/lib/con", "/run/con", "/run/k3s/con", "/var/lib/docker/", "/var/lib/rancher/", "/var/run/con"
_CRI = "/containerd/io.containerd.grpc.v1.cri/"
_PODMANS = "/containers/storage/overlay-containers/*/userdata/*"
_FORMS = [
    (form.count("/"), form)
    for form in (
        f"/var/lib{_CRI}sandboxes/*/*",
        f"/run{_CRI}sandboxes/*/shm",
        f"/var/lib{_CRI}containers/*/volumes/*",
        f"/var/lib/rancher/*/agent{_CRI}sandboxes/*/*",
        f"/run/k3s{_CRI}sandboxes/*/shm",
        f"/var/lib/rancher/*/agent{_CRI}containers/*/volumes/*",
        "/var/lib/docker/containers/*/*",
        "/var/lib/docker/containers/*/mounts/*",
        f"/run{_PODMANS}",
        f"/var/run{_PODMANS}",
        f"/var/lib{_PODMANS}",
    )
]
"""The paths of what engines make for a container and mount in it. A container may have made what is below one."""

_KERNELS = ("proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2")
"""Types of mounts that show no file of the node."""


def nodes_own(mounts: "list[dict[str, object]]", kubelet: str, placed: "Set[str]" = frozenset()) -> bool:
    """Whether a mount may show a path of the node that a user chose: a hostPath, or unknown, as of a subPath.

    `kubelet`: its root directory, which has the volumes of other kinds (kubelet's pkg/kubelet/kubelet_getters.go).
    `placed`: cleaned destinations of reserved mounts. Other mounts there are removed, so they are not judged.
    """
    pods = f"{kubelet}/pods/"
    made = (*_MADE, pods)
    kubelets = "*/etc-hosts", "*/containers/*/*", "*/volumes/*/*", "*/volumes/kubernetes.io~csi/*/mount"
    forms = [*_FORMS, *[(pods.count("/") + form.count("/"), pods + form) for form in kubelets]]
    for mount in mounts:
        source = str(mount.get("source", ""))
        if mount.get("type") in _KERNELS and source[:1] != "/":
            continue
        depth = source.count("/")
        if (
            not source.startswith(made)
            or "/.." in source
            or "~local-volume/" in source
            or not any(depth == count and glob_match(form, source) for count, form in forms)
        ) and clean(str(mount["destination"])) not in placed:
            return True
    return False
