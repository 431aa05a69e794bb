"""The rotation of the log with many writers at once; no file at its path blocks a writer, and no line is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import marks
import pytest
from harness.tools import need

from hook.core import events
from hook.core.base import logfile
from hook.core.base.logfile import append
from unit.support import ROOT

pytestmark = marks.promise(
    "A line is bounded and says what it omits; the log rotates, loses no line, and never stops a container"
)

NOBODY = 65534


def files(log: Path) -> list[str]:
    return sorted(path.name for path in log.parent.iterdir())


def test_directory_and_file_are_made_for_root_alone(root_dir: Path) -> None:
    log = root_dir / "a" / "b" / "events.jsonl"
    append(str(log), b"1")
    append(str(log), b"2")
    assert log.read_bytes() == b"1\n2\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o750


def test_old_files_move_on_and_the_oldest_goes(root_dir: Path) -> None:
    log = root_dir / "l"
    for number in range(10):
        append(str(log), b"%d" % number, limit=3, kept=3)
    assert files(log) == ["l", "l.1", "l.2", "l.3"]
    assert [path.read_bytes() for path in sorted(root_dir.iterdir())] == [b"9\n", b"8\n", b"7\n", b"6\n"]


def test_default_limits_bound_what_the_log_takes(root_dir: Path) -> None:
    log = root_dir / "l"
    for _ in range(8):
        append(str(log), b"x")
        os.truncate(log, logfile.LOG_LIMIT)  # no disk space is used: a hole
    append(str(log), b"y")
    assert files(log) == ["l", "l.1", "l.2", "l.3", "l.4"]
    assert log.read_bytes() == b"y\n"


def test_a_line_that_is_longer_than_the_limit_is_written_once(root_dir: Path) -> None:
    log = root_dir / "l"
    append(str(log), b"x" * 100, limit=10)
    append(str(log), b"y" * 100, limit=10)
    assert (log.read_bytes(), (root_dir / "l.1").read_bytes()) == (b"y" * 100 + b"\n", b"x" * 100 + b"\n")


@pytest.mark.users
def test_who_may_read_the_log_may_read_the_next_one(root_dir: Path) -> None:
    log = root_dir / "l"
    append(str(log), b"1")
    os.chown(log, 0, 4)
    log.chmod(0o640)
    append(str(log), b"2", limit=3)
    for path in (log, root_dir / "l.1"):
        assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (4, 0o640)


WRITER = """
import sys, time
from hook.core.base.logfile import append
path, writer, lines, limit, kept = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
for count in range(lines):
    append(path, b"%s %d %s" % (writer.encode(), count, b"x" * (count % 50)), limit, kept)
