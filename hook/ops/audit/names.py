"""The names that docker and podman gave to containers, by id, from their own records. They are shown, never trusted."""

from __future__ import annotations

import json
from glob import glob
from pathlib import Path
from typing import Any

_DOCKER = "/var/lib/docker/containers/*/config.v2.json"
_PODMAN = ("/var/lib/containers/storage/overlay-containers/containers.json",)
_LIMIT = 16 << 20


def names_of() -> dict[str, str]:
    """Names by id. A record that cannot be read is left out."""
    names: dict[str, str] = {}
    for path in glob(_DOCKER):
        record = _read(path)
        if isinstance(record, dict):
            names[str(record.get("ID"))] = str(record.get("Name", "")).lstrip("/")
    for path in _PODMAN:
        listed = _read(path)
        for record in listed if isinstance(listed, list) else []:
            given = record.get("names") if isinstance(record, dict) else None
            if isinstance(given, list) and given:
                names[str(record.get("id"))] = str(given[0])
    return names


def _read(path: str) -> Any:
    try:
        with Path(path).open("rb") as file:
            return json.loads(file.read(_LIMIT))
    except (OSError, ValueError):
        return None
