"""The file for a bug report: what doctor, status and audit say, the policy, events and reassert's own journal.

It holds no config.json, no configuration of an engine, and no env value that the policy file does not have
(hook.ops.doctor.hide). What doctor, status and audit say has no env values at all.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core.base.errors import ReassertError, describe
from hook.node import status, systemd, workers
from hook.node.services import UNITS
from hook.ops.audit.audit import take
from hook.ops.audit.inventory import Running
from hook.ops.audit.process import Process
from hook.ops.doctor.checks import Seen
from hook.ops.doctor.hide import SHORTEST, Hider

_UNITS = (*UNITS, "reassert-nri.service")
_LINES = "2000"
_SYSTEM = ("/etc/os-release", "/proc/version", "/proc/self/mountinfo")


def write(path: str, page: str, data: dict[str, Any], seen: Seen, containers: list[Running]) -> list[str]:
    """Write the bundle to a new file that only root can read. Returns the names of its files. Raises ReassertError."""
    hider = Hider(seen.known.policy, values_of(containers))
    files = {
        "doctor.txt": page,
        "doctor.json": _json(data),
        "status.json": status.as_json(seen.status),
        "audit.json": _json(seen.audit.as_dict() if seen.audit else None),
        "events.jsonl": "".join(json.dumps(hider.event(event)) + "\n" for event in seen.events),
        "version.txt": f"reassert {__version__}\n",
        **{name: hider.known(text) for name, text in _system().items()},
        **{f"journal/{unit}.txt": _journal(unit, hider) for unit in _UNITS if systemd.available()},
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
    return list(files)


def values_of(containers: list[Running]) -> set[str]:
    """Every env value of these containers, of their config.json and of their first process; not their own names."""
    values: set[str] = set()
    names: set[str] = set()

    def look(number: int, taken: Process | Exception) -> list[str]:
        entries: list[str] = []
        try:
            entries += containers[number].spec().env if containers[number].config else []
            entries += taken.environ() if isinstance(taken, Process) else []
        except (ReassertError, OSError):
            pass
        return entries

    for number, entries in workers.each(len(containers), lambda number: take(containers[number]), look):
        values.update(str(entry).partition("=")[2] for entry in (entries if isinstance(entries, list) else ()))
        container = containers[number]
        who = container.identity
        names.update(str(name) for name in (container.id, container.name, *(who.as_dict().values() if who else ())))
    return {value for value in values if len(value) >= SHORTEST} - names


def _system() -> dict[str, str]:
    return {f"system/{os.path.basename(path)}": _read(path) for path in _SYSTEM}


def _journal(unit: str, hider: Hider) -> str:
    try:
        command = ["journalctl", "--unit", unit, "--lines", _LINES, "--output", "cat", "--no-pager"]
        lines = systemd.command(command, 20).stdout.splitlines()
    except ReassertError as error:
        return describe(error)
    return "".join(hider.line(line) + "\n" for line in lines)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return f"{describe(error)}\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
