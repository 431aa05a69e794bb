"""Read and edit an OCI config.json. Unedited bytes are kept.

Field names are the runtime-spec's.
"""

from __future__ import annotations

from typing import Any

from hook.core.base import jsonerrors
from hook.core.base.errors import TooLarge, Unacceptable, named
from hook.core.base.jsontext import (
    Malformed,
    Strings,
    bounded,
    decode,
    encode,
    encode_strings,
    fold,
    members,
    parse,
)
from hook.core.container import oci
from hook.core.container.oci import Json
from hook.core.container.start import Entries, Start

CONFIG_LIMIT = 8 * 1024 * 1024
"""Maximum size in bytes of a config.json or process file. Linux starts no process with more than 6 MiB of env and
arguments (execve(2)), and etcd limits objects to 1.5 MiB, so real ones are smaller."""

CONFIG_ENTRIES = 100_000
"""Maximum number of entries of all lists and objects in one of them together. A large real one has a few thousand.
Linux makes at most 100,000 mounts in a namespace (fs.mount-max). With the default stack limit it starts no process with
more than 2 MiB of env and arguments."""

_STRICT = ("mounts", "annotations", "linux", "root", "hooks", "capabilities")
"""Members whose values may have no duplicate names."""


def _names(text: str) -> dict[str, str]:
    return {spelled: name for name in text.split() for spelled in (name, name.lower())}  # in ASCII, `fold` is `lower`


_ROOT = _names("process mounts annotations linux root hooks")
PROCESS = _names("env args cwd terminal user capabilities")
_MOUNT = _names("destination type source options uidMappings gidMappings")
_LINUX = _names(
    "devices resources cgroupsPath namespaces uidMappings gidMappings rootfsPropagation maskedPaths readonlyPaths"
)
RESOURCES = _names("devices")
_DEVICE = _names("path type major minor fileMode uid gid")
_DEVICE_RULE = _names("allow type major minor access")
_NAMESPACE = _names("type path")
_ROOT_FILESYSTEM = _names("path readonly")
_STAGES = _names("prestart createRuntime createContainer startContainer poststart poststop")
_HOOK = _names("path args env timeout")
"""Members of a spec that reassert or a runtime acts on, by their names and their folded names."""


