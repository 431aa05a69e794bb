"""`reassert agent`: the listening socket, the checks of its clients, and the threads that answer."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable

from hook import __version__
from hook.agent.answers import BUSY, CHANGED, COLD, ERROR, GO, LATE, REFUSED, Counters, Fallback
from hook.agent.clients import Client, Clients, Job
from hook.agent.holder import Holder
from hook.agent.memory import Memory
from hook.agent.told import begin, tell_cold
from hook.agent.work import answer
from hook.agent.workers import RELIEF, Workers
from hook.core import events
from hook.core.base.errors import ReassertError, Usage, describe
from hook.core.base.system import make_directory, trusted
from hook.core.linux.mountns import few_arenas, own_directories, own_root, trim_memory
from hook.core.linux.volumes import sweep
from hook.entry import protocol
from hook.resident import oplog, service
from hook.resident.metrics import NoMetrics
from hook.resident.notifier import Notifier
from hook.resident.policy import Resident

ADAPTER = "agent"
LISTENING, DROPPED, ENDED = "agent.listening", "agent.dropped", "agent.ended"

DESCRIPTORS = 65536
"""The most open files, if the hard limit allows so many: CLIENTS, and some dozens for each of REQUESTS that hangs."""

REQUESTS = 256
"""The most requests that are answered or wait; one more is answered `cold`."""

NICE = -10
"""The agent's nice value: container starts wait for it, and a request takes it a millisecond (setpriority(2))."""

_COLLECTED = 500
"""After so many answers the main thread collects reference cycles; after fewer ones if no request comes. Python's own
collections come in the middle of a request. Then free memory is given back, before it is fragmented."""

_TICK = 0.5
_SWEPT = 60.0
"""Seconds between looks for emptyDirs in memory whose pod is gone."""
_HELD = 60.0
"""Seconds between looks whether the files that are kept open are still those, such as after a rotation of the log."""
_ANSWERS = {b"G": GO, b"A": CHANGED, b"R": REFUSED, b"C": COLD}


_BACKLOG = 4096


class _Stop(BaseException):
    """SIGTERM or SIGINT was received."""


class Plugin:
    """The NRI plugin, in a thread of this process."""

    def __init__(self, connected: Callable[[], bool], healthy: Callable[[], bool], serve: Callable[[], object]) -> None:
        """`serve`: never returns."""
        self.connected = connected
        """Whether a runtime asks it about containers."""
        self.healthy = healthy
        """Whether it is alive."""
        self._serve = serve
        threading.Thread(target=self._run, name="nri", daemon=True).start()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # systemd starts the agent again; until then starts are cold
            oplog.error("nri.ended", exc_info=error)
        oplog.close()
        os._exit(1)


def main(
    chosen: argparse.Namespace,
    metrics_of: Callable[[], NoMetrics],
    start_plugin: Callable[[NoMetrics], Plugin] | None,
) -> int:
    """Serves requests until SIGTERM or SIGINT. Raises Usage, ReassertError, OSError.

    `metrics_of`: what counts. `start_plugin`: starts the NRI plugin.
    """
    service.check_paths(chosen)
    notifier = Notifier()
    service.begin(_stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    few_arenas()
    begin()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, DESCRIPTORS), most))
    with contextlib.suppress(OSError):  # not allowed: it is slower on a busy node
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    try:
        listener, own = listener_at(chosen.socket)
        memory = Memory(chosen.policy, chosen.store, chosen.events)
        metrics = memory.starts.metrics = metrics_of()
        agent = Agent(listener, memory, notifier, Counters(metrics))
        if start_plugin:
            agent.plugin = start_plugin(metrics)
        gc.freeze()  # what is loaded now, stays
        gc.disable()
        agent.tell_systemd()
        agent.log(LISTENING, "info", f"listening at {chosen.socket}")
        oplog.info("agent.started", version=__version__, socket=chosen.socket, **_settings(chosen))
        try:
            agent.run()
        finally:
            if own:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(chosen.socket)
            agent.close()
    except _Stop:
        notifier.say("STOPPING=1")
    return 0


def _stop(*_: object) -> None:
    raise _Stop


