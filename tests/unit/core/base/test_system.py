"""Files are replaced atomically and appended to by whole lines, and trusted only if root alone can change them."""

from __future__ import annotations

import errno
import os
import posix
import signal
import subprocess
import sys
import threading
from pathlib import Path

import marks
import pytest

from hook.core.base import system
from hook.core.base.errors import Undecided
from hook.core.base.system import Untrusted, append_line, make_directory, read_file, replace_file, timestamp, trusted
from unit.support import ROOT

pytestmark = marks.promise("Values come from files that only root can write")


@pytest.mark.users
def test_replaced_file_keeps_owner_and_mode(root_dir: Path) -> None:
    file = root_dir / "f"
    file.write_text("old")
    os.chown(file, 1000, 1001)
    file.chmod(0o640)
    replace_file(str(file), b"new")
    status = file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777, file.read_bytes()) == (1000, 1001, 0o640, b"new")


def test_replaced_file_keeps_its_label(root_dir: Path) -> None:
    """The agent's files in /tmp have another label than the engine's, which the engine may not read (SELinux)."""
    file = root_dir / "f"
    file.write_text("old")
    os.setxattr(file, "security.selinux", b"system_u:object_r:container_engine_tmp_t:s0\0")
    replace_file(str(file), b"new")
    assert os.getxattr(file, "security.selinux") == b"system_u:object_r:container_engine_tmp_t:s0\0"
    assert file.read_bytes() == b"new"


def test_new_file_is_for_root_alone(root_dir: Path) -> None:
    replace_file(str(root_dir / "f"), b"new")
    assert (root_dir / "f").stat().st_mode & 0o7777 == 0o600


def test_write_that_fails_leaves_the_old_file_and_nothing_else(root_dir: Path) -> None:
    """With a real full disk: a tmpfs of one page."""
    full = root_dir / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "none", str(full)], check=True)
    try:
        (full / "f").write_bytes(b"old")
        with pytest.raises(OSError, match="No space left"):
            replace_file(str(full / "f"), b"x" * 100_000)
        assert (full / "f").read_bytes() == b"old"
        assert [path.name for path in full.iterdir()] == ["f"]
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_readers_see_the_old_bytes_or_the_new_ones(root_dir: Path) -> None:
    file = root_dir / "f"
    contents = {b"a" * 50_000, b"b" * 70_000}
    file.write_bytes(b"a" * 50_000)
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(file.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        for content in contents:
            replace_file(str(file), content)
    done.set()
    reader.join()
    assert seen <= contents
    assert seen


def test_lines_of_many_writers_never_mix(root_dir: Path) -> None:
    log = root_dir / "new" / "deep" / "log"
    script = (
        "import sys; from hook.core.base.system import *; [append_line(sys.argv[1], b'x' * 3000) for _ in range(100)]"
    )
    command = [sys.executable, "-c", script, str(log)]
    writers = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
    assert [writer.wait(600) for writer in writers] == [0] * 4
    assert set(log.read_bytes().splitlines()) == {b"x" * 3000}
    assert len(log.read_bytes().splitlines()) == 400
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o750)


def test_directory_that_nobody_can_make_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        make_directory("/proc/nowhere/a", 0o700)


def test_directories_made_by_two_at_once_are_no_error(root_dir: Path) -> None:
    script = (
        "import sys; from hook.core.base.system import *; [make_directory(sys.argv[1] % n, 0o700) for n in range(300)]"
    )
    makers = [subprocess.Popen([sys.executable, "-c", script, f"{root_dir}/%d/a/b"], cwd=ROOT) for _ in range(4)]
    assert [maker.wait(600) for maker in makers] == [0] * 4


def test_reading_stops_at_the_limit(root_dir: Path) -> None:
    path = root_dir / "f"
    path.write_bytes(b"x" * 1000)
    assert read_file(str(path), 1000) == b"x" * 1000
    with pytest.raises(Undecided, match="f is larger than the limit of 999 bytes"):
        read_file(str(path), 999)


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_only_regular_files_are_read(path: str) -> None:
    with pytest.raises(Undecided, match=f"{path} is not a regular file"):
        read_file(path, 1000)


