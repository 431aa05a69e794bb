"""What the store has for a policy file, for those who only look: the compiler is not loaded with it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hook.core.base.concealed import KEY
from hook.core.base.errors import ReassertError
from hook.core.base.system import read_file, trusted
from hook.core.policy.store import STORE, STORE_FORMAT, STORE_LIMIT, store_path


def header_and_rules(path: str, store: str, waits: bool = True) -> tuple[dict[str, Any], list[str]]:
    """The header and the rule lines in the store for a policy file; an empty header if there are none of this format.

    `waits`: for the end of a lease (fcntl(2)), which a container can have that has the store as a read-only volume.
    Raises BlockingIOError without.
    """
    file = store_path(path, store)
    try:
        trusted(file)
        data = Path(file).read_bytes() if waits else read_file(file, STORE_LIMIT)
        first, *lines = data.decode("ascii").splitlines()
        header = json.loads(first)
    except BlockingIOError:
        raise
    except (OSError, ValueError, ReassertError):
        return {}, []
    return (header, lines) if isinstance(header, dict) and header.get("format") == STORE_FORMAT else ({}, [])


def header_of(path: str, store: str) -> dict[str, Any]:
    """The header alone; empty if there is none of this format."""
    return header_and_rules(path, store)[0]


def clear(store: str = STORE) -> None:
    """Remove all compiled policies, the metrics' state, the key of events, and the store if it is then empty."""
    made = ("*.json", "*.text", ".*.json.reassert-*", ".*.text.reassert-*", ".lock", "unchanged-starts*")
    for pattern in (*made, KEY, f".{KEY}.reassert-*"):
        for path in Path(store).glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        os.rmdir(store)
