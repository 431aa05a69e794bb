"""A container of a runtime that is called as an engine calls it."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from pathlib import Path

from harness import proc
from harness.bundle import Bundle
from harness.tools import cleaned, run


class Running:
    """A container of a runtime command (`runc`, or a dispatcher's path), deleted at the end."""

    def __init__(self, runtime: str, bundle: Bundle, *options: str) -> None:
        """`options`: global ones of the runtime, for its `create` alone."""
        self.runtime = runtime
        self.bundle = bundle
        self.options = options
        self.id = "t-" + uuid.uuid4().hex[:12]
        self.create_options: list[str] = []

    def create(self) -> int:
        """Exit status of the runtime's `create`."""
        empty = self.bundle.directory / "empty"
        empty.touch()
        (self.bundle.directory / "output").write_text("")
        with (self.bundle.directory / "output").open("a") as output, empty.open() as stdin:
            # The container inherits these descriptors: pipes would keep `run` waiting for it.
            return subprocess.run(
                [
                    *(self.runtime, *self.options, "create", "--bundle", str(self.bundle.directory)),
                    *(*self.create_options, self.id),
                ],
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=600,
            ).returncode

    def refused(self) -> str:
        """The one line that a refused `create` prints."""
        status = self.create()
        run(self.runtime, "delete", "--force", self.id, check=False)
        lines = self.output().splitlines()
        assert (status, len(lines)) == (1, 1), f"{status}: {self.output()}"
        return lines[0]

    def __enter__(self) -> Running:
        assert self.create() == 0, self.output()
        self.start()
        return self

    def start(self) -> None:
        """The runtime's `start`, after which it can be asked to `exec`."""
        run(self.runtime, "start", self.id)
        if {"type": "user"} in self.bundle.spec["linux"]["namespaces"]:
            self._wait_for_program()

    def _wait_for_program(self) -> None:
        """Until the runtime's process executes the container's: before, crun's exec may not join its user namespace.

        `start` does not wait for that. A runtime's own process is not dumpable (ptrace(2), access mode checking).
        """
        pid = self.pid()
        program = os.path.basename(self.bundle.spec["process"]["args"][0])
        for _ in range(50000):
            if Path(f"/proc/{pid}/comm").read_text().strip() == program[:15]:
                return
            time.sleep(0.01)
        raise AssertionError("the container's process was not executed")

    def pid(self) -> int:
        """The container's first process, by the runtime's `state`."""
        found: int = json.loads(run(self.runtime, "state", self.id).stdout)["pid"]
        return found

    def __exit__(self, *_: object) -> None:
        cleaned(self.id, lambda: run(self.runtime, "delete", "--force", self.id, check=False))

    def output(self) -> str:
        """The output of the container's process so far."""
        return (self.bundle.directory / "output").read_text()

    def wait_for(self, text: str) -> str:
        """The output, once it contains `text`."""
        for _ in range(10000):
            if text in self.output():
                return self.output()
            time.sleep(0.05)
        raise AssertionError(f"{text!r} never came: {self.output()}")

    def exec(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Standard output of a command in the container."""
        return run(self.runtime, "exec", *options, self.id, *command).stdout

    def environ(self) -> list[str]:
        """The environment of the container's process.

        `start` can return before the runtime's own process executes that one: the environment of `runc init` does not
        count, and that of crun's cannot be read (not dumpable: ptrace(2), access mode checking).
        """
        for _ in range(10000):
            done = run(self.runtime, "exec", self.id, "/bin/cat", "/proc/1/environ", check=False)
            environ = proc.environ(done.stdout)
            if done.returncode == 0 and not any(entry.startswith("_LIBCONTAINER_") for entry in environ):
                return environ
            assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
            time.sleep(0.05)
        raise AssertionError(f"the runtime did not execute the container's process: {done.stderr}")

    def mounts(self, below: str = "/etc") -> list[proc.Mount]:
        """The mounts that the container sees at or below a path, in order."""
        return proc.mounts(self.exec("/bin/cat", "/proc/self/mountinfo"), below)
