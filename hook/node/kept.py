"""node.json: what commands, timers and the agent remember of this node from one run to the next."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hook.core.base.errors import ReassertError
from hook.core.base.finding import OK, Finding
from hook.core.base.system import make_directory, replace_file, trusted
from hook.core.policy.store import STORE

FILE = "node.json"
"""In the directory of compiled policies."""

IN_POLICY, DRIFTED, EXEMPT, UNKNOWN = "in policy", "drifted", "exempt", "unknown"
STATES = (DRIFTED, UNKNOWN, EXEMPT, IN_POLICY)
"""Of a running container."""

UNSEEN = "could not be looked at"
"""The cause of a container that is UNKNOWN."""

LEFT_OUT = -1
"""A handler that an administrator has left out by name."""

_OLD = ("wired.json", "drift.json", "last-verify.json", "events-position.json")
"""The files in which 0.3 kept the same. They are read while there is no FILE, and removed when it is written."""

WIRING_SECONDS, AUDIT_SECONDS = 300, 900
"""The age from which a look at the wiring, and one at running containers, says nothing about the node now."""

_GAPS = 100
"""How many gaps are kept at most: the newest."""

_T = TypeVar("_T")


class Gap(NamedTuple):
    """When a handler was not wired: the last look that saw it wired, and the first one after that, or 0."""

    engine: str
    handler: str
    since: int
    until: int


@dataclass
class Wiring:
    """The last look at the wiring. `when`: its time, in seconds since the epoch.

    `handlers`: 0, 1 or LEFT_OUT by engine and handler: the last that is known. `unknown`: engines that did not answer,
    with the last look at which they did. `program`: version and path of the program that looked. `since`: when the
    first install of each engine had ended, so that a container that started later is to be corrected.
    """

    when: int = 0
    handlers: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    program: list[str] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)

    def samples(self) -> dict[tuple[str, str], int]:
        """Returns 0 or 1 by engine and handler, as far as it is known now."""
        known = {} if age(self.when) > WIRING_SECONDS else self.handlers
        return {
            (engine, handler): wired
            for engine, handlers in known.items()
            for handler, wired in handlers.items()
            if wired != LEFT_OUT and engine not in self.unknown
        }


@dataclass
class Verified:
    """The last `verify` of an engine. `when`: its time. `status`: its exit status.

    `accepted`: the patterns of parts that it was to accept (`--except`). `policy`: the sha256 of the policy.
    `is_current`: whether no install has changed the node since. `untried`: the parts that were not tried. `findings`:
    what it found.
    """

    when: int = 0
    status: int = 0
    accepted: list[str] = field(default_factory=list)
    policy: str = ""
    is_current: bool = False
    untried: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Container:
    """A running container, as it was looked at. `state`: of STATES.

    `directory`: of its runtime, "" if it has none. `severity`, `cause`: of the worst difference to the policy.
    """

    state: str
    directory: str = ""
    engine: str = ""
    title: str = ""
    severity: str = OK
    cause: str = ""


@dataclass
class Audited:
    """The looks at running containers. `when`: the time of the last look at all of them. `policy`: its sha256.

    `containers`: by id, as the last look at each has them. `marks`: of the runtimes' directories at that look. `told`:
    the ids of those that differ, of which the event log knows.
    """

    when: int = 0
    policy: str = ""
    containers: dict[str, Container] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def is_current(self) -> bool:
        """Whether it says something about the node now."""
        return age(self.when) <= AUDIT_SECONDS

    def count(self, state: str) -> int:
        """Returns how many containers have a state."""
        return sum(container.state == state for container in self.containers.values())


class Answer(NamedTuple):
    """What an engine's program printed (hook.node.answers). `files`: the state of each on which that depends."""

    text: str
    files: dict[str, list[int]]


@dataclass
class Kept:
    """The content of node.json. `verified`: by engine. `place`: where the metrics have counted the event log to.

    `findings`: the errors and warnings of the last look at the wiring. `answers`: by command.
    """

    wiring: Wiring = field(default_factory=Wiring)
    verified: dict[str, Verified] = field(default_factory=dict)
    audited: Audited = field(default_factory=Audited)
    place: tuple[int, int, int] | None = None
    findings: list[Finding] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)


def age(when: float) -> float:
    """Seconds since a time; infinite for a time in the future: the clock was set back."""
    seconds = time.time() - when
    return seconds if seconds >= 0 else float("inf")


