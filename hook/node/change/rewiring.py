"""A change of an engine's wiring: write files, let the engine check them, restart, test containers, then clean up.

A first install, a later install and an uninstall are the same change; an uninstall changes to an empty Wiring. A change
that failed or was interrupted is undone by `rollback`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from hook.compile import stored
from hook.core.base.errors import ReassertError, describe
from hook.node import services, systemd
from hook.node.artifacts.dispatchers import pass_through, real_of, script
from hook.node.change import journal as journals
from hook.node.change import tree
from hook.node.change.files import TREE, Change, Disk, State, is_same, look, missing_directories, put
from hook.node.change.journal import DIRECTORY, Journal
from hook.node.change.record import PROGRAM, OwnedFile, OwnerRecord, Record
from hook.node.engines.base import HOOK, RUNTIME, AnyEngine, Base, Choice, Config, Wiring
from hook.node.errors import NodeError

Say = Callable[[str], None]
Prove = Callable[[Config], None]
"""Takes the engine's configuration after a change. Raises NodeError if containers do not run as they should."""


@dataclass
class Target:
    """The state after a change. `adapters`, `runtime_class`: of Choice. `program`: changes that install the program."""

    wiring: Wiring = field(default_factory=Wiring)
    adapters: list[str] = field(default_factory=list)
    runtime_class: str | None = None
    program: list[Change] = field(default_factory=list)


def base_of(record: Record, engine: AnyEngine, disk: Disk) -> Base:
    """Returns files without reassert: their recorded state; a file that was edited since, without our settings."""

    def base(path: str) -> State | None:
        owned, now = record.owned(path), disk.at(path)
        if owned is None or now is None:
            return now
        part = record.parts.get(engine.name, OwnerRecord())
        if now.sha256() == owned.after or path not in part.references:
            return owned.before
        left = engine.config_class.strip(path, now.content, part.notes)
        return None if left is None else now.with_content(left)

    return base


