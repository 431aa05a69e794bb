"""Test containers of docker: those of its runtimes, and RUN steps of BuildKit.

A RUN step has no id that `docker` tells and no exec. It is found among the processes below dockerd, by its marker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from hook.core.base.system import stat_of
from hook.inside.process import environs, mount_namespace, processes
from hook.node.errors import NodeError
from hook.node.probe import starter
from hook.node.probe.containers import SECONDS, ContainerStarter
from hook.node.probe.starter import NOTHING_MORE, Extra, Pairs, Running
from hook.node.systemd import PATH, command, wait_until

_BEGINS_SECONDS = 30.0
"""The longest wait until the RUN step runs: BuildKit reads the image first."""

_ENDS_SECONDS = 20.0
_NO_EXEC = "no command executes a program in a RUN step"


class DockerStarter(ContainerStarter):
    """A Starter through docker. `builder`: the name of the handler that is BuildKit. `dockerd`: its pid."""

    def __init__(self, builder: str, dockerd: int) -> None:
        super().__init__("docker")
        self._builder = builder
        self.marks.unmarked.add(builder)
        self._dockerd = dockerd

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = (), extra: Extra = NOTHING_MORE) -> Running:
        """As that of ContainerStarter; under BuildKit a RUN step, whose image has the env, with mounts of its own."""
        if handler != self._builder:
            return super().start(handler, env, mounts, extra)
        if extra != NOTHING_MORE:
            raise starter.Unsupported("a RUN step asks for no device")
        if command(["docker", "buildx", "version"]).returncode:
            raise starter.Unsupported("docker has no buildx on this node, which a build with BuildKit needs")
        self.prepare()
        return _Step.begun(self, [*env], [*mounts])

    def context(self, env: list[tuple[str, str]], mounts: list[tuple[str, str]], token: str) -> str:
        """Makes the directory with a Dockerfile, and the files that are mounted. Returns its path. Raises OSError."""
        directory = tempfile.mkdtemp(dir=self._directory)
        lines = [f"FROM {self._image}"]
        lines += [f"ENV {name}={_quoted(value)}" for name, value in (*env, (starter.MARKER, token))]
        options = ""
        for number, (source, path) in enumerate(mounts):
            copied = f"{directory}/{number}"
            if os.path.isdir(source):
                shutil.copytree(source, copied)
            else:
                shutil.copy(source, copied)
            options += f" --mount=type=bind,source={number},target={path}"
        lines.append(f"RUN{options} {json.dumps([*self._sleep, str(SECONDS)])}")
        Path(directory, "Dockerfile").write_text("\n".join(lines) + "\n")
        return directory

    def build(self, context: str) -> subprocess.Popen[str]:
        """Begins a build without a cache and without a network, of which nothing stays. Raises NodeError."""
        line = ["docker", "buildx", "build", "--builder=default", "--no-cache", "--network=none", "--progress=plain"]
        environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": self._directory, "BUILDX_CONFIG": self._directory}
        return subprocess.Popen(  # noqa: S603  # a list of fixed words and a path of ours
            [*line, context],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )

    def marked(self, token: str) -> int:
        """Returns the process below dockerd whose environment has the marker, 0 if there is none yet.

        No other process is looked at: one of them can make a look at its environment wait for ever.
        """
        parents = {}
        for pid in processes():
            try:
                parents[pid] = int(stat_of(pid)[1])
            except OSError:
                continue
        below, new = set[int](), {self._dockerd}
        while new := {pid for pid, parent in parents.items() if parent in new} - below:
            below |= new
        own = mount_namespace(os.getpid())
        inside = {pid for pid in below if mount_namespace(pid) not in (own, mount_namespace(self._dockerd))}
        for pid, entries in environs(inside).items():
            if f"{starter.MARKER}={token}" in entries:
                return pid
        return 0


class _Step:
    """A RUN step that runs."""

    def __init__(self, builds: DockerStarter, context: str, building: subprocess.Popen[str], token: str) -> None:
        self._builds = builds
        self._context = context
        self._building = building
        self._token = token
        self.pid = 0

    @classmethod
    def begun(cls, builds: DockerStarter, env: list[tuple[str, str]], mounts: list[tuple[str, str]]) -> _Step:
        """Starts the build and waits for the step. Raises NotStarted, with what the build said; NodeError, OSError."""
        token = starter.new_token()
        context = builds.context(env, mounts, token)
        step = cls(builds, context, builds.build(context), token)
        try:
            step._find()
        except BaseException:
            step.remove()
            raise
        return step

    def _find(self) -> None:
        deadline = time.monotonic() + _BEGINS_SECONDS
        while not self.pid:
            if self._building.poll() is not None:
                raise starter.NotStarted(self._said())
            if time.monotonic() > deadline:
                raise NodeError(f"the RUN step of a build did not begin within {_BEGINS_SECONDS:.0f} s")
            self.pid = self._builds.marked(self._token)
            time.sleep(0.02)

    def _said(self) -> str:
        """What the build printed: a refusal of reassert, else its last error."""
        said, _ = self._building.communicate()
        lines = [re.sub(r"^#\d+ [\d.]+ ", "", line) for line in said.splitlines() if line.strip()]
        told = [line for line in lines if "reassert: refused" in line] or [line for line in lines if "ERROR" in line]
        return " ".join((told or lines or ["it printed nothing"])[-1].split())

    def environ(self) -> list[str]:
        """As of Running."""
        return starter.Process(self.pid, self._token).environ()

    def exec_environ(self, env: Pairs = ()) -> list[str]:
        """Raises Unsupported."""
        raise starter.Unsupported(_NO_EXEC)

    def content(self, path: str) -> bytes:
        """Raises Unsupported."""
        raise starter.Unsupported(_NO_EXEC)

    def annotations(self) -> dict[str, str]:
        """Raises Unsupported."""
        raise starter.Unsupported("a RUN step has no annotations of a user")

    def ended(self, error: Exception) -> Exception:
        """Nothing on a node ends builds regularly."""
        return starter.NotStarted(str(error))

    def remove(self) -> None:
        """Cancels the build: BuildKit then ends the step. Raises NotRemoved."""
        self._building.terminate()
        self._building.communicate()
        shutil.rmtree(self._context, ignore_errors=True)
        if self.pid and not wait_until(lambda: not os.path.exists(f"/proc/{self.pid}"), _ENDS_SECONDS, 0.02):
            raise starter.NotRemoved(f"the RUN step of a build, process {self.pid}, does not end")


def _quoted(value: str) -> str:
    """A value of ENV of a Dockerfile, in which no variable is replaced."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'