def _settings(chosen: argparse.Namespace) -> dict[str, object]:
    """The options of the command line, for the operation log."""
    names = ("policy", "store", "events", "nri", "metrics", "textfile")
    return {name: getattr(chosen, name, None) for name in names}


class Agent:
    """The connections of one listening socket."""

    def __init__(self, listener: socket.socket, memory: Memory, notifier: Notifier, counters: Counters) -> None:
        self._memory = memory
        self._notifier = notifier
        self._counters = counters
        self._poll = select.epoll()
        self._clients = Clients(listener, self._poll, counters, lambda: json.dumps(self.status()).encode())
        self._workers: Workers[Job] = Workers(
            REQUESTS, poll=self._poll, take=self._clients.take, work=self._work, prepare=own_directories
        )
        self._told = 0.0
        self._answers = self._collected = 0  # the number of answers at the last look, and at the last collection
        self._policy = Resident(memory.source, memory.directory)
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._here = own_root()
        self._state = ""  # as systemd shows it
        self._holder, self._holds = Holder(memory.called), ""
        self.plugin: Plugin | None = None
        """The NRI plugin, if it is in this process."""

    def run(self) -> None:
        """Serves requests until an exception ends it: idle threads take them, and this one where none is idle."""
        looked = swept = held = 0.0
        while True:
            self._workers.crowded.clear()
            if self._workers.is_crowded():
                self._queue_next()
            else:
                self._workers.crowded.wait(_TICK)
            self._workers.look_after()
            if time.monotonic() - looked < _TICK:
                continue
            looked = time.monotonic()
            self._workers.start()
            self._clients.expire()
            self._tell_dropped()
            policy = self._policy.get(0)  # compiles an edit in the background, so that no container start has to
            if looked > swept and not policy.missing:  # it is missing until it is compiled
                swept = looked + _SWEPT
                with contextlib.suppress(OSError):  # a shortage, such as of descriptors, must not end the agent
                    sweep(f"{policy.kubelet_root}/pods")
            if looked > held or policy.fingerprint != self._holds:
                held, self._holds = looked + _HELD, policy.fingerprint
                self._holder.hold(policy, self._memory.compiled, self._memory.events)
            self._collect()
            self.tell_systemd()
            self._notifier.tick(self.plugin is None or self.plugin.healthy())

    def _queue_next(self) -> None:
        for fd, _ in self._poll.poll(RELIEF, 1):
            job = self._clients.take(fd)
            if job and not self._workers.submit(job):
                self._tell_cold(BUSY, job)
                self._answered(job.client, protocol.cold(BUSY))
                os.close(job.given)

    def tell_systemd(self) -> None:
        """Says that the service is ready; with the NRI plugin, once a runtime has connected. Says it once."""
        state = "listening"
        if self.plugin:
            state += ", connected to NRI" if self.plugin.connected() else ", not connected to NRI"
        if state == self._state:
            return
        self._state = state
        if self.plugin is None or self.plugin.connected() or self._notifier.is_ready:
            self._notifier.ready(state)
        else:
            self._notifier.say(f"STATUS={state}")

    def close(self) -> None:
        """Closes the listening socket and idle connections, and waits a second for requests that are being answered."""
        self._clients.close()
        self._workers.wait(protocol.ANSWER_SECONDS)
        self._told = 0.0
        self._tell_dropped()
        counts = self._counters.as_json()
        self.log(ENDED, "info", f"answered {sum(counts['warm'].values())} container starts and hooks", answers=counts)
        oplog.info("agent.stopped", version=__version__, **counts)

    def status(self) -> dict[str, object]:
        """The answer to STATUS: what `reassert status` shows of the agent."""
        pages = int(open("/proc/self/statm").read().split()[1])  # noqa: SIM115  # closed at once by its reference count
        return {
            "version": __version__,
            "pid": os.getpid(),
            "policy": self._memory.source,
            "store": self._memory.directory,
            "events": self._memory.events,
            "memoryKiB": pages * (os.sysconf("SC_PAGE_SIZE") // 1024),
            "nri": self.plugin.connected() if self.plugin else None,
            "working": self._workers.count(),
            **self._counters.as_json(),
            "last": self._memory.starts.as_json(),
        }

    def log(self, event: str, level: str, text: str, **more: object) -> None:
        """Logs an event about the agent itself."""
        record = events.of_adapter(ADAPTER, event, level, text, **more)
        try:
            policy = self._memory.policy()
        except Fallback:
            policy = self._policy.last
        events.write(self._memory.events, record, policy.event_log)

    def _work(self, job: Job) -> bool:
        """Answer a request; whether its thread stands where it stood before."""
        client = job.client
        try:
            try:
                if time.monotonic() - client.began > protocol.ANSWER_SECONDS:
                    raise Fallback(LATE)
                if job.given >= self._descriptors:  # open(2) takes the lowest free descriptor: soon none is left
                    raise Fallback(BUSY)
                frame = answer(self._memory, job.request, client, job.given)
            except Fallback as reason:
                self._tell_cold(str(reason), job, reason.__cause__)
                frame = protocol.cold(str(reason))
            except BaseException as error:  # if the error stays, the cold start reports it
                self._tell_cold(ERROR, job, error)
                frame = protocol.cold(ERROR)
            self._answered(client, frame)
        finally:
            os.close(job.given)
        try:
            os.chdir("/")  # in a bundle, this process would keep it from being unmounted
            return job.request.kind == protocol.RUNTIME or own_root() == self._here
        except OSError:
            return False

    def _tell_cold(self, reason: str, job: Job, error: BaseException | None = None) -> None:
        tell_cold(reason, job.request, given=job.given, pid=job.client.pid, began=job.client.began, error=error)

    def _answered(self, client: Client, frame: bytes) -> None:
        client.reply(frame)
        start = len(protocol.ANSWER) + 1
        kind = _ANSWERS[frame[start : start + 1]]
        reason = frame[start + 1 : -1].decode() if kind == COLD else ""
        self._counters.answered(kind, reason, time.monotonic() - client.began)

    def _collect(self) -> None:
        answers = self._counters.count
        idle = answers == self._answers and not self._workers.count()
        self._answers = answers
        if (idle and answers != self._collected) or answers - self._collected > _COLLECTED:
            gc.collect()
            trim_memory()
            self._collected = answers

    def _tell_dropped(self) -> None:
        """Logs one event for all clients that were dropped within a second."""
        now = time.monotonic()
        if now - self._told > protocol.ANSWER_SECONDS and (dropped := self._counters.new_drops()):
            self._told = now
            text = "connections without a valid request were dropped"
            self.log(DROPPED, "warning", text, count=dropped.total(), reasons=dict(dropped.most_common(16)))


def listener_at(path: str) -> tuple[socket.socket, bool]:
    """The socket to listen on, and whether it is ours to remove: not systemd's (sd_listen_fds(3))."""
    if os.environ.pop("LISTEN_PID", "") == str(os.getpid()) and os.environ.pop("LISTEN_FDS", "") == "1":
        listener = socket.socket(fileno=3)
        listener.set_inheritable(False)
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_SEQPACKET:
            raise Usage("the socket unit has to have ListenSequentialPacket=")
        return listener, False
    if len(os.fsencode(path)) > service.SOCKET_PATH_BYTES:
        raise Usage(f"--socket takes a path of at most {service.SOCKET_PATH_BYTES} bytes, not {path!r}")
    _check_directory(os.path.dirname(path))
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    temporary = f"{os.path.dirname(path)}/.{os.getpid()}"
    try:
        listener.bind(temporary)
        listener.listen(_BACKLOG)
        os.rename(temporary, path)  # after listen(), so no connection to `path` is refused
    finally:
        os.umask(mask)
    return listener, True


def _check_directory(directory: str) -> None:
    """Makes the directory, unless it exists. Raises ReassertError if another user than root may use it; OSError."""
    make_directory(directory, 0o700)
    status = trusted(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ReassertError(f"{directory} must be a directory that only root may use (chmod 700 {directory})")


def _check_free(path: str) -> None:
    """Raises ReassertError unless `path` is missing, or is a socket on which no process listens any more."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        raise ReassertError(f"{path} is a {kind}, not the agent's socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:  # it may be full
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise ReassertError(f"{path}: another program uses this socket: {describe(error)}") from None
    raise ReassertError(f"{path}: another agent listens on this socket")
