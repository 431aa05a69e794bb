"""The output of `containerd config dump`: the effective configuration."""

from __future__ import annotations

import os
import re
from typing import Any

from hook.node.engines import toml
from hook.node.engines.containerd.files import CRI
from hook.node.engines.toml import Key


def path_of_shim(table: dict[str, Any]) -> str:
    """Returns the path by which a handler's table names runc's shim; "" if it names no path."""
    kind = str(table.get("runtime_type", ""))
    return kind if os.path.isabs(kind) and re.fullmatch(r"containerd-shim-runc-v\d+", os.path.basename(kind)) else ""


def not_wrapped(table: dict[str, Any]) -> str:
    """Returns the message why a handler with the path of a shim cannot be wrapped."""
    return (
        f"names its shim by path, and containerd passes no BinaryName to such a shim, so it cannot be wrapped; write "
        f'runtime_type = "io.containerd.runc.v2" and runtime_path = "{path_of_shim(table)}"'
    )


def cri(dump: dict[str, Any]) -> Key:
    """Returns the key of the CRI plugin's table, which differs in 2.x."""
    return CRI[3] if toml.get(dump, CRI[3]) is not None else CRI[2]


def in_dump(key: Key, dump: dict[str, Any]) -> Key:
    """Returns a setting's key as the dump spells it: 2.x prints a version 2 file as version 3."""
    return (*cri(dump), *key[2:]) if key[:2] in CRI.values() else key


def runtimes(dump: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tables of the runtime handlers, by name."""
    found: dict[str, dict[str, Any]] = toml.get(dump, (*cri(dump), "containerd", "runtimes"), {})
    return found


def imports(dump: dict[str, Any]) -> list[str]:
    """Returns the patterns of `imports`. containerd lists the main file among them."""
    return [str(item) for item in dump.get("imports") or [] if item != os.devnull]


def comparable(dump: dict[str, Any]) -> dict[Key, Any]:
    """Returns every value by its path of keys, without `imports`, which only says which files were read."""
    flat: dict[Key, Any] = {}

    def walk(values: dict[str, Any], key: Key) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                walk(value, (*key, name))
            elif value and (*key, name) != ("imports",):  # an omitted option has its zero value
                flat[(*key, name)] = value

    walk(dump, ())
    return flat


def differences(expected: dict[Key, Any], now: dict[Key, Any]) -> list[str]:
    """Returns the differing values as messages."""
    return [
        f"{'.'.join(key)} is {now.get(key)!r}, not {expected.get(key)!r}"
        for key in sorted({*expected, *now})
        if expected.get(key) != now.get(key)
    ]