class Rewiring:
    """One change of one engine on this node, not made yet. `make` makes it.

    `before`: returns the engine's configuration before the change, the same object at each call. `disk`: the files
    before the change, if some were read already.

    `old`: the engine's owner record. `references`: configuration files to write or to restore. `restored`: those to
    restore, in reverse order of writing. `artifacts`: generated files, and the backups. `stale`, `stale_units`: files
    and units of the old wiring that nothing will refer to.
    """

    def __init__(
        self,
        engine: AnyEngine,
        record: Record,
        target: Target,
        before: Callable[[], Config],
        disk: Disk | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.engine, self.record, self.target, self.before, self.directory = engine, record, target, before, directory
        self.disk = disk or Disk()
        self._began = int(time.time())  # the record is made twice, and must be the same
        self.old = record.parts.get(engine.name, OwnerRecord())
        base = base_of(record, engine, self.disk)
        written = [(path, state) for path, state in target.wiring.references if state is not None]
        kept = {path for path, _ in written}
        self.restored: list[Change] = [
            (path, base(path))
            for path in reversed(self.old.references)
            if path not in kept and not record.elsewhere(path, engine.name)
        ]
        self.references: list[Change] = written + self.restored
        backups = [(f"{directory}/before{path}", base(path)) for path, _ in written]
        self.artifacts: list[Change] = [(path, state) for path, state in backups if state] + target.wiring.artifacts
        needed = {path for path, _ in self.artifacts + self.references}
        self.stale = [path for path in self.old.files if path not in needed]
        others = [part for name, part in record.parts.items() if name != engine.name]
        units = {unit for part in others for unit in part.units}.union(target.wiring.units)
        self.stale_units = [unit for unit in self.old.units if unit not in units]

    def differences(self) -> list[Change]:
        """Returns the changes on disk in order: program, artifacts, references, stale files."""
        wanted = self.target.program + self.artifacts + self.references
        wanted += [(path, self._replaced(path, self._users(self.before, path), self.disk)) for path in self.stale]
        if self._is_last():
            wanted += self._program_removed(self.disk)
        return [(path, state) for path, state in wanted if not self.disk.has(path, state)]

    def restarts(self) -> bool:
        """Whether the engine must read its configuration again.

        It must do so even if a user has restored a file already, or all files are right: what it has loaded counts.
        Raises NodeError if the engine does not report that.
        """
        return bool(self.restored) or self.references_differ() or bool(self._not_loaded(self.before))

    def references_differ(self) -> bool:
        """Whether a configuration file has to be written."""
        return any(not self.disk.has(path, state) for path, state in self.references)

    def was_changed(self, path: str) -> bool:
        """Whether a file is not as the last install left it.

        The record has no mode and no owner: with the content that an install would write, only these can be wrong.
        """
        owned, now = self.record.owned(path), self.disk.at(path)
        if (now and now.sha256()) != (owned and owned.after):
            return True
        wanted = dict(self.target.program + self.artifacts + self.references).get(path)
        return now is not None and wanted is not None and now.content == wanted.content and not now.same(wanted)

    def _not_loaded(self, now: Callable[[], Config]) -> list[str]:
        """Returns the handlers that are to be wired, and that the engine has not loaded. Raises NodeError."""
        if not ({RUNTIME, HOOK} & {*self.target.adapters} and self.engine.running()):
            return []
        return now().not_loaded(self.engine.loaded(now()), self.target.wiring.notes)

    def _restart(self, say: Say, after: Callable[[], Config]) -> None:
        """Makes the engine load its files. Raises NodeError if it has not loaded them afterwards."""
        say(f"{self.engine.verb}ing {self.engine.title}; {self.engine.restart_note}")
        self.engine.restart()
        if lacks := self._not_loaded(after):
            raise NodeError(f"{self.engine.title} did not load the wiring of {', '.join(lacks)}")

    def make(self, say: Say, prove: Prove | None = None) -> bool:
        """Makes the change; returns whether anything changed. Raises NodeError after a rollback of everything."""
        part = self._new_part(self.stale, self.old.directories, self.stale_units, self.disk)
        restarts = self.restarts()
        if not (restarts or self.differences()) and part == self.old:
            self._start_what_stopped(say)
            return False
        # Only a resident plugin must be restarted for a new program.
        moved = any(not self.disk.has(path, state) for path, state in self.target.program + self.artifacts)
        changes = self.target.program + self.artifacts + self.references + self._recorded(part)
        operation = "install" if self.target.adapters else "uninstall"
        different = [path for path, state in changes if not self.disk.has(path, state)]
        running = restarts and self.engine.running()
        if running:
            self._refuse_a_last_restart()
        restarted = False
        after = self.before
        try:
            started = self._started()
            stopped = self.stale_units if started else []  # started by the others, so a rollback starts them
            journal = journals.begin(operation, self.engine.name, changes, started + stopped, self.directory, running)
            for path, state in changes:
                if path in different and not path.startswith(self.directory):
                    # The name of a program's directory means nothing to people.
                    name = f"the program in {tree.PLACE}" if state and state.kind == TREE else path
                    say(f"{'writing' if state else 'removing'} {name}")
            journals.apply(journal)
            if restarts:
                after = cache(self.engine.read)
                self.engine.check(after(), self.target.wiring)
                self._nothing_left(after())
                restarted = self.engine.running()
            if systemd.available():
                services.start(started, moved, different, self.stale_units)
            if restarted:
                self._restart(say, after)
            elif restarts:
                say(f"{self.engine.title} does not run; it will read its new configuration when it starts")
            services.wait(started if self.engine.running() else [], restarted, [path for path, _ in self.artifacts])
            if prove and self.engine.running():
                prove(after())
            uninterruptible()
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else describe(error)
            self._undo(why, restarted, say)
            if not isinstance(error, (ReassertError, OSError, KeyboardInterrupt)):
                raise
            raise NodeError(why, "Everything is as it was before.") from None
        journal.end(self.directory)
        self._retire(after, say)
        return True

    def _undo(self, why: str, restarted: bool, say: Say) -> None:
        """Undoes what was begun, because of `why`. Raises NodeError if that fails too."""
        begun = journals.pending(self.directory)
        if begun is not None:
            say("a step failed; restoring every file")
            try:
                rollback(begun, self.engine, restarted, self.directory, say)
            except NodeError as trouble:
                raise NodeError(f"{why}; and then: {trouble}") from None

    def _start_what_stopped(self, say: Say) -> None:
        """Starts units that were stopped, or failed, since the last install. Raises NodeError."""
        if units := services.stopped(self.target.wiring.units):
            say(f"starting {', '.join(units)}, which did not run")
            services.start_again(units, [path for path, _ in self.artifacts])

    def _refuse_a_last_restart(self) -> None:
        """Checks, before anything is changed, that the engine will start again. Raises NodeError."""
        if self.engine.service and systemd.load_state(self.engine.service) == "masked":
            raise NodeError(f"{self.engine.service} is masked and could not be restarted: systemctl unmask it first")
        blockers = self.before().blockers() if self.target.adapters else []
        if blockers:
            raise NodeError(f"{self.engine.title} runs and would not start again: {'; '.join(blockers)}")

    def _nothing_left(self, after: Config) -> None:
        """Checks after an uninstall that the engine refers to no file of reassert. Raises NodeError."""
        if self.target.adapters:
            return
        left = [handler.name for handler in after.handlers({}) if {RUNTIME, HOOK} & set(handler.wired)]
        if left:
            raise NodeError(
                f"{self.engine.title} still refers to reassert in {', '.join(left)}, by a setting that install did not "
                "write; remove that setting first"
            )

    # -- after the change: files that no engine refers to any more

    def _retire(self, after: Callable[[], Config], say: Say) -> None:
        """Remove stale files, and the program with the last engine. Nothing here can break a container start."""
        loses_plugin = self._loses_plugin()
        if systemd.available():
            services.stop(self.stale_units)
        if any(script(path) for path in self.stale):
            self.engine.settle()
        disk = Disk()
        users = {path: self._users(after, path) for path in reversed(self.stale)}
        first = sorted(users, key=_after_dispatchers)
        changes: list[Change] = [(path, self._replaced(path, users[path], disk)) for path in first]
        left = [path for path, count in users.items() if count and real_of(path)]
        for path in left:
            if not self.record.elsewhere(path, self.engine.name):
                say(still_called(path, users[path]))
        part = self._new_part(left, self.record.parts[self.engine.name].directories, [], disk)
        if self._is_last():
            changes += self._program_removed(disk)
        if changes or part != self.record.parts.get(self.engine.name):
            program = self.record.parts.get(PROGRAM, OwnerRecord())
            directories = [*self.old.directories, *program.directories]
            if self._is_last():
                self.record.parts.pop(PROGRAM, None)
            for other in set(self.record.engines()) - {self.engine.name}:  # they may have files in these directories
                theirs = self.record.parts[other]
                theirs.directories = sorted({*theirs.directories, *directories})
            changes += self._recorded(part)
            journal = journals.begin("clean-up", self.engine.name, changes, [], self.directory)
            journals.apply(journal, pause_before=self._first_to_pause(changes))
            journals.remove_directories(sorted(directories))
            if self._is_last():
                stored.clear()
            if systemd.available() and (loses_plugin or self.stale_units):
                systemd.run("daemon-reload")
                if loses_plugin:
                    systemd.run("restart", services.SERVICE)
            journal.end(self.directory)

    def _first_to_pause(self, changes: list[Change]) -> str:
        """The first path, after the dispatchers, that container starts in progress may still call."""
        gone = [path for path, _ in changes if real_of(path)]
        called = [path for path, _ in changes if path not in gone and not path.startswith(self.directory)]
        return called[0] if gone and called else ""

    def _replaced(self, path: str, users: int, disk: Disk) -> State | None:
        """Returns the new state of a stale file: removed, restored, or a pass-through while something calls it."""
        if self.record.elsewhere(path, self.engine.name):
            return disk.at(path)
        real = real_of(path)
        if real and (users or self.record.elsewhere(path, self.engine.name, wired=False)):
            return pass_through(real)
        return base_of(self.record, self.engine, disk)(path)

    def _users(self, now: Callable[[], Config], path: str) -> int:
        """Returns how many running containers (podman: commands) still call a dispatcher or podman's hook."""
        return self.engine.users(now(), path) if script(path) else 0

    def _is_last(self) -> bool:
        """Whether no engine is wired after this change."""
        return not self.target.adapters and not set(self.record.engines()) - {self.engine.name}

    def _program_removed(self, disk: Disk) -> Iterator[Change]:
        """Yields the changes that remove the program, the command first. A policy that was edited stays."""
        part = self.record.parts.get(PROGRAM, OwnerRecord())
        for path, owned in reversed(part.files.items()):
            now = disk.at(path)
            if now is not None and (now.kind == TREE or now.sha256() == owned.after):
                yield path, owned.before

    # -- the record

    def _new_part(self, also: list[str], directories: list[str], units: list[str], disk: Disk) -> OwnerRecord:
        """Returns the engine's new owner record. `also`, `units`: files and units of the old wiring that stay."""
        wiring = self.target.wiring
        base = base_of(self.record, self.engine, disk)
        references = [(path, state) for path, state in wiring.references if state is not None]
        files = {path: self.old.files[path] for path in also if path in self.old.files}
        for path, state in self.artifacts + references:
            if state is not None:
                files[path] = OwnedFile(base(path), state.sha256())
        made = missing_directories(list(files))
        return OwnerRecord(
            self.target.adapters,
            self.target.runtime_class,
            files,
            [path for path, _ in references],
            sorted({*directories, *made}) if files else [],
            [*wiring.units, *units],
            wiring.notes,
            self.old.since if self.old.adapters or not self.target.adapters else self._began,
        )

    def _recorded(self, part: OwnerRecord) -> list[Change]:
        """Returns the change of installed.json: with this owner record, and the program's."""
        parts = {**self.record.parts, self.engine.name: part}
        if self.target.program:
            parts[PROGRAM] = self._program_part()
        self.record.parts = parts
        return [self.record.change()]

    def _program_part(self) -> OwnerRecord:
        old = self.record.parts.get(PROGRAM, OwnerRecord())
        base = base_of(self.record, self.engine, self.disk)
        kept = {path: owned for path, owned in old.files.items() if not f"{path}/".startswith(f"{tree.PLACE}/")}
        files: dict[str, OwnedFile] = {}
        for path, state in self.target.program:
            if state is not None:
                before = None if path.startswith(f"{tree.PLACE}/") else base(path)
                files[path] = OwnedFile(kept[path].before if path in kept else before, state.sha256())
        files = {**files, **{path: owned for path, owned in kept.items() if path not in files}}
        return replace(old, files=files, directories=sorted({*old.directories, *missing_directories(list(files))}))

    # -- units

    def _started(self) -> list[str]:
        """Returns the units to start before the engine. An agent that loses the NRI plugin is restarted after it."""
        return [unit for unit in self.target.wiring.units if not (unit == services.SERVICE and self._loses_plugin())]

    def _loses_plugin(self) -> bool:
        """Whether the agent stays, and does not run the NRI plugin any more."""
        goes = services.DROP_IN in self.stale and not self.record.elsewhere(services.DROP_IN, self.engine.name)
        return goes and services.SERVICE not in self.stale_units


def planned(
    engine: AnyEngine, record: Record, choice: Choice, now: Config, program: list[Change] | None = None
) -> Rewiring:
    """Returns the change that an install with these options makes. Raises NodeError.

    `now`: the engine's configuration. `program`: as in Target.
    """
    disk = Disk()
    notes = record.parts.get(engine.name, OwnerRecord()).notes
    wiring = now.wire(choice, base_of(record, engine, disk), notes)
    services.add_agent(wiring, choice)
    target = Target(wiring, list(choice.adapters), choice.runtime_class, program or [])
    return Rewiring(engine, record, target, lambda: now, disk)


def rollback(journal: Journal, engine: AnyEngine, restart: bool, directory: str, say: Callable[[str], None]) -> None:
    """Undoes a change and makes the engine read its old configuration. Raises NodeError if that fails too."""
    uninterruptible()
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
            f"not everything could be restored: {describe(error)}; fix that, then run `reassert uninstall`"
        ) from None
    if not Record.read(directory).engines():
        stored.clear()
    if systemd.available() and journal.units:
        services.roll_back(journal.units)
    elif systemd.available() and services.has_units(step.path for step in journal.steps):
        systemd.run("daemon-reload")
    if trouble is not None:
        raise NodeError(f"every file was restored, but {engine.title} does not start again: {trouble}")
    tree.tidy()
    journals.remove_directories(journal.directories)
    journal.end(directory)


