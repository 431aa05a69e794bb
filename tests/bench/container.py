"""Time the verbs of one container with one contender; work between the verbs is not timed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from harness.bundle import Bundle, as_engines_write

from bench.measure import Failed, Sample, timed
from bench.node import Contender, Setup

Verbs = dict[str, Sample]


class Container:
    """A container that `contender` makes of a bundle."""

    def __init__(self, setup: Setup, contender: Contender, bundle: Bundle, name: str) -> None:
        self.setup = setup
        self.contender = contender
        self.bundle = bundle
        self.id = name
        self.log = f"{bundle.directory}/output"
        self._pid = f"{bundle.directory}/init.pid"

    def command(self, verb: str, *rest: str) -> list[str]:
        """The command line, with the options that containerd gives."""
        log = f"{self.bundle.directory}/log.json"
        return [
            *self.contender.command,
            *("--root", self.setup.root, "--log", log, "--log-format", "json"),
            *(verb, *rest),
        ]

    def call(self, verb: str, *rest: str) -> Sample:
        """Run one verb. Raises Failed."""
        return timed(self.command(verb, *rest), self.contender.environment, self.log)

    def create_command(self) -> list[str]:
        """The command line of create."""
        return self.command("create", "--bundle", str(self.bundle.directory), "--pid-file", self._pid, self.id)

    def create(self) -> Sample:
        """create, from the engine's own config.json."""
        self.bundle.save()
        return timed(self.create_command(), self.contender.environment, self.log)

    def start(self) -> Sample:
        """start."""
        return self.call("start", self.id)

    def wait(self) -> None:
        """Until the container's process has ended."""
        pid = Path(self._pid).read_text()
        for _ in range(5000):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return
            if state == "Z":
                return
            time.sleep(0.001)
        raise Failed(f"{self.id} does not end")

    def kill(self) -> None:
        """Kill the container's process."""
        os.kill(int(Path(self._pid).read_text()), signal.SIGKILL)

    def delete(self) -> Sample:
        """delete."""
        return self.call("delete", self.id)

    def clean(self) -> None:
        """Take it away through plain runc, whatever state it is in."""
        try:
            timed([self.setup.runc, "--root", self.setup.root, "delete", "--force", self.id])
        except Failed:
            pass

    def life(self) -> Verbs:
        """create, start, delete, each timed."""
        verbs = {"create": self.create(), "start": self.start()}
        self.wait()
        verbs["delete"] = self.delete()
        return verbs

    def only_create(self) -> Sample:
        """create, timed; the rest not."""
        sample = self.create()
        self.clean()
        return sample


def process_file(bundle: Bundle) -> Callable[[], str]:
    """Writes an `exec` process file as the engine would, and gives its path."""
    content = as_engines_write({**bundle.spec["process"], "args": ["/bin/true"]})
    path = bundle.directory / "process.json"

    def write() -> str:
        path.write_bytes(content)
        return str(path)

    return write
