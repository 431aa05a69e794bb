"""The env that CDI specs set for a container's devices.

The env of a CDI spec is set after all other env: appended, or by CDI's library after version 1.1.0 (containerd 2.4) in
place of the last entry of the name. So where an allocation names CDI devices, the last value of a name in process.env
may be the spec's, and correct. NVIDIA's specs set `void`, so that other injectors do nothing.
"""

from __future__ import annotations

import posix
import time
from typing import TypeVar

from hook.core.base.child import output_of
from hook.core.base.errors import ReassertError, Undecided, describe
from hook.core.base.jsontext import Malformed, decode, parse
from hook.core.base.system import read_file, trusted

T = TypeVar("T")

CDI_DIRECTORIES = ("/var/run/cdi", "/etc/cdi")
"""Directories of CDI specs. Of two that define a device, the first one counts (CDI, "CDI Spec precedence")."""

CDI_LIMIT = 32 * 1024 * 1024
"""Maximum size of a CDI spec in bytes."""

CONVERTED: dict[str, str] = {}
"""JSON of specs, by their text. A process fills it before it forks others that may start no program."""

CONVERT_SECONDS = 20.0
"""How long a start waits for the conversion of a CDI spec from YAML to JSON."""


def edits_of_claim(
    names: list[str], claim: str, directories: tuple[str, ...] = CDI_DIRECTORIES
) -> list[tuple[str, dict[str, object]]]:
    """As `edits_of_devices`, for the devices of a resource claim, each of which must be defined. Raises Undecided."""
    edits = edits_of_devices(names, directories)
    missing = [name for name in names if name not in [device for device, _ in edits]]
    if missing:
        raise Undecided(
            f"{claim}: no CDI spec in {' or '.join(directories)} defines its device {missing[0]}; "
            "its DRA driver writes it: see the driver's log, and recreate the pod"
        )
    return edits


def env_of(placed: list[tuple[str, dict[str, object]]]) -> dict[str, list[str]]:
    """The values that the `containerEdits` of devices set, by env name."""
    values: dict[str, list[str]] = {}
    for _, edits in placed:
        for entry in items(edits, "env", str):
            key, equals, value = entry.partition("=")
            if equals:
                values.setdefault(key, []).append(value)
    return values


def edits_of_devices(
    names: list[str], directories: tuple[str, ...] = CDI_DIRECTORIES
) -> list[tuple[str, dict[str, object]]]:
    """The `containerEdits` that the specs of devices make, each with its device: the whole spec's, then the device's.

    `names`: fully qualified (`vendor/class=name`). Raises Undecided if a spec of these devices cannot be read, or if a
    user other than root can write to it.
    """
    placed: list[tuple[str, dict[str, object]]] = []
    missing = list(names)
    for directory in directories:
        defined: list[str] = []
        for path in spec_files(directory):
            spec = read_spec(path, [name.partition("=")[0] for name in missing])
            for name in missing:
                edits = _edits(spec, name)
                if edits is not None:
                    defined.append(name)
                    placed += [(name, each) for each in edits]
        missing = [name for name in missing if name not in defined]
    return placed


def items(edits: dict[str, object], key: str, kind: type[T]) -> list[T]:
    """The entries of a list in `containerEdits` that have the expected type."""
    entries = edits.get(key)
    return [entry for entry in entries if isinstance(entry, kind)] if isinstance(entries, list) else []


class Unread(Undecided):
    """A spec that cannot be read."""

    def __init__(self, path: str, reason: object, text: str) -> None:
        super().__init__(f"CDI spec {path}: {reason}; correct or remove the file")
        self.text = text
        """The text of the spec, "" if that is unknown."""


