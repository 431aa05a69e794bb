"""A machine of the test's own, for tests of what lies at fixed paths: nothing of the real one is read or written there.

The test's thread, the threads and processes that it starts, and nobody else see it: it is a mount namespace.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomlkit

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_EMPTY = (
    *("/etc", "/opt", "/proc/driver", "/run", "/usr/lib/systemd", "/usr/local/bin", "/usr/local/sbin", "/var/lib"),
    "/var/log",
)
_HIDDEN = ("containerd", "crio", "dockerd", "podman")
"""Engines of the real machine that this one does not have."""
_KEPT = ("alternatives", "group", "ld.so.cache", "localtime", "nsswitch.conf", "passwd")
"""Names in /etc that programs of the real machine need."""

_SYSTEMCTL = """\
#!/bin/sh
# Units are files in /run/units: NAME is the pid of one that runs; NAME.known, .masked, .failed, .fails are others.
echo "$*" >> /run/systemctl.log
if [ "$1" = show ]; then
  shift 2
  for unit; do
    active=inactive; pid=0; load=not-found
    if [ -e "/run/units/$unit" ]; then active=active; load=loaded; read -r pid < "/run/units/$unit"; fi
    [ ! -e "/run/units/$unit.failed" ] || active=failed
    [ ! -e "/run/units/$unit.known" ] || load=loaded
    [ ! -e "/run/units/$unit.masked" ] || load=masked
    printf 'ActiveState=%s\nMainPID=%s\nLoadState=%s\n\n' "$active" "$pid" "$load"
  done
  exit
fi
for unit; do :; done
case "$*" in
*) if [ -e "/run/units/$unit.fails" ]; then cat "/run/units/$unit.fails" >&2; exit 1; fi
  case "$1" in
  start|restart) [ -e "/run/units/$unit" ] || echo 1 > "/run/units/$unit" ;;
  stop) rm -f "/run/units/$unit" ;;
  esac ;;
esac
"""


_AUDITED: list[tuple[tuple[str, ...], list[tuple[str, tuple[Any, ...]]]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for events, found in _AUDITED:
        if event in events:
            found.append((event, arguments))


sys.addaudithook(_audit)  # there is no way back, so it is one hook for all tests


@contextmanager
def audited(*events: str) -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """Python's audit events of these names, with their arguments, in order: what this process really does."""
    _AUDITED.append((events, []))
    try:
        yield _AUDITED[-1][1]
    finally:
        _AUDITED.pop()


