"""One connection to a runtime: registration, then its requests, each answered before the runtime's deadline.

A runtime disconnects a plugin that misses the deadline once, and then starts every container without it. A request can
take long, for example while a file system hangs or a policy is compiled. Then another thread reads the next requests.
If the deadline comes close, a further thread answers with an error, which refuses only this container; the failure
policy or Audit mode may let it start.
"""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from hook.core.base.errors import describe
from hook.nri import ttrpc
from hook.nri.creation import REMOVES_MOUNTS, SENDS_CDI, VALIDATES, Decider, version_at_least
from hook.nri.report import CONNECTED, DISCONNECTED, RELIEVED, VIOLATION
from hook.nri.request import CREATE, MOST, QUIET, VALIDATE, Reply, Request
from hook.nri.ttrpc import PLUGIN, RUNTIME, Violation, frames

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
CREATE_CONTAINER_EVENT = 1 << (4 - 1)
VALIDATE_EVENT = 1 << (14 - 1)
"""VALIDATE_CONTAINER_ADJUSTMENT. A runtime that does not know the bit refuses the plugin."""

_TIMEVAL = struct.Struct("ll")
_CreateContainerRequest = ttrpc.get("CreateContainerRequest")
_ValidateContainerAdjustmentRequest = ttrpc.get("ValidateContainerAdjustmentRequest")

TICK = 0.1
RELIEF = 0.2
"""Seconds that a request may take before another thread reads the next requests."""

DEADLINE = 1.5
"""Seconds within which the plugin answers; the runtime's default limit is 2."""

_EMPTY = ("StateChange", "UpdateContainer", "StopContainer", "Shutdown")
"""Calls that the plugin does not subscribe to. It answers them with an empty message."""

_LATER = (
    *("RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox", "StopPodSandbox", "RemovePodSandbox"),
    *("PostCreateContainer", "StartContainer", "PostStartContainer", "PostUpdateContainer", "RemoveContainer"),
)
"""Calls that NRI added after 0.9 (0.12, api.proto). A runtime that gets UNIMPLEMENTED assumes an older plugin."""

NRI_VERSION = "v0.12.0"
"""The version of NRI whose messages the plugin speaks. Runtimes from 0.12 on log it."""

REFUSALS = 2
"""After so many connections that a runtime ended right after the plugin subscribed, it subscribes to no validation."""


class Limits(NamedTuple):
    """Limits of a connection."""

    quiet: int = QUIET
    """See QUIET."""
    registration: float = 8.0
    """Seconds within which a runtime has to configure the plugin; the runtime's own limit is 5."""
    threads: int = 64
    """How many requests may be stuck at once; with more, no thread reads requests, so the runtime's limit for an answer
    applies."""
    unheld: float = 30.0
    """Seconds for which the event about a container waits for ValidateContainerAdjustment: the plugins behind may each
    take the runtime's limit."""


