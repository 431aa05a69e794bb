"""Events as the adapters write them, for tests of what reads the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NVIDIA = {"rule": "gpu", "kind": "env", "name": "NVIDIA_VISIBLE_DEVICES", "before": ["all"], "after": "void"}
CA = {"rule": "company-ca", "kind": "env", "name": "REQUESTS_CA_BUNDLE", "before": [], "after": "/etc/ssl/ca.pem"}
MOUNT = {
    "rule": "company-ca",
    "kind": "mount",
    "name": "/etc/ssl",
    "before": [{"destination": "/etc/ssl/certs", "source": "/pod/certs"}],
    "after": {"source": "/etc/ssl", "options": ["ro"]},
}
DENIED = {"rule": "gpu", "message": "env NVIDIA_VISIBLE_DEVICES is reserved and was set to something else"}


def event(name: str, pod: str = "", number: int = 0, **more: Any) -> dict[str, Any]:
    """An event about a container of namespace team-a; `number`: the minute, and the container's id."""
    return {
        "timestamp": f"2026-01-01T00:{number % 60:02d}:00.000000Z",
        "adapter": "runtime",
        "id": f"c{number}",
        "container": {"namespace": "team-a", "pod": pod, "container": "app"} if pod else {},
        "mode": "Enforce",
        "event": f"container.{name}",
        "applied": name == "edited",
        "edits": [],
        "denials": [],
        "errors": [],
        "start": "warm",
        **more,
    }


def write(path: Path, events: Iterable[dict[str, Any]]) -> Path:
    """A log with these events."""
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return path
