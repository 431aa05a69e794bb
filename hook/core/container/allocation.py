"""Device plugins' allocations to a container, from kubelet's device checkpoint. Part of the start path: builtins only.

kubelet keeps each plugin's answer (v1beta1 ContainerAllocateResponse) in its device checkpoint, by pod UID and
container name. An entry is written before the container is created and stays until long after the pod is gone.
config.json cannot replace the checkpoint: entries of a device plugin, an image and a pod look the same there, and their
order proves nothing.
"""

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, decode, parse, value_at

LIMIT = 256 * 1024 * 1024
"""Maximum size of a checkpoint in bytes. 10,000 entries are about 5 MB."""


def checkpoint_path(kubelet_root: str) -> str:
    """The path of kubelet's device checkpoint (pkg/kubelet/cm/devicemanager/checkpoint)."""
    return kubelet_root + "/device-plugins/kubelet_internal_checkpoint"


class Allocation:
    """One device plugin's answer for one container.

    `env`: by name. `mounts`: (host path, container path, read-only). `devices`: (host path, container path,
    permissions). `annotations`: by key. `cdi`: fully qualified CDI device names.
    """

    __slots__ = ("annotations", "cdi", "device_ids", "devices", "env", "mounts", "resource")

    def __init__(self, resource: str, device_ids: "list[str]", response: bytes) -> None:
        """Raises Malformed if `response` is not a ContainerAllocateResponse."""
        self.resource = resource
        self.device_ids = device_ids
        self.env: dict[str, str] = {}
        self.mounts: list[tuple[str, str, bool]] = []
        self.devices: list[tuple[str, str, str]] = []
        self.annotations: dict[str, str] = {}
        self.cdi: list[str] = []
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


def allocations(checkpoint: bytes, uid: str, container: "str | None", path: str = "it") -> "list[Allocation]":
    """The allocations of one container, in the checkpoint's order; None: of all containers of the pod.

    `path`: of the checkpoint, for messages. Raises Undecided for a malformed checkpoint.

    Usually only the pod's entries are parsed: kubelet writes PodUID as the first member of an entry, so the entries can
    be found by a search. A checkpoint in any other layout is parsed as a whole.
    """
    try:
        entries = _entries_by_search(checkpoint, uid)
        if entries is None:
            entries = _all_entries(decode(checkpoint))
        result = []
        for entry in entries:
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


def _entries_by_search(data: bytes, uid: str) -> "list[dict[str, object]] | None":
    """The entries of one pod, or None if the layout is unknown and the whole text has to be parsed.

    The search is over bytes: for 10,000 entries, decoding a copy costs more than the search.
    """
    tail = data[-64:].rstrip()
    if not (data.startswith(b'{"Data":{"PodDeviceEntries":') and tail.endswith(b"}") and b'"Checksum":' in tail):
        return None
    start = b'{"PodUID":"'
    opening = start + uid.encode() + b'"'
    occurrences = data.count(uid.encode())
    if b"\\" in data:
        return None  # an escape sequence: kubelet writes none
    entries = []
    at = data.find(opening) if occurrences else -1
    while at >= 0:
        following = data.find(start, at + 1)
        entry, _ = value_at(decode(data[at : following if following >= 0 else len(data)]), 0)
        if not isinstance(entry, dict):
            return None
        entries.append(entry)
        at = data.find(opening, at + 1)
    return entries if len(entries) == occurrences else None


def _all_entries(text: str) -> "list[dict[str, object]]":
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


def _device_ids(value: object) -> "list[str]":
    """Device ids: lists by NUMA node; before kubelet 1.20 one list."""
    lists = list(value.values()) if isinstance(value, dict) else [value]
    return [str(item) for items in lists if isinstance(items, list) for item in items]


def _unbase64(text: str) -> bytes:
    """Standard base64 with padding, as Go's encoding/json writes bytes. Raises Malformed."""
    from binascii import a2b_base64  # a file to load in some builds of Python, only where something is allocated

    try:
        if len(text) % 4 or text.endswith("==="):  # binascii accepts too much padding
            raise ValueError("Incorrect padding")
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise Malformed(f"AllocResp is not base64: {error}") from None


def fields(data: bytes) -> "list[tuple[int, int | bytes | None]]":
    """Number and value of each field of a protobuf message (protobuf.dev, Encoding).

    A field of fixed width has the value None: no field of a ContainerAllocateResponse has this type.
    """
    found: list[tuple[int, int | bytes | None]] = []
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if not 8 <= key < 1 << 32:
            raise Malformed("the device plugin's answer has a field with an impossible number")
        if kind == 0:
            number, at = _varint(data, at)
            found.append((key >> 3, number))
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Malformed(f"the device plugin's answer has a field of wire type {kind}")
        if at + size > end:
            raise Malformed("the device plugin's answer is truncated")
        found.append((key >> 3, data[at : at + size] if kind == 2 else None))
        at += size
    return found


def _varint(data: bytes, at: int) -> "tuple[int, int]":
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("the device plugin's answer is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Malformed("the device plugin's answer has a number of more than 64 bits")


def message(value: object, strict: bool = False) -> "dict[int, int | bytes]":
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
