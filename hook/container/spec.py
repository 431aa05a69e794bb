"""An OCI config.json, or the process file of an `exec`, as text that keeps every byte nobody asked to change.

Part of the start path: builtins only. Field names are the runtime-spec's.
"""

from hook.base.errors import Unacceptable
from hook.base.jsontext import Malformed, decode, encode, encode_strings, fold, holds_nul, members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 32 * 1024 * 1024
"""Bytes of a config.json or process file. etcd takes objects of at most 1.5 MiB, so a real one is far below."""

_STRICT = ("mounts", "annotations", "linux", "root", "hooks")
"""Members whose values may have no duplicate names."""


def _names(text: str) -> "dict[str, str]":
    return {fold(name): name for name in text.split()}


_ROOT = _names("process mounts annotations linux root hooks")
_PROCESS = _names("env args cwd terminal user")
_MOUNT = _names("destination type source options uidMappings gidMappings")
_LINUX = _names("devices resources cgroupsPath namespaces uidMappings gidMappings rootfsPropagation")
_RESOURCES = _names("devices")
_DEVICE = _names("path type major minor fileMode uid gid")
_DEVICE_RULE = _names("allow type major minor access")
_NAMESPACE = _names("type path")
_ROOT_FILESYSTEM = _names("path readonly")
_STAGES = _names("prestart createRuntime createContainer startContainer poststart poststop")
_HOOK = _names("path args env timeout")
"""Members of a spec that reassert or a runtime judges by, by what Go compares of them."""


def _spelled(found: "dict[str, Any]", names: "dict[str, str]") -> None:
    """Refuse `Process` and `proce\u017fs`, beside `process` or alone: Go takes each, C only the exact one."""
    for name in found:
        meant = names.get(fold(name), name)
        if meant != name:
            raise Malformed(f"member {name!r} is spelled {meant!r} in an OCI spec")


def _all_spelled(objects: object, names: "dict[str, str]") -> None:
    """The same for each object of a list; almost always all have the same few names."""
    seen: set[str] = set()
    for entry in objects if isinstance(objects, list) else ():
        if isinstance(entry, dict) and not seen.issuperset(entry):
            _spelled(entry, names)
            seen.update(entry)


def _without_nul(text: str) -> str:
    """The text, without a NUL: crun ends a string there, so of an env entry NAME, NUL, `=x` it unsets NAME."""
    if holds_nul(text):
        raise Malformed("a string holds a NUL")
    return text


def nul_in(
    env: "list[str]", args: "list[str]", mounts: "list[dict[str, object]]", annotations: "dict[str, str]"
) -> str:
    """The first of env, args, mounts and annotations that holds a NUL, or "". For NRI, which has no text of a spec."""
    if "\0" in "".join(env):
        return "env"
    if "\0" in "".join(args):
        return "args"
    if any("\0" in "".join(annotation) for annotation in annotations.items()):
        return "annotations"
    for mount in mounts:
        for value in mount.values():
            if "\0" in (
                value if isinstance(value, str) else "".join(map(str, value)) if isinstance(value, list) else ""
            ):
                return "mounts"
    return ""


class Spec:
    """config.json, of which a few parts may be replaced; `render` splices them into the text.

    They are `env` (process.env), `mounts`, `annotations`, `hooks`, `devices` (linux.devices) and `device_rules`
    (linux.resources.devices).

    Raises Unacceptable, naming `where`, for what is not an OCI spec or means one thing to Go and another to C.
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
            self._text = _without_nul(decode(data))
            self._found = members(self._text, "process", _STRICT)
            _spelled(self._found, _ROOT)
            if not isinstance(self._found.get("process", (None,))[0], dict):
                raise Malformed("process is missing or not an object")
            self._process = self._found["process"][0]
            _spelled(self._process, _PROCESS)
            self.env = _strings(self._process, "env", "process.env")
            self.mounts = _mounts(self.member("mounts"))
            self.annotations = _string_map(self.member("annotations"))
            self.hooks = _object(self.member("hooks"), "hooks")
            linux = _object(self.member("linux"), "linux")
            self.devices = _objects(linux.get("devices"), "linux.devices")
            resources = _object(linux.get("resources"), "linux.resources")
            self.device_rules = _objects(resources.get("devices"), "linux.resources.devices")
            self._check_spelling(linux, resources)
        except Malformed as error:
            raise Unacceptable(f"{where}: {error}") from None
        self._kept = self._replaceable()

    def _check_spelling(self, linux: "dict[str, object]", resources: "dict[str, object]") -> None:
        _all_spelled(self.mounts, _MOUNT)
        _spelled(linux, _LINUX)
        _spelled(resources, _RESOURCES)
        _all_spelled(self.devices, _DEVICE)
        _all_spelled(self.device_rules, _DEVICE_RULE)
        _all_spelled(linux.get("namespaces"), _NAMESPACE)
        _spelled(_object(self.member("root"), "root"), _ROOT_FILESYSTEM)
        _spelled(self.hooks, _STAGES)
        for entries in self.hooks.values():
            _all_spelled(entries, _HOOK)

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
            self._text = _without_nul(decode(data))
            self._found = members(self._text)
            _spelled(self._found, _PROCESS)
            self.env = self._kept = _strings(self._found, "env", "env")
        except Malformed as error:
            raise Unacceptable(f"{where}: {error}") from None

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
