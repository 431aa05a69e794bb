"""What the device plugins allocated to a container, from kubelet's own record. Part of the start path: builtins only.

kubelet keeps each plugin's answer (v1beta1 ContainerAllocateResponse) in its device checkpoint, by pod UID and
container name, from before the container is created until long after the pod is gone. The order in config.json
tells nothing: what a plugin set and what an image or a pod set look alike there.
"""

from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, decode, parse, value_at

LIMIT = 256 * 1024 * 1024
"""Bytes of a checkpoint. 10,000 entries are about 5 MB."""


def checkpoint_path(kubelet_root: str) -> str:
    """Where kubelet keeps it (pkg/kubelet/cm/devicemanager/checkpoint)."""
    return kubelet_root + "/device-plugins/kubelet_internal_checkpoint"


class Allocation:
    """One device plugin's answer for one container.

    `env`: by name. `mounts`: (host path, container path, read-only). `devices`: (host path, container path,
    permissions). `annotations`: by key. `cdi`: fully qualified CDI device names.
    """

    __slots__ = ("annotations", "cdi", "device_ids", "devices", "env", "mounts", "resource")

    def __init__(self, resource: str, device_ids: "list[str]", response: bytes) -> None:
        """Raises Malformed for bytes that are no ContainerAllocateResponse."""
        self.resource = resource
        self.device_ids = device_ids
        self.env: dict[str, str] = {}
        self.mounts: list[tuple[str, str, bool]] = []
        self.devices: list[tuple[str, str, str]] = []
        self.annotations: dict[str, str] = {}
        self.cdi: list[str] = []
        for number, value in _fields(response):
            if 1 <= number <= 5 and not isinstance(value, bytes):
                raise Malformed(f"field {number} of the device plugin's answer is no message")
            if number in (1, 4):
                pair = _message(value, strict=True)
                (self.env if number == 1 else self.annotations)[_text(pair.get(1))] = _text(pair.get(2))
            elif number == 2:
                mount = _message(value)
                self.mounts.append((_text(mount.get(2)), _text(mount.get(1)), _flag(mount.get(3))))
            elif number == 3:
                device = _message(value)
                self.devices.append((_text(device.get(2)), _text(device.get(1)), _text(device.get(3))))
            elif number == 5:
                self.cdi.append(_text(_message(value).get(1)))

    def __str__(self) -> str:
        return f"{self.resource} {','.join(self.device_ids)}"


def allocations(checkpoint: bytes, uid: str, container: str) -> "list[Allocation]":
    """The allocations of one container, in the checkpoint's order. Raises Undecided for what kubelet did not write.

    Only the pod's own entries are parsed: kubelet writes an entry's PodUID first, so the object around it is easily
    found. Where the text is of another shape, all of it is parsed.
    """
    try:
        entries = _entries_by_search(checkpoint, uid)
        if entries is None:
            entries = _all_entries(decode(checkpoint))
        found = []
        for entry in entries:
            if entry.get("PodUID") == uid and entry.get("ContainerName") == container:
                response = entry.get("AllocResp")
                if not isinstance(response, str):
                    raise Malformed("an entry has no AllocResp")
                found.append(Allocation(str(entry.get("ResourceName")), _ids(entry.get("DeviceIDs")), base64(response)))
        return found
    except Malformed as error:
        raise Undecided(f"kubelet's device checkpoint: {error}") from None


def _entries_by_search(data: bytes, uid: str) -> "list[dict[str, object]] | None":
    """The entries of one pod, or None where the text must be read as a whole to find them.

    In the bytes as they are: for 10,000 entries a decoded copy would cost more than the search.
    """
    tail = data[-64:].rstrip()
    if not (data.startswith(b'{"Data":{"PodDeviceEntries":') and tail.endswith(b"}") and b'"Checksum":' in tail):
        return None
    start = b'{"PodUID":"'
    opening = start + uid.encode() + b'"'
    places = data.count(uid.encode())
    if b"\\" in data:
        return None  # kubelet itself writes nothing that JSON has to escape
    found = []
    at = data.find(opening) if places else -1
    while at >= 0:
        following = data.find(start, at + 1)
        entry, _ = value_at(decode(data[at : following if following >= 0 else len(data)]), 0)
        if not isinstance(entry, dict):
            return None
        found.append(entry)
        at = data.find(opening, at + 1)
    return found if len(found) == places else None


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


def _ids(value: object) -> "list[str]":
    """Device ids: a map of lists by NUMA node, or, before kubelet 1.20, a list."""
    lists = list(value.values()) if isinstance(value, dict) else [value]
    return [str(item) for items in lists if isinstance(items, list) for item in items]


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def base64(text: str) -> bytes:
    """Standard base64 with padding, as Go's encoding/json writes bytes. Raises Malformed.

    `binascii` is a file of its own to load in many builds of Python; an answer has a few hundred bytes.
    """
    body = text.rstrip("=")
    padding = len(text) - len(body)
    if len(text) % 4 or padding > 2:
        raise Malformed("AllocResp is not base64: wrong length")
    table = {letter: number for number, letter in enumerate(_ALPHABET)}
    result = bytearray()
    try:
        for at in range(0, len(body), 4):
            group = body[at : at + 4]
            bits = 0
            for letter in group:
                bits = bits << 6 | table[letter]
            size = len(group) * 6 // 8
            result += (bits >> len(group) * 6 % 8).to_bytes(size, "big")
    except KeyError as error:
        raise Malformed(f"AllocResp is not base64: it holds {error.args[0]!r}") from None
    return bytes(result)


def _fields(data: bytes) -> "list[tuple[int, int | bytes | None]]":
    """Number and value of each field of a protobuf message (protobuf.dev, Encoding); None where it has a fixed width.

    No field that is known here has one.
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


def _message(value: object, strict: bool = False) -> "dict[int, int | bytes]":
    """A message's fields by number; the last of each counts, and one of an impossible type is passed over.

    `strict`: there is none. The protobuf library drops a whole entry of a map for one.
    """
    fields = _fields(value) if isinstance(value, bytes) else []
    if strict and any(found is None for _, found in fields):
        raise Malformed("the device plugin's answer has an entry of a map with a field of the wrong type")
    return {number: found for number, found in fields if found is not None}


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
