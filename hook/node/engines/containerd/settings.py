"""Settings of containerd as `containerd config dump` prints them: those of a wired node, and those it had before."""

from __future__ import annotations

import re
from copy import deepcopy
from os.path import basename, isabs
from typing import Any

from hook.node.artifacts.dispatchers import real_of
from hook.node.engines import toml
from hook.node.engines.containerd.files import FORMATS, NRI
from hook.node.engines.nri_validator import Validator
from hook.node.engines.toml import Key
from hook.node.nodefiles import NodeFiles

SPECS = "/etc/reassert/base-runtime-spec"
"""The directory of each handler's generated base_runtime_spec."""

VALIDATOR = Validator((*NRI, "default_validator"), "enable", "required_plugins", "tolerate_missing_plugins_annotation")

Dump = dict[str, Any]
"""The values that `containerd config dump` prints."""


def path_of_shim(table: dict[str, Any]) -> str:
    """Returns the path by which a handler's table names runc's shim; "" if it names no path."""
    kind = str(table.get("runtime_type", ""))
    return kind if isabs(kind) and re.fullmatch(r"containerd-shim-runc-v\d+", basename(kind)) else ""


def not_wrapped(table: dict[str, Any]) -> str:
    """Returns the message why a handler with the path of a shim cannot be wrapped."""
    return (
        f"names its shim by path, and containerd passes no BinaryName to such a shim, so it cannot be wrapped; write "
        f'runtime_type = "io.containerd.runc.v2" and runtime_path = "{path_of_shim(table)}"'
    )


def cri(dump: dict[str, Any]) -> Key:
    """Returns the key of the CRI plugin's table, which differs in 2.x."""
    return next((each.cri for each in FORMATS.values() if toml.get(dump, each.cri) is not None), FORMATS[2].cri)


def in_dump(key: Key, dump: dict[str, Any]) -> Key:
    """Returns a setting's key as the dump spells it: 2.x prints a version 2 file as its newest version."""
    return (*cri(dump), *key[2:]) if key[:2] in [each.cri for each in FORMATS.values()] else key


def runtimes(dump: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tables of the runtime handlers, by name."""
    found: dict[str, dict[str, Any]] = toml.get(dump, (*cri(dump), "containerd", "runtimes"), {})
    return found


def comparable(dump: dict[str, Any]) -> dict[Key, Any]:
    """Returns every value by its path of keys, without `imports`, which only says which files were read."""
    # An omitted option has its zero value.
    return {key: value for key, value in toml.leaves(dump) if value and key != ("imports",)}


def differences(expected: dict[Key, Any], now: dict[Key, Any]) -> list[str]:
    """Returns the differing values as messages."""
    return [
        f"{'.'.join(key)} is {now.get(key)!r}, not {expected.get(key)!r}"
        for key in sorted({*expected, *now})
        if expected.get(key) != now.get(key)
    ]


def wanted_dump(dump: Dump, settings: dict[Key, Any], notes: dict[str, Any], new: dict[str, Any]) -> Dump:
    """Returns the wanted output of `containerd config dump`: the current one without old, and with new settings."""
    wanted = deepcopy(dump)
    handlers = runtimes(wanted)
    for name, old in notes.get("handlers", {}).items():
        if name in handlers:
            toml.put(handlers[name], ("options", "BinaryName"), old["BinaryName"])
            handlers[name]["base_runtime_spec"] = old["base_runtime_spec"]
    handlers.pop(notes.get("created") or "", None)
    if notes.get("nri"):
        toml.put(wanted, (*NRI, "disable"), True)
    if notes.get("cdi"):
        toml.put(wanted, (*cri(dump), "enable_cdi"), False)
    VALIDATOR.restore(wanted, notes)
    handlers.update(deepcopy(new))
    for key, value in settings.items():
        toml.put(wanted, key, value)
    return wanted


def before_wiring(table: dict[str, Any], notes: dict[str, Any], node: NodeFiles) -> dict[str, str]:
    """Returns a handler's settings without reassert. A copy of a wired handler has that handler's old settings."""
    binary, spec = str(toml.get(table, ("options", "BinaryName"), "")), str(table.get("base_runtime_spec", ""))
    if is_our_spec(spec):
        of = basename(spec).removesuffix(".json")
        spec = str(toml.get(notes, ("handlers", of, "base_runtime_spec"), ""))
    return {"BinaryName": real_of(binary, node) or binary, "base_runtime_spec": spec}


def own_values(table: dict[str, Any]) -> dict[Key, Any]:
    """Returns the values of a handler's table without zero values and without the settings that wire it."""
    ours = (("options", "BinaryName"), ("base_runtime_spec",))
    return {key: value for key, value in comparable(table).items() if key not in ours}


def is_ours(binary: str) -> bool:
    """Whether a handler's BinaryName is a dispatcher."""
    return basename(binary).startswith("reassert-")


def is_our_spec(path: str) -> bool:
    """Whether a base_runtime_spec is one that `wire` wrote."""
    return path.startswith(SPECS + "/")
