"""Device plugins' allocations to a container, from kubelet's device checkpoint.

kubelet keeps each plugin's answer (v1beta1 ContainerAllocateResponse) in its device checkpoint, by pod UID and
container name. An entry is written before the container is created and stays until long after the pod is gone.
config.json cannot replace the checkpoint: entries of a device plugin, an image and a pod look the same there, and their
order proves nothing.
"""

from __future__ import annotations

import posix
from binascii import a2b_base64

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, decode, parse

CHECKPOINT_LIMIT = 256 * 1024 * 1024
"""Maximum size of a checkpoint in bytes. 10,000 entries are about 5 MB."""


CDI_ANNOTATION = "cdi.k8s.io/"
"""The prefix of the annotations that ask for CDI devices."""

CHECKPOINT_DIRECTORY = "/var/lib/kubelet/device-plugins"
"""Where kubelet listens for device plugins and keeps the checkpoint, whatever its --root-dir is (kubelet 1.36)."""

KUBELETS_SOCKET = "kubelet.sock"
"""kubelet's own socket there; each other one is a device plugin's. kubelet removes them all when it starts."""


def checkpoint_below(directory: str) -> str:
    """The path of the checkpoint in a directory of device plugins."""
    return f"{directory}/kubelet_internal_checkpoint"


def checkpoint_path(kubelet_root: str) -> str:
    """The path of kubelet's device checkpoint (pkg/kubelet/cm/devicemanager/checkpoint).

    `kubelet_root`: it does not move the checkpoint. One below it counts if there is no other; a copy of kubelet's
    directory, made when the root was moved, may have an old one.
    """
    fixed, own = checkpoint_below(CHECKPOINT_DIRECTORY), f"{kubelet_root}/device-plugins"
    if own == CHECKPOINT_DIRECTORY or posix.access(fixed, posix.F_OK):
        return fixed
    try:
        posix.lstat(own)
    except FileNotFoundError:
        return fixed
    except OSError:  # reading it says why
        pass
    return checkpoint_below(own)


def plugins_beside(path: str) -> list[str]:
    """The sockets of device plugins beside a checkpoint: kubelet writes the checkpoint when a plugin registers."""
    try:
        names = posix.listdir(path.rpartition("/")[0])
    except OSError:
        return []
    return sorted([name for name in names if name.endswith(".sock") and name != KUBELETS_SOCKET])


class Allocation:
    """One device plugin's answer for one container."""

    __slots__ = ("annotations", "cdi", "device_ids", "devices", "env", "mounts", "resource")

    def __init__(self, resource: str, device_ids: list[str], response: bytes) -> None:
        """Raises Malformed if `response` is not a ContainerAllocateResponse."""
        self.resource = resource
        self.device_ids = device_ids
        self.env: dict[str, str] = {}
        """The values, by name."""
        self.mounts: list[tuple[str, str, bool]] = []
        """(host path, container path, read-only)."""
        self.devices: list[tuple[str, str, str]] = []
        """(host path, container path, permissions)."""
        self.annotations: dict[str, str] = {}
        """The values, by key."""
        self.cdi: list[str] = []
        """Fully qualified CDI device names of the answer's own field."""
        for number, value in fields(response):
            if 1 <= number <= 5 and not isinstance(value, bytes):
                raise Malformed(f"field {number} of the device plugin's answer is no message")
            if number in (1, 4):
                pair = message(value, strict=True)
                (self.env if number == 1 else self.annotations)[_text(pair.get(1))] = _text(pair.get(2))
            elif number == 2:
                mount = message(value)
                self.mounts.append((_text(mount.get(2)), _text(mount.get(1)), _flag(mount.get(3))))
            elif number == 3:
                device = message(value)
                self.devices.append((_text(device.get(2)), _text(device.get(1)), _text(device.get(3))))
            elif number == 5:
                self.cdi.append(_text(message(value).get(1)))

    def __str__(self) -> str:
        return f"{self.resource} {','.join(self.device_ids)}"

    def cdi_devices(self) -> list[str]:
        """The CDI devices that the answer names, in its field or by annotations: an engine injects both."""
        noted = [value for key, value in self.annotations.items() if key.startswith(CDI_ANNOTATION)]
        return [*self.cdi, *[name for value in noted for name in value.split(",")]]


