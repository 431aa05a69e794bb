"""`reassert agent`: the listening socket, the checks of its clients, and one thread per request."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections import Counter

from hook import events
from hook.agent import protocol
from hook.agent.protocol import Malformed, Request
from hook.agent.work import GoCold, Memory, answer
from hook.base.errors import ReassertError, Usage, describe
from hook.base.files import make_directory
from hook.base.notifier import Notifier
from hook.base.system import timestamp, trusted
from hook.linux.mountns import mount_id

ADAPTER = "agent"
LISTENING, DROPPED = "agent.listening", "agent.dropped"

REQUESTS = 64
"""The most requests, one thread each, that are answered at once; one more is answered `cold`."""

CLIENTS = 1024
"""The most connections that have sent no request yet; each has one second to send it."""

_BACKLOG = 4096
_TICK = 0.5
_SUN_PATH = 107
"""The longest path of a socket in bytes (unix(7))."""

_NAMESPACES = ("mnt", "pid", "user")


class _Stop(BaseException):
    """SIGTERM or SIGINT was received."""


def main(chosen: argparse.Namespace) -> int:
    """Serves requests until SIGTERM or SIGINT. Raises Usage, ReassertError, OSError."""
    for name in ("socket", "policy", "store", "events"):
        if not getattr(chosen, name).startswith("/"):
            raise Usage(f"--{name} takes an absolute path, not {getattr(chosen, name)!r}")
    notifier = Notifier()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.chdir("/")
    try:
        listener, own = _listener(chosen.socket)
        agent = Agent(listener, Memory(chosen.policy, chosen.store, chosen.events), notifier)
        notifier.ready("listening")
        agent.log(LISTENING, "info", f"listening at {chosen.socket}")
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


def _listener(path: str) -> tuple[socket.socket, bool]:
    """Returns the listening socket, and whether the agent made it; otherwise it is systemd's (sd_listen_fds(3))."""
    if os.environ.pop("LISTEN_PID", "") == str(os.getpid()) and os.environ.pop("LISTEN_FDS", "") == "1":
        listener = socket.socket(fileno=3)
        listener.set_inheritable(False)
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_SEQPACKET:
            raise Usage("systemd passed a socket of the wrong type; the socket unit must use ListenSequentialPacket=")
        return listener, False
    if len(os.fsencode(path)) > _SUN_PATH:
        raise Usage(f"--socket takes a path of at most {_SUN_PATH} bytes, not {path!r}")
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise ReassertError(f"{path}: another program uses this socket: {describe(error)}") from None
    raise ReassertError(f"{path}: another agent listens on this socket")


class _Client:
    """A connection that has sent no request yet. `pid`: of the process that connected."""

    __slots__ = ("began", "connection", "pid")

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.began = time.monotonic()


