"""Reads the event log with its rotated files, and follows it over rotations.

hook.core.base.logfile writes and rotates it. Its writers hold no lock while they append, so a line can still be
appended to a file after this file was renamed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from hook.core.base.isotime import seconds_of
from hook.core.base.system import is_file

Event = dict[str, Any]

_CHUNK = 1 << 18
_LONGEST = 1 << 20
"""Bytes of a line from which it is skipped: a line of reassert has at most 64 KiB (hook.core.events.EVENT_LINE)."""

_LATE = 5.0
"""Seconds for which a renamed file is still read: a process that had opened it may append."""

_PAUSE = 0.2
"""Seconds between two looks at a log that is followed."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class _File:
    """An open file of the log, read line by line. `position`: the offset after the last complete line."""

    def __init__(self, path: str) -> None:
        """Raises OSError, also for what is not a regular file."""
        self._fd = os.open(path, _FLAGS)
        status = os.fstat(self._fd)
        if not is_file(status):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.key = (status.st_dev, status.st_ino)
        self.modified = status.st_mtime
        self.renamed_at = 0.0
        self.position = 0

    def lines(self) -> Iterator[bytes]:
        """The complete lines that were appended since the last call."""
        if os.fstat(self._fd).st_size < self.position:  # it was truncated, as by logrotate's copytruncate
            self.position = 0
        rest, at = b"", self.position
        while chunk := os.pread(self._fd, _CHUNK, at):
            at += len(chunk)
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                self.position += len(line) + 1
                yield line
            if len(rest) > _LONGEST:  # not a line of reassert; its end is skipped as a line of its own
                self.position += len(rest)
                rest = b""

    def skip(self) -> None:
        """Go to the end, or to the start of a line that is being written."""
        size = os.fstat(self._fd).st_size
        start = max(0, size - _CHUNK)
        self.position = start + os.pread(self._fd, _CHUNK, start).rfind(b"\n") + 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read(path: str, since: str = "") -> Iterator[Event]:
    """The events of the log and of its rotated files, oldest first. Raises OSError if the log cannot be read.

    `since`: a timestamp as events have it; earlier events are left out. What is not an event is skipped.
    """
    for file in _open_all(path, since):
        try:
            yield from _events(file, since)
        finally:
            file.close()


def follow(path: str, since: str = "", wait: Callable[[float], object] = time.sleep) -> Iterator[Event]:
    """The same, and then each event as it is appended, without end. A log that is missing is waited for."""
    tail = Tail(path, since)
    while True:
        count = 0
        for event in tail.new():
            count += 1
            yield event
        if not count:
            wait(_PAUSE)


class Tail:
    """Reads what is appended to the log, over rotations, and no line twice."""

    def __init__(self, path: str, since: str = "", start: tuple[int, int, int] | None = None) -> None:
        """`start`: `place()` of an earlier Tail, to go on there if that file still is one of the log's."""
        self._path = path
        self._since = since
        self._files: list[_File] = []  # oldest first; the last one is the log itself, unless it is being rotated
        try:
            self._files = list(_open_all(path, since))
        except OSError:
            return
        keys = [file.key for file in self._files]
        if start is not None and start[:2] in keys:
            for file in self._files[: keys.index(start[:2])]:
                file.close()
            self._files = self._files[keys.index(start[:2]) :]
            self._files[0].position = start[2]
        now = time.monotonic()
        for file in self._files[:-1]:
            file.renamed_at = now

    def to_the_end(self) -> None:
        """Skip all that is in the log now."""
        for file in self._files:
            file.skip()

    def place(self) -> tuple[int, int, int] | None:
        """Device, inode and offset of the end of what was read. None without a log."""
        file = self._files[-1] if self._files else None
        return (*file.key, file.position) if file else None

    def new(self) -> Iterator[Event]:
        """The events that were appended since the last call, those of renamed files first."""
        self._look()
        for file in self._files:
            yield from _events(file, self._since)
        now = time.monotonic()
        for file in [file for file in self._files if file.renamed_at and now - file.renamed_at > _LATE]:
            self._files.remove(file)
            file.close()

    def _look(self) -> None:
        """Open the files that are there since the last look, in their order."""
        try:
            status = os.lstat(self._path)
        except OSError:  # it is missing, or a rotation is between its two steps
            return
        if self._files and (status.st_dev, status.st_ino) == self._files[-1].key:
            return
        known = {file.key for file in self._files}
        try:
            opened = list(_open_all(self._path, "", known))
        except OSError:
            return
        if not opened:
            return
        now = time.monotonic()
        for file in [*self._files, *opened[:-1]]:
            file.renamed_at = file.renamed_at or now
        self._files += opened


def _open_all(path: str, since: str, known: frozenset[Any] | set[Any] = frozenset()) -> list[_File]:
    """The log and its rotated files, oldest first; without those that were last written before `since`.

    They are opened newest first: if the log is rotated in between, a file is opened twice, and none is missed. `known`:
    keys of files that are open; they and what is older are left out. Raises OSError for the log itself.
    """
    earliest = seconds_of(since) - 1  # the clock of file times is a little behind the one of events
    found: list[_File] = []
    missing: OSError | None = None
    exists = bool(known)
    for name in [path, *_rotated(path)]:
        try:
            file = _File(name)
        except FileNotFoundError as error:
            missing = missing or error
            continue
        except OSError:
            if name == path:
                raise
            continue
        exists = True
        if file.key in known:
            file.close()
            break
        if file.key in {other.key for other in found} or file.modified < earliest:
            file.close()
            continue
        found.append(file)
    if missing is not None and not exists:
        raise missing
    return found[::-1]


def _rotated(path: str) -> list[str]:
    """The rotated files, newest first. Those that logrotate(8) compressed are not read."""
    directory, _, name = path.rpartition("/")
    pattern = re.compile(re.escape(name) + r"\.(\d{1,6})")
    try:
        names = os.listdir(directory or "/")
    except OSError:
        return []
    numbers = sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)
    # One more than exist: a rotation between this list and the opening renames each file to the next number.
    return [f"{path}.{number}" for number in [*numbers, numbers[-1] + 1 if numbers else 1]]


def _events(file: _File, since: str) -> Iterator[Event]:
    for line in file.lines():
        event = parse(line)
        if event and str(event.get("timestamp", "")) >= since:
            yield event


def parse(line: bytes) -> Event:
    """One line of the log; {} if it is not an event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else {}
