"""The agent's connections: who has connected, and the request that each sends.

The kernel says who has connected. A request cannot prove that: a container that reaches the socket would write any file
as root.

`_socket` has what `socket` has without enums, whose `|` and `&` are functions in Python.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from hook.agent.answers import CALLER, COLD, ERROR, Counters
from hook.agent.told import tell_unanswered
from hook.core.base.errors import Undecided, describe
from hook.core.base.system import is_shortage
from hook.core.linux.mountns import root_of
from hook.entry import protocol
from hook.entry.protocol import Malformed, Request

CLIENTS = 1024
"""The most connections that have sent no request yet; each has one second to send it."""

_INT, _UCRED = struct.Struct("i"), struct.Struct("3i")

_ONCE = select.EPOLLIN | select.EPOLLONESHOT
"""Each descriptor is registered for one event, so no two threads have the same connection (epoll_ctl(2))."""


_SO_PEERPIDFD = 77
"""Since Linux 6.5 (include/uapi/asm-generic/socket.h). Python has no name for it."""

_STATUS = 8 << 10
"""Bytes that are read of /proc/PID/status, at once. A process with so many groups that it is longer starts cold."""


class Kernel:
    """What the kernel says of this process, and of one that connects (proc(5), unix(7))."""

    def __init__(self) -> None:
        """Raises OSError, Undecided."""
        proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._namespaces, self._root = _namespaces(proc), root_of(proc)
            self._rights, _ = _rights(proc)
        finally:
            os.close(proc)

    def umask_of(self, connection: _socket.socket, pid: int) -> int | None:
        """The umask of the process that connected; None unless it is provably as privileged as this one.

        It has this process's mount, user and pid namespace and root directory, and each capability that this process
        has: so the agent gives the caller no right that it lacks. An engine's runtime has all capabilities. Raises
        OSError for a shortage, for example of descriptors: then the kernel has said nothing about the process.
        """
        proc = -1
        try:
            proc = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if os.readlink(_MOUNTS, dir_fd=proc) != self._namespaces[0]:
                return None  # a container, which connects as often as it likes
            rights, umask = _rights(proc)
            is_ours = _namespaces(proc) == self._namespaces and not self._rights & ~rights
            # Only then: a container's root directory can be in a volume that does not answer.
            if is_ours and root_of(proc) == self._root and _lives(connection):
                return umask
        except (OSError, Undecided, ValueError) as error:  # it has ended, or is of another pid namespace
            if is_shortage(error):
                raise
        finally:
            if proc >= 0:
                os.close(proc)
        return None


_MOUNTS = "ns/mnt"


def _namespaces(proc: int) -> list[str]:
    """The namespaces of a process that count. `proc`: its directory in /proc. Raises OSError."""
    return [os.readlink(path, dir_fd=proc) for path in (_MOUNTS, "ns/user", "ns/pid")]


def _rights(proc: int) -> tuple[int, int]:
    """The effective capabilities and the umask of a process. Raises OSError, ValueError."""
    fd = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        status = os.read(fd, _STATUS)
    finally:
        os.close(fd)
    # With the line ends, which a process's name cannot have there.
    found = [status[(at := status.index(name) + len(name)) : status.index(b"\n", at)] for name in _LINES]
    return int(found[0], 16), int(found[1], 8)


_LINES = (b"\nCapEff:\t", b"\nUmask:\t")


def _lives(connection: _socket.socket) -> bool:
    """Whether the process that connected has not ended, so that its pid is still its own. Raises OSError.

    True before Linux 6.5, where this cannot be known (docs/internals/agent.md).
    """
    try:
        (fd,) = _INT.unpack(connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD, _INT.size))
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return True
        raise
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return not poll.poll(0)
    finally:
        os.close(fd)


class Client:
    """A connection, of a process of root."""

    __slots__ = ("began", "connection", "pid", "polled", "umask", "unproven")

    def __init__(self, connection: _socket.socket, pid: int, umask: int, unproven: str = "") -> None:
        self.began = time.monotonic()
        self.connection = connection
        self.pid = pid
        """The pid of the process, 0 if it has none in the agent's pid namespace."""
        self.umask = umask
        """The umask of the process."""
        self.unproven = unproven
        """The reason for a cold start if `Kernel.umask_of` proves nothing, else "": such a process may ask for the
        status and nothing else."""
        self.polled = False
        """Whether the connection's descriptor is registered."""

    def reply(self, frame: bytes) -> None:
        """Sends the answer and closes the connection."""
        try:
            self.connection.send(frame, _socket.MSG_DONTWAIT)
        except OSError:  # front stopped waiting and starts cold
            pass
        self.connection.close()


