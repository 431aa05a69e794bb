"""The journal: a change of several files is made completely or not at all, even if it is interrupted.

Before the first file is changed, the journal records the old and the new state of every path. It is deleted after the
test containers have started. A journal that is found was left by an interrupted change, which is then rolled back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hook.core.base.system import make_directory
from hook.entry.dispatcher import START
from hook.node.change import tree
from hook.node.change.files import TREE, Change, State, is_same, look, missing_directories, put, remove_temporary
from hook.node.errors import NodeError
from hook.node.systemd import wait_until

DIRECTORY = "/var/lib/reassert/node"

_LOCK_SECONDS = 0.5
"""How long a change waits for the lock: `is_locked` takes it for a moment."""

_JOURNAL = "journal.json"


@dataclass(frozen=True)
class Step:
    """One path of a change."""

    path: str
    before: State | None
    after: State | None

    def brings_program(self) -> bool:
        """Whether the step adds an executable, a program's tree or the file `start` where nothing was."""
        if self.before is not None or self.after is None:
            return False
        return self.after.kind == TREE or bool(self.after.mode & 0o111) or os.path.basename(self.path) == START


@dataclass(frozen=True)
class Journal:
    """A change in progress. `operation`: install, uninstall or clean-up. `engine`: the engine that is changed.

    `directories`: made by the change, outermost first. `units`: systemd units that it starts. `running`: whether the
    engine ran when it began, so that a rollback restarts it.
    """

    operation: str
    engine: str
    steps: list[Step]
    directories: list[str]
    units: list[str]
    running: bool = False

    def undo(self) -> None:
        """Restores the old state of every path. Can be interrupted and repeated. Raises OSError.

        New programs stay: container starts may use them until the engine has read its restored configuration. `new`
        returns them; the caller removes them, and then `directories`.
        """
        for step in reversed(self.steps):
            remove_temporary(step.path)
            if not step.brings_program() and not is_same(step.before, look(step.path)):
                os.makedirs(os.path.dirname(step.path), exist_ok=True)
                put(step.path, step.before)
        remove_directories(self.directories)

    def new(self) -> list[str]:
        """Returns the programs that this change added, in the order of its steps. `tree.tidy` removes trees."""
        return [s.path for s in self.steps if s.brings_program() and s.after and s.after.kind != TREE]

    def end(self, directory: str) -> None:
        """Deletes the journal: the change is complete and is not rolled back any more."""
        put(f"{directory}/{_JOURNAL}", None)


def begin(
    operation: str,
    engine: str,
    changes: list[Change],
    units: list[str],
    directory: str = DIRECTORY,
    running: bool = False,
) -> Journal:
    """Writes the journal of a change before it is made. Raises OSError, with nothing changed."""
    steps = [Step(path, look(path), after) for path, after in changes]
    written = [path for path, after in changes if after is not None]
    journal = Journal(operation, engine, steps, missing_directories(written), units, running)
    of_steps = [
        {"path": s.path, "before": s.before and s.before.as_json(), "after": s.after and s.after.as_json()}
        for s in steps
    ]
    put(f"{directory}/{_JOURNAL}", State(json.dumps({**vars(journal), "steps": of_steps}).encode(), mode=0o600))
    return journal


def apply(journal: Journal, pause_before: str = "") -> None:
    """Make the change, in the order of its steps. Raises OSError; then `undo` puts back what was done.

    `pause_before`: a path before whose step the starts that are under way get time to end.
    """
    for path in journal.directories:
        with suppress(FileExistsError):
            os.mkdir(path)
            os.chmod(path, 0o755)  # noqa: S103  # with any umask: users other than root read the files too
    for step in journal.steps:
        if step.path == pause_before:
            tree.let_starts_end()
        if not is_same(step.after, look(step.path)):
            put(step.path, step.after)


def pending(directory: str = DIRECTORY) -> Journal | None:
    """Returns the journal of an interrupted change, None if there is none. Raises NodeError if it cannot be read."""
    path = f"{directory}/{_JOURNAL}"
    try:
        data = json.loads(Path(path).read_bytes())
        steps = [
            Step(s["path"], *(s[when] and State.from_json(s[when]) for when in ("before", "after")))
            for s in data["steps"]
        ]
        return Journal(**{**data, "steps": steps})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:  # it is written atomically, so the disk or a person damaged it
        raise NodeError(
            f"{path} cannot be read ({error}); repair or remove it, then check the engine's configuration files"
        ) from None


@contextmanager
def locked(directory: str = DIRECTORY) -> Iterator[None]:
    """Holds the lock that allows one change of the node at a time. Raises NodeError if it is taken; OSError."""
    make_directory(directory, 0o700)
    fd = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not wait_until(lambda: lock(fd, fcntl.LOCK_EX), _LOCK_SECONDS) or not os.fstat(fd).st_nlink:
            raise NodeError("another install or uninstall is running on this node; wait until it has finished")
        remove_temporary(f"{directory}/{_JOURNAL}")  # of a change that was interrupted before its journal was written
        try:
            yield
        finally:
            if os.listdir(directory) == ["lock"]:
                os.unlink(f"{directory}/lock")
                remove_directories([os.path.dirname(directory), directory])
    finally:
        os.close(fd)


def is_locked() -> bool:
    """Whether a change of the node is under way."""
    try:
        fd = os.open(f"{DIRECTORY}/lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def lock(fd: int, kind: int) -> bool:
    """Whether a file was locked at once (flock(2)). `kind`: LOCK_EX or LOCK_SH."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_directories(directories: list[str]) -> None:
    """Removes the empty ones of these directories, innermost first."""
    for path in reversed(directories):
        with suppress(OSError):
            os.rmdir(path)
