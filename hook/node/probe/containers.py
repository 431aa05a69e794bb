"""Test containers through the docker or podman command.

No image is pulled: one is made of this node's sleep(1) and its libraries, those that a running sleep(1) has mapped. So
this works with every architecture, C library and directory layout. The command calls the loader by its path, with the
path of the libraries.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import time
from contextlib import suppress
from pathlib import Path

from hook.core.base.errors import describe
from hook.core.base.system import stat_of
from hook.core.container.identity import CONTAINER, Identity
from hook.inside.observe import CONTENT
from hook.inside.process import is_gvisor, processes
from hook.node.errors import NodeError
from hook.node.probe import starter
from hook.node.probe.starter import NOTHING_MORE, Extra, Pairs, Running
from hook.node.systemd import command, output, which

SECONDS = 60
"""Seconds after which a test container that was not removed ends by itself."""

HOME, _LIBRARIES = "/reassert", "/reassert/lib"

READ = [f"{HOME}/head", "-c", str(CONTENT)]
"""The command line that reads a file in a test container, without the file and the loader."""

_LOAD_SECONDS = 10.0

_LOADER = re.compile(r"ld(64)?[-.]")
"""The program interpreter's file name: ld-linux-x86-64.so.2, ld-2.31.so, ld64.so.2, ld-musl-aarch64.so.1, …"""


class ContainerStarter:
    """A Starter through docker or podman.

    `engine`: docker or podman. `program`: its command with global options. `options`: further options of `create`.
    """

    def __init__(self, engine: str, program: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> None:
        self._podman = engine == "podman"
        self._program = program or (engine,)
        self._options = options
        self.marks = starter.Marks()
        self._directory = ""
        self._sleep: list[str] = []
        self._image = f"{starter.NAME}:{starter.new_token()}"
        seen = f"localhost/{self._image}" if self._podman else None
        self.identity = Identity(engine, False, types=(CONTAINER,), image=seen)

    def prepare(self) -> None:
        """Makes the image and calls `clean`, once. Raises NodeError, OSError."""
        if self._sleep:
            return
        self.clean()
        tar, sleep = sleeper()
        self._directory = self._directory or starter.scratch()
        Path(self._directory, "root.tar").write_bytes(tar)
        self.call("import", f"{self._directory}/root.tar", self._image)
        self._sleep = sleep

    def close(self) -> None:
        """Remove the image. Raises NodeError."""
        self.marks.clear()
        if self._sleep:
            self._sleep = []
            self.call("rmi", "--force", self._image)
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self, handler: str, env: Pairs = (), mounts: Pairs = (), extra: Extra = NOTHING_MORE) -> Running:
        """Starts a container without network. If a name has two values, both engines pass on the last.

        Raises NotStarted, Unsupported, NodeError.
        """
        if extra.pod_annotations:
            raise starter.Unsupported("no plugin acts on a pod's annotations here")
        self.prepare()
        token = starter.new_token()
        name = f"{starter.NAME}-{token}"
        asked = [f"--env={key}={value}" for key, value in (*env, (starter.MARKER, token))]
        asked += [f"--mount=type=bind,{_field('source', host)},{_field('target', path)}" for host, path in mounts]
        asked += [f"--device={host}:{path}:rwm" for host, path in extra.devices]
        asked += [f"--device={name}" for name in extra.cdi]
        asked += [f"--annotation={key}={value}" for key, value in extra.annotations]
        asked += ["--privileged"] if extra.privileged else []
        asked += [f"--user={extra.user}:{extra.user}"] if extra.user is not None else []
        fixed = ["--rm", "--log-driver=none", "--network=none", "--pull=never", f"--name={name}"]
        runtime = [f"--runtime={handler}"]  # a global option of podman
        line = [*runtime, "create", *fixed] if self._podman else ["create", *runtime, *fixed]
        made = _Container(self, name, token, self._sleep)
        try:
            created = self._must([*line, *self._options, *asked, self._image, *self._sleep, str(SECONDS)])
            self.marks.add(created.split()[-1])
            self._must(["start", name])
            made.find()
        except BaseException:
            with suppress(NodeError):  # report why it did not start
                made.remove()
            raise
        return made

    def _must(self, arguments: list[str]) -> str:
        """Runs a command that a start needs; returns its standard output. Raises NotStarted."""
        done = command([*self._program, *arguments])
        if done.returncode:
            raise starter.NotStarted(" ".join(done.stderr.split()) or f"{arguments[0]} ended with {done.returncode}")
        return done.stdout

    def remove(self, name: str) -> None:
        """Removes a container. Raises NodeError."""
        done = command([*self._program, "rm", "--force", *(["--time=0"] if self._podman else []), name])
        if done.returncode and name in self._names():  # --rm may have been faster
            raise starter.NotRemoved(f"container {name} cannot be removed: {' '.join(done.stderr.split())}")

    def _names(self) -> list[str]:
        names = self.call("ps", "--all", "--format={{.Names}}", f"--filter=name={starter.NAME}").split()
        return [name for name in names if name.startswith(f"{starter.NAME}-")]

    def clean(self) -> None:
        """Removes containers and images of interrupted commands. Raises NodeError."""
        for name in self._names():
            if starter.abandoned(name.removeprefix(f"{starter.NAME}-")):
                self.remove(name)
        for tag in self.call("images", "--format={{.Tag}}", starter.NAME).split():
            if starter.abandoned(tag):
                self.call("rmi", "--force", f"{starter.NAME}:{tag}")

    def call(self, *arguments: str) -> str:
        """Runs a command; returns its standard output. Raises NodeError."""
        return output([*self._program, *arguments], f"`{self._program[0]} {arguments[0]}` failed")