def spec_files(directory: str) -> list[str]:
    """The paths of the spec files of a directory, as CDI's library reads them. Raises Undecided."""
    try:
        names = sorted(posix.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Undecided(describe(error)) from error
    return [f"{directory}/{name}" for name in names if name.endswith((".json", ".yaml"))]


def read_spec(path: str, kinds: list[str]) -> object:
    """A spec file's data; None if its text contains none of the kinds (`vendor/class`, or a part). Raises Unread.

    CDI's library reads each file as YAML, of which JSON is a part; and it makes text of numbers where text belongs.
    """
    text = ""
    try:
        try:
            text = decode(read_file(path, CDI_LIMIT, waits=True))
        except FileNotFoundError:
            return None  # removed since the directory was listed, or a dangling symbolic link
        if not any(kind in text for kind in kinds):
            return None
        trusted(path)
        return _with_texts(_json_of(path, text))
    except (OSError, ReassertError, Malformed) as error:
        raise Unread(path, describe(error) if isinstance(error, OSError) else error, text) from error


def _json_of(path: str, text: str) -> object:
    """Raises OSError, ReassertError, Malformed."""
    try:
        return parse(text)
    except Malformed as error:
        converted = CONVERTED.get(text) or _converted(path)
        if not converted and text.lstrip()[:1] == "{":
            raise Malformed(f"neither YAML nor JSON: {error}") from None
    if not converted:
        raise Malformed(f"not YAML: see `reassert cdi convert {path}`")
    return parse(converted)


def _converted(path: str) -> str:
    return decode(output_of(["cdi", "convert", path], time.monotonic() + CONVERT_SECONDS))


_TEXTS = {
    "deviceNodes": ("path", "hostPath", "type", "permissions"),
    "mounts": ("hostPath", "containerPath", "options", "type"),
}
"""The members of `containerEdits` that are lists of objects, and the members of these that are text, or lists of it."""


def _with_texts(spec: object) -> object:
    """The spec with text where CDI has text, as far as it is used here."""
    if isinstance(spec, dict):
        _make_texts(spec, ("kind",))
        for holder in (spec, *items(spec, "devices", dict)):
            _make_texts(holder, ("name",))
            edits = holder.get("containerEdits")
            if isinstance(edits, dict):
                _make_texts(edits, ("env",))
                for member, names in _TEXTS.items():
                    for entry in items(edits, member, dict):
                        _make_texts(entry, names)
    return spec


def _make_texts(holder: dict[str, object], names: tuple[str, ...]) -> None:
    for name in names:
        value = holder.get(name)
        if isinstance(value, list):
            holder[name] = [text_of(entry) for entry in value]
        elif name in holder:
            holder[name] = text_of(value)


def text_of(value: object) -> object:
    """A number or boolean as Go's library makes text of it; anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits = next((text for text in [f"{value:.{places}e}" for places in range(17)] if float(text) == value), "")
        mantissa, _, power = digits.partition("e")
        if not power or not -5 < int(power) < 6:
            return digits or str(value)
        return f"{value:.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - int(power))}f}"
    return str(value) if isinstance(value, int) else value


def convert_all(directories: tuple[str, ...] = CDI_DIRECTORIES) -> None:
    """Fill CONVERTED. What cannot be converted is left out: `read_spec` says why, where it matters."""
    CONVERTED.clear()
    for path in [path for directory in directories for path in spec_files(directory)]:
        try:
            trusted(path)
            text = decode(read_file(path, CDI_LIMIT))
        except (OSError, ReassertError, Malformed):
            continue
        try:
            parse(text)
        except Malformed:
            try:
                CONVERTED[text] = _converted(path)
            except (OSError, ReassertError, Malformed):
                continue


def _edits(spec: object, name: str) -> list[dict[str, object]] | None:
    """The `containerEdits` of a device: the spec's, then the device's. None if the spec does not define the device."""
    kind, _, device = name.partition("=")
    if not isinstance(spec, dict) or spec.get("kind") != kind:
        return None
    devices = spec.get("devices")
    for entry in devices if isinstance(devices, list) else []:
        if isinstance(entry, dict) and entry.get("name") == device:
            holders = (spec.get("containerEdits"), entry.get("containerEdits"))
            return [edits if isinstance(edits, dict) else {} for edits in holders]
    return None