class Machine:
    """Directories with nothing in them, and programs that a test writes."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self.processes: list[subprocess.Popen[bytes]] = []

    def file(self, path: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        """Writes a file, with the directories above it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        return target

    def program(self, name: str, script: str) -> Path:
        """Writes a program that is found before the real machine's."""
        return self.file(f"/usr/local/sbin/{name}", f"#!/bin/sh\n{script}\n", 0o755)

    def crio(self) -> None:
        """Installs CRI-O 1.31.0, which reads its built-in settings and our drop-in; it does not run."""
        default = Path(__file__).resolve().parents[1] / "fixtures/crio/default.toml"
        self.program(
            "crio",
            f'case "$*" in *--version) echo crio version 1.31.0 ;; *--default) cat {default} ;;\n'
            "*) cat /etc/crio/crio.conf.d/*.conf 2> /dev/null || : ;; esac",
        )

    @contextmanager
    def crio_daemon(self) -> Iterator[Callable[[], None]]:
        """CRI-O's socket, which answers /config with the files as they were when the given function was called last."""
        fixture = Path(__file__).resolve().parents[1] / "fixtures/crio/default.toml"
        loaded = [b""]

        def load() -> None:
            values: dict[str, Any] = tomllib.loads(fixture.read_text())
            paths = sorted(Path("/etc/crio/crio.conf.d").glob("*.conf"))
            drop_ins = [tomllib.loads(path.read_text()) for path in paths]
            for name, said in [table for each in drop_ins for table in each["crio"].items()]:
                runtimes = {**values["crio"][name].get("runtimes", {}), **said.pop("runtimes", {})}
                values["crio"][name].update({**said, "runtimes": runtimes} if runtimes else said)
            loaded[0] = tomlkit.dumps(values).encode()

        load()
        path = Path("/var/run/crio/crio.sock")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            thread = threading.Thread(target=_serve, args=(listening, loaded))
            thread.start()
            try:
                yield load
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()

    def devices(self) -> None:
        """Empties /dev."""
        _mount("tmpfs", "/dev", "tmpfs", 0, "mode=0755")
        os.mknod("/dev/null", 0o20666, os.makedev(1, 3))

    def make_read_only(self, path: str) -> None:
        """Has the file system that is mounted at a path read-only."""
        _mount("none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)

    def boot(self) -> None:
        """Starts systemd: systemctl remembers what it is asked, and answers by the files in /run/units."""
        Path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
        Path("/run/units").mkdir(exist_ok=True)
        self.file("/usr/local/sbin/systemctl", _SYSTEMCTL, 0o755)
        self.program("journalctl", ":")

    def unit(self, name: str, pid: int = 1) -> None:
        """A unit runs from now on."""
        self.file(f"/run/units/{name}", f"{pid}\n")

    def daemon(self, unit: str, *words: str, **environment: str) -> int:
        """Starts a unit's process, which has this command line and environment and does nothing. Returns its pid."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        # echo(1) waits for ever to write its arguments into a pipe that is full.
        started = subprocess.Popen(words, executable="/bin/echo", env=environment, stdout=writing, pass_fds=[reading])
        os.close(reading)
        os.close(writing)
        self.processes.append(started)
        self.unit(unit, started.pid)
        return started.pid

    def asked(self) -> list[str]:
        """What systemctl was told to do since this was called last, without questions."""
        log = Path("/run/systemctl.log")
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("show")]

    @contextmanager
    def agent(self, *answers: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """An agent that answers questions about its status, the last answer again and again. Gives what is left."""
        left = list(answers)
        path = "/run/reassert/agent/agent.sock"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(path)
            listening.listen()
            thread = threading.Thread(target=_answer, args=(listening, left))
            thread.start()
            try:
                yield left
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()


def _answer(listening: socket.socket, answers: list[dict[str, Any]]) -> None:
    with suppress(OSError):
        while True:
            connection = listening.accept()[0]
            with connection:
                connection.recv(1 << 16)
                connection.send(json.dumps(answers.pop(0) if len(answers) > 1 else answers[0]).encode())


def _serve(listening: socket.socket, content: list[bytes]) -> None:
    with suppress(OSError):
        while True:
            connection = listening.accept()[0]
            with connection:
                asked = connection.recv(1 << 16).partition(b" HTTP/")[0]
                status = b"200 OK" if asked == b"GET /config" else b"404 Not Found"
                head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(content[0]))
                connection.sendall(head + content[0])


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}{arguments}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None if data is None else data.encode())


def _held(tests: Path) -> Path:
    """An entry in the tests' directory, which tests in other processes remove as soon as it is empty."""
    held = tests / uuid.uuid4().hex
    while True:
        with suppress(FileNotFoundError):
            held.mkdir(parents=True)
            return held


def _leave(namespace: int) -> None:
    """Returns to another mount namespace, once the threads that the test has started have ended (setns(2))."""
    deadline = time.monotonic() + 600
    while True:
        try:
            return _call("setns", namespace, _CLONE_NEWNS)
        except OSError as error:
            if error.errno != errno.EINVAL or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


@contextmanager
def own_machine() -> Iterator[Machine]:
    """Enters a mount namespace with empty directories, and leaves it again."""
    machine = Machine()
    opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in ("/proc/thread-self/ns/mnt", "/", ".")]
    kept = {name: Path("/etc", name).resolve() for name in _KEPT if Path("/etc", name).exists()}
    tests = Path("/var/lib/reassert-tests")
    held = _held(tests)
    _call("unshare", _CLONE_NEWNS)
    try:
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
        opened.append(os.open(tests, os.O_RDONLY | os.O_CLOEXEC))
        _mount("tmpfs", "/mnt", "tmpfs", 0, "mode=0755")
        for name, path in kept.items():
            if path.is_dir():
                os.mkdir(f"/mnt/{name}")
                _mount(str(path), f"/mnt/{name}", None, _MS_BIND | _MS_REC)
            else:
                shutil.copy(path, f"/mnt/{name}")
        for path in filter(os.path.isdir, _EMPTY[1:]):
            _mount("tmpfs", path, "tmpfs", 0, "mode=0755")
        for hidden in (f"{directory}/{name}" for directory in ("/usr/bin", "/usr/sbin") for name in _HIDDEN):
            if os.path.isfile(hidden):
                _mount("/dev/null", os.path.realpath(hidden), None, _MS_BIND)
        _mount("/mnt", "/etc", None, _MS_BIND | _MS_REC)
        tests.mkdir()
        _mount(f"/proc/self/fd/{opened[-1]}", str(tests), None, _MS_BIND | _MS_REC)
        yield machine
    finally:
        for process in machine.processes:
            process.kill()
            process.wait()
        _leave(opened[0])
        os.fchdir(opened[1])
        os.chroot(".")
        os.fchdir(opened[2])
        for fd in opened:
            os.close(fd)
        held.rmdir()
        with suppress(OSError):  # another test's directory is in it
            tests.rmdir()
