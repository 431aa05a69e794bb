"""`sharedProcesses: Refuse`: with whom a container shares its processes, by config.json. Pure; builtins only.

Loaded only for a container that such a rule applies to.
"""

from hook.core.base.compare import clean
from hook.core.base.errors import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.start import Json, Start
    from hook.core.policy.model import Rule
    from hook.core.reserve import Outcome

KIND = "sharedProcesses"


def check(rule: "Rule", start: "Start", outcome: "Outcome") -> None:
    """Refuse a container whose mounts others can detach by /proc/PID/root, or that could detach theirs."""
    outcome.alone = rule.name
    shared = start.shared_processes or _by_volume(start.mounts)
    if shared:
        outcome.deny(rule.name, KIND, refusal(shared))
    elif start.shared_processes is None:
        outcome.cannot_tell(rule.name, KIND, "the runtime does not say which namespaces the container has")


def refusal(shared: str) -> str:
    """Why a container must not start. `shared`: with whom it shares its processes."""
    return f"the container {shared}, and sharedProcesses is Refuse"


def _by_volume(mounts: "list[Json]") -> str:
    """Which mount shows the node's processes, by its source, or "".

    The hook finds those of other paths, such as kubelet's for a subPath (`hook.core.linux.look.look_at_processes`).
    """
    for mount in mounts:
        options = mount.get("options")
        is_bind = mount.get("type") == "bind" or (
            isinstance(options, list) and ("bind" in options or "rbind" in options)
        )
        source = clean(str(mount.get("source")))
        if is_bind and (source == "/" or (source.startswith("/proc") and leads_to_others(source[len("/proc") :]))):
            return in_volume(str(mount["destination"]))
    return ""


def in_volume(path: str) -> str:
    """With whom a container that has a volume of procfs shares its processes."""
    return f"has the node's processes in the volume {named(path)}"


def leads_to_others(path: str) -> bool:
    """Whether links to the roots of processes are in a file of procfs, or whether it is one. `path`: from its root."""
    if path in ("", "/"):
        return True
    process, inside = (path + "/").split("/")[1:3]
    return (process.isdigit() or process in ("self", "thread-self")) and inside in ("", "task", "root", "cwd")
