"""gVisor's own shim for containerd: the file that it reads at each start names the runsc that it calls, `binary_name`.

Source: gVisor's pkg/shim/v1/runsc (options.go, service.go). containerd need not be restarted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hook.node.engines import toml
from hook.node.engines.base import Base, Wiring

TYPE = "io.containerd.runsc.v1"
_CONFIG = "/run/containerd/runsc/config.toml"
"""What the shim reads if the handler's options have no ConfigPath."""

_KEY = "binary_name"


def config_of(table: dict[str, Any]) -> str:
    """Returns the path of the file of a handler of this shim."""
    return os.path.realpath(str(toml.get(table, ("options", "ConfigPath"), "") or _CONFIG))


def binary_of(table: dict[str, Any]) -> str:
    """Returns the runsc that the file of a handler names; "" without a file. Raises NodeError if it is no TOML."""
    try:
        content = Path(config_of(table)).read_bytes()
    except OSError:
        return ""
    return str(toml.parse(toml.decode(content), config_of(table)).get(_KEY) or "runsc")


def wire(
    name: str, table: dict[str, Any], base: Base, dispatcher: Callable[[str], str], wiring: Wiring
) -> list[dict[str, Any]]:
    """Put a dispatcher into the file of a handler. Returns the notes with which `files.strip` takes it out again.

    `dispatcher`: adds that of a real runtime and returns its path. Raises NodeError.
    """
    path = config_of(table)
    before = base(path)
    if before is None:
        wiring.remarks.append(f"handler {name}: gVisor's shim has no {path}, in which binary_name could be set")
        return []
    text = toml.decode(before.content)
    was = toml.parse(text, path).get(_KEY)
    ours = dispatcher(str(was or "runsc"))
    content = toml.encode(toml.edit(text, path, {(_KEY,): ours}))
    change = (path, before.with_content(content))
    if path not in [other for other, _ in wiring.references]:  # two handlers may have one file
        wiring.references.append(change)
    return [{"path": path, "key": [_KEY], "ours": ours, "was": was}]
