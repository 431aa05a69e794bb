"""front: its parsers under sanitizers, what the compiler says of it, and what it hands on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path

import marks
import pytest
from harness.tools import need

from hook import __version__
from hook.core.container.spec import CONFIG_LIMIT
from hook.entry import protocol
from hook.entry.dispatcher import HEADER
from unit.support import ROOT

pytestmark = marks.promise("front reads no byte beyond a frame or a file's header", about="Agent")

SOURCE = ROOT / "packaging" / "front" / "front.c"
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", f'-DVERSION="{__version__}"']


WORDS = "# decided: create\n# passed: state\n# values: --root\n# flags: --debug\n"
"""Lines of a dispatcher's file (hook.entry.dispatcher)."""


@pytest.fixture(autouse=True)
def gcc() -> None:
    need(shutil.which("gcc") is not None, "gcc")


def test_it_is_small_enough_to_be_read() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 330


@pytest.mark.slow
def test_the_analyzer_finds_nothing(tmp_path: Path) -> None:
    subprocess.run(["gcc", *WARNINGS, "-O2", "-fanalyzer", "-o", tmp_path / "front", SOURCE], check=True)


def test_there_is_no_heap(tmp_path: Path) -> None:
    subprocess.run(["gcc", *WARNINGS, "-O1", "-c", "-o", tmp_path / "front.o", SOURCE], check=True)
    symbols = subprocess.run(["nm", "-u", tmp_path / "front.o"], capture_output=True, text=True, check=True).stdout
    assert "memcpy" in symbols or "execve" in symbols
    assert not re.search(r"\b(malloc|calloc|realloc|free|strdup|system|popen)\b", symbols)


@pytest.mark.traced
def test_the_parsers_under_sanitizers(tmp_path: Path) -> None:
    program = tmp_path / "front_test"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-conversion", "-Wno-shadow"]
    test = ROOT / "tests" / "unit" / "agent" / "front_test.c"
    subprocess.run(["gcc", *WARNINGS, *flags, "-o", program, test], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def built(directory: Path) -> Path:
    """As it is built for a release."""
    need(shutil.which("musl-gcc") is not None, "musl-tools")
    front = directory / "front"
    subprocess.run([SOURCE.with_name("build.sh"), front], check=True)
    return front


def test_it_is_small_and_every_kernel_loads_it(tmp_path: Path) -> None:
    """arm64's segments are 64 KiB apart, for kernels with pages of that size. An ELF file's headers: elf(5)."""
    program, is_arm64 = built(tmp_path).read_bytes(), platform.machine() == "aarch64"
    assert len(program) <= (70_000 if is_arm64 else 40_000)
    table, count = struct.unpack_from("<Q", program, 32)[0], struct.unpack_from("<H", program, 56)[0]
    headers = [program[table + 56 * number :][:56] for number in range(count)]
    loaded = {header[48:] for header in headers if header[:4] == b"\x01\0\0\0"}  # p_align of each PT_LOAD
    assert loaded == {struct.pack("<Q", 0x10000 if is_arm64 else 0x1000)}
    # Hardened: position-independent and static; no segment is writable and executable, nor the stack executable; RELRO.
    found = {int.from_bytes(header[:4], "little"): header[4] for header in headers}  # p_type, p_flags
    assert program[16:18] == b"\x03\0", "ET_DYN"
    assert {0x6474E551: found[0x6474E551], 0x6474E552: found[0x6474E552]} == {0x6474E551: 6, 0x6474E552: 4}
    assert 3 not in found, "PT_INTERP"
    assert not any(header[4] & 3 == 3 for header in headers)


@pytest.mark.native
@pytest.mark.peerpidfd
def test_it_takes_little_memory(tmp_path: Path) -> None:
    """While it waits for an agent that does not answer."""
    front, real = built(tmp_path), tmp_path / "real"
    real.write_text("#!/bin/sh\n")
    text = f"#!{front}\n# mark\n# real: {real}\n{WORDS}# socket: {tmp_path}/s\n"
    file = tmp_path / "file"
    file.write_text(text + "# policy: /p\n# store: /d\n# events: /e\n\nexit 7\n")
    file.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        with subprocess.Popen([file, "create", "x" * 60_000]) as process:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1 << 17)
                status = Path(f"/proc/{process.pid}/status").read_text()
            assert process.wait(600) == 7
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    assert int(peak[1]) <= 1024