def read(store: str = STORE) -> Kept:
    """Returns what is kept. A part that is missing or cannot be read is as on a new node."""
    data = _json(store, FILE)
    if not isinstance(data, dict):
        return _of_earlier(store)
    return Kept(
        _part(_wiring, data.get("wiring")) or Wiring(),
        {str(engine): found for engine, each in _items(data.get("verified")) if (found := _part(_verified, each))},
        _part(_audited, data.get("audited")) or Audited(),
        _part(_place, data.get("place")),
        _part(_findings, data.get("findings")) or [],
        {str(command): said for command, each in _items(data.get("answers")) if (said := _part(_answer, each))},
    )


def change(function: Callable[[Kept], None], store: str = STORE) -> None:
    """Changes what is kept. No other process changes it meanwhile. Raises OSError."""
    make_directory(store, 0o700)
    with _locked(store):
        kept = read(store)
        function(kept)
        kept.wiring.gaps = kept.wiring.gaps[-_GAPS:]
        replace_file(f"{store}/{FILE}", json.dumps(asdict(kept)).encode())
        for name in _OLD:
            Path(store, name).unlink(missing_ok=True)


@contextmanager
def _locked(store: str) -> Iterator[None]:
    """Holds the lock of the directory (flock(2)), for which other processes wait a moment."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _json(store: str, name: str) -> Any:
    """The content of a file that only root can change; None without one."""
    try:
        trusted(f"{store}/{name}")
        return json.loads(Path(store, name).read_bytes())
    except (OSError, ReassertError, ValueError):
        return None


def _part(function: Callable[[Any], _T], data: Any) -> _T | None:
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return function(data)
    return None


def _items(data: Any) -> list[tuple[Any, Any]]:
    return list(data.items()) if isinstance(data, dict) else []


def _wiring(data: Any) -> Wiring:
    handlers = {
        str(engine): {str(name): int(value) for name, value in found.items()}
        for engine, found in data["handlers"].items()
    }
    unknown = {str(engine): int(when) for engine, when in data["unknown"].items()}
    gaps = [Gap(str(engine), str(name), int(since), int(until)) for engine, name, since, until in data["gaps"]]
    since = {str(engine): int(when) for engine, when in data["since"].items()}
    return Wiring(int(data["when"]), handlers, unknown, gaps, [str(word) for word in data["program"]], since)


def _verified(data: Any) -> Verified:
    accepted = [str(part) for part in data["accepted"]]
    findings = _findings(data["findings"])
    about = (int(data["when"]), int(data["status"]), accepted, str(data["policy"]), bool(data["is_current"]))
    return Verified(*about, [str(part) for part in data["untried"]], findings)


def _findings(data: Any) -> list[Finding]:
    return [Finding(**{str(key): str(value) for key, value in each.items()}) for each in data]


def _audited(data: Any) -> Audited:
    names = Container.__dataclass_fields__
    containers = {str(key): Container(*(str(each[name]) for name in names)) for key, each in data["containers"].items()}
    marks = {str(path): str(mark) for path, mark in data["marks"].items()}
    return Audited(int(data["when"]), str(data["policy"]), containers, marks, [str(each) for each in data["told"]])


def _answer(data: Any) -> Answer:
    text, files = data
    return Answer(str(text), {str(path): [int(number) for number in state] for path, state in files.items()})


def _place(data: Any) -> tuple[int, int, int]:
    device, inode, offset = data
    return int(device), int(inode), int(offset)


def _of_earlier(store: str) -> Kept:
    """What 0.3 has kept. Goes with 0.5."""
    wired, drift, verified, place = (_json(store, name) for name in _OLD)
    return Kept(
        _part(_earlier_wiring, wired) or Wiring(),
        {str(engine): found for engine, each in _items(verified) if (found := _part(_earlier_verified, each))},
        _part(lambda data: Audited(told=[str(each) for each in data[3]]), drift) or Audited(),
        _part(_place, place),
    )


def _earlier_wiring(data: Any) -> Wiring:
    when, handlers, unknown, gaps, program = [*data, [], []][:5]
    told = unknown if isinstance(unknown, dict) else dict.fromkeys(unknown, when)
    names = ("when", "handlers", "unknown", "gaps", "program", "since")
    return _wiring(dict(zip(names, (when, handlers, told, gaps, program, {}), strict=True)))


def _earlier_verified(data: Any) -> Verified:
    when, status, *accepted = data
    return Verified(int(when), int(status), [str(part) for parts in accepted for part in parts])
