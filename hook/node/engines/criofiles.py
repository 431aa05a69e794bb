"""CRI-O's configuration files as CRI-O merges them, and what it stores with a container. No knowledge of reassert."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hook.node import systemd
from hook.node.engines import toml
from hook.node.errors import NodeError

RUNTIMES = ("crio", "runtime", "runtimes")

_PLATFORM = ("platform-runtime-path.crio.io", "io.kubernetes.cri-o.PlatformRuntimePath")
"""The annotation by which CRI-O stores a container's platform_runtime_paths, and its older name."""

_KEYS = (
    "runtime_",
    "monitor_",
    "container_",
    "allowed_",
    "privileged_",
    "platform_",
    "default_",
    "inherit_",
    "no_sync",
)
"""Prefixes of a handler's settings. `crio config` prints settings of crio.runtime in the last handler's table too."""


@dataclass(frozen=True)
class Files:
    """The values of CRI-O's configuration files.

    `defaults`: CRI-O's own. `files`: the values of each file by its path, in the order of reading. `ours`: the path of
    our drop-in. `overrides`: values that the command line or the environment of the running crio sets.
    """

    defaults: dict[str, Any]
    files: dict[str, dict[str, Any]]
    ours: str
    overrides: dict[str, Any]

    def effective(self, with_ours: bool) -> dict[str, Any]:
        """Returns the values of all files and of the command line. `with_ours`: include our drop-in."""
        values = deepcopy(self.defaults)
        for name, table in toml.get(values, RUNTIMES, {}).items():
            values["crio"]["runtime"]["runtimes"][name] = {k: v for k, v in table.items() if k.startswith(_KEYS)}
        for path, said in self.files.items():
            if with_ours or path != self.ours:
                merge(values, deepcopy(said), ())
        merge(values, deepcopy(self.overrides), ())
        _translate(values)
        return values


def merge(values: dict[str, Any], more: dict[str, Any], at: toml.Key) -> None:
    """Merges values as CRI-O does: tables are merged, but a handler's table replaces the earlier one."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict) and at != RUNTIMES:
            merge(values[key], value, (*at, key))
        else:
            values[key] = value


def _translate(values: dict[str, Any]) -> None:
    """Sets what the deprecated settings of crio.runtime mean in every handler (TranslateMonitorFieldsForHandler)."""
    runtime = toml.get(values, RUNTIMES[:-1], {})
    for old, new in (("conmon_cgroup", "monitor_cgroup"), ("conmon", "monitor_path"), ("conmon_env", "monitor_env")):
        for table in runtime.get("runtimes", {}).values() if runtime.get(old) else []:
            if kind_of(table) == "oci":
                table[new] = runtime[old]


def platform_path(config: str) -> str:
    """Returns the runtime path that CRI-O stored with a container; "" if none, or if the container is gone."""
    try:
        text = Path(config).read_bytes()
        notes = json.loads(text).get("annotations") or {} if any(name.encode() in text for name in _PLATFORM) else {}
    except (OSError, ValueError, AttributeError):
        return ""
    return next((str(notes[name]) for name in _PLATFORM if name in notes), "")


def leaves(values: dict[str, Any], at: toml.Key) -> list[tuple[toml.Key, Any]]:
    """Returns every setting with its full key."""
    found: list[tuple[toml.Key, Any]] = []
    for key, value in values.items():
        found += leaves(value, (*at, key)) if isinstance(value, dict) else [((*at, key), value)]
    return found


def values_of(path: str) -> dict[str, Any]:
    """Returns the values of a file, {} if it is missing. Raises NodeError."""
    try:
        return toml.parse(Path(path).read_text(), path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path}: {error}") from None


def files_below(directory: str) -> list[str]:
    """Returns the files of a directory of drop-ins, in the order in which CRI-O reads them."""
    found: list[str] = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        path = f"{directory}/{name}"
        found += files_below(path) if os.path.isdir(path) and not os.path.islink(path) else [path]
    return found


def source_of(table: dict[str, Any], name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns name and table of the handler whose runtime this one calls: its own or, if inherited, the default's."""
    if table.get("inherit_default_runtime"):
        default = str(toml.get(values, ("crio", "runtime", "default_runtime"), ""))
        return default, toml.get(values, (*RUNTIMES, default), {})
    return name, table


def copy_of(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a copy of a handler's table for a new handler, with an explicit runtime_path."""
    return {**table, "runtime_path": table.get("runtime_path") or systemd.which(name) or ""}


def kind_of(table: dict[str, Any]) -> str:
    """Returns the type of a handler: oci, vm, pod."""
    return str(table.get("runtime_type") or "oci")


def runtime_of(table: dict[str, Any], name: str) -> str | None:
    """Returns the runtime that a handler calls; None if it is not installed."""
    path = str(table.get("runtime_path") or systemd.which(name) or "")
    return path if os.path.isfile(path) else None