def test_both_sides_have_the_same_limits() -> None:
    text = SOURCE.read_text()
    enums = dict(re.findall(r"(\w+) = ([\w <]+)[,} ]", text))
    assert int(enums["FRAME"]) == protocol.FRAME_LIMIT
    assert int(enums["HEADER"]) == HEADER
    assert int(enums["ARGUMENTS"]) == protocol.ARGUMENTS
    assert int(enums["DEADLINE_MS"]) == protocol.ANSWER_SECONDS * 1000
    assert enums["STDIN_LIMIT"].strip() == f"{CONFIG_LIMIT >> 20} << 20"
    for kind, name in (("G", "GO"), ("A", "CHANGED"), ("R", "REFUSED"), ("C", "COLD")):
        assert f"{name} = '{kind}'" in text
    assert f'"{protocol.REQUEST.decode()}"' in text
    assert f'"{protocol.ANSWER.decode()}"' in text


PRINTER = """
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **arguments, char **environment)
{
	char line[256];
	for (int i = 0; i < count; i++)
		fwrite(arguments[i], 1, strlen(arguments[i]) + 1, stdout);
	for (; *environment; environment++)
		fwrite(*environment, 1, strlen(*environment) + 1, stdout);
	struct stat found;
	for (int fd = 0; fd < 64; fd++)
		if (fd != 1 && fstat(fd, &found) == 0)
			printf("%d: %lx %lx %o %o %o %ld\\n", fd, (long)found.st_dev, (long)found.st_ino, found.st_mode,
				fcntl(fd, F_GETFD), fcntl(fd, F_GETFL), (long)lseek(fd, 0, SEEK_CUR));
	printf("%s %d %d\\n", getcwd(line, sizeof line), getpgrp(), getsid(0));
	for (FILE *status = fopen("/proc/self/status", "r"); fgets(line, sizeof line, status);)
		for (const char *names = NAMES; *names; names += strlen(names) + 1)
			if (strncmp(line, names, strlen(names)) == 0)
				fputs(line, stdout);
	for (FILE *limits = fopen("/proc/self/limits", "r"); fgets(line, sizeof line, limits);)
		fputs(line, stdout);
}
"""
NAMES = [
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "SigPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "Cap",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed:",
]
"""Lines of /proc/PID/status."""

ENVIRONMENT = [b"LD_LIBRARY_PATH=", b"no equals sign", b"=x", b"A=1", b"A=2", b"", b"LD_PRELOAD=", b"B=\xff\n"]
"""Entries that a shell or a Python would not pass on as they are."""


def printed(program: Path, arguments: list[bytes]) -> bytes:
    """What PRINTER prints behind a program that is given ENVIRONMENT, ignored signals and a blocked one."""
    vector = (ctypes.c_char_p * (len(arguments) + 2))(bytes(program), *arguments, None)
    entries = (ctypes.c_char_p * (len(ENVIRONMENT) + 1))(*ENVIRONMENT, None)
    reader, writer = os.pipe()
    if os.fork() == 0:
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.dup2(writer, 1)
        os.dup2(os.open("/dev/zero", os.O_RDONLY), 7)  # of the engine, inherited
        os.chdir("/usr")
        os.umask(0o27)
        resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))
        ctypes.CDLL(None).execve(bytes(program), vector, entries)
        os._exit(9)
    os.close(writer)
    with open(reader, "rb") as stream:
        found = stream.read()
    assert os.wait()[1] == 0
    return found


@pytest.mark.native
@pytest.mark.peerpidfd
def test_the_real_runtime_gets_what_the_engine_gave(tmp_path: Path) -> None:
    """The environment byte for byte, descriptors, umask, working directory, signals, limits, and the arguments behind
    its own path, asked about or not."""
    real, file = tmp_path / "real", tmp_path / "file"
    names = '-DNAMES="' + "".join(f"{name}\\0" for name in NAMES) + '"'
    subprocess.run(["gcc", "-x", "c", names, "-o", real, "-"], input=PRINTER, text=True, check=True)
    text = f"#!{built(tmp_path)}\n# mark\n# real: {real}\n{WORDS}# socket: {tmp_path}/s\n"
    file.write_text(text + "# policy: /p\n# store: /d\n# events: /e\n\nexit 7\n")
    file.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def answer(frame: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1 << 17)
                connection.send(frame)

        given = printed(real, [b"state", b"0a"])
        assert given.startswith(bytes(real) + b"\0state\x000a\0" + b"\0".join(ENVIRONMENT) + b"\x000: ")
        assert b"\nUmask:\t0027\n" in given and b"\n7: " in given and b"\n/usr " in given
        assert printed(file, [b"state", b"0a"]) == given
        for frame in (protocol.go(), protocol.changed(["create", "\udcff"])):
            thread = threading.Thread(target=answer, args=(frame,))
            thread.start()
            assert printed(file, [b"create", b"\xff"]) == given.replace(b"\0state\x000a\0", b"\0create\0\xff\0")
            thread.join()


