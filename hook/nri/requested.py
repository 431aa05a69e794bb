"""What a container would start with, from NRI's request in OCI's spelling.

Most containers of a node have the same mounts and device rules. So a request is parsed without decoding these, and
equal ones are decoded once (`_decoded_once`); of a mount only the destination, until more may matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError

from hook.core.base.compare import clean
from hook.core.base.errors import TooLarge, Unacceptable
from hook.core.container.oci import Device, DeviceRule, Json, Mount
from hook.core.container.spec import CONFIG_ENTRIES, shared_processes
from hook.core.container.start import UNSEEN, Start, Unseen
from hook.nri import ttrpc

T = TypeVar("T")

_KEPT, _LARGEST = 128, 512
"""Objects of each kind that are remembered, and the largest number of bytes of one. A pod's author chooses both."""

_TOO_MANY = f"env, mounts, annotations and devices have more than the limit of {CONFIG_ENTRIES} entries together"

_UNREADABLE = "a mount, a device or a device rule of the request does not decode"

_read_place = ttrpc.get("MountPlace").FromString
_read_mount = ttrpc.get("Mount").FromString
_read_device = ttrpc.get("LinuxDevice").FromString
_read_device_rule = ttrpc.get("LinuxDeviceCgroup").FromString


class RequestedMount(Mount):
    """A mount, of which more than the destination is decoded when it is needed, which is so in few decisions."""

    __slots__ = ("_decoded", "_encoded")

    def __init__(self, encoded: bytes) -> None:
        """Raises Unacceptable."""
        self.path = clean(_destination(encoded))
        self._encoded = encoded
        self._decoded: Json | None = None

    @property
    def oci(self) -> Json:  # type: ignore[override]  # an attribute of Mount
        """The mount in OCI's spelling. Raises Unacceptable."""
        if self._decoded is None:
            try:
                self._decoded = oci_mount(_read_mount(self._encoded))
            except DecodeError:
                raise Unacceptable(_UNREADABLE) from None
        return self._decoded


def _destination(mount: bytes) -> str:
    """A mount's first field. A runtime encodes the fields in their order, each once (Go's protobuf does)."""
    try:
        if len(mount) > 1 and mount[0] == 0x0A and mount[1] < min(128, len(mount) - 1):  # a length of one byte
            return mount[2 : 2 + mount[1]].decode()
        return cast("str", _read_place(mount).destination)
    except (DecodeError, UnicodeDecodeError):
        raise Unacceptable(_UNREADABLE) from None


def oci_mount(mount: Any) -> Json:
    """An NRI mount in OCI's spelling."""
    fields = mount.destination, mount.type, mount.source, mount.options[:]
    return dict(zip(("destination", "type", "source", "options"), fields, strict=True))


class RequestedContainer(Start):
    """What a container would start with, from NRI's request in OCI's spelling. Raises Unacceptable, TooLarge."""

    def __init__(self, pod: Any, container: Any) -> None:
        notes, linux = container.annotations, container.linux
        env, args, mounts = container.env[:], container.args[:], container.mounts[:]
        devices, rules = linux.devices[:], linux.resources.devices[:]
        if 4 * (len(mounts) + len(devices) + len(rules)) + len(env) + len(args) + len(notes) > CONFIG_ENTRIES:
            raise TooLarge(_TOO_MANY)
        self.pod_annotations = pod.annotations  # a protobuf map: few policies need it
        self.env: list[str] = env
        self.mounts = [*_mounts(mounts)] if mounts else []
        if 0 in b"".join(mounts) and nul_in([], [], self.mounts, {}):
            raise Unacceptable(_nul("mounts"))
        self.annotations: dict[str, str] = {key: notes[key] for key in notes}
        self.devices = _devices(devices) if devices else []
        self.device_rules = _device_rules(rules) if rules else []
        self._namespaces = linux.namespaces
        self.check(args)

    @property
    def shared_processes(self) -> str | Unseen:
        """See Start. A runtime that tells namespaces tells at least the mount namespace."""
        listed = [{"type": one.type, "path": one.path} for one in self._namespaces]
        return shared_processes(listed) if listed else UNSEEN

    def check(self, args: list[str], mounts: Sequence[Mount] = ()) -> None:
        """Look for a NUL in any string but those of the container's own mounts. Raises Unacceptable."""
        part = nul_in(self.env, args, mounts, self.annotations)
        if part:
            raise Unacceptable(_nul(part))


def _decoded_once(decode: Callable[[bytes], T]) -> Callable[[list[bytes]], list[T]]:
    """Remember what the latest different objects decode to. No caller changes such an object: containers share it."""
    known = lru_cache(_KEPT)(decode)

    def each(objects: list[bytes]) -> list[T]:
        try:
            return list(map(known if max(map(len, objects), default=0) <= _LARGEST else decode, objects))
        except DecodeError:
            raise Unacceptable(_UNREADABLE) from None

    return each


_mounts = _decoded_once(RequestedMount)


@_decoded_once
def _devices(data: bytes) -> Device:
    device = _read_device(data)
    return Device({"path": device.path, "type": device.type, "major": device.major, "minor": device.minor})


@_decoded_once
def _device_rules(data: bytes) -> DeviceRule:
    rule = _read_device_rule(data)
    entry: Json = {"allow": rule.allow, "type": rule.type or "a", "access": rule.access}
    for key in ("major", "minor"):
        if rule.HasField(key):
            entry[key] = getattr(rule, key).value
    return DeviceRule(entry)


def _nul(part: str) -> str:
    return f"a string in the container's {part} holds a NUL"


def nul_in(env: list[str], args: list[str], mounts: Sequence[Mount], annotations: dict[str, str]) -> str:
    """The first of env, args, annotations and mounts that holds a NUL, or "". For requests without a spec's text."""
    in_mounts: list[str] = []
    for mount in mounts:
        in_mounts += (mount.destination, mount.type, mount.source, *mount.options)
    of_annotations = [*annotations, *annotations.values()]
    for part, strings in (("env", env), ("args", args), ("annotations", of_annotations), ("mounts", in_mounts)):
        if "\0" in "".join(strings):
            return part
    return ""