def test_directories_are_made_down_to_the_last(root_dir: Path) -> None:
    make_directory(f"{root_dir}/a/b/c", 0o700)
    make_directory(f"{root_dir}/a/b/c", 0o700)
    assert (root_dir / "a/b/c").stat().st_mode & 0o777 == 0o700


def test_trusted_path_is_followed_to_the_file_itself(root_dir: Path) -> None:
    (root_dir / "d").mkdir()
    (root_dir / "d" / "f").write_text("x")
    (root_dir / "absolute").symlink_to(root_dir / "d")
    (root_dir / "d" / "relative").symlink_to("../absolute/./f")
    for path in ("d/f", "d//./f", "absolute/f", "absolute/relative", "d/../d/relative"):
        assert posix.stat(f"{root_dir}/{path}").st_ino == trusted(f"{root_dir}/{path}").st_ino


@pytest.mark.parametrize("path", ["gone", "f/x", "loop", "d/../gone"])
def test_trusted_path_that_leads_nowhere_is_an_os_error(root_dir: Path, path: str) -> None:
    (root_dir / "d").mkdir()
    (root_dir / "f").write_text("x")
    (root_dir / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"^\[Errno \d+\]"):
        trusted(f"{root_dir}/{path}")


def test_sticky_directories_are_not_trusted(root_dir: Path) -> None:
    """As in /tmp, nobody can replace root's file; but where it is not there yet, anybody can be first."""
    root_dir.chmod(0o1777)
    with pytest.raises(Untrusted, match=rf"^{root_dir} is writable by others \(mode 1777\)"):
        trusted(f"{root_dir}/policy.yaml")


@pytest.mark.users
def test_link_of_another_user_is_not_trusted(root_dir: Path) -> None:
    (root_dir / "f").write_text("x")
    (root_dir / "link").symlink_to("f")
    os.lchown(root_dir / "link", 1000, 1000)
    with pytest.raises(Untrusted, match="link belongs to uid 1000"):
        trusted(f"{root_dir}/link")


@pytest.mark.users
def test_group_root_may_write(root_dir: Path) -> None:
    (root_dir / "f").write_text("x")
    (root_dir / "f").chmod(0o664)
    assert trusted(f"{root_dir}/f")
    os.chown(root_dir / "f", 0, 5)
    with pytest.raises(Untrusted, match="mode 0664"):
        trusted(f"{root_dir}/f")


def test_error_names_the_command_that_mends_it(root_dir: Path) -> None:
    (root_dir / "f").write_text("x")
    (root_dir / "f").chmod(0o602)
    with pytest.raises(Untrusted) as caught:
        trusted(f"{root_dir}/f")
    subprocess.run(str(caught.value).rpartition("(")[2].rstrip(")"), shell=True, check=True)
    assert trusted(f"{root_dir}/f")


SHORTAGES = {"EAGAIN", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC"}


def test_a_shortage_has_its_number_on_this_machine() -> None:
    short = {number for number in errno.errorcode if system.is_shortage(OSError(number, "-"))}
    assert {errno.errorcode[number] for number in short} == SHORTAGES


def test_timestamp_is_rfc_3339() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert timestamp(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"


def test_append_line_says_what_it_cannot_write(root_dir: Path) -> None:
    (root_dir / "f").write_text("x")
    with pytest.raises(NotADirectoryError):
        append_line(f"{root_dir}/f/log", b"x")


LEASED = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK))
file = open(sys.argv[1], "rb")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
while True:
    signal.pause()
"""


@marks.hole(
    "A container of uid 0 with a read-only volume of /etc/cdi or of kubelet's records leased a file: "
    "containers with allocated devices were refused"
)
def test_a_cold_start_waits_for_the_end_of_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_WAITING", [])
    path = tmp_path / "file"
    path.write_text("text")
    with subprocess.Popen([sys.executable, "-c", LEASED, str(path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline()
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            with pytest.raises(BlockingIOError):
                read_file(str(path), 100, waits=True)
            system.wait_for_leases()
            with pytest.raises(BlockingIOError):
                read_file(str(path), 100)
            other.send_signal(signal.SIGCONT)  # the kernel has told it by then
            assert read_file(str(path), 100, waits=True) == b"text"
        finally:
            other.kill()
