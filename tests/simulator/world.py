"""The simulated machine: a clock, a scheduler, files, sockets and processes, and the modules that real code uses.

Every system call of the real code is one step: `World.step`. Only one actor (a thread of a simulated process) runs at
a time. At random steps another one goes on, or something fails. All chance comes from one seed.
"""

from __future__ import annotations

import builtins
import errno
import heapq
import io
import os
import random
import signal as signals
import stat
import struct
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TICKS = (4_000_000, 4_000_000, 1_000_000_000)
"""Nanoseconds between two ticks of the clock for file times, as in Linux; a second on ext4 with small inodes."""

CALL = 7_000
"""Nanoseconds that a system call takes."""

DISK = ("/var/lib/reassert", "/var/log", "/run/containerd")
"""What is on the disk that can be full. One engine's bundles are on a tmpfs; kubelet and the administrator have their
own disks."""

DISK_DEVICE = 1
"""The file system that gives the inode number of a removed file to the next one, as ext4 does."""

_EPOCH = 1_800_000_000_000_000_000


class Killed(BaseException):
    """The process of this actor has ended: no further system call of it has an effect."""


class Execute(BaseException):
    """execve(2) succeeded: the process runs another program."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv


class Exited(BaseException):
    """The process ends. `status`: of _exit(2)."""

    def __init__(self, status: int) -> None:
        self.status = status


class Violation(BaseException):
    """An invariant does not hold, or the world lacks what the real code called."""


def failure(number: int, path: object = None) -> OSError:
    """The OSError of a failed system call."""
    return OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))


class Waitable:
    """What an actor can wait for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Actor, int]] = []
        self.polls: list[tuple[Poll, int]] = []

    def ready(self) -> bool:
        """Whether poll(2) reports it as readable."""
        return True


class Inode(Waitable):
    """An inode. `entries`: of a directory; `data`: of a file; `target`: of a link."""

    def __init__(self, world: World, mode: int, device: int = DISK_DEVICE) -> None:
        super().__init__()
        if not world.free_inodes or device != DISK_DEVICE:
            world.inodes += 1
            self.ino = world.inodes
        else:
            self.ino = heapq.heappop(world.free_inodes)
        self.mode, self.device = mode, device
        self.opened, self.is_named, self.links = 0, True, 1
        self.data = bytearray()
        self.entries: dict[str, Inode] = {}
        self.target = ""
        self.covered: Inode | None = None
        self.listener: Socket | None = None
        self.lock: object = None
        self.writers = 0
        self.last: Open | None = None
        """Through what it was written last, if it was not cut since."""
        self.modified = self.changed = world.file_time()
        self.watch: Callable[[bytes], None] | None = None


