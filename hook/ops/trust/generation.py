"""A trust store's directory: immutable generations, and the live files that containers have mounted.

Everything is written and on the disk before the first live file changes. A build that fails or is killed before that
leaves the old generation; one that is killed later leaves files of both, and the next build completes it.

Files of the same content are hard links of one file, in live and in all generations: to make a file takes 20 times
longer than to link it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from hook.core.base.system import write_all
from hook.core.policy.trust_layout import GENERATIONS, LIVE, MANIFEST
from hook.inside.rights import SYS_PTRACE
from hook.node.change.journal import lock
from hook.node.change.tree import sync
from hook.node.systemd import wait_until
from hook.ops.trust.errors import TrustError

KEEP = 3
"""Number of newest generations that stay. Older ones stay while a process has a mount of them."""

LOCK_SECONDS = 60.0
_MODE = 0o644
_STAGING = ".staging"
_NEW = ".new"
_SLOT = re.compile(r"(.*(?:^|/)[0-9a-f]{8})\.([0-9]+)")


class Store:
    """A trust store's directory."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.generations = self.directory / GENERATIONS
        self.live = self.directory / LIVE

    def prepare(self) -> None:
        """Make the directories. Raises TrustError for a directory of something else, OSError."""
        if self.directory.is_dir() and not self.generations.is_dir() and any(self.directory.iterdir()):
            raise TrustError(f"{self.directory}: this directory has other files; name an empty or a new one with --out")
        for path in (self.generations, self.live):
            path.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that lets one build at a time change the store. Raises TrustError after LOCK_SECONDS."""
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not wait_until(lambda: lock(fd, fcntl.LOCK_EX), LOCK_SECONDS, 0.05):
                raise TrustError(f"{self.directory}: another build has been running for {LOCK_SECONDS:g} s")
            yield
        finally:
            os.close(fd)

    def numbers(self) -> list[int]:
        """The generations that there are, oldest first."""
        if not self.generations.is_dir():
            return []
        return sorted(int(path.name) for path in self.generations.iterdir() if path.name.isdigit())

    def path(self, number: int) -> Path:
        """The directory of a generation."""
        return self.generations / f"{number:06d}"

    def manifest(self) -> dict[str, Any] | None:
        """The newest generation's manifest; None for a store that has none. Raises TrustError for a broken one."""
        numbers = self.numbers()
        if not numbers:
            return None
        path = self.path(numbers[-1]) / MANIFEST
        try:
            content = json.loads(path.read_bytes())
            _ = [(one["sha256"], one["subject"], one["notAfter"], one["added"]) for one in content["certificates"]]
            _ = content["files"].items()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise TrustError(f"{path}: cannot be read; remove {path.parent} and build again") from None
        return dict(content)

    def publish(self, number: int, files: Mapping[str, bytes]) -> None:
        """Make a new generation and bring it to live. Raises OSError; the old generation is then unchanged."""
        new = self.generations / _NEW
        self._clean()
        numbers = self.numbers()
        last = self.path(numbers[-1]) if numbers else new
        present = {content: f"{last}/{path}" for path, content in read_tree(last).items()}
        try:
            _make_directories(new, files)
            for path, content in files.items():
                _place(f"{new}/{path}", content, present)
            changes = self._stage(files, new)
        except BaseException:
            self._clean()
            raise
        new.rename(self.path(number))
        self._apply(changes, self.path(number))

    def complete(self, number: int) -> bool:
        """Bring an existing generation's files to live. Returns whether that changed anything. Raises OSError."""
        self._clean()
        try:
            changes = self._stage(read_tree(self.path(number)), self.path(number))
        except BaseException:
            self._clean()
            raise
        self._apply(changes)
        return bool(changes.written or changes.removed)

    def prune(self) -> None:
        """Remove old generations of which no process has a mount."""
        old = self.numbers()[:-KEEP]
        in_use = mounted(self.generations, old) if old else set()
        for number in old:
            if number not in in_use:
                shutil.rmtree(self.path(number), ignore_errors=True)

    def _clean(self) -> None:
        """Remove what an interrupted build left."""
        for path in (self.generations / _NEW, self.directory / _STAGING):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def _stage(self, files: Mapping[str, bytes], generation: Path) -> Moves:
        """Write the next content of live beside it, onto the disk. The manifest comes last: it says what live holds."""
        source = {content: f"{generation}/{path}" for path, content in files.items()}
        present = read_tree(self.live)
        manifest, old = files[MANIFEST], present.pop(MANIFEST, b"")
        changes = moves(present, {path: content for path, content in files.items() if path != MANIFEST})
        if old != manifest:
            changes.replaced.append((MANIFEST, manifest))
        staging = self.directory / _STAGING
        staging.mkdir()
        for number, (_, content) in enumerate(changes.written):
            _place(f"{staging}/{number}", content, source)
        _make_directories(self.live, files)
        sync(str(self.directory), "syncfs")  # once: an fsync of a thousand files takes seconds
        return changes

    def _apply(self, changes: Moves, generation: Path | None = None) -> None:
        """Rename the staged files. Raises OSError. `generation`: removed if no live file was replaced before that."""
        staging = self.directory / _STAGING
        touched = {(self.live / path).parent for path in [path for path, _ in changes.written] + changes.removed}
        done: list[Path] = []
        for number, (path, _) in enumerate(changes.written):
            try:
                (staging / str(number)).rename(self.live / path)
            except OSError:
                if number < len(changes.added):
                    for added in reversed(done):
                        added.unlink(missing_ok=True)
                    if generation:
                        shutil.rmtree(generation, ignore_errors=True)
                    self._clean()
                raise
            done.append(self.live / path)
        for path in changes.removed:
            (self.live / path).unlink(missing_ok=True)
        for directory in touched:
            sync(str(directory))
        self._clean()


