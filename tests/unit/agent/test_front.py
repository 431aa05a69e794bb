"""front: its parsers under sanitizers, what the compiler says of it, and what it hands on."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from e2e.support import need

from hook import __version__
from hook.agent import protocol
from hook.container.spec import LIMIT
from hook.emit.front import HEADER
from unit.support import ROOT

SOURCE = ROOT / "packaging" / "front" / "front.c"
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", f'-DVERSION="{__version__}"']


WORDS = "# decided: create\n# passed: state\n# values: --root\n# flags: --debug\n"
"""Lines of a dispatcher's file (hook.emit.front)."""


@pytest.fixture(autouse=True)
def gcc() -> None:
    need(shutil.which("gcc") is not None, "gcc")


def test_it_is_small_enough_to_be_read() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 320


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
    seed = str(random.randrange(1 << 60))
    done = subprocess.run([program, "3", seed], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert int(done.stdout) > 1000


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
            assert process.wait(20) == 7
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    assert int(peak[1]) <= 1024


def test_both_sides_have_the_same_limits() -> None:
    text = SOURCE.read_text()
    enums = dict(re.findall(r"(\w+) = ([\w <]+)[,} ]", text))
    assert int(enums["FRAME"]) == protocol.LIMIT
    assert int(enums["HEADER"]) == HEADER
    assert int(enums["ARGUMENTS"]) == protocol.ARGUMENTS
    assert int(enums["DEADLINE_MS"]) == protocol.SECONDS * 1000
    assert enums["STDIN_LIMIT"].strip() == f"{LIMIT >> 20} << 20"
    for kind, name in (("G", "GO"), ("A", "CHANGED"), ("R", "REFUSED"), ("C", "COLD")):
        assert f"{name} = '{kind}'" in text
    assert f'"{protocol.REQUEST.decode()}"' in text
    assert f'"{protocol.ANSWER.decode()}"' in text


PRINTER = """
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
			printf("%d: %lx %lx %o\\n", fd, (long)found.st_dev, (long)found.st_ino, found.st_mode);
	printf("%s\\n", getcwd(line, sizeof line));
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
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
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
        assert b"\nUmask:\t0027\n" in given and b"\n7: " in given and b"\n/usr\n" in given
        assert printed(file, [b"state", b"0a"]) == given
        for frame in (protocol.go(), protocol.changed(["create", "\udcff"])):
            thread = threading.Thread(target=answer, args=(frame,))
            thread.start()
            assert printed(file, [b"create", b"\xff"]) == given.replace(b"\0state\x000a\0", b"\0create\0\xff\0")
            thread.join()
