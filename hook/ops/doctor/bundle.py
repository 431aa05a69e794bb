"""The file for a bug report: what doctor, status and audit say, the policy, and events.

Everything in it is known to be harmless. Of an event it has the fields below. Of what a pod chooses, they hold names
alone, and no env value. Of the journal it has the same, the lines of systemd, and the places of a traceback.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core.base.errors import ReassertError, describe
from hook.node import status, systemd
from hook.node.services import UNITS
from hook.ops.doctor.checks import NodeState
from hook.ops.events import select

_UNITS = (*UNITS, "reassert-nri.service")
_SYSTEM = ("/etc/os-release", "/proc/version")
_JOURNAL = ("journalctl", "--quiet", "--lines", "2000", "--output", "json", "--no-pager", "--unit")
_FIELDS = (
    *("timestamp", "event", "level", "adapter", "id", "container", "mode", "policy", "durationMs", "probe", "start"),
    *("cold", "applied", "verified", "asked", "omitted", "tried"),
)
_ENTRY = ("rule", "kind", "name", "applied", "mode")
_FRAME = re.compile(r' *File "[^"]*", line \d+, in \S+')


def write(path: str, page: str, data: dict[str, Any], seen: NodeState) -> int:
    """Write the bundle to a new file that only root can read. Returns the number of its files. Raises ReassertError."""
    files = {
        "doctor.txt": page,
        "doctor.json": _json(data),
        "status.json": status.as_json(seen.status),
        "audit.json": _json(seen.audit.as_dict() if seen.audit else None),
        "events.jsonl": "".join(json.dumps(harmless(event)) + "\n" for event in seen.events),
        "version.txt": f"reassert {__version__}\n",
        **{f"system/{os.path.basename(name)}": _read(name) for name in _SYSTEM},
        **{f"journal/{unit}.txt": _journal(unit) for unit in _UNITS if systemd.available()},
        "policy.yaml": _read(seen.known.policy.path),
    }
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ReassertError(f"{describe(error)}; give the path of a new file") from None
    try:
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, text in files.items():
                content = text.encode("utf-8", "backslashreplace")
                member = tarfile.TarInfo(f"reassert-doctor/{name}")
                member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
                bundle.addfile(member, io.BytesIO(content))
    except OSError as error:
        os.unlink(path)
        raise ReassertError(f"{path}: {error.strerror}; no bundle was written") from None
    return len(files)


def harmless(event: dict[str, Any]) -> dict[str, Any]:
    """An event without env values, mounts and messages."""
    kept = {key: event[key] for key in _FIELDS if key in event}
    for key in ("edits", "denials", "errors"):
        kept[key] = [{name: entry[name] for name in _ENTRY if name in entry} for entry in select.entries(event, key)]
    return kept


def _journal(unit: str) -> str:
    try:
        lines = systemd.command([*_JOURNAL, unit], 20).stdout.splitlines()
    except ReassertError as error:
        return describe(error)
    return "".join(_line(json.loads(line)) + "\n" for line in lines)


def _line(record: dict[str, Any]) -> str:
    """One line of the journal. `_PID` is a field that only journald can set (systemd.journal-fields(7))."""
    text = str(record.get("MESSAGE"))
    if record.get("_PID") == "1" or _FRAME.fullmatch(text):
        return text
    try:
        event = json.loads(text)
    except ValueError:
        event = None
    return json.dumps(harmless(event)) if isinstance(event, dict) else f"(a line of {len(text)} characters)"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return f"{describe(error)}\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
