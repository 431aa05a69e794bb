"""Devices that several pods share by env alone, as with KAI.

The scheduler has a pod of its own hold the device, so that a device plugin allocated it to that pod. The containers
that share it name it in env, which a pod author can write too. So a container may name only a device that such a pod
holds, as kubelet's device checkpoint has it.
"""

from __future__ import annotations

import posix
from collections.abc import Callable
from typing import Any

from hook.core.base.compare import glob_match
from hook.core.container.allocation import CHECKPOINT_LIMIT, Allocation, allocations
from hook.core.container.dockershim import POD_LOGS
from hook.core.facts import exclusive

_WORDS = ("", "all", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that name no device."""


def held_by(
    trusted: list[Any], namespace: str | None, checkpoint: str, read: Callable[[str, int], bytes]
) -> list[Allocation]:
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
        data = read(checkpoint, CHECKPOINT_LIMIT)
    except FileNotFoundError:
        return []
    uids = [uid for ns, _, rest in (name.partition("_") for name in names) if ns in holders for uid in [_uid(rest)]]
    return [allocation for uid in sorted(uids) if uid for allocation in allocations(data, uid, None, checkpoint)]


def _uid(rest: str) -> str:
    name, separator, uid = rest.partition("_")
    return uid if name and separator and "_" not in uid else ""


def devices(shared: list[Allocation], name: str) -> dict[str, str]:
    """The names of shared devices as values of an env name, each with the allocation that has it."""
    return {device: str(allocation) for allocation in shared for device in _devices(allocation, name)}


def _devices(allocation: Allocation, name: str) -> list[str]:
    """The names of an allocated device: its id, the plugin's own value of the env name, its CDI name.

    An id that is a number does not count: as a value it is an index, and the allocation may be of another resource.
    """
    ids = [device.partition("::")[0] for device in allocation.device_ids]
    names = [device for device in ids if not device.replace(":", "").isdigit()]
    names += allocation.env.get(name, "").split(",") + exclusive.cdi_names(allocation)
    return [device for device in names if device not in _WORDS]