class Front:
    """front as an engine calls it, and an agent that gives one answer, if it has one."""

    def __init__(self, directory: Path, front: Path, real: str = "", name: str = "s") -> None:
        self.directory, self.socket, self.file = directory, directory / name, directory / "file"
        self.request: list[bytes] = []
        self.passed: str | bytes = b""
        words = "# verbs: create\n# decided: create\n# passed: state\n# values: --root\n# flags: --debug\n"
        text = f"#!{front}\n# mark\n" + (f"# real: {real}\n{words}" if real else "") + f"# socket: {self.socket}\n"
        script = 'printf "%s|" "$@"; cat\nexit 7\n'
        self.file.write_text(text + f"# policy: /p\n# store: /d\n# events: /e\n# hook: /h\n\n{script}")
        self.file.chmod(0o755)

    def run(
        self, *arguments: str, stdin: bytes = b"the state", answer: bytes | None = None, user: int = 0, by: str = ""
    ) -> tuple[int, bytes, bytes]:
        """Exit status, standard output and error.

        `answer`: of the agent that listens as `user`; None: nobody does. `by`: a program that executes front.
        """
        environment = {"XDG_RUNTIME_DIRECTORY": "no", "XDG_RUNTIME_DIR": "/run/user/0", "PATH": os.defpath}
        command = [*by.split(), str(self.file), *arguments]
        if answer is None:
            done = subprocess.run(command, input=stdin, capture_output=True, env=environment)
            return done.returncode, done.stdout, done.stderr
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self.socket))
            if user:
                os.seteuid(user)
            listener.listen()
            if user:
                os.seteuid(0)
            thread = threading.Thread(target=self._answer, args=(listener, answer))
            thread.start()
            done = subprocess.run(command, input=stdin, capture_output=True, env=environment, cwd=self.directory)
            listener.shutdown(socket.SHUT_RDWR)  # for a front that does not ask
            thread.join()
        self.socket.unlink()
        return done.returncode, done.stdout, done.stderr

    def _answer(self, listener: socket.socket, answer: bytes) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            frame, descriptors, _, _ = socket.recv_fds(connection, 1 << 17, 2)
            self.request = frame.split(b"\0")
            for fd in descriptors:
                path = os.readlink(f"/proc/self/fd/{fd}")
                self.passed = path if Path(path).is_dir() else os.pread(fd, 1 << 24, 0)
                os.close(fd)
            with contextlib.suppress(BrokenPipeError):  # front has gone, as it has from a foreign agent
                connection.send(answer)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("front"))


@pytest.mark.root
def test_a_hook_passes_its_state_on_and_does_what_the_agent_says(tmp_path: Path, front: Path) -> None:
    hook = Front(tmp_path, front)
    for state in (b"", b"x", b"state " * 50_000):
        assert hook.run("createRuntime", stdin=state, answer=protocol.go()) == (0, b"", b"")
        assert hook.passed == state
        cold = (7, b"--cold=policy|createRuntime|" + state, b"")
        assert hook.run("createRuntime", stdin=state, answer=protocol.cold("policy")) == cold
    values = [b"hook", b"", b"/p", b"/d", b"/e", b"/h", b"/run/user/0", b"createRuntime", b""]
    assert hook.request == [protocol.REQUEST, __version__.encode(), *values]
    assert hook.run("createRuntime", answer=protocol.refused(3, "why\n")) == (3, b"", b"why\n")
    assert hook.run("createRuntime", answer=protocol.refused(255, "")) == (255, b"", b"")
    assert hook.run("createRuntime", answer=protocol.changed(["create"]))[:2] == (
        7,
        b"--cold=exec|createRuntime|the state",
    )


@pytest.mark.root
def test_a_socket_whose_path_no_address_holds_is_absent(tmp_path: Path, front: Path) -> None:
    assert Front(tmp_path, front, name="s" * 108).run("x")[1] == b"--cold=absent|x|the state"


