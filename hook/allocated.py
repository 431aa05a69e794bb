"""Read what device plugins allocated, for rules that reserve it. Part of the start path: builtins only."""

import posix

from hook.base.errors import Unacceptable, Undecided, describe
from hook.container.allocation import LIMIT, allocations, checkpoint_path
from hook.container.identity import DOCKER, SANDBOX, Identity
from hook.gather import Facts, check_source
from hook.policy.model import Policy, Rule
from hook.reserve import devices, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_S_IFMT = 0o170000
_DEVICE_TYPES = {0o020000: "c", 0o060000: "b"}


def gather_allocated(
    facts: Facts, policy: Policy, identity: Identity, rules: "list[Rule]", read: "Callable[[str, int], bytes]"
) -> None:
    """Read the container's device allocations, and the sources and device nodes in them that the rules reserve.

    `read`: reads kubelet's device checkpoint.
    """
    _read_allocations(facts, policy, identity, read)
    for rule in rules:
        for allocation in facts.allocations:
            for source, _, _ in allocation.mounts if mounts.PART in rule.allocations else []:
                check_source(facts, source)
            for path, _, _ in allocation.devices if devices.PART in rule.allocations else []:
                _read_device(facts, path)


def _read_allocations(facts: Facts, policy: Policy, identity: Identity, read: "Callable[[str, int], bytes]") -> None:
    """Read the container's device allocations from kubelet's checkpoint.

    Without a checkpoint or an entry, nothing was allocated. If the checkpoint cannot be read, `allocation_problem` says
    why. Raises Unacceptable if annotations that a pod, an image or a user can write make the allocation unknown.
    """
    if identity.kubernetes is False or identity.types == (SANDBOX,):
        return  # device plugins allocate to containers of pods only, not to sandboxes
    if identity.engine == DOCKER and identity.container is None:
        return  # pause, or not a pod's: kubelet mounts a termination log, with the name, into a pod's containers
    if identity.kubernetes is None:
        raise Unacceptable(
            "annotations claim a pod and nothing proves which engine wrote them, so the device allocation is unknown"
        )
    if identity.uid is None or identity.container is None:
        unknown = "the pod's UID" if identity.uid is None else "the container's name"
        facts.allocation_problem = f"{unknown} is unknown, so its device allocation is too"
        return
    path = checkpoint_path(policy.kubelet_root)
    try:
        facts.allocations = allocations(read(path, LIMIT), identity.uid, identity.container)
        names = [name for allocation in facts.allocations for name in allocation.cdi]
        if names:
            from hook.container.cdi import env_of_devices

            facts.cdi_env = env_of_devices(names)
    except FileNotFoundError:
        pass
    except (OSError, Undecided) as error:
        facts.allocations = []
        facts.allocation_problem = describe(error) if isinstance(error, Undecided) else f"{path}: {error.strerror}"


def _read_device(facts: Facts, path: str) -> None:
    """The device node at an allocated host path. As in containerd, symbolic links are followed, directories allowed."""
    try:
        status = posix.stat(path)
    except OSError:
        facts.absent_sources.add(path)
        return
    device_type = _DEVICE_TYPES.get(status.st_mode & _S_IFMT)
    if device_type is None:
        facts.device_nodes[path] = None
        return
    facts.device_nodes[path] = {
        "type": device_type,
        "major": posix.major(status.st_rdev),
        "minor": posix.minor(status.st_rdev),
        "fileMode": status.st_mode & 0o777,
        "uid": status.st_uid,
        "gid": status.st_gid,
    }
