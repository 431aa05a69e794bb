"""The env that CDI specs set for a container's devices. Part of the start path: builtins only.

containerd appends a CDI spec's env after everything else, so for an allocation that names CDI devices the last value
in process.env may rightly be the spec's (NVIDIA's set `void` there, to keep other injectors away).
"""

import posix
import time

from hook.base.child import output_of
from hook.base.errors import ReassertError, Undecided, describe
from hook.base.jsontext import Malformed, decode, parse
from hook.base.system import read_file, trusted

DIRECTORIES = ("/var/run/cdi", "/etc/cdi")
"""Where specs are read from; for one device the first directory that has it counts (CDI, "CDI Spec precedence")."""

LIMIT = 32 * 1024 * 1024
CONVERT_SECONDS = 20.0


def env_of_devices(names: "list[str]", directories: "tuple[str, ...]" = DIRECTORIES) -> "dict[str, list[str]]":
    """Values by env name that the specs of fully qualified devices (`vendor/class=name`) set.

    Raises Undecided for a spec of these devices that cannot be read or that somebody other than root may write.
    """
    values: dict[str, list[str]] = {}
    missing = list(names)
    for directory in directories:
        found: list[str] = []
        for path in _spec_files(directory):
            spec = _spec(path, missing)
            for name in missing:
                edits = _edits(spec, name)
                if edits is not None:
                    found.append(name)
                    for entry in edits:
                        key, _, value = entry.partition("=")
                        values.setdefault(key, []).append(value)
        missing = [name for name in missing if name not in found]
    return values


def _spec_files(directory: str) -> "list[str]":
    try:
        names = sorted(posix.listdir(directory))
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names if name.endswith((".json", ".yaml", ".yml"))]


def _spec(path: str, names: "list[str]") -> object:
    """The spec in a file as data, None where it has none of the devices' kinds in its text."""
    try:
        try:
            text = decode(read_file(path, LIMIT))
        except FileNotFoundError:
            return None  # replaced since the directory was listed, or a link to nowhere
        if not any(name.partition("=")[0] in text for name in names):
            return None
        trusted(path)
        if not path.endswith(".json"):
            text = decode(output_of(["cdi", "convert", path], time.monotonic() + CONVERT_SECONDS))
        return parse(text)
    except (OSError, ReassertError, Malformed) as error:
        raise Undecided(f"CDI spec {path}: {describe(error) if isinstance(error, OSError) else error}") from None


def _edits(spec: object, name: str) -> "list[str] | None":
    """The env entries for a device, the spec's own and the device's; None where it is not this spec's."""
    kind, _, device = name.partition("=")
    if not isinstance(spec, dict) or spec.get("kind") != kind:
        return None
    devices = spec.get("devices")
    for entry in devices if isinstance(devices, list) else []:
        if isinstance(entry, dict) and entry.get("name") == device:
            return _env(spec) + _env(entry)
    return None


def _env(holder: "dict[str, object]") -> "list[str]":
    edits = holder.get("containerEdits")
    env = edits.get("env") if isinstance(edits, dict) else None
    return [entry for entry in env if isinstance(entry, str)] if isinstance(env, list) else []