class _Door:
    """Answers callers without reading what they sent, and closes their connections in threads of its own.

    Closing a connection also closes the descriptors that were sent and not read, which can take for ever: SO_LINGER
    (socket(7)), a FUSE file. So no thread that answers requests closes such a connection.
    """

    _THREADS = 256

    def __init__(self) -> None:
        self._leaving: SimpleQueue[tuple[float, _socket.socket]] = SimpleQueue()
        self._moved = 0.0
        self._threads: set[threading.Thread] = set()

    def answer(self, connection: _socket.socket, frame: bytes) -> None:
        """Sends the answer at once, and has the connection closed once the caller has read it."""
        with contextlib.suppress(OSError):
            connection.send(frame, _socket.MSG_DONTWAIT)
        self._leaving.put((time.monotonic() + protocol.ANSWER_SECONDS, connection))

    def look_after(self) -> None:
        """Starts a thread where connections wait for one. Called by the main thread alone.

        A new thread has its root and working directory together with the one that starts it (clone(2), CLONE_FS), and a
        thread that answers requests could enter no mount namespace any more (setns(2)).
        """
        now = time.monotonic()
        stuck = now - self._moved > 3 * protocol.ANSWER_SECONDS and len(self._threads) < self._THREADS
        if not self._leaving.empty() and (stuck or not self._threads):
            self._moved = now
            thread = threading.Thread(target=self._close_all, name="door", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no more threads; the next call tries again
                self._threads.discard(thread)

    def _close_all(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                when, connection = self._leaving.get_nowait()
                if self._leaving.qsize() < CLIENTS:
                    time.sleep(max(0.0, when - time.monotonic()))
                connection.close()
                self._moved = time.monotonic()
        self._threads.discard(threading.current_thread())


class Job(NamedTuple):
    """A request that a thread answers."""

    client: Client
    request: Request
    given: int
    """The descriptor that came with it."""


class Clients:
    """The connections of one listening socket. Any thread may take a request. `status`: answers STATUS."""

    def __init__(
        self, listener: socket.socket, poll: select.epoll, counters: Counters, status: Callable[[], bytes]
    ) -> None:
        self._listener = listener
        self._listening = listener.fileno()
        self._poll = poll
        self._counters = counters
        self._status = status
        self._silent: dict[int, Client] = {}  # connections that have sent nothing yet, by descriptor
        self._lock = threading.Lock()
        self._own = threading.local()
        self._kernel = Kernel()
        self._door = _Door()
        listener.setblocking(False)
        poll.register(listener, _ONCE)

    def take(self, fd: int) -> Job | None:
        """Returns the request behind a descriptor that is ready, None if there is none yet."""
        if fd == self._listening:
            client = self._accepted()
        else:
            with self._lock:
                client = self._silent.pop(fd, None)
        return self._received(client) if client else None

    def expire(self) -> None:
        """Drops those that have sent no request within a second. Called by the main thread, now and then."""
        self._door.look_after()
        for client in self._taken_out(time.monotonic() - protocol.ANSWER_SECONDS):
            if client.unproven:  # it may have sent something by now
                self._turn_away(client)
            else:
                self._drop(client, "no request within a second")

    def close(self) -> None:
        """Closes the listening socket, and the connections that have sent no request."""
        self._listener.close()
        for client in self._taken_out(time.monotonic()):
            client.connection.close()

    def _taken_out(self, began: float) -> list[Client]:
        if not self._silent:
            return []
        with self._lock:
            old = [fd for fd, client in self._silent.items() if client.began <= began]
            return [self._silent.pop(fd) for fd in old]

    def _accepted(self) -> Client | None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # without what `accept` finds out again
        except OSError as error:  # no descriptor is free, for example; the connection stays in the backlog
            if not isinstance(error, BlockingIOError) and self._listener.fileno() >= 0:
                self._counters.dropped(describe(error))
                tell_unanswered(ERROR, 0, error=error)
                time.sleep(0.01)
            return None
        finally:
            with contextlib.suppress(OSError):  # `close` was called
                self._poll.modify(self._listening, _ONCE)
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size))
        if uid:  # a container's root can become another user, and reach the socket by CAP_DAC_OVERRIDE
            self._counters.dropped(f"uid {uid} is not root")
            tell_unanswered("not root", pid, uid)
            self._door.answer(connection, b"")
            return None
        try:
            umask = self._kernel.umask_of(connection, pid)
        except OSError as error:
            tell_unanswered(ERROR, pid, error=error)
            return Client(connection, pid, -1, ERROR)
        return Client(connection, pid, -1, CALLER) if umask is None else Client(connection, pid, umask)

    def _turn_away(self, client: Client) -> None:
        if client.unproven == CALLER:
            tell_unanswered(CALLER, client.pid)
        self._counters.answered(COLD, client.unproven, 0.0)
        self._door.answer(client.connection, protocol.cold(client.unproven))

    def _received(self, client: Client) -> Job | None:
        try:
            if not client.unproven:
                return self._job(client)
            self._answer_unproven(client)
        except BlockingIOError:
            self._wait_for(client)
        except Malformed as error:
            self._drop(client, str(error))
        except OSError as error:  # no descriptor is free, for example, also for the status
            if is_shortage(error) and not client.unproven:
                tell_unanswered(ERROR, client.pid, error=error)
                client.unproven = ERROR
            if client.unproven:
                self._turn_away(client)
            else:
                self._drop(client, describe(error))
        return None

    def _answer_unproven(self, client: Client) -> None:
        """Sends the status to a caller without proof. What it sent stays unread. Raises OSError."""
        flags = _socket.MSG_PEEK | _socket.MSG_DONTWAIT
        if client.connection.recv(len(protocol.STATUS) + 1, flags) == protocol.STATUS:
            self._door.answer(client.connection, self._status())
        else:
            self._turn_away(client)

    def _job(self, client: Client) -> Job | None:
        """The request, None for a status. Raises BlockingIOError before there is one; Malformed, OSError."""
        frame, fds, flags = self._read(client)
        try:
            if flags & _socket.MSG_TRUNC:
                raise Malformed("the request is too large")
            if not frame:
                raise Malformed("closed without a request")
            if frame == protocol.STATUS:
                client.reply(self._status())
                return None
            request = Request(frame)
            if not fds and flags & _socket.MSG_CTRUNC:  # it was sent, and no descriptor is free for it
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if len(fds) != 1:
                raise Malformed("the request has no descriptor")
            return Job(client, request, fds.pop())
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, client: Client) -> tuple[bytes, list[int], int]:
        """A frame, its descriptors, and the flags of recvmsg(2). Raises BlockingIOError, OSError."""
        if not hasattr(self._own, "buffer"):  # one for each thread: a new one for each request costs page faults
            self._own.buffer = bytearray(protocol.FRAME_LIMIT)
        size, controls, flags, _ = client.connection.recvmsg_into(
            [self._own.buffer], _socket.CMSG_LEN(_INT.size), _socket.MSG_DONTWAIT | _socket.MSG_CMSG_CLOEXEC
        )
        fds = [_INT.unpack_from(data)[0] for _, kind, data in controls if kind == _socket.SCM_RIGHTS]
        return bytes(memoryview(self._own.buffer)[:size]), fds, flags

    def _wait_for(self, client: Client) -> None:
        """Front has usually sent its request by the time its connection is accepted."""
        reason = "too many connections"
        with self._lock:
            if len(self._silent) < (CLIENTS // 2 if client.unproven else CLIENTS):
                register = self._poll.modify if client.polled else self._poll.register
                try:
                    register(client.connection.fileno(), _ONCE)  # an event is taken only behind this lock
                    client.polled = True
                    self._silent[client.connection.fileno()] = client
                    return
                except OSError as error:  # for example root's limit of epoll(7)
                    reason = describe(error)
        if client.unproven:
            self._turn_away(client)
        else:
            self._drop(client, reason)

    def _drop(self, client: Client, reason: str) -> None:
        client.connection.close()
        self._counters.dropped(reason)
        tell_unanswered(reason, client.pid)