def allocations(checkpoint: bytes, uid: str, container: str | None, path: str = "it") -> list[Allocation]:
    """The allocations of one container, in the checkpoint's order; None: of all containers of the pod.

    `path`: of the checkpoint, for messages. Raises Undecided for a malformed checkpoint, whichever part is malformed:
    parsing the whole of it takes 0.1 ms for 100 entries.
    """
    try:
        result = []
        for entry in _entries(decode(checkpoint)):
            if entry.get("PodUID") == uid and container in (None, entry.get("ContainerName")):
                response = entry.get("AllocResp")
                if not isinstance(response, str):
                    raise Malformed("an entry has no AllocResp")
                ids = _device_ids(entry.get("DeviceIDs"))
                result.append(Allocation(str(entry.get("ResourceName")), ids, _unbase64(response)))
        return result
    except Malformed as error:
        remedy = f"drain the node, remove {path} and restart kubelet"
        raise Undecided(f"kubelet's device checkpoint: {error}; {remedy}") from None


def _entries(text: str) -> list[dict[str, object]]:
    document = parse(text)
    data = document.get("Data") if isinstance(document, dict) else None
    if not isinstance(data, dict) or "PodDeviceEntries" not in data:
        raise Malformed("it has no Data.PodDeviceEntries")
    entries = data["PodDeviceEntries"]
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Malformed("PodDeviceEntries is not a list of objects")
    return entries


def _device_ids(value: object) -> list[str]:
    """Device ids: lists by NUMA node; before kubelet 1.20 one list."""
    lists = list(value.values()) if isinstance(value, dict) else [value]
    return [str(item) for items in lists if isinstance(items, list) for item in items]


def _unbase64(text: str) -> bytes:
    """Standard base64 with padding, as Go's encoding/json writes bytes. Raises Malformed."""
    try:
        if len(text) % 4 or text.endswith("==="):  # binascii accepts too much padding
            raise ValueError("Incorrect padding")
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise Malformed(f"AllocResp is not base64: {error}") from None


def fields(data: bytes) -> list[tuple[int, int | bytes | None]]:
    """Number and value of each field of a protobuf message (protobuf.dev, Encoding).

    A field of fixed width has the value None: no field of a ContainerAllocateResponse has this type.
    """
    result: list[tuple[int, int | bytes | None]] = []
    index, end = 0, len(data)
    while index < end:
        key, index = _varint(data, index)
        kind = key & 7
        if not 8 <= key < 1 << 32:
            raise Malformed("the device plugin's answer has a field with an impossible number")
        if kind == 0:
            number, index = _varint(data, index)
            result.append((key >> 3, number))
            continue
        if kind == 2:
            size, index = _varint(data, index)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Malformed(f"the device plugin's answer has a field of wire type {kind}")
        if index + size > end:
            raise Malformed("the device plugin's answer is truncated")
        result.append((key >> 3, data[index : index + size] if kind == 2 else None))
        index += size
    return result


def _varint(data: bytes, index: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if index >= len(data):
            raise Malformed("the device plugin's answer is truncated")
        byte = data[index]
        index += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, index
    raise Malformed("the device plugin's answer has a number of more than 64 bits")


def message(value: object, strict: bool = False) -> dict[int, int | bytes]:
    """The fields of a message, by number. Of a repeated number the last counts; a field of the wrong type is ignored.

    `strict`: it is an entry of a map, so any other field is an error. Not all protobuf libraries drop the same entries.
    """
    parts = fields(value) if isinstance(value, bytes) else []
    if strict and any(content is None or number > 2 for number, content in parts):
        raise Malformed("the device plugin's answer has an entry of a map that is not a key and a value")
    return {number: content for number, content in parts if content is not None}


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, bytes):
        raise Malformed("the device plugin's answer has a number where text belongs")
    if b"\0" in value:
        raise Malformed("the device plugin's answer has a NUL byte in a text")
    return decode(value)


def _flag(value: object) -> bool:
    if isinstance(value, bytes):
        raise Malformed("the device plugin's answer has text where a flag belongs")
    return bool(value)