@pytest.mark.root
def test_a_request_may_be_as_long_as_a_frame_and_no_longer(tmp_path: Path, front: Path) -> None:
    hook = Front(tmp_path, front)
    assert hook.run("", answer=protocol.go())[0] == 0
    most = protocol.FRAME_LIMIT - len(b"\0".join(hook.request))
    assert hook.run("x" * most, answer=protocol.go())[0] == 0
    assert hook.request[-2:] == [b"x" * most, b""]
    assert hook.run("x" * (most + 1), answer=protocol.go())[1].startswith(b"--cold=request|")


@marks.promise(
    "The agent does nothing for a caller that the kernel does not show to be the node's own root; front obeys"
    " no agent of another user or of a container"
)
@pytest.mark.users
def test_an_agent_of_another_user_is_not_obeyed(tmp_path: Path, front: Path) -> None:
    hook = Front(tmp_path, front)
    assert hook.run("x", answer=protocol.go())[0] == 0
    for answer in (protocol.go(), protocol.changed(["create", "0b"]), protocol.refused(0, "why\n")):
        assert hook.run("x", answer=answer, user=65534) == (7, b"--cold=peer|x|the state", b"")


@pytest.mark.root
@pytest.mark.parametrize(
    "by", ["unshare --mount", pytest.param("unshare --user --map-root-user", marks=pytest.mark.users)]
)
def test_an_agent_in_other_namespaces_is_not_obeyed(tmp_path: Path, front: Path, by: str) -> None:
    cold = (7, b"--cold=peer|x|the state", b"")
    assert Front(tmp_path, front).run("x", answer=protocol.refused(0, "why\n"), by=by) == cold


@pytest.mark.root
def test_a_runtime_is_run_as_the_agent_says(tmp_path: Path, front: Path) -> None:
    runtime = Front(tmp_path, front, "/bin/echo")
    assert runtime.run("create", "a", answer=protocol.go()) == (0, b"create a\n", b"")
    assert runtime.passed == str(tmp_path)
    assert runtime.request[2:4] == [b"runtime", b"/bin/echo"]
    assert runtime.request[8:] == [b"/run/user/0", b"create", b"a", b""]
    most = [str(number) for number in range(protocol.ARGUMENTS)]
    assert runtime.run("create", answer=protocol.changed(most)) == (
        0,
        " ".join([*most, ""]).encode().strip() + b"\n",
        b"",
    )
    assert runtime.run("create", answer=protocol.changed([*most, "x"]))[:2] == (7, b"--cold=exec|create|the state")
    assert runtime.run("create", answer=protocol.refused(1, "why\n")) == (1, b"", b"why\n")
    assert runtime.run("state", "c", answer=protocol.refused(1, "why\n")) == (0, b"state c\n", b"")
    assert Front(tmp_path, front, "/none").run("state", "c")[:2] == (7, b"--cold=exec|state|c|the state")


@pytest.mark.root
def test_a_file_that_front_cannot_read_starts_cold(tmp_path: Path, front: Path) -> None:
    hook = Front(tmp_path, front)
    text = hook.file.read_text()
    for broken in (text.replace("# store", "# stored"), text.replace("# socket: ", "# real: /bin/echo\n# socket: ", 1)):
        hook.file.write_text(broken)
        assert hook.run("create")[:2] == (7, b"--cold=unreadable|create|the state")
    hook.file.write_text(text.replace("# store", "# stored").replace("cat\n", "readlink /proc/$$/fd/*\n"))
    assert hook.run("create")[1].decode().splitlines().count(str(hook.file)) == 1, "the shell's own descriptor"
    done = subprocess.run([front], capture_output=True, text=True)
    assert (done.returncode, done.stderr.split()[0]) == (2, "usage:")
    done = subprocess.run([front, tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode in {2, 127}


@pytest.mark.root
@pytest.mark.native
@pytest.mark.peerpidfd
def test_a_request_that_cannot_be_sent_starts_cold(tmp_path: Path, front: Path) -> None:
    """Here since too many descriptors are in flight (unix(7), ETOOMANYREFS), for who has no right to more."""
    hook = Front(tmp_path, front)

    def with_few_rights() -> None:
        for capability in (21, 24):  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
            assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP, for what it executes
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))

    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sender, receiver, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        socket.send_fds(sender, [b"x"], [0] * 40)
        listener.bind(str(hook.socket))
        listener.listen()
        done = subprocess.run([hook.file, "x"], input=b"state", capture_output=True, preexec_fn=with_few_rights)
    assert (done.returncode, done.stdout) == (7, b"--cold=broken|x|state")
