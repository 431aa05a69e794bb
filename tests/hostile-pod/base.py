"""What the parts of hostile-pod share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

MARKER = "HOSTILE_POD=1"
"""In the env of every container: once its first process has it, that is no longer the runtime's own process."""


def data(name: str) -> str:
    """A file beside this one, which may be in a zip file."""
    found: bytes = __loader__.get_data(os.path.join(os.path.dirname(__file__), name))  # type: ignore[name-defined]  # the importer sets it
    return found.decode()


APPLETS = ("cat", "head", "ls", "mkdir", "mknod", "mount", "sh", "sleep", "touch")
"""The programs that cases and looks use."""


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
