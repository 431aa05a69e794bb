"""A root file system for a test container without an image: this node's sleep(1) and its libraries, as a tar.

The libraries are those that a running sleep(1) has mapped. So this works with every architecture, C library and
directory layout. The command calls the loader by its path, with the path of the libraries.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import time
from pathlib import Path

from hook.node.errors import NodeError
from hook.node.systemd import which

_HOME, _LIBRARIES = "/reassert", "/reassert/lib"
_SECONDS = 10.0
_LOADER = re.compile(r"ld(64)?[-.]")
"""The program interpreter's file name: ld-linux-x86-64.so.2, ld-2.31.so, ld64.so.2, ld-musl-aarch64.so.1, …"""


def sleeper() -> tuple[bytes, list[str]]:
    """Returns the tar and its command line, to which the seconds are added. Raises NodeError, OSError."""
    program = which("sleep")
    if program is None:
        raise NodeError("this node has no sleep(1), which a test container runs")
    with subprocess.Popen([program, "60"], env={}, stdin=subprocess.DEVNULL) as running:  # noqa: S603  # a program of the node
        try:
            executable, libraries = _mapped(running.pid)
        finally:
            running.kill()
    files = {f"{_HOME}/sleep": executable, **{f"{_LIBRARIES}/{Path(path).name}": path for path in libraries}}
    loaders = [path for path in libraries if _LOADER.match(Path(path).name)]
    command = [f"{_HOME}/sleep"]
    if loaders:  # else it is a static program
        command = [f"{_LIBRARIES}/{Path(loaders[0]).name}", "--library-path", _LIBRARIES, *command]
    return _tar(files, _aliases(libraries)), command


def _mapped(pid: int) -> tuple[str, list[str]]:
    """Returns the executable of a process and the libraries that it maps, once it has loaded all of them."""
    before: list[str] = []
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        now = [line[5] for line in lines if len(line) == 6 and "x" in line[1] and line[5].startswith("/")]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        if now and now == before and state == "S":  # asleep twice with the same
            executable = os.readlink(f"/proc/{pid}/exe")
            return executable, sorted(set(now) - {executable})
        before = now
        time.sleep(0.02)
    raise NodeError(f"sleep(1) did not start within {_SECONDS:.0f} s")


def _aliases(libraries: list[str]) -> dict[str, str]:
    """Returns the symbolic links to the libraries in their directories: libc.so.6 may be a link to libc-2.31.so."""
    found = {}
    for directory in {os.path.dirname(path) for path in libraries}:
        for entry in os.scandir(directory):
            if entry.is_symlink() and os.path.realpath(entry.path) in libraries:
                found[f"{_LIBRARIES}/{entry.name}"] = Path(os.path.realpath(entry.path)).name
    return found


def _tar(files: dict[str, str], links: dict[str, str]) -> bytes:
    """Returns a tar of files of the node and symbolic links, by their path in the archive, all owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, source in files.items():
            content = Path(source).read_bytes()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for path, target in links.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            if path not in files:
                tar.addfile(entry)
    return buffer.getvalue()