def check_names(members_of: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse names like `Process` and `proce\u017fs`: Go reads each as `process`, C only the exact name."""
    for name in members_of:
        exact = names.get(name) or names.get(fold(name), name)
        if exact != name:
            raise Malformed(f"member {named(repr(name))} is spelled {exact!r} in an OCI spec")


def _check_names_of_each(objects: object, names: dict[str, str]) -> None:
    """The same for each object of a list. A name that was checked once is not checked again."""
    checked: set[str] = set()
    for entry in objects if isinstance(objects, list) else ():
        if isinstance(entry, dict) and not checked.issuperset(entry):
            check_names(entry, names)
            checked.update(entry)


def without_nul(text: str) -> str:
    r"""The text. Raises Malformed if a string holds an escaped NUL, `\u0000`. In `\\u0000` the backslash is escaped.

    crun ends the string there, so NAME, NUL, `=x` in env unsets NAME.
    """
    nul = "\\u0000"
    if "\\" in text and nul in text and nul in text.replace("\\\\", ".."):
        raise Malformed("a string holds a NUL")
    return text


_OWN, _MARKED = '"reassert/', '"reassert\\/'
"""How the names of reassert's own annotations begin in JSON: as an engine writes a pod's, and as `render` does."""


class Spec(Start):
    """A config.json. Some of its parts can be replaced; `render` writes them into the text.

    These are `env` (process.env), `mounts`, `annotations`, `hooks`, `devices` (linux.devices) and `device_rules`
    (linux.resources.devices).

    Raises Unacceptable, naming `where`, for a text that is not an OCI spec, or that runtimes in Go and in C read
    differently. Raises TooLarge.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        try:
            self._text = without_nul(decode(bounded(data, CONFIG_ENTRIES, where)))
            self._members, end = members(self._text, inner="process", strict=_STRICT, strings="env")
            if self._text[end:].strip(" \t\r\n"):  # Go's decoder reads the first value, crun refuses the file
                raise Malformed(f"more text after the object at {jsonerrors.place(self._text, end)}")
            check_names(self._members, _ROOT)
            if not isinstance(self._members.get("process", (None,))[0], dict):
                raise Malformed("process is missing or not an object")
            self._process = self._members["process"][0]
            check_names(self._process, PROCESS)
            self.terminal = self._process.get("terminal", (None,))[0]
            self._capabilities = self._process.get("capabilities", (None,))[0]
            self.env = strings(self._process, "env", "process.env")
            self.mounts = oci.mounts(_mounts(self.member("mounts")))
            self.annotations = _string_map(self.member("annotations"))
            self.hooks: dict[str, Any] = _typed(self.member("hooks"), dict, "hooks")
            self.linux: dict[str, Any] = _typed(self.member("linux"), dict, "linux")
            self.devices = oci.devices(_objects(self.linux.get("devices"), "linux.devices"))
            self._resources: dict[str, Any] = _typed(self.linux.get("resources"), dict, "linux.resources")
            self.device_rules = oci.device_rules(_objects(self._resources.get("devices"), "linux.resources.devices"))
            self.root: dict[str, Any] = _typed(self.member("root"), dict, "root")
            self._check_spelling()
        except Malformed as error:
            raise Unacceptable(f"{where}: {error}") from None
        self._original = self._replaceable()

    def _check_spelling(self) -> None:
        _check_names_of_each(self.member("mounts"), _MOUNT)
        check_names(self.linux, _LINUX)
        check_names(self._resources, RESOURCES)
        _check_names_of_each(self.linux.get("devices"), _DEVICE)
        _check_names_of_each(self._resources.get("devices"), _DEVICE_RULE)
        _check_names_of_each(self.linux.get("namespaces"), _NAMESPACE)
        check_names(self.root, _ROOT_FILESYSTEM)
        check_names(self.hooks, _STAGES)
        for entries in self.hooks.values():
            _check_names_of_each(entries, _HOOK)

    def _replaceable(self) -> tuple[object, ...]:
        return self.env, self.mounts, self.annotations, self.devices, self.device_rules, self.hooks

    def member(self, name: str) -> object:
        """The value of a top-level member other than `process`; None if it is missing."""
        entry = self._members.get(name)
        return entry[0] if entry else None

    @property
    def shared_processes(self) -> str:
        """With whom the container shares its processes, or "": by a PID namespace that it joins, or has not."""
        return shared_processes(self.linux.get("namespaces"))

    @property
    def has_users(self) -> bool:  # type: ignore[override]  # an attribute of Start
        """Whether the container has another user namespace than the node's, one of its own or of others."""
        return "'user'" in repr(self.linux.get("namespaces"))

    @property
    def of_systemd(self) -> bool:  # type: ignore[override]  # an attribute of Start
        """Whether systemd makes the cgroup: its path is then SLICE:PREFIX:NAME (runc's docs/systemd.md)."""
        path = self.linux.get("cgroupsPath")
        return isinstance(path, str) and path.count(":") == 2 and "/" not in path

    def is_admin(self) -> bool:
        """Whether the container's processes can have CAP_SYS_ADMIN."""
        return "SYS_ADMIN" in repr(self._capabilities or "SYS_ADMIN").upper()

    def can_be_remounted(self) -> bool:
        """Whether a process can take `ro` off the container's mounts: one with CAP_SYS_ADMIN, in it or beside it.

        A process of another container, with which it shares a PID namespace, can enter its mount namespace (setns(2))
        with the capabilities of that container. One that joins later (`kubectl debug --target`) is not seen here.
        """
        return self.is_admin() or self.shared_processes.startswith(JOINED)

    def wrote(self, annotation: str) -> bool:
        """Whether `render` wrote an annotation of reassert. No engine's encoder escapes a slash, and a pod writes none.

        For who reports what was decided: those that act get the annotation from `create`, which replaces a pod's.
        """
        return f"{encode(annotation).replace(_OWN, _MARKED)}:" in self._text

    def changed(self) -> bool:
        """Whether a part was replaced."""
        return self._replaceable() != self._original

    def render(self) -> bytes:
        """The text with the replaced parts in it. Raises TooLarge: nothing is written that reassert would not read."""
        env, mounts, annotations, devices, device_rules, hooks = self._original
        values: list[tuple[str, object]] = []
        if self.mounts != mounts:
            values.append(("mounts", oci.objects(self.mounts)))
        if self.hooks != hooks:
            values.append(("hooks", self.hooks))
        if self.devices != devices or self.device_rules != device_rules:
            resources = {**self._resources, "devices": oci.objects(self.device_rules)}
            values.append(("linux", {**self.linux, "devices": oci.objects(self.devices), "resources": resources}))
        start = self._text.index("{")
        splices = [splice(self._members, start, name, encode(value)) for name, value in values]
        if self.annotations != annotations:
            splices.append(splice(self._members, start, "annotations", encode(self.annotations).replace(_OWN, _MARKED)))
        if self.env != env:
            splices.append(splice(self._process, self._members["process"][1], "env", encoded(self.env)))
        self._splices = splices
        label = f"{self.where} as corrected"
        if len(self._text) + sum([len(new) - (end - begin) for begin, end, new in splices]) <= CONFIG_LIMIT:
            data = apply(self._text, splices)
            if len(data) <= CONFIG_LIMIT:
                return bounded(data, CONFIG_ENTRIES, label)
        raise TooLarge(f"{label} is larger than the limit of {CONFIG_LIMIT} bytes")

    def env_in(self, data: bytes) -> Entries:
        """process.env of what `render` returned last. Raises Malformed."""
        text = decode(data)
        if not isinstance(self.env, Strings):
            return parse(text)["process"].get("env") or []
        offset = self._process["env"][1]
        offset += sum([len(new) - (end - begin) for begin, end, new in self._splices if begin < offset])
        part = text[offset : offset + len(self.env.text)]
        if part[:1] + part[-1:] != "[]":
            raise Malformed("process.env is not where it was written to")
        return Strings(part)


JOINED, THE_NODES = "joins the PID namespace", "has the node's PID namespace"


def shared_processes(namespaces: object) -> str:
    """With whom a container shares its processes, or "". `namespaces`: as in OCI linux.namespaces."""
    listed = [entry for entry in namespaces if isinstance(entry, dict)] if isinstance(namespaces, list) else []
    paths = [entry.get("path") for entry in listed if entry.get("type") == "pid"]
    if not paths:
        return THE_NODES
    return next((f"{JOINED} {path} of others" for path in paths if path), "")


def encoded(env: Entries) -> str:
    """The JSON of process.env."""
    return env.text if isinstance(env, Strings) else encode_strings(env)


def splice(members_of: dict[str, tuple[Any, int, int]], start: int, name: str, value: str) -> tuple[int, int, str]:
    """(begin, end, text) of a member's new JSON: it replaces the old value, or is inserted after the `{` at `start`."""
    entry = members_of.get(name)
    if entry is not None:
        return entry[1], entry[2], value
    return start + 1, start + 1, f'"{name}":{value}' + ("," if members_of else "")


def apply(text: str, splices: list[tuple[int, int, str]]) -> bytes:
    """The text with these parts replaced. In pieces: one character beyond ASCII makes a text four times as long.

    `splice` writes no comma after a member of an object that has none. Of two such members, this function writes it.
    """
    pieces: list[bytes] = []
    index, inserted = 0, -1
    for begin, end, new in sorted(splices):
        between = "," if begin == end == inserted and not pieces[-1].endswith(b",") else ""
        pieces += [(text[index:begin] + between).encode(), new.encode()]
        index, inserted = end, begin if begin == end else -1
    pieces.append(text[index:].encode())
    return b"".join(pieces)


def strings(members_of: dict[str, tuple[Any, int, int]], name: str, label: str) -> Entries:
    """A member that is a list of strings, [] if it is missing. Raises Malformed, naming `label`."""
    member = members_of[name][0] if name in members_of else None
    if isinstance(member, Strings):
        return member
    value: list[str] = _typed(member, list, label)
    try:
        "".join(value)
    except TypeError:
        position = next(index for index, entry in enumerate(value) if not isinstance(entry, str))
        raise Malformed(f"{label}[{position}] is not a string") from None
    return value


def _typed(value: object, kind: type[Any], name: str) -> Any:
    """The value, an empty one for null. Raises Malformed for one of another kind."""
    if not isinstance(value, (kind, type(None))):
        raise Malformed(f"{name} is not {'a list' if kind is list else 'an object'}")
    return kind() if value is None else value


def _mounts(value: object) -> list[Json]:
    mounts: list[Json] = _typed(value, list, "mounts")
    for position, entry in enumerate(mounts):
        if not isinstance(entry, dict) or not isinstance(entry.get("destination"), str):
            raise Malformed(f"mounts[{position}] is not an object with a destination")
    return mounts


def _objects(value: object, name: str) -> list[Json]:
    if value is not None and not (isinstance(value, list) and all(isinstance(entry, dict) for entry in value)):
        raise Malformed(f"{name} is not a list of objects")
    return value or []


def _string_map(value: object) -> dict[str, str]:
    annotations: dict[str, str] = _typed(value, dict, "annotations")
    for name, entry in annotations.items():
        if not isinstance(entry, str):
            raise Malformed(f"annotation {named(repr(name))} is not a string")
    return annotations
