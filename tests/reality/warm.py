"""The resident agent of a scratch node, and what a start through it is compared with: the same start, cold."""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.node import write_program
from harness.paths import REASSERT

if TYPE_CHECKING:
    from reality.node import WatchedNode

TIMES = re.compile(
    r'"(timestamp|durationMs|time)": ?("[^"]*"|[0-9.]+)|time="[^"]*"'
    r'|(\\"(began|durationMs)\\":(\\"[^"]*\\"|[0-9.]+))'
    r'|,(\\?)"(start|cold)\6":\6"[a-z]+\6"'
)
"""Where a warm start and a cold one may differ: times, and which of them it was."""

_RECORDER = """#!/bin/sh
[ "$*" = --version ] || printf '%s\\0' "$@" >> {given}
exec {real} "$@"
"""
"""In front of the real runtime: writes down its arguments. A dispatcher that is made asks for the version."""

_STATUS = b"reassert-status/1\0"
_SOCKETS = {True: "agent.here", False: "agent.gone"}
_SECONDS = 20
_NEWNS = 0x00020000


class Agents:
    """An agent in each root file system, and the files that ask it, or (`warm` is False) ask a socket that is gone."""

    def __init__(self, node: WatchedNode) -> None:
        self._node = node
        self._directory = node.directory / "agent"
        self._directory.mkdir(mode=0o700)
        self._given = node.directory / "given"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._counted: Counter[str] = Counter()

    def pids(self) -> list[int]:
        """Of the agents."""
        return [process.pid for process in self._running.values()]

    def dispatcher(self, runtime: str, other_name: str, warm: bool, shim: bool = False) -> str:
        """Path of the wrapper in front of a real runtime."""
        name = other_name or runtime.split("/")[1]
        recorder = self._directory / runtime / ("shim" if shim else "plain") / name
        if not recorder.exists():
            write_program(
                recorder, _RECORDER.format(given=self._given, real=self._node.real(runtime, other_name, shim))
            )
        return self._file(runtime, f"reassert-{name}{'-shim' if shim else ''}", warm, ["--real", str(recorder)])

    def hook(self, runtime: str, warm: bool) -> str:
        """Path of the file that hook entries execute."""
        return self._file(runtime, "hook", warm, ["--hook"])

    def given(self) -> str:
        """The arguments that the real runtime was given since the last call."""
        with suppress(FileNotFoundError):
            text = self._given.read_text(errors="surrogateescape")
            self._given.unlink()
            return text
        return ""

    def counts(self) -> dict[str, int]:
        """How many requests were answered since the last call: `warm`, and `cold: REASON`."""
        now: Counter[str] = Counter()
        for root in self._running:
            status = json.loads(self._asked(root))
            now["warm"] += sum(status["warm"].values())
            now.update({f"cold: {reason}": count for reason, count in status["cold"].items()})
        since, self._counted = now - self._counted, now
        return dict(since)

    def _asked(self, root: str) -> bytes:
        """An agent's status, asked for from its own mount namespace: it answers nobody else."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                namespace = os.open(f"/proc/{self._running[root].pid}/ns/mnt", os.O_RDONLY)
                ctypes.CDLL(None).setns(namespace, _NEWNS)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.settimeout(_SECONDS)
                    connection.connect(self.socket(root))
                    connection.send(_STATUS)
                    os.write(writer, connection.recv(1 << 16))
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return answer

    def close(self) -> None:
        """End the agents."""
        for process in self._running.values():
            process.terminate()
            process.wait(_SECONDS)

    def socket(self, root: str) -> str:
        """Path of the socket of a root file system's agent."""
        return self._socket(root, True)

    def _socket(self, root: str, warm: bool) -> str:
        return str(self._directory / f"{root}-{_SOCKETS[warm]}")

    def _file(self, runtime: str, name: str, warm: bool, what: list[str]) -> str:
        root = runtime.split("/", maxsplit=1)[0]
        self._start(root)
        # both paths have the same length: a limit of reassert's cannot be reached by one of them alone
        path = self._directory / runtime / _SOCKETS[warm] / name
        if not path.exists():
            if what != ["--hook"]:
                what = [*what, "--hook-file", self.hook(runtime, warm)]
            self._node.write_dispatcher(path, runtime, *what, "--socket", self._socket(root, warm))
        return str(path)

    def _start(self, root: str) -> None:
        if root in self._running:
            return
        command = [str(REASSERT), "agent", "--socket", self._socket(root, True), *self._node.options()]
        with (self._node.directory / f"agent-{root}.stderr").open("wb") as errors:
            self._running[root] = subprocess.Popen(
                self._node.root(root).command(*command), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        until = time.monotonic() + _SECONDS
        while not Path(self.socket(root)).exists():
            if time.monotonic() > until or self._running[root].poll() is not None:
                raise RuntimeError(f"no agent: {Path(errors.name).read_text()}")
            time.sleep(0.01)


class Record:
    """What a start's calls of the runtime were given and said, and which files they left."""

    def __init__(self, warm: bool) -> None:
        self.parts: list[tuple[str, str]] = []
        self._socket = _SOCKETS[warm]

    def add(self, what: str, text: str) -> None:
        """One of them, without times."""
        self.parts.append((what, TIMES.sub("", text).replace(self._socket, "agent")))

    def add_file(self, path: Path) -> None:
        """A file, which may be missing."""
        text = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else "missing"
        self.add(path.name, text)

    def difference(self, other: Record) -> str:
        """The first one that differs, and how; "" if all are the same."""
        for (what, text), (name, otherwise) in zip(self.parts, other.parts, strict=False):
            if (what, text) != (name, otherwise):
                at = next((at for at, pair in enumerate(zip(text, otherwise)) if pair[0] != pair[1]), 0)  # noqa: B905  # the longer one goes on
                shown = slice(max(0, at - 200), at + 300)
                return f"{what}: warm {text[shown]!r}, cold ({name}) {otherwise[shown]!r}"
        if len(self.parts) != len(other.parts):
            return f"warm ends with {self.parts[-1][0]}, cold with {other.parts[-1][0]}"
        return ""
