"""A node with a resident agent: the frozen program, front, and the text files that engines would be given."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from harness.node import WANTED, Node
from harness.paths import REASSERT
from harness.tools import suspend

from hook import __version__
from hook.entry.dispatcher import warm_dispatcher, warm_hook
from hook.entry.protocol import STATUS, Request

FRONT = REASSERT.parent / "front"
WENT_COLD = 99
"""Exit status of a file of `only_warm` where the agent did not answer."""

PRINTER = """#!/bin/sh
# In the place of a runtime: what it was given.
printf '%s\\n' "$0" "$PWD" "umask $(umask)"
printf '%s\\0' "$@"
exit ${STATUS:-0}
"""


class Agent:
    """`reassert agent` on a scratch node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.socket = node.directory / "run" / "agent.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def start(self, *before: str, wait: bool = True, more: Iterable[str] = ()) -> None:
        """Start it, and wait until it listens. `before`: a command that is to run it. `more`: options."""
        command = [*before, str(REASSERT), "agent", "--socket", str(self.socket), *self.node.options(), *more]
        with (self.node.directory / "agent.stderr").open("ab") as stderr:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers. A connection without a request would be an event in its log."""
        for _ in range(20000):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.settimeout(600)
                probe.connect(str(self.socket))
                probe.send(STATUS)
                if probe.recv(1 << 17):
                    return
            assert self.process and self.process.poll() is None, self.said()
            time.sleep(0.025)
        raise AssertionError(f"the agent never listened: {self.said()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        if self.process.poll() is None:
            if number == signal.SIGSTOP:
                suspend(self.process)
                return 0
            self.process.send_signal(number)
            if number not in (signal.SIGTERM, signal.SIGKILL):
                return 0
        return self.process.wait(600)

    def said(self) -> str:
        return (self.node.directory / "agent.stderr").read_text()

    # -- files

    def where(self, **more: str) -> dict[str, str]:
        node = self.node
        return {
            "socket": str(self.socket),
            "policy": str(node.policy),
            "store": str(node.store),
            "events": str(node.events),
            **more,
        }

    def hook_file(self) -> str:
        return self._written(
            "hook", warm_hook(str(REASSERT), str(FRONT), where=self.where(), extra=self.node.options())
        )

    def dispatcher(self, real: str, name: str = "warm", **where: str) -> str:
        """The file that an engine is pointed at."""
        where = self.where(hook=self.hook_file(), **where)
        return self._written(
            name, warm_dispatcher(real, str(REASSERT), front=str(FRONT), where=where, extra=self.node.options())
        )

    def before(self, script: str) -> str:
        """The file of an engine whose runtime is this script."""
        real = self.node.directory / "runc"
        real.write_text(script)
        real.chmod(0o755)
        return self.dispatcher(str(real))

    def only_warm(self, file: str, tries: int = 1) -> str:
        """The same file, with nothing in it that could start cold. It says front's reason on standard error.

        `tries`: how often the agent is asked if it takes longer than front waits, as on a loaded machine.
        """
        header = Path(file).read_text().partition("\n\n")[0]
        again = (
            f'[ "$1" = --cold=timeout ] && [ "${{#TRIED}}" -lt {tries - 1} ] && shift && TRIED=x$TRIED exec "$0" "$@"\n'
        )
        return self._written(f"{Path(file).name}-only{tries}", f'{header}\n\n{again}echo "$1" >&2\nexit {WENT_COLD}\n')

    def only_cold(self, file: str) -> str:
        """The same file, with a socket that does not exist."""
        text = Path(file).read_text().replace(f"# socket: {self.socket}", "# socket: /nonexistent/agent.sock")
        return self._written(Path(file).name + "-cold", text)

    def _written(self, name: str, text: str) -> str:
        path = self.node.directory / f"reassert-{name}"
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(text)
        temporary.chmod(0o755)
        os.rename(temporary, path)
        return str(path)

    # -- frames

    def frame(self, *arguments: str, **fields: str) -> bytes:
        """A request, as front would send it."""
        parts = ["reassert-front/1", fields.get("version", __version__), fields.get("kind", "runtime"), "/bin/true"]
        where = self.where()
        parts += [where["policy"], where["store"], where["events"], "", "", *arguments]
        frame = b"".join(part.encode() + b"\0" for part in parts)
        Request(frame)
        return frame

    def ask(self, frame: bytes, fds: Iterable[int] | None = None, seconds: float = 5) -> bytes:
        """The agent's answer to a frame; b"" where it hangs up. With the working directory's descriptor."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(seconds)
            connection.connect(str(self.socket))
            here = os.open(".", os.O_PATH)
            try:
                socket.send_fds(connection, [frame], [here] if fds is None else list(fds))
                return connection.recv(1 << 17)
            except (ConnectionResetError, BrokenPipeError):
                return b""
            finally:
                os.close(here)


def reason_of(stderr: bytes) -> str:
    """The reason in what a file of `only_warm` says."""
    return stderr.decode().removeprefix("--cold=").strip()


class Cold:
    """A dispatcher before a printer; the agent's answers are seen by the status of a file that cannot start cold."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.full = agent.before(PRINTER)
        self.file = agent.only_warm(self.full)
        self.bundle = agent.node.directory / "bundle"
        self.bundle.mkdir()
        self.reset()

    def reset(self) -> None:
        (self.bundle / "config.json").write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}}))

    def is_cold(self, *arguments: str) -> bool:
        return bool(self.reason(*arguments))

    def reason(self, *arguments: str, before: tuple[str, ...] = (), **options: object) -> str:
        """Why a start is cold, which front has from the agent or says by itself; "" for a warm one."""
        options = {"cwd": self.bundle, "stdin": subprocess.DEVNULL, **options}
        command = [*before, self.file, *(arguments or ("create", "0a"))]
        done = subprocess.run(command, capture_output=True, timeout=600, **options)  # type: ignore[call-overload]  # options of run
        assert done.returncode in (0, WENT_COLD), done.stderr
        return reason_of(done.stderr) if done.returncode else ""

    def told(self, *arguments: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None) -> tuple[str, str]:
        """What the event of a start of the whole file says of it, before the hook completes it: `start` and `cold`."""
        config = self.bundle / "config.json"
        if "large" not in arguments:
            config.write_text(json.dumps({"process": {"env": ["REQUESTS_CA_BUNDLE=x"]}, "root": {"path": "r"}}))
        command = [*before, self.full, *(arguments or ("create", "0a"))]
        done = subprocess.run(command, cwd=self.bundle, capture_output=True, timeout=600, env=env)
        assert done.returncode == 0, done.stderr
        assert b"--cold" not in done.stdout.replace(b"--cold=forged", b"")
        event = json.loads(json.loads(config.read_text())["annotations"]["reassert/decision"])["event"]
        return event["start"], event.get("cold", "")

    def assert_right(self) -> None:
        """A start of the whole file gets a corrected config.json, by the agent or by a cold start."""
        self.reset()
        done = subprocess.run([self.full, "create", "0a"], cwd=self.bundle, capture_output=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, b"")
        assert WANTED in (self.bundle / "config.json").read_text()