def read_tree(directory: Path) -> dict[str, bytes]:
    """The content of every file below a directory, by its path there. Raises OSError."""
    found = {}
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root, name)
            found[str(path.relative_to(directory))] = b"" if path.is_symlink() else path.read_bytes()
    return found


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """The sha256 of each file."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def mounted(generations: Path, numbers: list[int]) -> set[int]:
    """The generations of which some process has a mount, in any mount namespace.

    All of them without CAP_SYS_PTRACE, which shows other users' mounts. With it, only processes of an outer user
    namespace cannot be looked at; what runs containers is not among them.
    """
    status = Path("/proc/self/status").read_text("utf-8", "replace")
    if not int(status.partition("CapEff:")[2].split()[0], 16) >> SYS_PTRACE & 1:
        return set(numbers)
    marks = {number: f"/{generations.parent.name}/{GENERATIONS}/{number:06d}" for number in numbers}
    found: set[int] = set()
    looked: set[int] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace = (process / "ns" / "mnt").stat().st_ino
            if namespace in looked:
                continue
            text = (process / "mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:  # it has ended, or is in an outer user namespace
            continue
        looked.add(namespace)
        found |= {number for number, mark in marks.items() if mark in text}
    return found


def _make_directories(directory: Path, files: Iterable[str]) -> None:
    """The directories of files that are given by their paths in a directory."""
    for parent in {os.path.dirname(path) for path in files}:
        (directory / parent).mkdir(parents=True, exist_ok=True)


def _place(path: str, content: bytes, present: dict[bytes, str]) -> None:
    """Make a file: a link of one with the same content and the usual mode, else a new one. `present`: by content."""
    other = present.setdefault(content, path)
    if other != path and os.lstat(other).st_mode == stat.S_IFREG | _MODE:
        try:
            os.link(other, path)
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):  # the file system has no more links
                raise
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    try:
        write_all(fd, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


@dataclass
class Moves:
    """The order in which the files of live become those of a new generation, while containers read them.

    Each file is replaced by rename, so a reader gets one whole file of one generation. First new files are `added`,
    then files are `replaced`, then old ones `removed`. So a CA of both generations is found at every moment: in a
    bundle, and in a hashed directory.
    """

    added: list[tuple[str, bytes]] = field(default_factory=list)
    replaced: list[tuple[str, bytes]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def written(self) -> list[tuple[str, bytes]]:
        """All that is written."""
        return self.added + self.replaced


def moves(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Moves:
    """The steps that replace a directory's files. Both: content by path."""
    found = Moves()
    for group in sorted({match[1] for path in (*old, *new) if (match := _SLOT.fullmatch(path))}):
        _move_group(group, old, new, found)
    for path in sorted(new):
        if _SLOT.fullmatch(path):
            continue
        if path not in old:
            found.added.append((path, new[path]))
        elif old[path] != new[path]:
            found.replaced.append((path, new[path]))
    found.removed += sorted(path for path in old if path not in new and path not in found.removed)
    return found


def _move_group(group: str, old: Mapping[str, bytes], new: Mapping[str, bytes], found: Moves) -> None:
    """The files HASH.0, HASH.1 and so on of one hash.

    A reader tries them in order, until a file is missing. So that it finds each certificate of both generations at any
    moment, the new ones are first added behind the old ones. Then they are written from the beginning. A certificate
    that this overwrites is already there at an earlier or later place. Then the end is cut off, last file first.
    """
    before, after = _slots(group, old), _slots(group, new)
    if before == after:
        return
    if after[: len(before)] == before:
        found.added += [(f"{group}.{number}", after[number]) for number in range(len(before), len(after))]
        return
    if after:
        found.added += [(f"{group}.{len(before) + number}", content) for number, content in enumerate(after)]
        found.replaced += [(f"{group}.{number}", content) for number, content in enumerate(after)]
    end = len(before) + len(after)
    found.removed += [f"{group}.{number}" for number in range(end - 1, len(after) - 1, -1)]


def _slots(group: str, files: Mapping[str, bytes]) -> list[bytes]:
    return [files[path] for path in takewhile(files.__contains__, (f"{group}.{number}" for number in count()))]