"""


@pytest.mark.slow
def test_no_line_is_lost_or_torn_under_many_writers(root_dir: Path) -> None:
    """Eight processes, thousands of lines, a rotation every few dozen of them."""
    log = root_dir / "events.jsonl"
    command = [sys.executable, "-c", WRITER, str(log)]
    lines, limit, kept = 5000, 3000, 1000
    running = [subprocess.Popen([*command, str(w), str(lines), str(limit), str(kept)], cwd=ROOT) for w in range(8)]
    assert [process.wait(timeout=600) for process in running] == [0] * 8
    assert len(files(log)) > 20, "it rotated"
    found = []
    for path in root_dir.iterdir():
        for line in path.read_text().splitlines():
            writer, count, filling = line.split(" ")
            assert filling == "x" * (int(count) % 50)
            found.append((int(writer), int(count)))
    assert sorted(found) == [(writer, count) for writer in range(8) for count in range(lines)]


def test_threads_of_one_process_exclude_each_other(root_dir: Path) -> None:
    """As in the NRI plugin. A lock of the process (fcntl) would let two of them rotate at once."""
    log = root_dir / "l"

    def write(writer: int) -> None:
        for count in range(800):
            append(str(log), b"%d %d" % (writer, count), limit=400, kept=1000)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = [tuple(map(int, line.split())) for path in root_dir.iterdir() for line in path.read_text().splitlines()]
    assert sorted(found) == [(writer, count) for writer in range(6) for count in range(800)]


def test_a_rotation_that_somebody_else_has_under_way_is_not_waited_for(root_dir: Path) -> None:
    import fcntl

    log = root_dir / "l"
    append(str(log), b"1")
    with log.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        append(str(log), b"2", limit=1)  # returns while the lock is held
    assert log.read_bytes() == b"1\n2\n"
    assert files(log) == ["l"]
    append(str(log), b"3", limit=1)
    assert log.read_bytes() == b"3\n"


@marks.hole(
    "A container that locked the log let two starts rotate it at once, and a whole file was lost",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
@marks.hole(
    "Any user of the node, with a container that reads the event log, kept the log from being rotated",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_a_reader_that_locks_the_log_for_ever_stops_no_rotation_and_two_never_rotate_at_once(
    root_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container can have the log as a read-only volume. Two that rotate without its lock could lose a whole file."""
    import fcntl

    lock, log = tmp_path / "private/log.lock", root_dir / "l"
    monkeypatch.setattr(logfile, "LOCK", str(lock))
    os.close(logfile._open_second_lock())
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    append(str(log), b"1")
    os.truncate(log, logfile.OVERDUE + 3)  # no disk space is used: a hole
    with log.open("rb") as reader, lock.open("rb") as another, open("/proc/self/ns/mnt", "rb") as a_users:
        fcntl.flock(reader, fcntl.LOCK_EX)
        fcntl.flock(a_users, fcntl.LOCK_EX)  # any user can, and it stops nothing
        fcntl.flock(another, fcntl.LOCK_EX)  # another process is between its renames
        append(str(log), b"2", limit=1)
        assert files(log) == ["l"]
        fcntl.flock(another, fcntl.LOCK_UN)
        while files(log) == ["l"]:  # this machine may have another log that is rotated just now
            append(str(log), b"3", limit=1)
    assert log.read_bytes() == b"3\n"