class Agent:
    """The server: one listening socket and its connections."""

    def __init__(self, listener: socket.socket, memory: Memory, notifier: Notifier) -> None:
        self._listener = listener
        self._memory = memory
        self._notifier = notifier
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._free = threading.BoundedSemaphore(REQUESTS)
        self._working: set[threading.Thread] = set()
        self._dropped: Counter[str] = Counter()
        self._told = 0.0
        self._here = _place("self")

    def run(self) -> None:
        """Serves requests until an exception ends it."""
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.EPOLLIN)
        while True:
            for fd, _ in self._poll.poll(_TICK):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._receive(self._clients[fd])  # epoll returns no connection that was unregistered
            self._expire()
            self._tell_dropped()
            self._notifier.tick(True)

    def close(self) -> None:
        """Closes the listening socket and idle connections, and waits a second for requests that are being answered."""
        self._listener.close()
        for client in list(self._clients.values()):
            self._forget(client).close()
        deadline = time.monotonic() + protocol.SECONDS
        for thread in list(self._working):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._told = 0.0
        self._tell_dropped()

    def log(self, event: str, level: str, text: str, **more: object) -> None:
        """Logs an event about the agent itself."""
        now = timestamp(time.time_ns())
        events.write(
            self._memory.events,
            {"event": event, "timestamp": now, "adapter": ADAPTER, "level": level, "message": text, **more},
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # for example no descriptor is free; the connection stays in the backlog
                self._dropped[describe(error)] += 1
                time.sleep(0.01)
                return
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, uid, _ = struct.unpack("3i", credentials)
            if uid != 0:
                self._drop(connection, f"uid {uid} is not root")
            elif len(self._clients) >= CLIENTS:
                self._drop(connection, "too many connections")
            else:
                client = self._clients[connection.fileno()] = _Client(connection, pid)
                self._poll.register(connection, select.EPOLLIN)
                self._receive(client)  # front has usually sent its request by now

    def _receive(self, client: _Client) -> None:
        try:
            frame, fds, flags, _ = socket.recv_fds(
                client.connection, protocol.LIMIT, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(self._forget(client), describe(error))
            return
        connection = self._forget(client)
        try:
            if flags & socket.MSG_TRUNC:
                raise Malformed("the request is too large")
            if not frame:
                raise Malformed("closed without a request")
            request = Request(frame)
            if len(fds) != 1:
                raise Malformed("the request has no descriptor")
        except Malformed as error:
            _close(fds)
            self._drop(connection, str(error))
            return
        self._start(client, request, fds[0])

    def _start(self, client: _Client, request: Request, given: int) -> None:
        if not self._free.acquire(blocking=False):
            self._reply(client.connection, protocol.cold("the agent is busy"))
            _close([given])
            return
        try:
            thread = threading.Thread(target=self._work, args=(client, request, given), daemon=True)
            self._working.add(thread)
            thread.start()
        except RuntimeError:  # no more threads
            self._working.discard(thread)
            self._free.release()
            self._reply(client.connection, protocol.cold("the agent has no thread left"))
            _close([given])

    def _work(self, client: _Client, request: Request, given: int) -> None:
        try:
            try:
                if _place(client.pid) != self._here:
                    raise GoCold("the caller has another mount, pid or user namespace, or another root directory")
                frame = answer(self._memory, request, client.connection, given, client.began)
            except GoCold as reason:
                frame = protocol.cold(str(reason))
            except BaseException as error:  # the cold start that follows reports the error if it meets it too
                frame = protocol.cold(describe(error))
            self._reply(client.connection, frame)
        finally:
            _close([given])
            self._working.discard(threading.current_thread())
            self._free.release()

    def _reply(self, connection: socket.socket, frame: bytes) -> None:
        try:
            connection.send(frame)
        except OSError:  # front stopped waiting and starts cold
            pass
        connection.close()

    def _forget(self, client: _Client) -> socket.socket:
        fd = client.connection.fileno()
        self._poll.unregister(fd)
        del self._clients[fd]
        return client.connection

    def _expire(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._clients.values() if now - client.began > protocol.SECONDS]:
            self._drop(self._forget(client), "no request within a second")

    def _drop(self, connection: socket.socket, reason: str) -> None:
        connection.close()
        self._dropped[reason] += 1

    def _tell_dropped(self) -> None:
        """Logs one event for all clients that were dropped within a second."""
        now = time.monotonic()
        if self._dropped and now - self._told > protocol.SECONDS:
            self._told = now
            reasons = dict(self._dropped.most_common(16))
            count = self._dropped.total()
            self._dropped.clear()
            self.log(
                DROPPED, "warning", "connections without a valid request were dropped", count=count, reasons=reasons
            )


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _place(pid: int | str) -> tuple[object, ...]:
    """Returns the identity of a process's namespaces and root directory, and () if that cannot be read."""
    try:
        found = [os.stat(f"/proc/{pid}/ns/{name}") for name in _NAMESPACES]
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
        try:
            found.append(os.fstat(root))
            mount = mount_id(root)  # one directory can be the root in two mounts that have different mounts below it
        finally:
            os.close(root)
    except OSError as error:
        if pid == "self":
            print(f"reassert: {describe(error)}", file=sys.stderr)
            raise
        return ()
    return mount, *((status.st_dev, status.st_ino) for status in found)
