"""What the parts of hostile-pod share."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import UnionType
from typing import Any

MARKER = "HOSTILE_POD=1"
"""In the env of every container: once its first process has it, that is no longer the runtime's own process."""


def data(name: str) -> str:
    """A file beside this one, which may be in a zip file."""
    found: bytes = __loader__.get_data(os.path.join(os.path.dirname(__file__), name))  # type: ignore[name-defined]  # the importer sets it
    return found.decode()


APPLETS = ("cat", "head", "ls", "mkdir", "mknod", "mount", "sh", "sleep", "touch")
"""The programs that cases and looks use."""


def run(arguments: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a program for a minute at most. Ctrl-C of a terminal is ours alone. Raises Broken."""
    try:
        return subprocess.run(arguments, timeout=60, process_group=0, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Broken(str(error)) from None


def make_root(root: Path, busybox: str) -> None:
    """A root file system with APPLETS: of busybox, or this node's own where it has none, with their libraries."""
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    for applet in APPLETS:
        found = busybox if os.access(busybox, os.X_OK) else shutil.which(applet)
        if found is None:
            raise Broken(f"this node has neither {busybox} nor {applet}")
        program = root / "bin" / os.path.basename(found)
        if not program.exists():
            shutil.copy(found, program)
            # "not a dynamic executable" for a static one
            for library in re.findall(r"/\S+", subprocess.run(["ldd", found], capture_output=True, text=True).stdout):
                (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, root / library[1:])
        if program.name != applet:
            (root / "bin" / applet).symlink_to(program.name)


class Stop:
    """Ends the suite at a signal: at once in a `with` of it, else where `look` is called, so that nothing is left."""

    def __init__(self) -> None:
        self.number, self.at_once = 0, False

    def __call__(self, number: int, _: object) -> None:
        self.number = number
        if self.at_once:
            self.look()

    def look(self) -> None:
        """Raises Stopped after a signal."""
        if self.number:
            raise Stopped(f"stopped by {signal.Signals(self.number).name}; no container is left")

    def __enter__(self) -> None:
        self.at_once = True
        self.look()

    def __exit__(self, *_: object) -> None:
        self.at_once = False


def fit(value: Any, form: Any, where: str) -> None:
    """Raises ValueError unless a value has a form: a type, a list of one, members by name, or `{"": form}` for any."""
    if not isinstance(value, form if isinstance(form, type | UnionType) else type(form)):
        raise ValueError(f"{where}: {json.dumps(value)} is of the wrong type")  # noqa: TRY004  # as json.loads does
    for one in value if isinstance(form, list) else ():
        fit(one, form[0], where)
    for name, one in value.items() if isinstance(form, dict) else ():
        if not {name, ""} & form.keys():
            raise ValueError(f"{where}: unknown: {name}")
        fit(one, form.get(name, form.get("")), f"{where}: {name}")


class Stopped(BaseException):
    """A signal came."""


class Refused(Exception):
    """The container was not started; with the message."""


class Broken(Exception):
    """The case could not be tried, or what the container has could not be seen."""


def make_files(directory: Path, files: dict[str, Any]) -> None:
    """Makes files of a volume or an image: path -> content, or {"link": target}, instead of what was there."""
    for name, content in files.items():
        path = directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            path.symlink_to(content["link"])
        else:
            path.write_text(content, "utf-8")