def test_a_lock_of_one_that_died_is_gone(root_dir: Path) -> None:
    log = root_dir / "l"
    append(str(log), b"1")
    script = (
        "import fcntl, os, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(log)]).returncode == -9
    append(str(log), b"2", limit=1)
    assert files(log) == ["l", "l.1"]


def _fifo(log: Path) -> None:
    os.mkfifo(log)


def _read_fifo(log: Path) -> None:
    os.mkfifo(log)
    os.open(log, os.O_RDONLY | os.O_NONBLOCK)


def _link(log: Path) -> None:
    (log.parent / "target").write_text("precious\n")
    log.symlink_to("target")


def _dangling(log: Path) -> None:
    log.symlink_to("nowhere")


def _foreign(log: Path) -> None:
    log.write_text("theirs\n")
    os.chown(log, NOBODY, NOBODY)


def _device(log: Path) -> None:
    os.mknod(log, 0o20666, os.makedev(1, 7))  # /dev/full


OF_USERS = [pytest.param(make, marks=pytest.mark.users) for make in (_foreign, _device)]


@pytest.mark.parametrize("make", [_fifo, _read_fifo, _link, _dangling, *OF_USERS, os.mkdir])
def test_what_is_not_a_log_is_left_alone_and_stops_nobody(root_dir: Path, make: Callable[[Path], None]) -> None:
    log = root_dir / "events.jsonl"
    make(log)
    before = {name: os.lstat(root_dir / name) for name in files(log)}
    with pytest.raises(OSError) as caught:  # a FIFO would be waited for
        append(str(log), b"x", limit=1)
    events.write(str(log), {"event": "x"})
    assert {name: os.lstat(root_dir / name) for name in files(log)} == before
    if make in (_read_fifo, _foreign, _device):
        assert caught.value.strerror == "not a regular file owned by root"


def test_a_directory_that_lets_nobody_rename_keeps_the_log_growing(root_dir: Path) -> None:
    log = root_dir / "l"
    append(str(log), b"1")
    (root_dir / "l.1").mkdir()
    (root_dir / "l.1" / "x").touch()
    (root_dir / "l.2").touch()
    append(str(log), b"2", limit=1, kept=1)
    assert log.read_bytes() == b"1\n2\n"


FULL = """
import os, sys, threading
from hook.core.base.logfile import append
path = sys.argv[1] + "/events.jsonl"
append(path, b"first")
refused = 0
for count in range(2000):
    try:
        append(path, b"%d " % count + b"x" * 1000)
    except OSError as error:
        refused += 1
os.unlink(sys.argv[1] + "/ballast")
append(path, b"last")
lines = open(path, "rb").read().splitlines()
assert refused and lines[0] == b"first" and lines[-1] == b"last", (refused, lines[0], lines[-1])
assert all(len(line) in range(1002, 1006) for line in lines[1:-1]), "half a line"
print(len(lines))
"""


def test_a_full_disk_leaves_no_half_line_and_the_log_goes_on_afterwards(root_dir: Path) -> None:
    script = 'mount -t tmpfs -o size=200k tmpfs "$1" && head -c 40k /dev/zero > "$1/ballast" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(root_dir), sys.executable, FULL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


AT_ITS_PLACE = """
import os
from hook.core.base.logfile import LOST, append, try_to_append
log = "/var/log/reassert/events.jsonl"
for number in range(4):
    append(log, b"%d" % number, limit=3, kept=2)
assert sorted(os.listdir("/var/log/reassert")) == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
assert open(log).read() + open(log + ".1").read() + open(log + ".2").read() == "3\\n2\\n1\\n"
os.rename("/var/log/reassert", "/var/log/elsewhere")
os.symlink("elsewhere", "/var/log/reassert")
assert not try_to_append(log, "x")
assert os.path.getsize(LOST) == 1
assert open(log).read() == "3\\n"
"""


def test_the_nodes_log_rotates_in_its_directory_and_follows_no_link_there(root_dir: Path) -> None:
    script = 'mount -t tmpfs tmpfs /var/log && mount -t tmpfs tmpfs /run && exec "$1" -c "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, AT_ITS_PLACE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.traced
def test_an_append_costs_one_system_call_more_than_the_writing(root_dir: Path) -> None:
    """open, fstat, write, close on the file: the look at the size is all that the rotation costs."""
    need(shutil.which("strace") is not None, "strace")
    trace = root_dir / "trace"
    script = (
        "from hook.core.base.logfile import append; import sys; append(sys.argv[1], b'1');"
        "append(sys.argv[1], b'2'); append(sys.argv[1], b'2')"
    )
    command = ["strace", "-y", "-o", str(trace), sys.executable, "-c", script, str(root_dir / "l")]
    subprocess.run(command, cwd=ROOT, check=True)
    calls = [line.partition("(")[0] for line in trace.read_text().splitlines() if f"{root_dir}/l" in line]
    last = len(calls) - 1 - calls[::-1].index("openat")
    assert calls[last:] in (["openat", "newfstatat", "write", "close"], ["openat", "fstat", "write", "close"])


@pytest.mark.traced
def test_the_rest_of_a_line_follows_a_short_write(root_dir: Path) -> None:
    """strace(1) answers the first two writes in the kernel's place, so their bytes are not in the file."""
    need(shutil.which("strace") is not None, "strace")
    log = root_dir / "l"
    log.touch(0o600)
    script = (
        "from hook.core.base.logfile import append; import resource, sys;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)); append(sys.argv[1], b'0123456789')"
    )
    command = ["strace", "-o", "/dev/null", "-P", str(log), "-e", "inject=write:retval=3:when=1..2"]
    subprocess.run([*command, sys.executable, "-c", script, str(log)], cwd=ROOT, check=True)
    assert log.read_bytes() == b"6789\n"
