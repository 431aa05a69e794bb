"""The file for a bug report: what `status --all` and `audit` say, the policy, and events.

Everything in it is known to be harmless. Of an event it has report.HARMLESS. Of what a pod chooses, they hold names
alone, and no env value. Of the journal it has the same, the lines of systemd, and the places of a traceback. Of the
operation log it has the fields below, and an error where that cannot be about a container.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tarfile
import time
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core import report
from hook.core.base.errors import ReassertError, describe
from hook.node import systemd
from hook.node.services import TIMERS, UNITS
from hook.ops.events import select
from hook.ops.health.more import Seen

_TIMED = (name.replace(".timer", ".service") for name in TIMERS)
_UNITS = (*UNITS, "reassert-nri.service", *_TIMED, "reassert-trust.service")
_SYSTEM = ("/etc/os-release", "/proc/version")
_JOURNAL = ("journalctl", "--quiet", "--lines", "2000", "--output", "json", "--no-pager", "--unit")
_OPERATION = (
    *("timestamp", "level", "event", "version", "policy", "sha256", "before", "mode", "rules", "nri"),
    *("reason", "shortage", "runtime", "verb", "id", "duration_ms", "repeated", "window_seconds", "pid", "uid", "exe"),
    *("parent", "cgroup", "namespace", "pod", "container", "adapter", "refused", "warm", "cold", "dropped", "lines"),
    *("traceback", "status", "path", "kind", "bytes", "units", "engine", "engines", "handler", "result", "executed"),
    *("starts", "part", "unwired", "unknown", "skipped", "containers", "states", "store", "generation", "certificates"),
    *("index", "seconds", "added", "new", "repaired", "socket", "events", "metrics", "textfile", "launched", "address"),
)
_OF_THE_NODE = ("policy.", "metrics.", "systemd.", "process.", "log.")
"""How the lines of the operation log begin whose `error` cannot be about a container."""

_ENTRY = ("rule", "kind", "name", "applied", "mode")
_FRAME = re.compile(r' *File "[^"]*", line \d+, in \S+')


def write(path: str, page: str, data: str, seen: Seen) -> int:
    """Write the bundle to a new file that only root can read. Returns the number of its files. Raises ReassertError.

    `page`, `data`: the status as text and as JSON.
    """
    files = {
        "status.txt": page,
        "status.json": data,
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
                member = tarfile.TarInfo(f"reassert-bundle/{name}")
                member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
                bundle.addfile(member, io.BytesIO(content))
    except OSError as error:
        os.unlink(path)
        raise ReassertError(f"{path}: {error.strerror}; no bundle was written") from None
    return len(files)


def harmless(event: dict[str, Any]) -> dict[str, Any]:
    """An event without env values, mounts and messages."""
    kept = {key: event[key] for key in report.HARMLESS if key in event}
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
        event = _logfmt(text)
    if not isinstance(event, dict):
        return f"(a line of {len(text)} characters)"
    return json.dumps(harmless(event) if "edits" in event or "adapter" in event else _operation(event))


def _operation(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the operation log without what may quote a container."""
    kept = {key: line[key] for key in _OPERATION if isinstance(line.get(key), str | int | float)}
    if "error" in line and str(line.get("event")).startswith(_OF_THE_NODE):
        kept["error"] = line["error"]
    return kept


def _logfmt(text: str) -> dict[str, str] | None:
    """The fields of a line of the operation log; None for any other text."""
    if not text.startswith("timestamp="):
        return None
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        return None
    return {name: value for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return f"{describe(error)}\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
