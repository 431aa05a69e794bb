"""What a tree of files is, to the byte: to prove that what was there before is there again."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hook.core.policy.store import STORE_FORMAT

TOPS = ("/etc", "/opt", "/usr/local", "/var/lib/reassert")
"""Where reassert, and what it configures, may leave something."""


@dataclass(frozen=True)
class Entry:
    """One file. `content`: bytes of a file, target of a link, device number of a device, else empty."""

    kind: str
    mode: int
    owner: tuple[int, int]
    content: bytes


Snapshot = dict[str, Entry]
"""By path on the node."""


TIMED = {
    "node.json",
    "unchanged-starts",
    f"etc-reassert-policy.yaml.{STORE_FORMAT}.json",
    ".lock",
}
"""Files with the time of the last `verify`, and with the state of the metrics; the compiled
policy, which the agent writes some time after its start. Their directory stands for them."""


def snapshot(root: Path, tops: tuple[str, ...] = TOPS) -> Snapshot:
    """Everything at and below some paths of a root file system; links are not followed. A path may be absent."""
    found: Snapshot = {}
    for top in tops:
        start = root / top.lstrip("/")
        if not os.path.lexists(start):
            continue
        found[top] = _entry(start)
        for directory, directories, files in os.walk(start):
            for name in (*directories, *(set(files) - TIMED)):
                path = Path(directory, name)
                found[f"/{path.relative_to(root)}"] = _entry(path)
    return found


def _entry(path: Path) -> Entry:
    state = path.lstat()
    content = b""
    if stat.S_ISREG(state.st_mode):
        content = path.read_bytes()
    elif stat.S_ISLNK(state.st_mode):
        content = os.readlink(path).encode()
    elif stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode):
        content = str(state.st_rdev).encode()
    kind = stat.filemode(state.st_mode)[0]
    return Entry(kind, stat.S_IMODE(state.st_mode), (state.st_uid, state.st_gid), content)


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What changed between two snapshots, a line each; nothing if they are the same."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            lines.append(f"{path}: {'came' if old is None else 'went'}")
            continue
        for what in ("kind", "mode", "owner", "content"):
            was, became = getattr(old, what), getattr(new, what)
            if was != became:
                lines.append(f"{path}: {what} was {_shown(was)}, is {_shown(became)}")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, int):
        return oct(value)
    return repr(value if not isinstance(value, bytes) or len(value) <= 2000 else value[:2000] + b"...")