def _field(name: str, path: str) -> str:
    """Returns a field of --mount, whose value is a line of CSV (RFC 4180)."""
    return '"' + f"{name}={path}".replace('"', '""') + '"'


class _Container:
    """A running test container of docker or podman."""

    def __init__(self, engine: ContainerStarter, name: str, token: str, sleep: list[str]) -> None:
        """`sleep`: the command line of sleep(1) in it, without the seconds."""
        self._engine = engine
        self._name = name
        self._token = token
        self._sleep = sleep
        self.pid = 0

    def find(self) -> None:
        """Reads its pid. Raises NotStarted."""
        try:
            self.pid = int(self._engine.call("inspect", "--format={{.State.Pid}}", self._name))
        except (NodeError, ValueError) as error:
            raise starter.NotStarted(f"the container ended at once: {error}") from None
        if not self.pid:
            raise starter.NotStarted("the container ended at once")

    def environ(self) -> list[str]:
        if is_gvisor(self.pid):
            return self._entries("/proc/1/environ")
        return starter.Process(self.pid, self._token).environ()

    def _entries(self, path: str, env: Pairs = ()) -> list[str]:
        return self._read(path, env).rstrip("\0").split("\0")

    def content(self, path: str) -> bytes:
        return os.fsencode(self._read(path))

    def _read(self, path: str, env: Pairs = ()) -> str:
        return self._exec(env, [], [*self._sleep[:-1], *READ, path])

    def _exec(self, env: Pairs, options: list[str], command: list[str]) -> str:
        asked = [f"--env={key}={value}" for key, value in env]
        return self._engine.call("exec", *options, *asked, self._name, *command)

    def exec_environ(self, env: Pairs = ()) -> list[str]:
        if is_gvisor(self.pid):
            return self._entries("/proc/self/environ", env)
        before = processes()
        self._exec(env, ["--detach"], [*self._sleep, str(int(starter.EXEC_SECONDS))])
        return starter.Process(self.pid, self._token).wait_executed(before)[1]

    def annotations(self) -> dict[str, str]:
        """Neither engine tells where the bundle is."""
        raise starter.Unsupported("the container's config.json was not found")

    def ended(self, error: Exception) -> Exception:
        """Nothing on a node ends containers of docker and podman regularly, and --rm leaves no exit status."""
        return starter.NotStarted(describe(error))

    def remove(self) -> None:
        self._engine.remove(self._name)


def sleeper() -> tuple[bytes, list[str]]:
    """Returns the tar, with head(1) if this node has it, and its command line, to which the seconds are added.

    Raises NodeError, OSError.
    """
    program, head = which("sleep"), which("head")
    if program is None:
        raise NodeError("this node has no sleep(1), which a test container runs")
    with subprocess.Popen([program, "60"], env={}, stdin=subprocess.DEVNULL) as running:  # noqa: S603  # a program of the node
        try:
            executable, libraries = _mapped(running.pid)
        finally:
            running.kill()
    files = {
        f"{HOME}/sleep": executable,
        **({f"{HOME}/head": os.path.realpath(head)} if head else {}),
        **{f"{_LIBRARIES}/{Path(path).name}": path for path in libraries},
    }
    loaders = [path for path in libraries if _LOADER.match(Path(path).name)]
    command = [f"{HOME}/sleep"]
    if loaders:  # else it is a static program
        command = [f"{_LIBRARIES}/{Path(loaders[0]).name}", "--library-path", _LIBRARIES, *command]
    return _tar(files, _aliases(libraries)), command


def unpack_reader(directory: str) -> list[str]:
    """Unpacks READ, for a container that has HOME of this directory at its own HOME. Returns its command line there.

    Raises NodeError, OSError.
    """
    tar, sleep = sleeper()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(directory)  # noqa: S202  # made here
    for path, _, _ in os.walk(directory):
        os.chmod(path, 0o755)  # noqa: S103  # the container's user may be any
    return [*sleep[:-1], *READ]


def _mapped(pid: int) -> tuple[str, list[str]]:
    """Returns the executable of a process and the libraries that it maps, once it has loaded all of them."""
    before: list[str] = []
    deadline = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < deadline:
        lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        now = [line[5] for line in lines if len(line) == 6 and "x" in line[1] and line[5].startswith("/")]
        if now and now == before and stat_of(pid)[0] == "S":  # asleep twice with the same libraries
            executable = os.readlink(f"/proc/{pid}/exe")
            return executable, sorted(set(now) - {executable})
        before = now
        time.sleep(0.02)
    raise NodeError(f"sleep(1) did not start within {_LOAD_SECONDS:.0f} s")


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
        for directory in (HOME, _LIBRARIES):  # docker 20.10 makes those that the archive lacks for root alone
            entry = tarfile.TarInfo(directory.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
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
