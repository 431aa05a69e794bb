"""An OCI config.json, or the process file of an `exec`, as text that keeps every byte nobody asked to change.

Part of the start path: builtins only. Field names are the runtime-spec's.
"""

from hook.base.errors import Undecided
from hook.base.jsontext import Malformed, decode, encode, encode_strings, members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 32 * 1024 * 1024
"""Bytes of a config.json or process file. etcd takes objects of at most 1.5 MiB, so a real one is far below."""

_ROOT_MEMBERS = ("process", "mounts", "annotations", "linux", "root", "hooks")
_PROCESS_MEMBERS = ("env",)


def _checked(found: "dict[str, tuple[Any, int, int]]", names: "tuple[str, ...]") -> None:
    """Refuse `Process` beside `process`: Go takes either, C only the second."""
    for name in found:
        if name not in names and name.lower() in names:
            raise Malformed(f"member {name!r} is spelled {name.lower()!r} in an OCI spec")


class Spec:
    """config.json, of which a few parts may be replaced; `render` splices them into the text.

    They are `env` (process.env), `mounts`, `annotations`, `hooks`, `devices` (linux.devices) and `device_rules`
    (linux.resources.devices).

    Raises Undecided, naming `where`, for what is not an OCI spec.
    """

    __slots__ = (
        "_found",
        "_kept",
        "_process",
        "_text",
        "annotations",
        "device_rules",
        "devices",
        "env",
        "hooks",
        "mounts",
        "where",
    )

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        try:
            self._text = decode(data)
            self._found = members(self._text, inner="process")
            _checked(self._found, _ROOT_MEMBERS)
            if not isinstance(self._found.get("process", (None,))[0], dict):
                raise Malformed("process is missing or not an object")
            self._process = self._found["process"][0]
            _checked(self._process, _PROCESS_MEMBERS)
            self.env = _strings(self._process, "env", "process.env")
            self.mounts = _mounts(self.member("mounts"))
            self.annotations = _string_map(self.member("annotations"))
            self.hooks = _object(self.member("hooks"), "hooks")
            linux = _object(self.member("linux"), "linux")
            self.devices = _objects(linux.get("devices"), "linux.devices")
            resources = _object(linux.get("resources"), "linux.resources")
            self.device_rules = _objects(resources.get("devices"), "linux.resources.devices")
        except Malformed as error:
            raise Undecided(f"{where}: {error}") from None
        self._kept = self._replaceable()

    def _replaceable(self) -> "tuple[object, ...]":
        return self.env, self.mounts, self.annotations, self.devices, self.device_rules, self.hooks

    def member(self, name: str) -> object:
        """The value of a top-level member other than `process`, None where it is missing."""
        entry = self._found.get(name)
        return entry[0] if entry else None

    def process(self) -> "dict[str, object]":
        """The values of the members of `process`."""
        return {name: entry[0] for name, entry in self._process.items()}

    def changed(self) -> bool:
        """Whether one of them was replaced."""
        return self._replaceable() != self._kept

    def render(self) -> bytes:
        """The text with the replaced values in it."""
        env, mounts, annotations, devices, device_rules, hooks = self._kept
        splices: list[tuple[int, int, str]] = []
        if self.env != env:
            splices.append(_splice(self._process, self._found["process"][1], "env", encode_strings(self.env)))
        if self.mounts != mounts:
            splices.append(_splice(self._found, self._start(), "mounts", encode(self.mounts)))
        if self.annotations != annotations:
            splices.append(_splice(self._found, self._start(), "annotations", encode(self.annotations)))
        if self.hooks != hooks:
            splices.append(_splice(self._found, self._start(), "hooks", encode(self.hooks)))
        if self.devices != devices or self.device_rules != device_rules:
            splices.append(self._linux_splice())
        return _apply(self._text, splices)

    def _linux_splice(self) -> "tuple[int, int, str]":
        """`linux` with both lists in it. Devices are rarely missing, so it is simply written anew."""
        linux = dict(_object(self.member("linux"), "linux"))
        linux["devices"] = self.devices
        linux["resources"] = {**_object(linux.get("resources"), "linux.resources"), "devices": self.device_rules}
        return _splice(self._found, self._start(), "linux", encode(linux))

    def _start(self) -> int:
        return self._text.index("{")


class ProcessFile:
    """What `exec --process FILE` reads: the runtime-spec's process object alone. Only `env` may be replaced."""

    __slots__ = ("_found", "_kept", "_text", "env", "where")

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        try:
            self._text = decode(data)
            self._found = members(self._text)
            _checked(self._found, _PROCESS_MEMBERS)
            self.env = self._kept = _strings(self._found, "env", "env")
        except Malformed as error:
            raise Undecided(f"{where}: {error}") from None

    def changed(self) -> bool:
        """Whether `env` was replaced."""
        return self.env != self._kept

    def render(self) -> bytes:
        """The text with the replaced env in it."""
        return _apply(self._text, [_splice(self._found, self._text.index("{"), "env", encode_strings(self.env))])


def _splice(found: "dict[str, tuple[Any, int, int]]", start: int, name: str, value: str) -> "tuple[int, int, str]":
    """Where to put a member's new JSON: over the old one, or as the first member of the object at `start`."""
    entry = found.get(name)
    if entry is not None:
        return entry[1], entry[2], value
    return start + 1, start + 1, f'"{name}":{value}' + ("," if found else "")


def _apply(text: str, splices: "list[tuple[int, int, str]]") -> bytes:
    for begin, end, new in sorted(splices, reverse=True):
        text = text[:begin] + new + text[end:]
    return text.encode("utf-8")


def _strings(found: "dict[str, tuple[Any, int, int]]", name: str, what: str) -> "list[str]":
    value = found[name][0] if name in found else None
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{what} is not a list")
    for position, entry in enumerate(value):
        if not isinstance(entry, str):
            raise Malformed(f"{what}[{position}] is not a string")
    return value


def _mounts(value: object) -> "list[dict[str, object]]":
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed("mounts is not a list")
    for position, entry in enumerate(value):
        if not isinstance(entry, dict) or not isinstance(entry.get("destination"), str):
            raise Malformed(f"mounts[{position}] is not an object with a destination")
    return value


def _object(value: object, what: str) -> "dict[str, object]":
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _objects(value: object, what: str) -> "list[dict[str, object]]":
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise Malformed(f"{what} is not a list of objects")
    return value


def _string_map(value: object) -> "dict[str, str]":
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed("annotations is not an object")
    for name, entry in value.items():
        if not isinstance(entry, str):
            raise Malformed(f"annotation {name!r} is not a string")
    return value
