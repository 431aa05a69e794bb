"""A process that looks at a container: the rights that it has, and what one that a container took over can do.

The calls of one that was taken over are made here by the function that looks.
"""

from __future__ import annotations

import ast
import ctypes
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.linux.mountns import Namespace
from hook.core.linux.walk import open_walked
from hook.inside import rights
from hook.inside.process import Process
from hook.inside.rights import DAC_READ_SEARCH, ENTER, READ, SYS_ADMIN
from hook.inside.workers import apart

pytestmark = marks.promise(
    "In a container's mount namespace nothing is loaded, run, or opened by a path, and what it controls is "
    "read without rights"
)

libc = ctypes.CDLL(None, use_errno=True)


def called(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def system_call(number: int, *arguments: Any) -> None:
    called("syscall", ctypes.c_long(number), *arguments)


def openat2(path: Path) -> None:
    how = (ctypes.c_uint64 * 3)(os.O_RDWR, 0, 0)
    system_call(437, ctypes.c_long(-100), str(path).encode(), how, ctypes.c_long(24))


def in_a_thread() -> None:
    import _thread

    try:
        _thread.start_new_thread(int, ())
    except RuntimeError:
        raise PermissionError(errno.EPERM, "no thread") from None


ATTEMPTS: dict[str, Callable[[Path], object]] = {
    "O_WRONLY": lambda file: os.open(file, os.O_WRONLY),
    "O_RDWR": lambda file: os.open(file, os.O_RDWR),
    "O_TRUNC": lambda file: os.open(file, os.O_TRUNC),
    "O_APPEND": lambda file: os.open(file, os.O_WRONLY | os.O_APPEND),
    "O_CREAT": lambda file: os.open(f"{file}-new", os.O_CREAT, 0o666),
    "O_TMPFILE": lambda file: os.open(file.parent, os.O_TMPFILE | os.O_RDWR),
    "the descriptor again": lambda file: os.open(f"/proc/self/fd/{os.open(file, os.O_RDONLY)}", os.O_RDWR),
    "openat2": openat2,
    "a file that all may write": lambda file: os.open("/dev/null", os.O_WRONLY),
    "truncate": lambda file: os.truncate(file, 0),
    "unlink": os.unlink,
    "rename": lambda file: os.rename(file, f"{file}-other"),
    "link": lambda file: os.link(file, f"{file}-other"),
    "symlink": lambda file: os.symlink("/", f"{file}-other"),
    "mkdir": lambda file: os.mkdir(f"{file}-other"),
    "mknod": lambda file: os.mknod(f"{file}-other", 0o600 | 0o010000),
    "chmod": lambda file: os.chmod(file, 0o777),
    "chown": lambda file: os.chown(file, 1, 1),
    "utime": os.utime,
    "setxattr": lambda file: os.setxattr(file, "user.x", b"x"),
    "memfd_create": lambda _: os.memfd_create("x"),
    "execve": lambda _: os.execv(sys.executable, [sys.executable, "-c", ""]),
    "fork": lambda _: os.fork(),
    "a thread": lambda _: in_a_thread(),
    "kill": lambda _: os.kill(os.getppid(), 0),
    "pidfd_open": lambda _: os.pidfd_open(os.getppid()),
    "pidfd_send_signal": lambda _: signal.pidfd_send_signal(0, 0),
    "ptrace": lambda _: called("ptrace", 16, os.getpid() - 1, None, None),
    "process_vm_writev": lambda _: called("process_vm_writev", 1, None, 0, None, 0, 0),
    "socket": lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "socketpair": lambda _: socket.socketpair(),
    "io_uring_setup": lambda _: system_call(425, 1, None),
    "bpf": lambda _: system_call(321 if os.uname().machine == "x86_64" else 280, 0, None, 0),
    "setns": lambda _: called("setns", 0, 0),
    "unshare": lambda _: called("unshare", 0x10000000),
    "mount": lambda _: called("mount", b"none", b"/", None, 0x1000 | 32, None),
    "move_mount": lambda _: system_call(429, -1, b"", -1, b"", 0),
    "open_by_handle_at": lambda _: called("open_by_handle_at", -1, None, 0),
    "chroot": lambda file: os.chroot(file.parent),
    "chdir": lambda file: os.chdir(file.parent),
    "setuid": lambda _: os.setuid(0),
    "capset": lambda _: called("capset", None, None),
    "ioctl": lambda file: fcntl.ioctl(os.open(file, os.O_RDONLY), 0x5401),
    "another filter": lambda _: called("prctl", 22, 2, None),
}


def attempted(file: Path) -> dict[str, str]:
    """What each attempt came to: the name of the error."""
    found = {}
    for name, attempt in ATTEMPTS.items():
        try:
            attempt(file)
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    return found


@pytest.mark.root
def test_a_process_that_a_container_took_over_changes_nothing_and_reaches_nobody(root_dir: Path) -> None:
    file = root_dir / "file"
    file.write_text("the node's\n")
    before = file.stat()
    found = apart(lambda: file, attempted)
    wanted = dict.fromkeys(ATTEMPTS, "EPERM")
    wanted |= dict.fromkeys(["O_WRONLY", "O_RDWR", "O_TRUNC", "O_APPEND", "O_CREAT", "O_TMPFILE"], "EACCES")
    wanted |= dict.fromkeys(["the descriptor again", "a file that all may write"], "EACCES") | {"ioctl": "ENOTTY"}
    assert found == wanted
    assert file.stat() == before  # before it is read: that would set its time of access
    assert file.read_text() == "the node's\n"
    assert os.listdir(root_dir) == ["file"]


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines)
    names = ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")
    return {name: fields[name].lstrip("0") or "0" for name in names}