class Plugin:
    """The plugin on one connection. `run` returns when the connection ends, for any reason."""

    def __init__(
        self,
        connection: socket.socket,
        decider: Decider,
        *,
        name: str,
        index: str,
        limits: Limits = Limits(),  # noqa: B008  # immutable
    ) -> None:
        self._limits = limits
        self._socket = connection
        self._decider = decider
        self._events = decider.pending
        self._report = decider.report
        self._name = name
        self._index = index
        self._streams = ttrpc.Streams()
        self._waiting: deque[tuple[int, ttrpc.Message]] = deque()
        self._limited = False
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._serving: Request | None = None
        self.stuck: list[Request] = []
        self._closed = threading.Event()
        self._ending = threading.Lock()
        self._subscribed = False
        self._runtime = ""
        self.configured = threading.Event()
        self.connected = threading.Event()
        self._registered = ""  # with which runtime
        self.on_configure: Any = lambda text: None
        self.on_connected: Any = lambda: None
        self.on_tick: Any = lambda healthy: None

    def run(self) -> None:
        """Register and serve until the connection ends."""
        started = time.monotonic()
        try:
            request = ttrpc.get("RegisterPluginRequest")(
                plugin_name=self._name, plugin_idx=self._index, NRI_version=NRI_VERSION
            )
            self._send(RUNTIME, ttrpc.call(1, RUNTIME_SERVICE, "RegisterPlugin", request))
            self._start_reader()
            while not self._closed.wait(TICK):
                self._watch_reader()
                if self._events.release(self._limits.unheld):
                    self._events.write_aside()
                self.on_tick(len(self.stuck) < self._limits.threads)
                if not self.configured.is_set() and time.monotonic() - started > self._limits.registration:
                    self._end("the runtime did not configure the plugin in time")
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._end(describe(error))
        finally:
            self._socket.close()
            if self._subscribed:  # and no request followed
                self._decider.unwanted[self._runtime] += 1
            self._events.finish(1.0)
            if self.connected.is_set():
                self._report.metrics.connected(False)

    # -- threads

    def _start_reader(self) -> None:
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
        self._reader.start()

    def _watch_reader(self) -> None:
        """Replace a reader that is stuck in a request, and answer requests whose deadline has passed."""
        now = time.monotonic()
        with self._lock:
            request = self._serving
            if request and now - request.started > RELIEF and len(self.stuck) < self._limits.threads:
                self.stuck.append(request)
                self._serving = None
                self._start_reader()
            elif request and now > request.deadline and request not in self.stuck:
                self.stuck.append(request)
            late = [each for each in self.stuck if now > each.deadline and not each.is_answered()]
        for each in late:
            threading.Thread(target=self._answer_late, args=(each,), name="late", daemon=True).start()

    def _answer_late(self, request: Request) -> None:
        """Answer in place of the stuck thread. Runs in its own thread, since the log or the socket may hang too."""
        try:
            if request.method in (CREATE, VALIDATE):
                answered = self._reply(request, self._decider.too_late(request))
            else:
                answered = self._answer(request, ttrpc.get("Empty"))
            if answered:
                self._events.write()
                self._decider.tell(RELIEVED, "error", f"{request.method} takes too long", id=request.container)
        except OSError as error:
            self._end(describe(error))

    def _read(self) -> None:
        """Read and serve requests until another thread replaces this one as the reader."""
        this = threading.current_thread()
        try:
            while self._reader is this and not self._closed.is_set():
                count = self._events.count()
                if count >= MOST or not (self._waiting or self._receive(count > 0)):
                    self._tell()
                elif self._waiting:
                    self._handle(*self._waiting.popleft())
        except EOFError:
            self._end("the runtime closed the connection")
        except Violation as error:
            self._violated(str(error))
        except OSError as error:
            self._end(describe(error))
        except Exception as error:  # a bug in reassert: close the connection, keep the process
            self._violated(describe(error))
        finally:
            self._events.write()

    def _tell(self) -> None:
        """Write events. If this takes long, another thread reads the next requests."""
        request = self._serving = Request("", limit=math.inf)
        request.claim()
        try:
            self._events.write()
        finally:
            self._done(request)

    def _receive(self, events_wait: bool) -> bool:
        """Wait for bytes and add the messages that they complete to those that wait. Raises EOFError.

        False after QUIET milliseconds without any if events wait. The socket has this limit itself (SO_RCVTIMEO), so a
        request needs one system call, and not a poll(2) before it.
        """
        if events_wait is not self._limited:
            limit = self._limits.quiet if events_wait else 0  # 0: none
            seconds = _TIMEVAL.pack(limit // 1000, limit % 1000 * 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            self._limited = events_wait
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        self._waiting += self._streams.feed(data)
        return True

    def _handle(self, stream: int, message: ttrpc.Message) -> None:
        if stream == RUNTIME:
            response = ttrpc.read_response(message)
            if response.status.code:
                raise Violation(f"the runtime refused to register the plugin: {response.status.message}")
            return
        call = ttrpc.read_request(message)
        limit = min(DEADLINE, call.timeout_nano / 1e9 * 0.75) if call.timeout_nano > 0 else DEADLINE
        request = self._serving = Request(call.method, message.stream, limit)
        try:
            if message.skipped:
                self._serve_unread(request, message.skipped)
            else:
                self._serve(request, call)
        finally:
            self._done(request)

    def _done(self, request: Request) -> None:
        with self._lock:
            if self._serving is request:
                self._serving = None
            if request in self.stuck:  # if `threads` threads are stuck, one thread can be both
                self.stuck.remove(request)

    def _send(self, stream: int, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(frames(stream, data))

    # -- the Plugin service

    def _serve(self, request: Request, call: Any) -> None:
        if call.service != SERVICE:
            raise Violation(f"a call of the unknown service {call.service!r}")
        if self._subscribed and request.method != "Configure":
            self._subscribed = False  # the runtime accepted the subscription
            self._decider.unwanted[self._runtime] = 0
        if request.method == CREATE:
            argument = ttrpc.parse(_CreateContainerRequest, call.payload)
            container = argument.container
            request.container = container.id
            self._reply(request, self._decider.create(request, argument.pod, container))
        elif request.method == VALIDATE:
            argument = ttrpc.parse(_ValidateContainerAdjustmentRequest, call.payload)
            request.container = argument.container.id
            self._reply(request, self._decider.validate(request, argument))
        else:
            self._events.write()
            self._serve_other(request, call)

    def _serve_other(self, request: Request, call: Any) -> None:
        if request.method == "Configure":
            configure = ttrpc.parse(ttrpc.get("ConfigureRequest"), call.payload)
            self._answer(request, lambda: self._configure(configure))
        elif request.method == "Synchronize":
            synchronize = ttrpc.parse(ttrpc.get("SynchronizeRequest"), call.payload)
            self._answer(request, lambda: self._synchronize(synchronize))
        elif request.method in _EMPTY:
            self._answer(request, ttrpc.get("Empty"))
        elif request.method in _LATER:
            text = "reassert did not subscribe to this call"
            self._send(PLUGIN, ttrpc.refusal(request.stream, ttrpc.UNIMPLEMENTED, text))
        else:
            raise Violation(f"a call of the unknown method {request.method!r}")

    def _serve_unread(self, request: Request, size: int) -> None:
        """Answer a request that is too large to be read: a container is refused, as containerd 2.x does itself."""
        why = f"a message of {size} bytes; the limit is {ttrpc.MESSAGE_LIMIT}"
        if request.method in (CREATE, VALIDATE):
            self._reply(request, self._decider.unread(why))
            return
        if request.method == "Synchronize":
            self._synchronized()
        self._answer(request, ttrpc.get("Empty"))

    def _reply(self, request: Request, reply: Reply) -> bool:
        """Answer for a container, unless another thread has. Its event is written soon afterwards (`PendingEvents`)."""
        if reply.refusal and request.method == VALIDATE:
            data = ttrpc.rejection(request.stream, reply.refusal)
        elif reply.refusal:
            data = ttrpc.refusal(request.stream, ttrpc.PERMISSION_DENIED, reply.refusal)
        else:
            data = ttrpc.answer(request.stream, reply.payload)
        if not request.claim(reply):
            return False
        first = self._events.take(request.container) if request.method == VALIDATE else None
        if reply.is_repeated and not reply.refusal:
            reply.first = first
        held = request.method == CREATE and self._decider.validates and not reply.refusal
        if held:  # before the answer is sent: another thread may read the next request at once
            self._events.hold(request)
        try:
            self._send(PLUGIN, data)
        except OSError:
            self._events.take(request.container)  # the runtime was asked for nothing
            raise
        if not held:
            self._events.add(request)
        return True

    def _answer(self, request: Request, make: Callable[[], Any]) -> bool:
        """Answer unless another thread has; whether it was sent."""
        try:
            data = ttrpc.answer(request.stream, ttrpc.serialize(make()))
        except Exception as error:
            data = ttrpc.refusal(request.stream, ttrpc.UNKNOWN, f"reassert: {describe(error)}")
        claimed = request.claim()
        if claimed:
            self._send(PLUGIN, data)
        return claimed

    def _configure(self, request: Any) -> Any:
        engine, version = request.runtime_name, request.runtime_version
        self._decider.engine = engine
        self._decider.removes_mounts = version_at_least(engine, version, REMOVES_MOUNTS)
        self._decider.sends_cdi = version_at_least(engine, version, SENDS_CDI)
        self._runtime = f"{engine} {version}"
        # From NRI 0.12 on the runtime says which version it has.
        known = bool(request.NRI_version) or version_at_least(engine, version, VALIDATES)
        self._subscribed = self._decider.validates = known and self._decider.unwanted[self._runtime] < REFUSALS
        self.on_configure(request.config)
        checks = "the changes of all plugins are checked" if self._subscribed else "later plugins are not checked"
        self._registered = f"registered with {self._runtime} as {self._index}-{self._name}; {checks}"
        self.configured.set()
        wanted = CREATE_CONTAINER_EVENT | (VALIDATE_EVENT if self._subscribed else 0)
        return ttrpc.get("ConfigureResponse")(events=wanted)

    def _synchronized(self) -> None:
        """Say that the runtime asks for each container from now on: it creates none until it has this answer."""
        if not self.connected.is_set():
            self._decider.tell(CONNECTED, "info", self._registered)
            self._report.metrics.connected(True)
            self.connected.set()
            self.on_connected()

    def _synchronize(self, request: Any) -> Any:
        """Answer: the list of running containers needs no adjustment. A long list comes in several requests."""
        if not request.more:
            self._synchronized()
        return ttrpc.get("SynchronizeResponse")(more=request.more)

    # -- the end

    def _violated(self, message: str) -> None:
        self._report.metrics.error("violation")
        self._decider.tell(VIOLATION, "error", message)
        self._end("", logged=True)

    def _end(self, message: str, logged: bool = False) -> None:
        """End the connection and write one event. Only the first call has an effect."""
        if not self._ending.acquire(blocking=False):
            return
        if not logged:
            self._decider.tell(DISCONNECTED, "warning", message)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # before `run` closes it: wakes the reading thread
        except OSError:
            pass
        self._closed.set()