class Pipe(Waitable):
    """A pipe, or the counter of an eventfd."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.writers = 0

    def ready(self) -> bool:
        """Whether there are bytes, or the end of the file."""
        return bool(self.data) or not self.writers


class Counter(Waitable):
    """An eventfd(2), which epoll(7) reports once for each write (EPOLLET)."""

    edge = False

    def ready(self) -> bool:
        """Whether it was written since the last report."""
        ready, self.edge = self.edge, False
        return ready


class Socket(Waitable):
    """One end of a SOCK_SEQPACKET connection, or a listener."""

    def __init__(self, owner: Process) -> None:
        super().__init__()
        self.owner = owner
        self.peer: Socket | None = None
        self.frames: deque[tuple[bytes, list[Open]]] = deque()
        self.backlog: deque[Socket] | None = None
        self.closed = False

    def ready(self) -> bool:
        """Whether recv(2) or accept(2) would not wait."""
        if self.backlog is not None:
            return bool(self.backlog)
        return bool(self.frames) or self.peer is None or self.peer.closed


class Open:
    """An open file description, which several descriptors of several processes can share."""

    __slots__ = ("append", "count", "offset", "path", "target", "writes")

    def __init__(self, target: Waitable, path: str = "", writes: bool = False, append: bool = False) -> None:
        self.target, self.path, self.writes, self.append = target, path, writes, append
        self.offset = self.count = 0
        if isinstance(target, Inode):
            target.opened += 1


class Process(Waitable):
    """A simulated process. `case`: the container for which it runs, None for what runs all the time."""

    def __init__(self, world: World, parent: Process | None, argv: list[str], case: Any) -> None:
        super().__init__()
        world.pids += 1
        self.world, self.parent, self.argv, self.case, self.pid = world, parent, argv, case, world.pids
        self.files: dict[int, Open] = {}
        self.actors: list[Actor] = []
        self.status: int | None = None
        self.environment: dict[str, str] = {}
        self.handlers: dict[int, Any] = {}
        self.signal = 0
        self.is_agent = self.is_ours = False

    def ready(self) -> bool:
        """Whether it has ended, as a pidfd says."""
        return self.status is not None

    def opened(self, description: Open) -> int:
        """The lowest free descriptor, for an open file description."""
        fd = 3
        while fd in self.files:
            fd += 1
        return self.give(fd, description)

    def give(self, fd: int, description: Open) -> int:
        """A descriptor for an open file description."""
        if fd in self.files:
            self.close(fd)
        description.count += 1
        self.files[fd] = description
        return fd

    def close(self, fd: int) -> None:
        """close(2)."""
        description = self.files.pop(fd, None)
        if description is None:
            raise failure(errno.EBADF)
        self.world.release(description)

    def end(self, status: int) -> None:
        """The process ends: its descriptors are closed, and who waits for it goes on."""
        if self.status is None:
            self.status = status
            for description in self.files.values():
                if isinstance(description.target, Inode) and description.target.last is description:
                    description.target.last = None
            for fd in list(self.files):
                self.close(fd)
            for actor in self.actors:
                self.world.wake(actor)
            self.world.notify(self)


class Actor:
    """A thread of a process, and its own working directory."""

    def __init__(self, world: World, process: Process, target: Callable[[], None], name: str) -> None:
        self.world, self.process, self.name = world, process, name
        world.actors += 1
        self.number = world.actors
        self.baton = threading.Lock()
        self.baton.acquire()
        self.cwd = "/"
        self.umask = 0o022
        self.locals: dict[int, dict[str, Any]] = {}
        self.turn = 0
        self.is_runnable = False
        self.done = False
        self.cpu = 0
        self.thread: object = None
        self.ended = Waitable()
        self._target = target
        process.actors.append(self)

    def run(self) -> None:
        """The body of the real thread."""
        self.baton.acquire()
        self.process.world.current = self
        try:
            if self.process.status is None:
                self._target()
        except Killed:
            pass
        except BaseException as error:
            self.world.fail(error)
        self.done = True
        if self in self.process.actors:
            self.process.actors.remove(self)
        self.world.notify(self.ended)
        self.world.leave()


class World:
    """The machine. `chance`: all randomness. `now`: nanoseconds since the boot. `trace`: a hash of what happened."""

    def __init__(self, seed: int, steps: int) -> None:
        self.chance = random.Random(seed)  # a seed reproduces a run
        self.limit, self.steps, self.now, self.trace = steps, 0, 1_000_000_000, seed
        self.tick = self.chance.choice(TICKS)
        self.pids, self.actors, self.inodes = 100, 0, 0
        self.free_inodes: list[int] = []
        self.root = Inode(self, stat.S_IFDIR | 0o755)
        self.runnable: list[Actor] = []
        self.timers: list[tuple[int, int, Actor, int]] = []
        self.processes: dict[int, Process] = {}
        self.programs: dict[str, Callable[[Process], int]] = {}
        self.current: Actor = None  # type: ignore[assignment]  # before the first actor runs
        self.budget = 0
        self.full = False
        self.watched: dict[str, Callable[[], Callable[[bytes], None]]] = {}
        self.defect: BaseException | None = None
        self.on_interrupt: Callable[[], None] = lambda: None
        self.on_short_write: Callable[[], None] = lambda: None
        self.on_log_closed: Callable[[bytearray], None] = lambda _: None
        self.short_reads = 0
        self.no_descriptor = 0
        self.kernel = Process(self, None, ["kernel"], None)
        self._over = threading.Lock()
        self._over.acquire()
        self.files_touched = self.files_seen = 0
        self.on_change: Callable[[], None] = lambda: None

    # The scheduler.

    def start(self, process: Process, target: Callable[[], None], name: str) -> Actor:
        """Adds a thread to a process."""
        actor = Actor(self, process, target, name)
        threading.Thread(target=actor.run, daemon=True).start()
        self.wake(actor)
        return actor

    def wake(self, actor: Actor) -> None:
        """Lets an actor run again."""
        if not actor.is_runnable and not actor.done:
            actor.is_runnable = True
            self.runnable.append(actor)

    def notify(self, target: Waitable) -> None:
        """Wakes all who wait for something."""
        if target.waiting:
            waiting, target.waiting = target.waiting, []
            for actor, turn in waiting:
                if actor.turn == turn:
                    self.wake(actor)
        for poll, _ in target.polls:
            self.notify(poll)

    def block(self, targets: list[Waitable], deadline: int | None = None) -> None:
        """Suspends the current actor until a target is notified or the time has come. Conditions are its own."""
        actor = self.current
        actor.turn += 1
        for target in targets:
            target.waiting.append((actor, actor.turn))
        if deadline is not None:
            heapq.heappush(self.timers, (deadline, actor.number, actor, actor.turn))
        actor.is_runnable = False
        self.runnable.remove(actor)
        self.switch()
        actor.turn += 1
        for target in targets:
            if target.waiting:
                target.waiting = [entry for entry in target.waiting if entry[0] is not actor]
        if actor.process.status is not None:
            raise Killed
        self._deliver(actor)

    def _next(self) -> Actor | None:
        while True:
            while self.timers and (self.timers[0][0] <= self.now or not self.runnable):
                when, _, actor, turn = heapq.heappop(self.timers)
                if actor.turn == turn and not actor.is_runnable:
                    self.now = max(self.now, when)
                    self.wake(actor)
            if self.runnable:
                return self.runnable[int(self.chance.random() * len(self.runnable))]
            if not self.timers:
                return None

    def switch(self) -> None:
        """Lets a random runnable actor go on; returns when it is the caller's turn."""
        actor = self.current
        chosen = self._next()
        if chosen is None:
            self.fail(Violation("no actor can go on: a deadlock"))
            actor.baton.acquire()
            raise Killed
        self.budget = int(self.chance.random() * 16)
        self.trace = hash((self.trace, self.steps, chosen.number, self.now, self.files_touched))
        if chosen is not actor:
            chosen.baton.release()
            actor.baton.acquire()
            self.current = actor

    def leave(self) -> None:
        """The current actor has ended: another one goes on."""
        actor = self.current
        if actor.is_runnable:
            actor.is_runnable = False
            self.runnable.remove(actor)
        chosen = None if self.defect else self._next()
        if chosen is None:
            self._release_over()
        else:
            self.budget = int(self.chance.random() * 16)
            chosen.baton.release()

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error: all actors stand still for ever."""
        if self.defect is None:
            self.defect = error
        self._release_over()

    def _release_over(self) -> None:
        if self._over.locked():
            self._over.release()

    def finish(self) -> None:
        """Ends the run: all its steps are done. The caller stands still for ever."""
        self._release_over()
        self.current.baton.acquire()

    def run(self) -> None:
        """Runs until the end. Raises what an actor raised."""
        chosen = self._next()
        assert chosen is not None
        chosen.baton.release()
        self._over.acquire()
        if self.defect is not None:
            raise self.defect

    def step(self) -> None:
        """One system call of the current actor begins. Raises Killed, and what a signal handler raises."""
        if self.files_touched != self.files_seen:
            self.files_seen = self.files_touched
            self.on_change()
        self.steps += 1
        self.now += CALL
        actor = self.current
        actor.cpu += CALL
        self.budget -= 1
        if self.budget < 0:
            if self.defect:
                actor.baton.acquire()
            self.on_interrupt()
            self.switch()
        if actor.process.status is not None:
            raise Killed
        if actor.process.signal:
            self._deliver(actor)

    def _deliver(self, actor: Actor) -> None:
        process = actor.process
        if process.signal and process.actors and process.actors[0] is actor:
            number, process.signal = process.signal, 0
            process.handlers[number](number, None)

    def sleep(self, nanoseconds: int) -> None:
        """The current actor does nothing for a time."""
        self.step()
        self.block([], self.now + nanoseconds)

    # Processes.

    def spawn(self, argv: list[str], case: Any, parent: Process | None = None, cwd: str = "/") -> Process:
        """Starts a program: argv[0] is in `programs`, or a text file whose first line names its interpreter."""
        process = Process(self, parent, argv, case)
        self.processes[process.pid] = process
        self.start(process, lambda: self._execute(process), argv[0]).cwd = cwd
        return process

    def _execute(self, process: Process) -> None:
        status = 255
        try:
            while True:
                program = self.programs.get(process.argv[0])
                if program is None:
                    first = bytes(self.node(process.argv[0]).data).split(b"\n", 1)[0].decode()
                    process.argv = [first.removeprefix("#!"), *process.argv]
                    continue
                try:
                    status = program(process)
                    return
                except Execute as new:
                    process.argv = new.argv
                    for fd in [fd for fd in process.files if fd > 2]:  # all are close-on-exec
                        process.close(fd)
        except Exited as exited:
            status = exited.status
        except OSError:
            status = 127
        finally:
            process.end(status)

    def wait(self, process: Process, deadline: int | None = None) -> int | None:
        """The exit status of a process, None if it has not ended at the deadline."""
        while process.status is None:
            if deadline is not None and self.now >= deadline:
                return None
            self.block([process], deadline)
        return process.status

    # Files.

    def file_time(self) -> int:
        """The time that a file gets now."""
        return (_EPOCH + self.now) // self.tick * self.tick

    def wall(self) -> int:
        """Nanoseconds since the epoch."""
        return _EPOCH + self.now

    def absolute(self, path: Any, dir_fd: int | None = None) -> str:
        """A path from the root, without `.` and `..`."""
        text = os.fsdecode(path) if isinstance(path, bytes | str) else str(path)
        if not text.startswith("/"):
            base = self.description(dir_fd).path if dir_fd is not None else self.current.cwd
            text = f"{base.rstrip('/')}/{text}"
        return os.path.normpath(text) if "." in text or "//" in text else text

    def find(self, path: str, follow: bool = True, hops: int = 0) -> tuple[Inode, str, Inode | None]:
        """The directory, the last name and the node of an absolute path. Raises OSError."""
        node, above, name = self.root, self.root, ""
        parts = [part for part in path.split("/") if part]
        for index, part in enumerate(parts):
            if not stat.S_ISDIR(node.mode):
                raise failure(errno.ENOTDIR, path)
            above, name = node, part
            found = node.entries.get(part)
            if found is None:
                if index < len(parts) - 1:
                    raise failure(errno.ENOENT, path)
                return above, name, None
            if found.target and (follow or index < len(parts) - 1):
                if hops > 40:
                    raise failure(errno.ELOOP, path)
                return self.find("/".join([found.target, *parts[index + 1 :]]), follow, hops + 1)
            node = found
        return above, name, node

    def node(self, path: str, follow: bool = True) -> Inode:
        """The node of an absolute path. Raises OSError."""
        found = self.find(path, follow)[2]
        if found is None:
            raise failure(errno.ENOENT, path)
        return found

    def make(self, path: str, data: bytes | None = None, mode: int = 0) -> Inode:
        """A file, or a directory, with all directories above it, made before the run."""
        node = self.root
        parts = path.strip("/").split("/")
        for index, part in enumerate(parts):
            is_file = data is not None and index == len(parts) - 1
            kind = stat.S_IFREG | (mode or 0o644) if is_file else stat.S_IFDIR | (mode or 0o755)
            if part not in node.entries:
                node.entries[part] = Inode(self, kind)
            node = node.entries[part]
        if data is not None:
            node.data[:] = data
        return node

    def description(self, fd: int) -> Open:
        """What a descriptor of the current process stands for. Raises OSError."""
        found = self.current.process.files.get(fd)
        if found is None:
            raise failure(errno.EBADF)
        return found

    def release(self, description: Open) -> None:  # noqa: PLR0912  # each kind of file
        """One descriptor less of an open file description."""
        description.count -= 1
        target = description.target
        if description.count:
            return
        if isinstance(target, Inode | Pipe) and description.writes:
            target.writers -= 1
        if isinstance(target, Inode):
            target.opened -= 1
            if target.lock is description:
                target.lock = None
            if target.watch and target.last is description:
                self.on_log_closed(target.data)
            if not (target.opened or target.is_named) and target.device == DISK_DEVICE:
                heapq.heappush(self.free_inodes, target.ino)
        if isinstance(target, Socket):
            target.closed = True
            for _, passed in target.frames:
                for each in passed:
                    self.release(each)
            if target.backlog is not None:
                for waiting in target.backlog:
                    waiting.closed = True
                    if waiting.peer:
                        self.notify(waiting.peer)
            if target.peer:
                self.notify(target.peer)
        for poll, fd in target.polls:
            if poll.items.get(fd, (None,))[0] is target:
                del poll.items[fd]
        if not isinstance(target, Inode):
            target.polls = []
        self.notify(target)

    def forget(self, node: Inode) -> None:
        """A file has lost its name. Its inode number is free once no process has it open."""
        node.is_named = False
        if not node.opened and node.device == DISK_DEVICE:
            heapq.heappush(self.free_inodes, node.ino)
        for each in node.entries.values():
            self.forget(each)

    def changed(self, node: Inode) -> None:
        """A file got other content or another name."""
        node.modified = node.changed = self.file_time()
        self.files_touched += 1


class Poll(Waitable):
    """poll(2) and epoll(7) of one process. `items`: what is registered, by descriptor."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.items: dict[int, list[Any]] = {}

    def register(self, what: Any, events: int = 1) -> None:
        """Adds a descriptor. ONESHOT: it is reported once, until `modify`."""
        fd = what if isinstance(what, int) else what.fileno()
        target = self.world.description(fd).target
        self.items[fd] = [target, events, True]
        target.polls.append((self, fd))
        self.world.notify(self)

    def modify(self, what: Any, events: int) -> None:
        """Registers a descriptor for one more event. Raises OSError."""
        fd = what if isinstance(what, int) else what.fileno()
        if fd not in self.items:
            raise failure(errno.ENOENT)
        self.items[fd][1:] = [events, True]
        self.world.notify(self)

    def _found(self, most: int) -> list[tuple[int, int]]:
        found = []
        for fd, item in self.items.items():
            target, events, armed = item
            if armed and (self._hung_up(target) if events == HANG_UP else target.ready()):
                item[2] = not events & ONE_SHOT
                found.append((fd, events))
                if len(found) == most:
                    break
        return found

    @staticmethod
    def _hung_up(target: Waitable) -> bool:
        return isinstance(target, Socket) and (target.peer is None or target.peer.closed)

    def poll(self, timeout: float | None = None, maxevents: int = -1, scale: int = 1_000_000_000) -> list[Any]:
        """What is ready, at most `maxevents`. `timeout`: in units of `scale` nanoseconds."""
        world = self.world
        world.step()
        deadline = None if timeout is None or timeout < 0 else world.now + int(timeout * scale)
        while not (found := self._found(maxevents)):
            if deadline is not None and world.now >= deadline:
                return []
            world.block([self], deadline)
        return found

    def close(self) -> None:
        """Forgets all descriptors."""
        for fd, item in self.items.items():
            item[0].polls.remove((self, fd))


