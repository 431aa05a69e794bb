"""Probes through the command line of docker or podman. No image is pulled: one is made of the node's own sleep(1)."""

from __future__ import annotations

import secrets
import tempfile
import time

from hook.container.identity import CONTAINER, Identity
from hook.node.errors import NodeError
from hook.node.starter import EXEC_SECONDS, MARKER, NotStarted, Pairs, Process, processes
from hook.node.systemd import command
from hook.node.tinyroot import sleeper

IMAGE = "reassert-verify:latest"
LABEL = "reassert.probe"
"""A label that only our containers have: what an interrupted probe left is found by it."""

SECONDS = 60
"""How long a probe lives that nobody removes."""


class ContainerStarter:
    """A Starter through docker or podman.

    `engine`: of the two. `program`: its command line, global options too. `options`: more of its `run`.
    """

    def __init__(self, engine: str, program: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> None:
        self._podman = engine == "podman"
        self._program = program or (engine,)
        self._options = options
        self._sleep: list[str] = []
        image = f"localhost/{IMAGE}" if self._podman else None
        self.identity = Identity(engine, False, types=(CONTAINER,), image=image)

    def prepare(self) -> None:
        """Make the image, and remove what an interrupted probe left, once. Raises NodeError, OSError."""
        if self._sleep:
            return
        self._clean()
        tar, sleep = sleeper()
        with tempfile.NamedTemporaryFile(prefix="reassert-verify-", suffix=".tar", dir="/run") as file:
            file.write(tar)
            file.flush()
            self._must("import", file.name, IMAGE)
        self._sleep = sleep

    def close(self) -> None:
        """Remove the image. Raises NodeError."""
        if self._sleep:
            self._sleep = []
            self._clean()

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = ()) -> OneContainer:
        """A container without network. Of two values of a name both engines pass on the last.

        Raises NotStarted, NodeError.
        """
        self.prepare()
        token = secrets.token_hex(8)
        name = f"reassert-verify-{token[:8]}"
        asked = [f"--env={key}={value}" for key, value in (*env, (MARKER, token))]
        asked += [f"--mount=type=bind,source={host},target={path}" for host, path in mounts]
        fixed = ["--detach", "--rm", "--log-driver=none", "--network=none", "--pull=never"]
        fixed += [f"--name={name}", f"--label={LABEL}={token}"]
        runtime = [f"--runtime={handler}"]  # podman's is a global option
        line = [*runtime, "run", *fixed] if self._podman else ["run", *runtime, *fixed]
        done = command([*self._program, *line, *self._options, *asked, IMAGE, *self._sleep, str(SECONDS)])
        made = OneContainer(self, name, token)
        try:
            if done.returncode:
                raise NotStarted(
                    " ".join(done.stderr.split()) or f"{self._program[0]} run ended with {done.returncode}"
                )
            made.find()
        except BaseException:
            made.remove()
            raise
        return made

    def call(self, *arguments: str) -> str:
        """Standard output of a command. Raises NodeError."""
        return self._must(*arguments)

    def sleep_in(self, name: str) -> None:
        """Execute one more program in a container, in the background. Raises NodeError."""
        self._must("exec", "--detach", name, *self._sleep, str(int(EXEC_SECONDS)))

    def remove(self, *filters: str) -> None:
        """Remove the probes that pass these filters of `ps`. Raises NodeError."""
        select = ["ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}", *filters]
        force = ["rm", "--force", *(["--time=0"] if self._podman else [])]
        for container in self._must(*select).split():
            done = command([*self._program, *force, container])
            if done.returncode and container in self._must(*select).split():  # --rm may have been faster
                raise NodeError(f"container {container} cannot be removed: {' '.join(done.stderr.split())}")

    def _clean(self) -> None:
        self.remove()
        if self._must("images", "--quiet", IMAGE).split():
            self._must("rmi", "--force", IMAGE)

    def _must(self, *arguments: str) -> str:
        done = command([*self._program, *arguments])
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise NodeError(f"`{self._program[0]} {arguments[0]}` failed: {said}")
        return done.stdout


class OneContainer:
    """A Running of docker or podman."""

    def __init__(self, starter: ContainerStarter, name: str, token: str) -> None:
        self._starter = starter
        self._name = name
        self._token = token
        self.pid = 0

    def find(self) -> None:
        """Learn its pid. Raises NodeError."""
        text = self._starter.call("inspect", "--format={{.State.Pid}}", self._name).strip()
        if not text.isdigit() or text == "0":
            raise NodeError(f"the engine does not tell the pid of container {self._name}: {text}")
        self.pid = int(text)

    def environ(self) -> list[str]:
        """The environment of its first process. Raises Gone, NodeError."""
        return Process(self.pid, self._token).environ()

    def exec_environ(self) -> list[str]:
        """The environment of a second sleep beside the first. Raises NodeError."""
        before = processes()
        self._starter.sleep_in(self._name)
        deadline = time.monotonic() + EXEC_SECONDS
        while time.monotonic() < deadline:
            found = Process(self.pid, self._token).executed(before)
            if found is not None:
                return found
            time.sleep(0.01)
        raise NodeError("a program executed in the container did not come up")

    def remove(self) -> None:
        """Stop and remove it. Raises NodeError."""
        self._starter.remove(f"--filter=label={LABEL}={self._token}")
