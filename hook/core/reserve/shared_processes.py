"""`sharedProcesses: Refuse`: with whom a container shares its processes, by config.json. Pure."""

from __future__ import annotations

from hook.core.base.compare import clean
from hook.core.base.errors import named
from hook.core.container.oci import Mount
from hook.core.container.start import Start, Unseen
from hook.core.facts import Container
from hook.core.policy.model import Rule
from hook.core.reserve.plan import Plan

KIND = "sharedProcesses"
"""Also the field of a rule."""


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether a rule refuses them."""
    return True in [KIND in rule.raw for rule in rules]


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Refuse a container whose mounts others can detach by /proc/PID/root, or that could detach theirs."""
    start = container.start
    for rule in [rule for rule in rules if KIND in rule.raw]:
        plan.refuses_sharing = rule.name
        shared = start.shared_processes or _by_volume(start.mounts)
        if shared:
            plan.deny(rule.name, KIND, refusal(shared))
        elif isinstance(start.shared_processes, Unseen):
            plan.cannot_tell(rule.name, KIND, "the runtime does not say which namespaces the container has")


def apply(plan: Plan, target: Start) -> None:
    """Nothing: it only refuses."""


def refusal(shared: str) -> str:
    """Why a container must not start. `shared`: with whom it shares its processes."""
    return f"the container {shared}, and sharedProcesses is Refuse"


def _by_volume(mounts: list[Mount]) -> str:
    """Which mount shows the node's processes, by its source, or "".

    The hook finds those of other paths, such as kubelet's for a subPath (`hook.core.linux.look.look_at_processes`).
    """
    for mount in mounts:
        source = clean(mount.source)
        is_procfs = source.startswith("/proc") and leads_to_others(source[len("/proc") :])
        if mount.is_bind and (source == "/" or is_procfs):
            return in_volume(mount.destination)
    return ""


def in_volume(path: str) -> str:
    """With whom a container that has a volume of procfs shares its processes."""
    return f"has the node's processes in the volume {named(path)}"


_WITHOUT_LINKS = "net", "mounts"
"""Of a process's directory in procfs: what /proc/net and /proc/mounts lead to. No link to a file of others is there."""


def leads_to_others(path: str) -> bool:
    """Whether links to files of processes are in a file of procfs, or whether it is one. `path`: from its root.

    Such are root, cwd, exe, ns, and each entry of fd and map_files, also below task.
    """
    if path in ("", "/"):
        return True
    process, inside = (path + "/").split("/")[1:3]
    return (process.isdigit() or process in ("self", "thread-self")) and inside not in _WITHOUT_LINKS
