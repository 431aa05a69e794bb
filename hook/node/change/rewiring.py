"""From one wiring of an engine to another: write, let the engine check, restart, prove, and only then clean up.

Wiring for the first time, rewiring and taking everything out are the same: the last is a change to an empty Wiring.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hook.base.errors import ReassertError, describe
from hook.node import systemd
from hook.node.change import journal as journals
from hook.node.change import tree
from hook.node.change.files import TREE, Change, State, look, missing_directories, put
from hook.node.change.journal import DIRECTORY, Journal
from hook.node.change.record import PROGRAM, OwnedFile, OwnerRecord, Record
from hook.node.change.tree import PLACE
from hook.node.engines.artifacts.dispatchers import pass_through, real_of, script
from hook.node.engines.base import HOOK, RUNTIME, Base, Engine, Wiring
from hook.node.errors import NodeError
from hook.node.probe.proof import clear
from hook.policy import compiler

Say = Callable[[str], None]


@dataclass
class Target:
    """What is to be. `adapters`, `runtime_class`: as in Choice. `program`: the changes that put the program there."""

    wiring: Wiring = field(default_factory=Wiring)
    adapters: list[str] = field(default_factory=list)
    runtime_class: str | None = None
    program: list[Change] = field(default_factory=list)


def base_of(record: Record, engine: Engine) -> Base:
    """What files hold without reassert: as recorded, or where somebody edited one since, without our settings."""

    def base(path: str) -> State | None:
        owned, now = record.owned(path), look(path)
        if owned is None or now is None:
            return now
        part = record.parts.get(engine.name, OwnerRecord())
        if now.sha256() == owned.after or path not in part.references:
            return owned.before
        left = engine.strip(path, now.content, part.notes)
        return None if left is None else now.with_content(left)

    return base


class Rewiring:
    """One change of one engine on this node.

    `prove`: called when the engine has its new configuration; raises NodeError if containers do not run as they should.
    """

    def __init__(self, engine: Engine, record: Record, target: Target, directory: str = DIRECTORY) -> None:
        self.engine = engine
        self._record = record
        self._target = target
        self.prove: Callable[[], None] = lambda: None
        self._directory = directory
        self._base = base_of(record, engine)
        self._old = record.parts.get(engine.name, OwnerRecord())
        references = [(path, state) for path, state in target.wiring.references if state is not None]
        self._returned = self._given_back({path for path, _ in references})
        self._references = references + self._returned
        backups = [(f"{directory}/before{path}", self._base(path)) for path, _ in references]
        self._artifacts = [(path, state) for path, state in backups if state] + target.wiring.artifacts
        kept = {path for path, _ in self._artifacts + references}
        gone = {path for path, _ in self._references}
        self._stale = [path for path in self._old.files if path not in kept | gone]
        others = [part for name, part in record.parts.items() if name != engine.name]
        needed = {unit for part in others for unit in part.units}.union(target.wiring.units)
        self._stale_units = [unit for unit in self._old.units if unit not in needed]

    def _given_back(self, kept: set[str]) -> list[Change]:
        """Files that the engine reads and that are not to be ours any longer; the last one written is the first."""
        mine = [path for path in reversed(self._old.references) if path not in kept]
        return [(path, self._base(path)) for path in mine if not self._record.elsewhere(path, self.engine.name)]

    def differences(self) -> list[Change]:
        """What would change on disk, in order: what carries it, what refers to it, what nobody needs any more."""
        wanted = self._target.program + self._artifacts + self._references
        wanted += [(path, self._replaced(path, self._users(path))) for path in self._stale]
        if self._is_last():
            wanted += self._program_removed()
        return [(path, state) for path, state in wanted if not _same(state, look(path))]

    def restarts(self) -> bool:
        """Whether the engine has to read its configuration again.

        It has to where a file is given back that somebody put back already: nobody knows what it has read.
        """
        return bool(self._returned) or any(not _same(state, look(path)) for path, state in self._references)

    def make(self, say: Say) -> bool:
        """Do it. Returns whether anything changed. Raises NodeError, with everything as it was before."""
        part = self._new_part(self._stale, self._old.directories, self._stale_units)
        if not self.differences() and part == self._old:
            return False
        # A new program matters to a resident plugin, and only to that.
        moved = any(not _same(state, look(path)) for path, state in self._target.program + self._artifacts)
        restarts = self.restarts()
        changes = self._target.program + self._artifacts + self._references + self._recorded(part)
        operation = "install" if self._target.adapters else "uninstall"
        different = [path for path, state in changes if not _same(state, look(path))]
        running = restarts and self.engine.running()
        if running and self.engine.service and systemd.is_masked(self.engine.service):
            raise NodeError(f"{self.engine.service} is masked and could not be restarted: systemctl unmask it first")
        restarted = False
        try:
            units = self._target.wiring.units
            journal = journals.begin(operation, self.engine.name, changes, units, self._directory, running)
            for path, state in changes:
                if path in different and not path.startswith(self._directory):
                    say(f"{'writing' if state else 'removing'} {path}")
            journals.apply(journal)
            if restarts:
                self.engine.check()
                self._nothing_left()
                restarted = self.engine.running()
            self._start_units(moved)
            if restarted:
                say(f"{self.engine.verb}ing {self.engine.title}")
                self.engine.restart()
            elif restarts:
                say(f"{self.engine.title} does not run; it will read its new configuration when it starts")
            self._wait_for_units()
            if self.engine.running():
                self.prove()
            _uninterruptible()
        except BaseException as error:
            begun = journals.pending(self._directory)
            if begun is not None:
                say("that failed; putting everything back")
                rollback(begun, self.engine, restarted, self._directory, say)
            if not isinstance(error, (ReassertError, OSError, KeyboardInterrupt)):
                raise
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else describe(error)
            raise NodeError(f"{why}\nEverything is as it was before.") from None
        journal.end(self._directory)
        self._retire(say)
        return True

    def _nothing_left(self) -> None:
        """Taken out means that the engine refers to nothing of ours. Raises NodeError."""
        left = [h.name for h in self.engine.handlers({}) if {RUNTIME, HOOK} & set(h.wired)]
        if left and not self._target.adapters:
            raise NodeError(
                f"{self.engine.title} still refers to reassert in {', '.join(left)}, by a setting of somebody else's; "
                "take that out first"
            )

    # -- the second half: what no engine refers to any more

    def _retire(self, say: Say) -> None:
        """Remove stale artifacts, and the program with the last engine. Nothing here can break a container start."""
        for unit in self._stale_units if systemd.available() else []:
            systemd.run("stop", unit)
        users = {path: self._users(path) for path in reversed(self._stale)}
        changes: list[Change] = [(path, self._replaced(path, count)) for path, count in users.items()]
        left = [path for path, count in users.items() if count and real_of(path)]
        for path in left:
            if not self._record.elsewhere(path, self.engine.name):
                say(_still_called(path, users[path]))
        part = self._new_part(left, self._record.parts[self.engine.name].directories, [])
        if self._is_last():
            changes += self._program_removed()
        if changes or part != self._record.parts.get(self.engine.name):
            directories = [
                path for p in (self._old, self._record.parts.get(PROGRAM, OwnerRecord())) for path in p.directories
            ]
            if self._is_last():
                self._record.parts.pop(PROGRAM, None)
            for other in set(self._record.engines()) - {self.engine.name}:  # they may have files in ours
                theirs = self._record.parts[other]
                theirs.directories = sorted({*theirs.directories, *directories})
            changes += self._recorded(part)
            journal = journals.begin("clean-up", self.engine.name, changes, [], self._directory)
            journals.apply(journal)
            journals.remove_directories(sorted(directories))
            if self._is_last():
                compiler.clear()
            if self._stale_units and systemd.available():
                systemd.run("daemon-reload")
            journal.end(self._directory)

    def _replaced(self, path: str, users: int) -> State | None:
        """What becomes of a carrier that is not needed: nothing, or what was there, or a pass-through while in use."""
        if self._record.elsewhere(path, self.engine.name):
            return look(path)
        real = real_of(path)
        if real and (users or self._record.elsewhere(path, self.engine.name, wired=False)):
            return pass_through(real)
        return self._base(path)

    def _users(self, path: str) -> int:
        """Running containers of this engine that still call a dispatcher, or podman's commands its hook."""
        return self.engine.users(path) if script(path) else 0

    def _is_last(self) -> bool:
        """Whether no engine is wired after this."""
        return not self._target.adapters and not set(self._record.engines()) - {self.engine.name}

    def _program_removed(self) -> list[Change]:
        """A policy that somebody edited stays; the command goes before the program."""
        part = self._record.parts.get(PROGRAM, OwnerRecord())
        changes: list[Change] = []
        for path, owned in reversed(part.files.items()):
            now = look(path)
            if now is not None and (now.kind == TREE or now.sha256() == owned.after):
                changes.append((path, owned.before))
        return changes

    # -- the record

    def _new_part(self, also: list[str], directories: list[str], units: list[str]) -> OwnerRecord:
        """The engine's entry in the record. `also`, `units`: files and units of the old one that are still there."""
        wiring = self._target.wiring
        references = [(path, state) for path, state in wiring.references if state is not None]
        files = {path: self._old.files[path] for path in also if path in self._old.files}
        for path, state in self._artifacts + references:
            if state is not None:
                files[path] = OwnedFile(self._base(path), state.sha256())
        made = missing_directories(list(files))
        return OwnerRecord(
            self._target.adapters,
            self._target.runtime_class,
            files,
            [path for path, _ in references],
            sorted({*directories, *made}) if files else [],
            [*wiring.units, *units],
            wiring.notes,
        )

    def _recorded(self, part: OwnerRecord) -> list[Change]:
        """The record with this entry in it, and with the program's."""
        parts = {**self._record.parts, self.engine.name: part}
        if self._target.program:
            parts[PROGRAM] = self._program_part()
        updated = replace_parts(self._record, parts)
        self._record.parts = parts
        return [updated]

    def _program_part(self) -> OwnerRecord:
        old = self._record.parts.get(PROGRAM, OwnerRecord())
        directories = [*old.directories, *([PLACE] if PLACE in old.files else [])]  # an earlier version's, as a whole
        kept = {path: owned for path, owned in old.files.items() if not f"{path}/".startswith(f"{PLACE}/")}
        files: dict[str, OwnedFile] = {}
        for path, state in self._target.program:
            if state is not None:
                before = None if path.startswith(f"{PLACE}/") else self._base(path)
                files[path] = OwnedFile(kept[path].before if path in kept else before, state.sha256())
        files = {**files, **{path: owned for path, owned in kept.items() if path not in files}}
        return replace(old, files=files, directories=sorted({*directories, *missing_directories(list(files))}))

    # -- units

    def _start_units(self, moved: bool) -> None:
        for unit in self._target.wiring.units if systemd.available() else []:
            systemd.run("daemon-reload")
            systemd.run("restart" if moved else "start", "--no-block", unit)

    def _wait_for_units(self) -> None:
        for unit in self._target.wiring.units if self.engine.running() else []:
            systemd.wait_active(unit)