@pytest.mark.root
def test_it_has_what_it_takes_to_enter_and_then_what_it_takes_to_read(root_dir: Path) -> None:
    """/proc/PID/status, while it opens what is a container's and while it reads that."""
    of = {rights: f"{sum(1 << number for number in rights):x}" for rights in (ENTER, READ)}
    then, now = apart(status, lambda taken: [taken, status()])
    usual = {"CapInh": "0", "CapAmb": "0", "NoNewPrivs": "1"}
    assert then == {**usual, "CapPrm": of[ENTER], "CapEff": of[ENTER], "Seccomp": "0"}
    assert now == {**usual, "CapPrm": of[READ], "CapEff": of[READ], "Seccomp": "2"}
    assert (READ, SYS_ADMIN in ENTER) == ((DAC_READ_SEARCH,), True)


@pytest.mark.users
def test_each_right_is_needed(root_dir: Path) -> None:
    """For a process that has all capabilities itself, and a directory that only another user may read."""
    (root_dir / "closed/inside").mkdir(parents=True)
    os.chown(root_dir / "closed", 1, 1)
    (root_dir / "closed").chmod(0o700)

    def take(pid: int) -> Process | None:
        with suppress(OSError):
            process = Process(pid)
            process.hold()
            return process
        return None

    def look(process: Process | None) -> bool:
        with suppress(OSError):
            return bool(
                process and process.environ() and open_walked(process.mounts().root, f"{root_dir}/closed/inside")
            )
        return False

    with subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE, env={"A": "1", **os.environ}) as child:
        while os.readlink(f"/proc/{child.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            assert child.poll() is None
        assert apart(lambda: take(child.pid), look)
        for each in ENTER:
            fewer = tuple(right for right in ENTER if right != each)
            assert not apart(lambda: take(child.pid), look, fewer), each  # called at once
        child.communicate()


@pytest.mark.root
def test_it_has_no_descriptor_of_its_parent(root_dir: Path) -> None:
    log = os.open(root_dir / "log", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(log, True)
    try:
        opened = apart(
            lambda: None, lambda _: sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in range(64) if is_open(fd))
        )
    finally:
        os.close(log)
    assert sorted(path.partition("[")[0] for path in opened) == ["/dev/null"] * 2 + ["pipe:"]


def is_open(fd: int) -> bool:
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False


def test_one_function_enters_namespaces() -> None:
    """Any other one that does must be held by e2e/test_namespaces.py, which traces what is called inside."""
    top = Path(rights.__file__).parents[1]
    users = {}
    texts = {path: path.read_text() for path in top.rglob("*.py")}
    for path, text in texts.items():
        parsed = ast.walk(ast.parse(text if re.search("setns|nsenter", text) else ""))
        for function in [n for n in parsed if isinstance(n, ast.FunctionDef)]:
            names = [getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(function)]
            if {"setns", "_setns", "nsenter"} & set(names):
                users[f"{path.relative_to(top)}: {function.name}"] = names.count("_setns")
    assert users == {"core/linux/mountns.py: call": 2, "core/linux/mountns.py: _setns": 0}


@pytest.mark.root
def test_nothing_is_imported_in_a_containers_mount_namespace() -> None:
    """A module that is loaded already is not looked for; in any other thread, and afterwards, all can be."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            called("unshare", 0x20000)
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        finally:
            os._exit(0)
    try:
        os.read(ready[0], 1)

        def look() -> list[str]:
            found = []
            with Namespace(child) as there:
                for name in ("this", "os", "no.such.module"):
                    try:
                        there.call(__import__, name)  # type: ignore[arg-type]  # no system call, on purpose
                        found.append(name)
                    except (RuntimeError, ImportError) as error:
                        found.append(type(error).__name__)
            sys.modules.pop("this", None)
            import wave

            return [*found, wave.__name__]

        sys.modules.pop("wave", None)
        assert apart(look, lambda taken: taken) == ["RuntimeError", "os", "RuntimeError", "wave"]
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for fd in (*ready, *done):
            os.close(fd)