def _remove_new(journal: Journal, engine: AnyEngine, directory: str, say: Callable[[str], None]) -> None:
    """Removes programs that a change added, unless containers that started since call them. Raises OSError."""
    try:
        engine.clear_probes()
    except NodeError as error:
        say(f"Note: leftovers of an interrupted test container in {engine.name} could not be removed: {error}")
    record = Record.read(directory)
    part = record.parts.setdefault(engine.name, OwnerRecord())
    new = journal.new()[::-1]
    new.sort(key=_after_dispatchers)
    scripts = [path for path in new if script(path)]
    if scripts:
        engine.settle()
    now = engine.read() if scripts else None
    waited = not scripts
    for path in new:
        real = real_of(path)
        if not (real or waited):  # the dispatchers are removed, what they call is next
            tree.let_starts_end()
            waited = True
        users = engine.users(now, path) if now and path in scripts else 0
        state = pass_through(real) if real and users else None
        if state:
            say(still_called(path, users))
            part.files[path] = OwnedFile(None, state.sha256())
            made = [above for above in journal.directories if path.startswith(f"{above}/")]
            part.directories = sorted({*part.directories, *made})
        if not is_same(state, look(path)):
            put(path, state)
    path, wanted = record.change()
    if not is_same(wanted, look(path)):
        put(path, wanted)


def _after_dispatchers(path: str) -> bool:
    """Sorts paths in the order of their removal: dispatchers first, then what starts through them may still call."""
    return not real_of(path)


def still_called(path: str, users: int) -> str:
    """Says that a dispatcher stays."""
    who = (
        "1 running container or command still calls"
        if users == 1
        else f"{users} running containers or commands still call"
    )
    return f"{who} {path}: it stays and only calls {real_of(path)}"


def uninterruptible() -> None:
    """Ignores signals, since the steps that follow must finish. After a SIGKILL, the next run repeats them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
