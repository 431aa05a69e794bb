"""Annotations that tell a runtime to do more than the spec: they must be absent, whatever the rules list."""

from __future__ import annotations

from collections.abc import Mapping

from hook.core.base.compare import glob_match
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.policy.model import Rule, select
from hook.core.reserve import listed_annotations
from hook.core.reserve.plan import Plan

KIND = listed_annotations.KIND

UNSAFE = {
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
    "io.katacontainers.config.": (
        "kata",
        "sets arguments of the hypervisor, virtiofsd and the guest's kernel, names files of the node (CVE-2026-44210)",
    ),
    "dev.gvisor.": (
        "runsc",
        "overrides flags, mounts and the root file system, runs a program at checkpoints (runsc's specutils, boot)",
    ),
}
"""By prefix: the runtimes that read such an annotation, and its effect in them. Read in runc 1.5, crun 1.29, youki and
runsc of August 2026; `features` of runc, crun and runsc lists the same as potentially unsafe."""

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


PREFIXES = tuple(UNSAFE)

OF_HOOKS = "run.oci.hooks."
"""The prefix of those that concern all hooks, also those of a node (crun.1)."""

OF_SANDBOX = "dev.gvisor."
"""The prefix of those that a runtime takes from the pod's sandbox for all containers."""


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether the container has an annotation with one of the prefixes."""
    return any(key.startswith(PREFIXES) for key in container.start.annotations)


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Remove what no rule has to name: all with a rule, else only what is about each hook, also one of the node.

    Of an excluded sandbox's annotations, those that are for all containers of the pod.
    """
    prefixes = PREFIXES if rules else (OF_HOOKS,)
    if plan.excluded:
        prefixes = (OF_SANDBOX,) if _may_have_rules(container, plan) else ()
    drop(prefixes, container.start.annotations, plan)


def _may_have_rules(container: Container, plan: Plan) -> bool:
    """Whether an excluded container is a sandbox of a pod for whose containers there is a rule."""
    fields = "namespaces", "podSelector"  # the other conditions are about one container
    matches = [match for match in select(plan.policy, container.identity) if not match.is_audited]
    return plan.excluded == "container type sandbox" and any(
        False not in [match.met.get(field) for field in fields] for match in matches
    )


def drop(prefixes: tuple[str, ...], annotations: Mapping[str, str], plan: Plan) -> None:
    """Remove each annotation with such a prefix, if it is neither HARMLESS nor allowed by the policy.

    A key with `=` counts as the part before it: runc makes labels `KEY=VALUE` of annotations and then searches these.
    """
    named_by_rules = {edit.name for edit in plan.edits if edit.kind == KIND}
    for key, value in annotations.items():
        name = key.partition("=")[0]
        if not key.startswith(prefixes) or key in named_by_rules or (key.startswith("bundle") and name != "bundle"):
            continue
        values = HARMLESS.get(key)
        is_harmless = values is not None and (not values or value in values)
        if is_harmless or any(glob_match(pattern, key) for pattern in plan.policy.allowed_annotations):
            continue
        if not plan.count(KIND, ""):
            return
        why = f" steers a runtime ({read_by(key)}),"
        plan.edits.append(listed_annotations.DropAnnotation("", key, value, why))


def read_by(key: str) -> str:
    """The runtimes that read an annotation."""
    return next((runtimes for prefix, (runtimes, _) in UNSAFE.items() if key.startswith(prefix)), "")


def apply(plan: Plan, target: Start) -> None:
    """Remove from `target` what no rule allows."""
    listed_annotations.apply(plan, target)
