"""The env that CDI specs set for a container's devices. Part of the start path: builtins only.

The env of a CDI spec is set after all other env: appended, or by CDI's library after version 1.1.0 (containerd 2.4) in
place of the last entry of the name. So where an allocation names CDI devices, the last value of a name in process.env
may be the spec's, and correct. NVIDIA's specs set `void`, so that other injectors do nothing.
"""

import posix
import time

from hook.core.base.child import output_of
from hook.core.base.errors import ReassertError, Undecided, describe
from hook.core.base.jsontext import Malformed, decode, parse
from hook.core.base.system import read_file, trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

DIRECTORIES = ("/var/run/cdi", "/etc/cdi")
"""Directories of CDI specs. Of two that define a device, the first one counts (CDI, "CDI Spec precedence")."""

LIMIT = 32 * 1024 * 1024
"""Maximum size of a CDI spec in bytes."""

CONVERTED: "dict[str, str]" = {}
"""JSON of specs, by their YAML. A process fills it before it forks others that may start no program."""

CONVERT_SECONDS = 20.0
"""How long a start waits for the conversion of a CDI spec from YAML to JSON."""


def edits_of_claim(
    names: "list[str]", claim: str, directories: "tuple[str, ...]" = DIRECTORIES
) -> "list[tuple[str, dict[str, object]]]":
    """As `edits_of_devices`, for the devices of a resource claim, each of which must be defined. Raises Undecided."""
    found = edits_of_devices(names, directories)
    missing = [name for name in names if name not in [device for device, _ in found]]
    if missing:
        raise Undecided(
            f"{claim}: no CDI spec in {' or '.join(directories)} defines its device {missing[0]}; "
            "its DRA driver writes it: see the driver's log, and recreate the pod"
        )
    return found


def env_of(found: "list[tuple[str, dict[str, object]]]") -> "dict[str, list[str]]":
    """The values that the `containerEdits` of devices set, by env name."""
    values: dict[str, list[str]] = {}
    for _, edits in found:
        for entry in items(edits, "env", str):
            key, _, value = entry.partition("=")
            values.setdefault(key, []).append(value)
    return values


def edits_of_devices(
    names: "list[str]", directories: "tuple[str, ...]" = DIRECTORIES
) -> "list[tuple[str, dict[str, object]]]":
    """The `containerEdits` that the specs of devices make, each with its device: the whole spec's, then the device's.

    `names`: fully qualified (`vendor/class=name`). Raises Undecided if a spec of these devices cannot be read, or if a
    user other than root can write to it.
    """
    found: list[tuple[str, dict[str, object]]] = []
    missing = list(names)
    for directory in directories:
        defined: list[str] = []
        for path in spec_files(directory):
            spec = read_spec(path, [name.partition("=")[0] for name in missing])
            for name in missing:
                edits = _edits(spec, name)
                if edits is not None:
                    defined.append(name)
                    found += [(name, each) for each in edits]
        missing = [name for name in missing if name not in defined]
    return found


def items(edits: "dict[str, object]", key: str, kind: "type[T]") -> "list[T]":
    """The entries of a list in `containerEdits` that have the expected type."""
    entries = edits.get(key)
    return [entry for entry in entries if isinstance(entry, kind)] if isinstance(entries, list) else []


def spec_files(directory: str) -> "list[str]":
    """The paths of the spec files of a directory. Raises Undecided."""
    try:
        names = sorted(posix.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Undecided(describe(error)) from error
    return [f"{directory}/{name}" for name in names if name.endswith((".json", ".yaml", ".yml"))]


def read_spec(path: str, kinds: "list[str]") -> object:
    """A spec file's data; None if its text contains none of the kinds (`vendor/class`, or a part). Raises Undecided."""
    try:
        try:
            text = decode(read_file(path, LIMIT))
        except FileNotFoundError:
            return None  # removed since the directory was listed, or a dangling symbolic link
        if not any(kind in text for kind in kinds):
            return None
        trusted(path)
        if not path.endswith(".json"):
            text = CONVERTED.get(text) or _converted(path)
        return parse(text)
    except (OSError, ReassertError, Malformed) as error:
        reason = describe(error) if isinstance(error, OSError) else error
        raise Undecided(f"CDI spec {path}: {reason}; correct or remove the file") from error


def _converted(path: str) -> str:
    return decode(output_of(["cdi", "convert", path], time.monotonic() + CONVERT_SECONDS))


def convert_all(directories: "tuple[str, ...]" = DIRECTORIES) -> None:
    """Fill CONVERTED. What cannot be converted is left out: `read_spec` says why, where it matters."""
    CONVERTED.clear()
    for path in [path for directory in directories for path in spec_files(directory)]:
        if not path.endswith(".json"):
            try:
                trusted(path)
                text = decode(read_file(path, LIMIT))
                CONVERTED[text] = _converted(path)
            except (OSError, ReassertError, Malformed):
                continue


def _edits(spec: object, name: str) -> "list[dict[str, object]] | None":
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
