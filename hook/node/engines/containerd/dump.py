"""What `containerd config dump` says: the configuration as containerd has understood it."""

from __future__ import annotations

import os
import re
from typing import Any

from hook.node.engines import toml
from hook.node.engines.containerd.files import CRI
from hook.node.engines.toml import Key


def path_of_shim(table: dict[str, Any]) -> str:
    """The path by which a handler's table names runc's shim; "" where it does not."""
    kind = str(table.get("runtime_type", ""))
    return kind if os.path.isabs(kind) and re.fullmatch(r"containerd-shim-runc-v\d+", os.path.basename(kind)) else ""


def not_wrapped(table: dict[str, Any]) -> str:
    """Why such a handler cannot be wrapped, for people."""
    return (
        f"names its shim by its path, and containerd tells such a one no BinaryName: it cannot be wrapped; write "
        f'runtime_type = "io.containerd.runc.v2" and runtime_path = "{path_of_shim(table)}"'
    )


def cri(dump: dict[str, Any]) -> Key:
    """The CRI plugin's table: 2.x shows it in its own place."""
    return CRI[3] if toml.get(dump, CRI[3]) is not None else CRI[2]


def in_dump(key: Key, dump: dict[str, Any]) -> Key:
    """A setting's key as the dump spells it: 2.x shows a version 2 file as version 3."""
    return (*cri(dump), *key[2:]) if key[:2] in CRI.values() else key


def runtimes(dump: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the runtime handlers, by name."""
    found: dict[str, dict[str, Any]] = toml.get(dump, (*cri(dump), "containerd", "runtimes"), {})
    return found


def imports(dump: dict[str, Any]) -> list[str]:
    """The patterns of `imports`; containerd shows the file it was given among them."""
    return [str(item) for item in dump.get("imports") or [] if item != os.devnull]


def comparable(dump: dict[str, Any]) -> dict[Key, Any]:
    """Every value by its path of keys; `imports` is how it was put together, not what it says."""
    flat: dict[Key, Any] = {}

    def walk(values: dict[str, Any], key: Key) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                walk(value, (*key, name))
            elif value and (*key, name) != ("imports",):  # an option that is left out is its zero value
                flat[(*key, name)] = value

    walk(dump, ())
    return flat


def differences(expected: dict[Key, Any], now: dict[Key, Any]) -> list[str]:
    """What one says differently from the other, for people."""
    return [
        f"{'.'.join(key)} is {now.get(key)!r}, not {expected.get(key)!r}"
        for key in sorted({*expected, *now})
        if expected.get(key) != now.get(key)
    ]
