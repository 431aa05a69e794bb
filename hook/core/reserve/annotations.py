"""Annotations that must be absent: those that a rule names, and those that steer a runtime (STEERING).

A rule's may be set by a device plugin only. Part of the start path: builtins only.
"""

import sys

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.errors import named
from hook.core.reserve import SHOWN, STEERING, Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.policy.model import Policy, Rule

KIND = "annotation"
FIELD = "annotations"
"""The field of a rule: a list of `{name: PATTERN, absent: true, of: Both}`."""

STEER = {
    "run.oci.": (
        "crun",
        "opens a file of the node as standard output or standard error of hooks, loads a library, sends descriptors to "
        "a socket, replaces seccomp, cgroup and mounts, starts another program (crun.1, src/libcrun)",
    ),
    "krun.": ("crun", "sets up libkrun's virtual machine (crun's src/libcrun/handlers/krun.c)"),
    "module.wasm.image/": ("crun, youki", "starts a WebAssembly engine (crun's handler-utils.c, youki's src/workload)"),
    "org.criu.": ("runc, crun", "names a configuration file of criu (runc's criu_linux.go, crun's criu.c)"),
    "org.systemd.property.": (
        "runc, crun",
        "sets a property of the container's systemd scope, devices too (runc's specconv, crun's cgroup-systemd.c)",
    ),
    "bundle": ("runc", "names the directory whose config.json `exec` reads (runc's libcontainer/utils, SearchLabels)"),
    "dev.gvisor.": (
        "runsc",
        "overrides flags, mounts and the root file system, runs a program at checkpoints (runsc's specutils, boot)",
    ),
}
"""For each of STEERING: the runtimes that read it, and its effect in them. Read in runc 1.5, crun 1.29, youki and runsc
of August 2026; `features` of runc, crun and runsc lists the same as potentially unsafe."""

HARMLESS = {
    "run.oci.keep_original_groups": (),
    "run.oci.mount_context_type": (),
    "run.oci.systemd.force_cgroup_v1": ("/sys/fs/cgroup",),
    "org.systemd.property.KillSignal": (),
    "org.systemd.property.TimeoutStopUSec": (),
    "org.systemd.property.CollectMode": (),
    "org.systemd.property.DefaultDependencies": (),
    "org.systemd.property.After": (),
    "dev.gvisor.spec.cgroup-parent": (),
}
"""Annotations that engines set by themselves, and their values; () for any value. None tells a runtime anything about
hooks, files of the node, env, mounts or devices. podman sets the first five (`--group-add keep-groups`, SELinux, old
versions of systemd; libpod/container_internal_common.go), CRI-O those of systemd (internal/factory), gVisor's shim the
last one (pkg/shim/v1/runsc/service.go)."""

BOTH, CONTAINER, POD = "Both", "Container", "Pod"
"""Whether an entry is about annotations of the container, the pod or both. Only the NRI plugin sees the pod's."""


class DropAnnotation(Edit):
    """Removes an annotation that only a device plugin may set. `before`: its value."""

    kind = KIND

    def __init__(self, rule: str, name: str, before: str) -> None:
        """`rule`: "" if no rule names the annotation, and it steers a runtime."""
        super().__init__(rule, name)
        self.before = before

    def conflict(self) -> str:
        """What the container asked for that this edit overrides."""
        steers = "" if self.rule else f" steers a runtime ({steered_by(self.name)}),"
        return f"annotation {named(self.name)}{steers} must be absent and was set"

    def before_and_after(self) -> "tuple[object, object]":
        """The value, and None: the annotation is removed."""
        return self.before, None


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Remove each annotation with a reserved key, unless a device plugin set this key to this value.

    An annotation of the pod cannot be removed: it refuses the container, also with `onConflict: Override`, since other
    NRI plugins act on it.
    """
    patterns = [(rule, str(e["name"]), str(e.get("of", BOTH))) for rule in rules for e in rule.raw_lists.get(FIELD, [])]
    if not patterns:
        return
    for rule, key in _matching([p for p in patterns if p[2] != CONTAINER], container.start.pod_annotations or {}, {}):
        if len(outcome.denials) > SHOWN:
            break
        message = f"annotation {named(key)} of the pod must be absent and was set, and cannot be removed"
        outcome.deny(rule.name, KIND, message)
    if container.facts.allocation_problem:
        return
    allocated = {key: value for a in container.facts.allocations for key, value in a.annotations.items()}
    for rule, key in _matching([p for p in patterns if p[2] != POD], container.start.annotations, allocated):
        edit = DropAnnotation(rule.name, key, container.start.annotations[key])
        if not outcome.count(KIND, rule.name):
            return
        outcome.edits.append(edit)
        if rule.deny:
            outcome.deny(rule.name, KIND, edit.conflict())


def steered_by(key: str) -> str:
    """The runtimes that read an annotation that steers one."""
    return next((runtimes for start, (runtimes, _) in STEER.items() if key.startswith(start)), "")


def want_unsteered(
    steering: "str | tuple[str, ...]", allowed: "list[str]", annotations: "dict[str, str]", outcome: Outcome
) -> None:
    """Remove each annotation with such a prefix, if it is neither HARMLESS nor allowed by the policy.

    A key with `=` counts as the part before it: runc makes labels `KEY=VALUE` of annotations and then searches these.
    """
    named_by_rules = {edit.name for edit in outcome.edits if edit.kind == KIND}
    for key, value in annotations.items():
        name = key.partition("=")[0]
        if not key.startswith(steering) or key in named_by_rules or (key.startswith("bundle") and name != "bundle"):
            continue
        values = HARMLESS.get(key)
        if (values is not None and (not values or value in values)) or any(glob_match(p, key) for p in allowed):
            continue
        if not outcome.count(KIND, ""):
            return
        outcome.edits.append(DropAnnotation("", key, value))


def of_sandbox(reason: str, policy: "Policy", container: "Container", outcome: Outcome) -> "tuple[ModuleType, ...]":
    """Remove from an excluded sandbox what steers all containers of the pod, if a rule may apply to one.

    `reason`: why it is excluded; as a sandbox, not by its namespace. Only gVisor has such annotations, the last of
    STEERING. Returns the kinds whose edits are to be made.
    """
    from hook.core.policy.model import select

    fields = "namespaces", "podSelector"  # the other conditions are about one container
    matches = [match.conditions for match in select(policy, container.identity) if not match.is_audited]
    if reason == "container type sandbox" and any(
        all(c.met is not False for c in conditions if c.field in fields) for conditions in matches
    ):
        want_unsteered(STEERING[-1], policy.allowed_annotations, container.start.annotations, outcome)
    return (sys.modules[__name__],)


def _matching(
    patterns: "list[tuple[Rule, str, str]]", annotations: "Mapping[str, str]", allowed: "dict[str, str]"
) -> "Iterator[tuple[Rule, str]]":
    """Each key that a pattern matches, with the first such pattern's rule; not the annotations that are allowed."""
    starts = tuple(literal_start(pattern) for _, pattern, _ in patterns)
    for key, value in annotations.items():
        if not key.startswith(starts) or allowed.get(key) == value:
            continue
        for rule, pattern, _ in patterns:
            if glob_match(pattern, key):
                yield rule, key
                break


def apply(outcome: Outcome, target: "Start") -> None:
    """Remove these annotations from `target`."""
    gone = {edit.name for edit in outcome.edits if edit.kind == KIND}
    if gone:
        target.annotations = {key: value for key, value in target.annotations.items() if key not in gone}
