"""The log is read with its rotated files, and followed over rotations: no line is missing and none comes twice."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.base.logfile import append
from hook.ops.events import reader
from hook.ops.events.reader import Tail, follow, read
from unit.support import ROOT

pytestmark = marks.promise(
    "`events` and `report` read the log with its rotated files, and miss no line under a crash loop",
    about="Events and metrics",
)


def line(number: int, **more: Any) -> bytes:
    return json.dumps(
        {"event": "e", "timestamp": f"2026-01-01T00:00:{number:02d}.000000Z", "n": number, **more}
    ).encode()


def numbers(path: Path, since: str = "") -> list[int]:
    return [event["n"] for event in read(str(path), since)]


@pytest.fixture
def log(root_dir: Path) -> Path:
    return root_dir / "events.jsonl"


def test_rotated_files_come_first_and_in_order(log: Path) -> None:
    for number in range(12):
        append(str(log), line(number), limit=150, kept=99)
    assert len(list(log.parent.iterdir())) > 4
    assert numbers(log) == list(range(12))
    assert numbers(log, "2026-01-01T00:00:09.000000Z") == [9, 10, 11]


def test_what_is_no_event_is_skipped(log: Path) -> None:
    other = [b"{", b"[]", b"1", b'{"event": 1}', b"\xff\xfe", b"x" * (3 << 20), b"[" * 100_000, b""]
    log.write_bytes(b"\n".join([line(1), *other, line(2), line(3)[:20]]))
    assert numbers(log) == [1, 2]
    with gzip.open(f"{log}.2.gz", "wb") as compressed:  # logrotate's; not read
        compressed.write(line(0))
    assert numbers(log) == [1, 2]


def test_a_fifo_or_link_in_place_of_the_log_is_an_error_and_does_not_block(log: Path) -> None:
    os.mkfifo(log)
    with pytest.raises(OSError, match="not a regular file"):
        list(read(str(log)))
    log.unlink()
    log.symlink_to("/etc/passwd")
    with pytest.raises(OSError):
        list(read(str(log)))


def test_a_missing_log_is_an_error_unless_it_is_followed(log: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read(str(log)))
    tail = Tail(str(log))
    assert list(tail.new()) == []
    append(str(log), line(1))
    assert [event["n"] for event in tail.new()] == [1]


def test_an_event_that_is_being_written_is_read_when_it_is_complete(log: Path) -> None:
    log.write_bytes(line(1) + b"\n" + line(2)[:30])
    tail = Tail(str(log))
    assert [event["n"] for event in tail.new()] == [1]
    with log.open("ab") as file:
        file.write(line(2)[30:] + b"\n")
    assert [event["n"] for event in tail.new()] == [2]


def test_a_line_that_is_written_into_a_renamed_file_is_read(log: Path) -> None:
    append(str(log), line(1))
    tail = Tail(str(log))
    assert [event["n"] for event in tail.new()] == [1]
    with log.open("ab") as late:
        for number in (2, 3, 4):  # three rotations between two looks
            append(str(log), line(number), limit=10)
        assert [event["n"] for event in tail.new()] == [2, 3, 4]
        late.write(line(5) + b"\n")
    assert [event["n"] for event in tail.new()] == [5]


def test_a_log_that_is_truncated_is_read_from_its_start(log: Path) -> None:
    append(str(log), line(1))
    append(str(log), line(2))
    tail = Tail(str(log))
    assert len(list(tail.new())) == 2
    os.truncate(log, 0)
    append(str(log), line(3))
    assert [event["n"] for event in tail.new()] == [3]


def test_reading_goes_on_at_the_place_of_an_earlier_process(log: Path) -> None:
    append(str(log), line(1))
    first = Tail(str(log))
    first.to_the_end()
    place = first.place()
    for number in (2, 3):
        append(str(log), line(number), limit=100)
    assert log.with_suffix(".jsonl.1").exists()
    assert [event["n"] for event in Tail(str(log), start=place).new()] == [2, 3]
    assert [event["n"] for event in Tail(str(log), start=(0, 0, 7)).new()] == [1, 2, 3], "a file that is gone"


def test_files_that_were_closed_before_the_time_are_not_opened(log: Path) -> None:
    append(str(log), line(1))
    append(str(log), line(2), limit=10)
    os.utime(f"{log}.1", (0, 0))
    assert numbers(log, "2025-12-31T00:00:00.000000Z") == [2]


WRITER = """
import sys, time
from hook.core.base.logfile import append
path, writer, lines = sys.argv[1], sys.argv[2], int(sys.argv[3])
for count in range(lines):
    text = '{"event": "e", "timestamp": "", "n": %d, "fill": "%s"}' % (count * 10 + int(writer), "x" * (count % 90))
    append(path, text.encode(), 4_000, 4)
    time.sleep(0.04)
"""


def test_a_crash_loop_of_100_starts_a_second_is_followed_without_a_missing_or_double_line(log: Path) -> None:
    """Four writers with 25 lines a second each, while the log rotates and the oldest files are removed."""
    lines, found, stop = 100, list[int](), threading.Event()
    wanted = sorted([-1, *(count * 10 + writer for writer in range(4) for count in range(lines))])

    def collect() -> None:
        def wait(seconds: float) -> None:
            if stop.wait(seconds):
                raise StopIteration

        try:
            for event in follow(str(log), wait=wait):
                found.append(event["n"])
        except RuntimeError:  # what a StopIteration in a generator becomes
            pass

    append(str(log), b'{"event": "e", "timestamp": "", "n": -1}')
    command = [sys.executable, "-c", WRITER, str(log)]
    thread = threading.Thread(target=collect)
    running = [subprocess.Popen([*command, str(w), str(lines)], cwd=ROOT) for w in range(4)]
    thread.start()
    assert [process.wait(timeout=600) for process in running] == [0] * 4
    until = time.monotonic() + 600
    while len(found) < len(wanted) and time.monotonic() < until:
        time.sleep(reader._PAUSE)
    stop.set()
    thread.join()
    assert len(list(log.parent.iterdir())) == 5, "it rotated, and the oldest files are gone"
    assert sorted(found) == wanted
