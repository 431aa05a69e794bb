"""Mounts, devices and rules for devices of OCI's config.json, as read-only views of its objects.

A member that is not of OCI's type is missing to these views, or text where an author could have meant text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hook.core.base.compare import clean, cleaned

Json: TypeAlias = dict[str, object]

Number: TypeAlias = tuple[str, int, int]
"""Type (`c` or `b`), major and minor number of a device."""

_READ_ONLY, _WRITABLE = ("ro", "rro"), ("rw", "rrw")
"""Mount options; those with two `r` are for the mounts that come with it too (mount_setattr(2), AT_RECURSIVE)."""

_MAJOR, _MINOR = 0xFFF, 0xFFFFF
"""Bits of a device's number that mknod(2) uses; it ignores others."""


class Mount:
    """One object of `mounts`. Two are equal if their objects are."""

    __slots__ = ("oci", "path")

    oci: Json
    """The object. Nothing changes it: several containers may share one."""

    path: str
    """Where it is mounted: `destination`, cleaned. A link of the image or of a volume can lead it elsewhere."""

    def __init__(self, oci: Json, path: str = "") -> None:
        """`path`: if it is known."""
        self.oci = oci
        self.path = path or clean(self.destination)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mount) and self.oci == other.oci

    __hash__ = None  # type: ignore[assignment]  # as of a dictionary

    def __repr__(self) -> str:
        return f"Mount({self.oci})"

    @property
    def destination(self) -> str:
        """The path as it is written."""
        return str(self.oci["destination"])

    @property
    def source(self) -> str:
        """The path on the node of a bind mount, else the name of a file system; "" without one."""
        source = self.oci.get("source")
        return source if isinstance(source, str) else ""

    @property
    def type(self) -> str:
        """The file system's type, "" without one. Engines write `bind` for a bind mount, which is none."""
        return str(self.oci.get("type") or "")

    @property
    def options(self) -> list[str]:
        """The mount(8) options."""
        return list(map(str, self._options))

    @property
    def _options(self) -> Sequence[object]:
        options = self.oci.get("options")
        return options if isinstance(options, list) else ()

    @property
    def is_bind(self) -> bool:
        """Whether it shows a file or directory of the node, whose path is `source`."""
        return self.oci.get("type") == "bind" or "bind" in self._options or "rbind" in self._options

    @property
    def is_read_only(self) -> bool:
        """Whether it is read-only by its options, of which the last one counts; mounts below it may not be."""
        for option in reversed(self._options):
            if option in _READ_ONLY or option in _WRITABLE:
                return option in _READ_ONLY
        return False

    def shown(self) -> Json:
        """What an event has of it. Options can hold a password."""
        return {"destination": self.oci["destination"], "source": self.oci.get("source")}


class Device:
    """One object of `linux.devices`. Two are equal if their objects are."""

    __slots__ = ("oci", "path")

    oci: Json
    """The object. Nothing changes it: several containers may share one."""

    path: str
    """Where the runtime makes it: `path` of the object, cleaned. A link of the image can lead it elsewhere."""

    def __init__(self, oci: Json) -> None:
        self.oci = oci
        self.path = clean(self.written)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.oci == other.oci

    __hash__ = None  # type: ignore[assignment]  # as of a dictionary

    def __repr__(self) -> str:
        return f"Device({self.oci})"

    @property
    def written(self) -> str:
        """The path as it is written, "" without one."""
        return str(self.oci.get("path", ""))

    @property
    def number(self) -> Number | None:
        """The number that a runtime gives to the node; None for a FIFO. Type `u` is `c` (mknod(1))."""
        kind = {"c": "c", "u": "c", "b": "b"}.get(str(self.oci.get("type"))[:1])
        major, minor = self.oci.get("major") or 0, self.oci.get("minor") or 0
        if kind is None or not isinstance(major, int) or not isinstance(minor, int):
            return None
        return kind, major & _MAJOR, minor & _MINOR


class DeviceRule:
    """One object of `linux.resources.devices`, a rule of the device cgroup. Two are equal if their objects are."""

    __slots__ = ("oci",)

    oci: Json
    """The object. Nothing changes it: several containers may share one."""

    def __init__(self, oci: Json) -> None:
        self.oci = oci

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceRule) and self.oci == other.oci

    __hash__ = None  # type: ignore[assignment]  # as of a dictionary

    def __repr__(self) -> str:
        return f"DeviceRule({self.oci})"

    @property
    def allows(self) -> bool:
        """Whether it allows the access. Else it denies it."""
        return bool(self.oci.get("allow"))

    @property
    def letters(self) -> set[str]:
        """The access that it is about: letters of `rwm`, all of them without one."""
        return set(str(self.oci.get("access") or "rwm"))

    @property
    def is_for_all(self) -> bool:
        """Whether it is for all devices: type `a`, with which the kernel ignores numbers and access."""
        return self.oci.get("type") in (None, "", "a")

    @property
    def scope(self) -> tuple[object, ...]:
        """What it is about: type, major and minor number, None for any number."""
        numbers = [self.oci.get("major"), self.oci.get("minor")]
        values = (self.oci.get("type"), *[None if number == -1 else number for number in numbers])
        return tuple([value if isinstance(value, (str, int, float, type(None))) else repr(value) for value in values])


def mounts(objects: list[Json]) -> list[Mount]:
    """The views of a list of objects, whose paths are cleaned at once."""
    return list(map(Mount, objects, cleaned([str(each["destination"]) for each in objects])))


def devices(objects: list[Json]) -> list[Device]:
    """The views of a list of objects."""
    return list(map(Device, objects))


def device_rules(objects: list[Json]) -> list[DeviceRule]:
    """The views of a list of objects."""
    return list(map(DeviceRule, objects))


def objects(views: Iterable[Mount | Device | DeviceRule]) -> list[Json]:
    """What config.json has of these."""
    return [view.oci for view in views]