ONE_SHOT, HANG_UP = 1 << 30, 0x2000


class SystemCalls:
    """The functions of `posix` and `os` that the real code calls; every one is a step."""

    def __init__(self, world: World) -> None:
        self.w = world

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        w = self.w
        w.step()
        process = w.current.process
        if w.no_descriptor and process.is_ours and w.chance.random() < (0.02 if process.is_agent else 0.1):
            raise failure(errno.EMFILE, path)
        full = w.absolute(path, dir_fd)
        if full.startswith("/proc/"):
            return self._open_proc(full, flags)
        above, name, node = w.find(full, not flags & os.O_NOFOLLOW)
        if node is None:
            if not flags & os.O_CREAT:
                raise failure(errno.ENOENT, path)
            if w.full and full.startswith(DISK):
                raise failure(errno.ENOSPC, path)
            node = above.entries[name] = Inode(w, stat.S_IFREG | (mode & ~w.current.umask), above.device)
            node.watch = w.watched[full]() if full in w.watched else None
            w.changed(above)
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise failure(errno.EEXIST, path)
        if flags & os.O_DIRECTORY and not stat.S_ISDIR(node.mode):
            raise failure(errno.ENOTDIR, path)
        if node.target:
            raise failure(errno.ELOOP, path)
        if flags & os.O_TRUNC and node.data:
            node.data.clear()
            w.changed(node)
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) and not flags & os.O_PATH
        node.writers += writes
        return process.opened(Open(node, full, writes, bool(flags & os.O_APPEND)))

    def _open_proc(self, full: str, flags: int) -> int:
        w = self.w
        _, _, pid, *rest = full.split("/")
        process = w.current.process if pid in ("self", "thread-self") else w.processes.get(int(pid))
        if process is None or process.status is not None:
            raise failure(errno.ENOENT, full)
        node = Inode(w, stat.S_IFDIR | 0o555 if not rest else stat.S_IFREG | 0o444, 3)
        text = {
            "status": f"Name:\tx\nUmask:\t0022\nCapEff:\t000001ffffffffff\nCapBnd:\t0\nPid:\t{process.pid}\n",
            "stat": f"{process.pid} (x) S {process.parent.pid if process.parent else 1} 0 0",
            "statm": "1 1 1 1",
            "cmdline": "\0".join([*process.argv, ""]),
            "mountinfo": "22 1 0:1 / / rw - ext4 /dev/sda1 rw\n",
        }.get("/".join(rest) if rest else "status")
        if text is None:
            raise failure(errno.ENOENT, full)
        node.data[:] = text.encode()
        return w.current.process.opened(Open(node, f"/proc/{process.pid}" + "".join(f"/{part}" for part in rest)))

    def close(self, fd: int) -> None:
        self.w.step()
        self.w.current.process.close(fd)

    def read(self, fd: int, size: int) -> bytes:
        w = self.w
        w.step()
        description = w.description(fd)
        target = description.target
        if w.short_reads and size > 1 and not description.path.startswith("/proc") and w.chance.random() < 0.03:
            size = 1 + int(w.chance.random() * min(size - 1, 200))
        if isinstance(target, Pipe):
            while not target.data and target.writers:
                if description.append:  # O_NONBLOCK
                    raise BlockingIOError(errno.EAGAIN, "nothing there")
                w.block([target])
            data = bytes(target.data[:size])
            del target.data[:size]
            return data
        assert isinstance(target, Inode)
        data = bytes(target.data[description.offset : description.offset + size])
        description.offset += len(data)
        return data

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.w.step()
        target = self.w.description(fd).target
        assert isinstance(target, Inode)
        return bytes(target.data[offset : offset + size])

    def write(self, fd: int, data: Any) -> int:
        w = self.w
        w.step()
        description = w.description(fd)
        target, data = description.target, bytes(data)
        if isinstance(target, Inode):
            if w.full and description.path.startswith(DISK):
                fate = w.chance.random()
                if fate < 0.6:
                    raise failure(errno.ENOSPC)
                if fate < 0.9:  # else another program has just made room
                    data = data[: len(data) // 2 + 1]
                    w.on_short_write()
            at = len(target.data) if description.append else description.offset
            target.data[at : at + len(data)] = data
            description.offset, target.last = at + len(data), description
            w.changed(target)
            if target.watch:
                target.watch(data)
        elif isinstance(target, Pipe):
            target.data += data
            w.notify(target)
        return len(data)

    def lseek(self, fd: int, offset: int, how: int) -> int:
        self.w.step()
        description = self.w.description(fd)
        assert isinstance(description.target, Inode)
        base = (0, description.offset, len(description.target.data))[how]
        description.offset = base + offset
        return description.offset

    def ftruncate(self, fd: int, size: int) -> None:
        self.w.step()
        node = self.w.description(fd).target
        assert isinstance(node, Inode)
        if node.watch:
            node.watch(b"\0" + struct.pack("q", len(node.data) - size))
        del node.data[size:]
        node.last = None
        self.w.changed(node)

    def _status(self, node: Inode) -> os.stat_result:
        size = len(node.data)
        basic = (node.mode, node.ino, node.device, 1, 0, 0, size, 0, node.modified // 10**9, node.changed // 10**9)
        more = {"st_mtime_ns": node.modified, "st_ctime_ns": node.changed, "st_rdev": 0}
        return os.stat_result(basic, more)

    def stat(self, path: Any) -> os.stat_result:
        w = self.w
        w.step()
        if isinstance(path, int):
            return self.fstat(path)
        full = w.absolute(path)
        if full.startswith("/proc/") or full in ("/dev", "/proc"):
            return os.stat_result((stat.S_IFDIR | 0o555, 1, 3, 1, 0, 0, 0, 0, 0, 0))
        return self._status(w.node(full))

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        self.w.step()
        return self._status(self.w.node(self.w.absolute(path, dir_fd), follow=False))

    def fstat(self, fd: int) -> os.stat_result:
        self.w.step()
        target = self.w.description(fd).target
        return self._status(target) if isinstance(target, Inode) else os.stat_result((stat.S_IFIFO, *[0] * 9))

    def access(self, path: Any, mode: int) -> bool:
        self.w.step()
        try:
            return self.w.find(self.w.absolute(path))[2] is not None
        except OSError:
            return False

    def listdir(self, path: Any) -> list[str]:
        self.w.step()
        return list(self.w.node(self.w.absolute(path)).entries)

    def scandir(self, path: Any) -> Any:
        self.w.step()
        if not stat.S_ISDIR(self.w.node(self.w.absolute(path)).mode):
            raise failure(errno.ENOTDIR, path)
        return _Entries()

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> str:
        w = self.w
        w.step()
        full = w.absolute(path, dir_fd)
        if full.startswith("/proc/"):
            pid = full.split("/")[2]
            if pid != "self" and w.processes[int(pid)].status is not None:
                raise failure(errno.ENOENT, path)
            return f"pipe:[{full.rpartition('/')[2]}]"
        node = w.node(full, follow=False)
        if not node.target:
            raise failure(errno.EINVAL, path)
        return node.target

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self._make(path, stat.S_IFDIR | (mode & ~self.w.current.umask))

    def _make(self, path: Any, mode: int) -> Inode:
        w = self.w
        w.step()
        above, name, node = w.find(w.absolute(path), follow=False)
        if node is not None:
            raise failure(errno.EEXIST, path)
        above.entries[name] = made = Inode(w, mode, above.device)
        w.changed(above)
        return made

    def rmdir(self, path: Any) -> None:
        self._remove(path, True)

    def unlink(self, path: Any) -> None:
        self._remove(path, False)

    def _remove(self, path: Any, is_directory: bool) -> None:
        w = self.w
        w.step()
        above, name, node = w.find(w.absolute(path), follow=False)
        if node is None:
            raise failure(errno.ENOENT, path)
        if stat.S_ISDIR(node.mode) != is_directory:
            raise failure(errno.ENOTDIR if is_directory else errno.EISDIR, path)
        if node.entries or node.covered:
            raise failure(errno.EBUSY if node.covered else errno.ENOTEMPTY, path)
        del above.entries[name]
        node.links -= 1
        if not node.links:
            w.forget(node)
        w.changed(above)

    def link(self, old: Any, new: Any) -> None:
        w = self.w
        w.step()
        node = w.node(w.absolute(old), follow=False)
        to, name, other = w.find(w.absolute(new), follow=False)
        if other is not None:
            raise failure(errno.EEXIST, new)
        to.entries[name] = node
        node.links += 1
        node.changed = w.file_time()
        w.changed(to)

    def symlink(self, target: str, path: str) -> None:
        self._make(path, stat.S_IFLNK | 0o777).target = target

    def rename(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        w = self.w
        w.step()
        above, name, node = w.find(w.absolute(old, src_dir_fd), follow=False)
        if node is None:
            raise failure(errno.ENOENT, old)
        to, other, replaced = w.find(w.absolute(new, dst_dir_fd), follow=False)
        del above.entries[name]
        to.entries[other] = node
        if replaced is not None:
            w.forget(replaced)
        node.changed = w.file_time()
        w.files_touched += 1

    def fchmod(self, fd: int, mode: int) -> None:
        self.w.step()
        node = self.w.description(fd).target
        assert isinstance(node, Inode)
        node.mode = stat.S_IFMT(node.mode) | mode

    def fchown(self, fd: int, uid: int, gid: int) -> None:
        self.w.step()

    def getxattr(self, file: str | int, name: str) -> bytes:
        """No file has an attribute, as without SELinux."""
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))

    def fsync(self, fd: int) -> None:
        self.w.step()

    def umask(self, mask: int) -> int:
        old, self.w.current.umask = self.w.current.umask, mask
        return old

    def chdir(self, path: Any) -> None:
        self.w.step()
        self.w.current.cwd = self.w.absolute(path)

    def fchdir(self, fd: int) -> None:
        self.w.step()
        self.w.current.cwd = self.w.description(fd).path

    def getcwd(self) -> str:
        self.w.step()
        return self.w.current.cwd

    def urandom(self, size: int) -> bytes:
        return self.w.chance.randbytes(size)

    def uname(self) -> os.uname_result:
        return os.uname_result(("Linux", "node", "6.1.0", "#1", "x86_64"))

    def getpid(self) -> int:
        return self.w.current.process.pid

    def getppid(self) -> int:
        parent = self.w.current.process.parent
        return parent.pid if parent else 1

    def geteuid(self) -> int:
        return 0

    def eventfd(self, value: int, flags: int) -> int:
        return self.w.current.process.opened(Open(Counter()))

    def eventfd_write(self, fd: int, value: int) -> None:
        self.w.step()
        target = self.w.description(fd).target
        assert isinstance(target, Counter)
        target.edge = True
        self.w.notify(target)

    def pipe2(self, flags: int) -> tuple[int, int]:
        self.w.step()
        pipe, process = Pipe(), self.w.current.process
        pipe.writers = 1
        return process.opened(Open(pipe)), process.opened(Open(pipe, writes=True))

    def set_blocking(self, fd: int, blocking: bool) -> None:
        self.w.description(fd).append = not blocking

    def dup2(self, old: int, new: int) -> int:
        self.w.step()
        return self.w.current.process.give(new, self.w.description(old))

    def memfd_create(self, name: str, flags: int) -> int:
        self.w.step()
        node = Inode(self.w, stat.S_IFREG | 0o600, 4)
        node.writers = 1
        return self.w.current.process.opened(Open(node, f"/memfd:{self.w.current.process.case.id}", True))

    def posix_spawn(self, path: str, argv: list[str], environment: object, *, file_actions: Any = ()) -> int:
        w = self.w
        w.step()
        own = w.current.process
        child = w.spawn(argv, own.case, own)
        for action in file_actions:
            if action[0] == os.POSIX_SPAWN_DUP2:
                child.give(action[2], own.files[action[1]])
        return child.pid

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        self.w.step()
        return pid, self.w.wait(self.w.processes[pid]) or 0

    def kill(self, pid: int, number: int) -> None:
        self.w.step()
        process = self.w.processes[pid]
        if number == signals.SIGTERM:
            process.signal = number
            for actor in process.actors[:1]:
                self.w.wake(actor)
        else:
            process.end(-number)

    def execve(self, path: str, argv: list[str], environment: object) -> None:
        self.w.step()
        raise Execute([path, *argv[1:]])

    def _exit(self, status: int) -> None:
        raise Exited(status)

    def lockf(self, fd: int, how: int, size: int) -> None:
        self.flock(fd, how)

    def flock(self, fd: int, how: int) -> None:
        self.w.step()
        description = self.w.description(fd)
        node = description.target
        assert isinstance(node, Inode)
        if node.lock not in (None, description):
            raise BlockingIOError(errno.EAGAIN, "locked")
        node.lock = description

    def fcntl(self, fd: int, what: int, value: int) -> None:
        self.w.step()
        node = self.w.description(fd).target
        assert isinstance(node, Inode)
        if node.writers:
            raise failure(errno.EAGAIN)

    def setpriority(self, *_: int) -> None:
        pass

    def sysconf(self, name: str) -> int:
        return 4096


class _Entries:
    def __enter__(self) -> Iterator[Any]:
        return iter(())

    def __exit__(self, *_: object) -> None:
        pass


class File(io.RawIOBase):
    """What `open` and `Path.open` return."""

    def __init__(self, calls: SystemCalls, fd: int) -> None:
        super().__init__()
        self._calls, self._fd = calls, fd

    def fileno(self) -> int:
        return self._fd

    def read(self, size: int = -1) -> Any:
        chunks = b""
        while size < 0 or len(chunks) < size:
            chunk = self._calls.read(self._fd, (1 << 20) if size < 0 else size - len(chunks))
            if not chunk:
                break
            chunks += chunk
        return chunks

    def write(self, data: Any) -> int:
        return self._calls.write(self._fd, data)

    def close(self) -> None:
        if not self.closed and not self._calls.w.defect:
            super().close()
            process = self._calls.w.current.process
            if process.status is None and self._fd in process.files:
                process.close(self._fd)


class Connection:
    """`_socket.socket` and `socket.socket`, of the kinds that the agent uses."""

    def __init__(self, calls: SystemCalls, fd: int) -> None:
        self._calls, self._w, self._fd = calls, calls.w, fd
        self._process = calls.w.current.process
        self.family, self.type = 1, 5

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _socket(self) -> Socket:
        target = self._w.description(self._fd).target
        assert isinstance(target, Socket)
        return target

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        pass

    def bind(self, path: str) -> None:
        self._w.step()
        node = self._w.make(path, b"")
        node.mode = stat.S_IFSOCK | 0o600
        node.listener = self._socket()

    def listen(self, backlog: int) -> None:
        self._w.step()
        self._socket().backlog = deque()

    def connect(self, path: str) -> None:
        connect(self._w, self._socket(), path)

    def _accept(self) -> tuple[int, str]:
        w = self._w
        w.step()
        backlog = self._socket().backlog
        if not backlog:
            raise BlockingIOError(errno.EAGAIN, "nobody")
        if w.no_descriptor and w.chance.random() < 0.02:
            raise failure(errno.EMFILE)
        return w.current.process.opened(Open(backlog.popleft())), ""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        self._w.step()
        peer = self._socket().peer
        assert peer is not None
        if option == PEER_PROCESS:
            return struct.pack("i", self._w.current.process.opened(Open(peer.owner)))
        return struct.pack("3i", peer.owner.pid, 0, 0)

    def send(self, data: bytes, flags: int = 0) -> int:
        self._w.step()
        send(self._w, self._socket(), data, [])
        return len(data)

    def recvmsg_into(self, buffers: list[bytearray], size: int, flags: int) -> tuple[int, list[Any], int, str]:
        self._w.step()
        data, passed = self._received()
        buffers[0][: len(data)] = data[: len(buffers[0])]
        controls = [(1, 1, struct.pack("i", self._w.current.process.opened(each))) for each in passed]
        for each in passed:
            self._w.release(each)
        return len(data), controls, 0, ""

    def recv(self, size: int, flags: int) -> bytes:
        self._w.step()
        own = self._socket()
        if own.frames:
            return own.frames[0][0][:size]
        if own.peer is None or own.peer.closed:
            return b""
        raise BlockingIOError(errno.EAGAIN, "nothing there")

    def _received(self) -> tuple[bytes, list[Open]]:
        own = self._socket()
        if own.frames:
            return own.frames.popleft()
        if own.peer is None or own.peer.closed:
            return b"", []
        raise BlockingIOError(errno.EAGAIN, "nothing there")

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._calls.close(fd)


PEER_PROCESS = 77


def connect(world: World, own: Socket, path: str) -> None:
    """connect(2). Raises OSError."""
    world.step()
    listener = world.node(world.absolute(path)).listener
    if listener is None or listener.closed or listener.backlog is None:
        raise failure(errno.ECONNREFUSED, path)
    other = Socket(listener.owner)
    own.peer, other.peer = other, own
    listener.backlog.append(other)
    world.notify(listener)


def send(world: World, own: Socket, data: bytes, passed: list[Open]) -> None:
    """A packet, with open file descriptions. Raises OSError."""
    if own.peer is None or own.peer.closed:
        raise failure(errno.EPIPE)
    for each in passed:
        each.count += 1
    own.peer.frames.append((data, passed))
    world.notify(own.peer)


class Lock:
    def __init__(self, world: World) -> None:
        self._world, self._held, self._free = world, False, Waitable()

    def __enter__(self) -> None:
        while self._held:
            self._world.block([self._free])
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._world.notify(self._free)


class _Event:
    def __init__(self, world: World) -> None:
        self._world, self._flag, self._set = world, False, Waitable()

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._world.notify(self._set)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        world.step()
        deadline = None if timeout is None else world.now + int(timeout * 1e9)
        while not self._flag and (deadline is None or world.now < deadline):
            world.block([self._set], deadline)
        return self._flag


class _Thread:
    def __init__(self, world: World, target: Any, args: tuple[Any, ...] = (), name: str = "", daemon: bool = True):
        self._world, self._target, self._name = world, lambda: target(*args), name
        self._actor: Actor | None = None

    def start(self) -> None:
        self._world.step()
        self._actor = self._world.start(self._world.current.process, self._target, self._name)
        self._actor.thread = self

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done


class _Local:
    def __init__(self, world: World) -> None:
        self.__dict__["world"] = world

    def _own(self) -> dict[str, Any]:
        return self.__dict__["world"].current.locals.setdefault(id(self), {})  # type: ignore[no-any-return]  # a dict

    def __getattr__(self, name: str) -> Any:
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self._own()[name] = value


class _Path:
    """pathlib.Path, as the compiler uses it."""

    def __init__(self, calls: SystemCalls, path: str) -> None:
        self._calls, self._path = calls, path

    def open(self, mode: str) -> File:
        return File(self._calls, self._calls.open(self._path, os.O_RDONLY))

    def read_text(self, encoding: str) -> str:
        with self.open("rb") as file:
            return str(file.read().decode(encoding))


class _Module(types.ModuleType):
    """A module of the world. What it lacks ends the run: nothing of the real machine is reached by mistake."""

    def __init__(self, world: World, name: str, **members: Any) -> None:
        super().__init__(name)
        self.__dict__.update(members)
        self.__dict__["_world"] = world

    def __getattr__(self, name: str) -> Any:
        if name.isupper() or name in ("stat_result", "path", "strerror", "fsencode", "fsdecode", "major", "minor"):
            return getattr(os, name)
        error = Violation(f"the simulated {self.__name__} has no {name}")
        self.__dict__["_world"].fail(error)
        raise error


def modules(world: World) -> dict[str, Any]:
    """What the real code imports in place of the machine's own modules."""
    import fcntl
    import select
    import socket
    import time

    calls = SystemCalls(world)

    def opened(path: Any, mode: str = "r", buffering: int = -1) -> Any:
        if isinstance(path, int):
            return File(calls, path)
        file = File(calls, calls.open(path, os.O_RDONLY if "r" in mode else os.O_WRONLY))
        return file if "b" in mode else io.TextIOWrapper(file)  # type: ignore[type-var]  # only read

    def connection(family: int = 1, kind: int = 5, protocol: int = 0, fileno: int | None = None) -> Connection:
        if fileno is None:
            world.step()
            fileno = world.current.process.opened(Open(Socket(world.current.process)))
        return Connection(calls, fileno)

    def poller() -> Any:
        poll = Poll(world)
        wait = poll.poll
        poll.poll = lambda timeout=None: _once(poll, wait(timeout, -1, 1_000_000))  # type: ignore[method-assign,misc,assignment]  # milliseconds
        return poll

    def _once(poll: Poll, found: list[Any]) -> list[Any]:
        poll.close()
        return found

    def spoken(text: str) -> None:
        for fd in [1] if 1 in world.current.process.files else []:
            calls.write(fd, text.encode())

    def told(*words: object, file: object = None) -> None:
        text = " ".join(map(str, words))
        if "internal error" in text and world.current.process.status is None:
            world.fail(Violation(text))

    names = {name: getattr(calls, name) for name in dir(calls) if not name.startswith("__") and name != "w"}
    posix = _Module(world, "posix", **names)
    posix.__dict__["environ"] = {}
    of_sockets = {name: getattr(socket, name) for name in dir(socket) if name.isupper()}
    of_sockets |= {"CMSG_LEN": socket.CMSG_LEN, "socket": connection}
    events = {name: getattr(select, name) for name in dir(select) if name.isupper()}
    return {
        "posix": posix,
        "os": posix,
        "time": _Module(
            world,
            "time",
            time_ns=world.wall,
            time=lambda: world.wall() / 1e9,
            monotonic=lambda: world.now / 1e9,
            monotonic_ns=lambda: world.now,
            thread_time=lambda: world.current.cpu / 1e9,
            sleep=lambda seconds: world.sleep(int(seconds * 1e9)),
            gmtime=time.gmtime,
            strftime=time.strftime,
        ),
        "socket": _Module(world, "socket", **of_sockets),
        "_socket": _Module(world, "_socket", **of_sockets),
        "select": _Module(world, "select", **events, epoll=lambda: Poll(world), poll=poller),
        "threading": _Module(
            world,
            "threading",
            Lock=lambda: Lock(world),
            Event=lambda: _Event(world),
            Thread=lambda **given: _Thread(world, **given),
            local=lambda: _Local(world),
            current_thread=lambda: world.current.thread,
        ),
        "fcntl": _Module(
            world,
            "fcntl",
            flock=calls.flock,
            fcntl=calls.fcntl,
            **{name: getattr(fcntl, name) for name in dir(fcntl) if name.isupper()},
        ),
        "signal": _Module(
            world,
            "signal",
            signal=lambda number, handler: world.current.process.handlers.update({number: handler}),
            **{name: getattr(signals, name) for name in dir(signals) if name.startswith("SIG")},
        ),
        "_signal": _Module(world, "_signal", signal=lambda *_: None, SIGPIPE=13, SIGXFSZ=25, SIG_DFL=0),
        "resource": _Module(
            world, "resource", RLIMIT_NOFILE=7, getrlimit=lambda _: (65536, 65536), setrlimit=lambda *_: None
        ),
        "gc": _Module(world, "gc", freeze=lambda: None, disable=lambda: None, collect=lambda: None),
        "pathlib": _Module(world, "pathlib", Path=lambda path: _Path(calls, path)),
        "sys": _Module(
            world,
            "sys",
            stderr=None,
            stdout=_Module(world, "stdout", write=spoken),
            executable="/opt/reassert/reassert",
            modules=sys.modules,
            version_info=sys.version_info,
            byteorder=sys.byteorder,
            setswitchinterval=lambda _: None,
            argv=["reassert"],
        ),
        "builtins": {**vars(builtins), "open": opened, "print": told},
    }


class Package:
    """A private copy of `hook`, from the files of a tree, whose imports of the machine's modules get the world's.

    `version`: its `__version__`. `replaced`: modules of hook.* that the world has in their place.
    """

    _compiled: dict[Path, Any] = {}  # noqa: RUF012  # shared by all packages of the process

    def __init__(self, world: World, tree: Path, version: str, replaced: dict[str, dict[str, Any]]) -> None:
        self._world, self._tree, self._given = world, tree, modules(world)
        self._builtins = {**self._given.pop("builtins"), "__import__": self._import}
        self.loaded: dict[str, types.ModuleType] = {}
        for name, members in replaced.items():
            self.loaded[name] = _Module(world, name, **members)
        self.load("hook").__dict__["__version__"] = version

    def load(self, name: str) -> types.ModuleType:
        """A module of the package."""
        if name in self.loaded:
            return self.loaded[name]
        path = self._tree.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name != "hook":
            above = self.load(name.rpartition(".")[0])
        module = self.loaded[name] = types.ModuleType(f"simulated.{name}")
        sys.modules[module.__name__] = module  # where dataclasses look for it
        module.__dict__.update(__builtins__=self._builtins, __file__=str(path))
        if not path.is_file():
            self._world.fail(Violation(f"the world has no {name}"))
        if path not in self._compiled:
            self._compiled[path] = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(self._compiled[path], module.__dict__)  # the code of this tree
        if name != "hook":
            setattr(above, name.rpartition(".")[2], module)
        return module

    def _import(self, name: str, own: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
        if name == "hook" or name.startswith("hook."):
            module = self.load(name)
            for each in wanted or ():
                if each not in module.__dict__:
                    self.loaded.get(f"{name}.{each}") or self.load(f"{name}.{each}")
                    setattr(module, each, self.loaded[f"{name}.{each}"])
            return module if wanted else self.loaded["hook"]
        if name in self._given:
            return self._given[name]
        return builtins.__import__(name, own, local, wanted, level)