def rollback(journal: Journal, engine: Engine, restart: bool, directory: str, say: Say) -> None:
    """Undo a change, and let the engine read what it had. Raises NodeError where even that fails."""
    _uninterruptible()
    trouble = None
    try:
        journal.undo()
        if restart:
            try:
                engine.restart()
            except NodeError as error:
                trouble = error
        _remove_new(journal, engine, directory, say)
    except OSError as error:
        raise NodeError(
            f"not everything could be put back: {describe(error)}; mend that, then run `reassert node uninstall`"
        ) from None
    if not Record(directory).engines():
        compiler.clear()
    if systemd.available() and journal.units:
        systemd.run("daemon-reload")
        for unit in journal.units:
            if os.path.exists(f"/etc/systemd/system/{unit}"):
                systemd.run("restart", "--no-block", unit)
            elif systemd.is_active(unit):
                systemd.run("stop", unit)
    if trouble is not None:
        raise NodeError(f"the files are as they were, but {engine.title} does not come up again: {trouble}")
    tree.tidy()
    journals.remove_directories(journal.directories)
    journal.end(directory)


def _remove_new(journal: Journal, engine: Engine, directory: str, say: Say) -> None:
    """Programs that came with a change; not what containers call that were started meanwhile. Raises OSError."""
    try:
        clear(engine)
    except NodeError as error:
        say(f"Note: what an interrupted probe left in {engine.name} is still there: {error}")
    record = Record(directory)
    part = record.parts.setdefault(engine.name, OwnerRecord())
    for path in reversed(journal.new()):
        real = real_of(path)
        users = engine.users(path) if script(path) else 0
        state = pass_through(real) if real and users else None
        if state:
            say(_still_called(path, users))
            part.files[path] = OwnedFile(None, state.sha256())
            made = [above for above in journal.directories if path.startswith(f"{above}/")]
            part.directories = sorted({*part.directories, *made})
        if not _same(state, look(path)):
            put(path, state)
    path, wanted = record.change()
    if not _same(wanted, look(path)):
        put(path, wanted)


def _still_called(path: str, users: int) -> str:
    return f"{users} running containers or commands still call {path}: it stays and passes through to {real_of(path)}"


def _uninterruptible() -> None:
    """What follows has to end. After a kill -9, the next run does it again."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def replace_parts(record: Record, parts: dict[str, OwnerRecord]) -> Change:
    """The change of installed.json to other entries."""
    old, record.parts = record.parts, parts
    try:
        return record.change()
    finally:
        record.parts = old


def _same(wanted: State | None, now: State | None) -> bool:
    return now is None if wanted is None else wanted.same(now)
