"""Devices that several pods share by env alone, as with KAI. Loaded for `trusted` only; builtins only.

The scheduler has a pod of its own hold the device, so that a device plugin allocated it to that pod. The containers
that share it name it in env, which a pod author can write too. So a container may name only a device that such a pod
holds, as kubelet's device checkpoint has it.
"""

import posix

from hook.core.base.compare import glob_match
from hook.core.container.allocation import LIMIT, Allocation, allocations
from hook.core.container.dockershim import POD_LOGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORDS = ("", "all", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that name no device."""


def held_by(
    trusted: "list[Any]", namespace: "str | None", checkpoint: str, read: "Callable[[str, int], bytes]"
) -> "list[Allocation]":
    """The allocations to the pods that reserve devices for the containers of a namespace. Raises Undecided, OSError.

    `trusted`: entries of the policy file. `checkpoint`: path of kubelet's device checkpoint.
    """
    if namespace is None:
        return []
    counting = [entry for entry in trusted if any(glob_match(glob, namespace) for glob in entry["namespaces"])]
    holders = {holder for entry in counting for holder in entry["reservedBy"]}
    if not holders:
        return []
    try:
        names = posix.listdir(POD_LOGS)
        data = read(checkpoint, LIMIT)
    except FileNotFoundError:
        return []
    uids = [uid for ns, _, rest in (name.partition("_") for name in names) if ns in holders for uid in [_uid(rest)]]
    return [allocation for uid in sorted(uids) if uid for allocation in allocations(data, uid, None, checkpoint)]


def _uid(rest: str) -> str:
    name, separator, uid = rest.partition("_")
    return uid if name and separator and "_" not in uid else ""


def named_device(value: "str | None", name: str, shared: "list[Allocation]") -> "tuple[str, str] | None":
    """The value of an env name with its origin, if it names nothing but shared devices; else None."""
    if value is None:
        return None
    held = {device: str(allocation) for allocation in shared for device in _devices(allocation, name)}
    wanted = value.split(",")
    if not all(device in held for device in wanted):
        return None
    return value, "shared, held by another pod: " + "; ".join(dict.fromkeys(held[device] for device in wanted))


def _devices(allocation: Allocation, name: str) -> "list[str]":
    """The names of an allocated device: its id, the plugin's own value of the env name, its CDI name.

    An id that is a number does not count: as a value it is an index, and the allocation may be of another resource.
    """
    from hook.core.facts.exclusive import cdi_names

    ids = [device.partition("::")[0] for device in allocation.device_ids]
    names = [device for device in ids if not device.replace(":", "").isdigit()]
    names += allocation.env.get(name, "").split(",") + cdi_names(allocation)
    return [device for device in names if device not in _WORDS]
