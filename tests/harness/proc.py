"""What a process has, as proc(5) shows it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SELF = Path("/proc/self")


class Mount(NamedTuple):
    """A row of mountinfo. `root`: the mount's source within its file system, `device`: MAJOR:MINOR of that."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    options: tuple[str, ...]


def environ(text: str) -> list[str]:
    """The entries of a /proc/PID/environ."""
    return text.split("\0")[:-1]


def mounts(text: str, below: str = "/") -> list[Mount]:
    """The rows of a /proc/PID/mountinfo whose mount point is a path or below it, in order."""
    rows = [line.split(" ") for line in text.rstrip("\n").split("\n")]  # a path may have any other separator of lines
    found = [
        Mount(int(row[0]), int(row[1]), row[2], row[3], _unescaped(row[4]), tuple(row[5].split(","))) for row in rows
    ]
    return [mount for mount in found if mount.point == below or mount.point.startswith(below.rstrip("/") + "/")]


def read_environ(process: Path = SELF) -> list[str]:
    """The environment that a process was started with. `process`: its directory in /proc."""
    return environ(_read(process / "environ"))


def read_mounts(process: Path = SELF, below: str = "/") -> list[Mount]:
    """The mounts that a process sees at or below a path."""
    return mounts(_read(process / "mountinfo"), below)


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
