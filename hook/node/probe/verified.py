"""The last result of `reassert node verify`, by engine, for the metrics."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from hook.core.base.errors import ReassertError
from hook.core.base.system import make_directory, replace_file, trusted
from hook.core.policy.store import STORE

NAME = "last-verify.json"
"""In the directory of compiled policies."""


def record(engine: str, status: int, store: str = STORE) -> None:
    """Keep the exit status. A directory that cannot be written is no error."""
    found = {**last(store), engine: (int(time.time()), status)}
    with contextlib.suppress(OSError):
        make_directory(store, 0o700)
        replace_file(f"{store}/{NAME}", json.dumps(found).encode())


def last(store: str = STORE) -> dict[str, tuple[int, int]]:
    """Time and exit status by engine."""
    try:
        trusted(f"{store}/{NAME}")
        found = json.loads(Path(store, NAME).read_bytes())
        return {str(engine): (int(when), int(status)) for engine, (when, status) in found.items()}
    except (OSError, ReassertError, ValueError, TypeError, AttributeError):
        return {}
