"""One request of front: the answer to it, by the functions that a cold start runs.

Each request is answered in a thread that shares neither root, working directory nor umask with the others (unshare(2),
CLONE_FS). So it stands where the caller stands, and can enter a container's mount namespace (setns(2)).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time

from hook import __version__, events
from hook.adapters import hook as hooks
from hook.adapters import runtime
from hook.adapters.caller import STATE, Caller
from hook.adapters.cmdline import Invocation
from hook.adapters.exec import correct_exec
from hook.adapters.options import Options
from hook.adapters.state import STATE_JSON, STATUS, bundle_of, from_state_json, from_status
from hook.agent import protocol
from hook.agent.kept import Kept
from hook.agent.protocol import HOOK, Request
from hook.base.errors import Refused, Usage, describe
from hook.base.system import Untrusted, append_line, replace_file, trusted
from hook.base.text import message
from hook.linux.look import look
from hook.linux.lookdevices import look_at_devices
from hook.linux.mountns import open_plain, own_directories
from hook.policy import store
from hook.policy.model import Policy
from hook.reserve.env import Reserved

_SECONDS = protocol.SECONDS * 0.9
"""After which nothing is changed any more: front is about to start cold."""

_LARGEST = 4 << 20
"""Bytes of a file of a container's. Nobody else is to wait while a larger one is parsed; a cold start does that."""

_LARGEST_CHECKPOINT = 32 << 20

_DECISIONS = 4096
"""Containers of which a decision is kept."""

LOADED = (correct_exec, look, look_at_devices)
"""What adapters load when they need it is loaded before the first request."""

_WARM_STAGES = (hooks.PRESTART, hooks.CREATE_RUNTIME, hooks.POSTSTOP)


class GoCold(BaseException):  # no `except Exception` on the way may take it for a container's error
    """The agent does not answer this one."""


class Memory:
    """What is kept between requests. Only of one policy in one store."""

    def __init__(self, source: str, directory: str, event_log: str) -> None:
        self.source = source
        self.directory = directory
        self.events = event_log
        self.stores: Kept[store.Stored | None] = Kept(1)
        self.checkpoints: Kept[bytes] = Kept(2)
        self.bundles: Kept[str] = Kept(_DECISIONS)
        self.decisions: Kept[Reserved | None] = Kept(_DECISIONS)
        self._policy: tuple[object, Policy] | None = None

    def policy(self) -> Policy:
        """The policy in force. Raises GoCold where it is to be compiled first."""
        problem, key = store.source_key(self.source)
        path = store.store_path(self.source, self.directory)
        try:
            trusted(path)
        except (Untrusted, OSError) as error:
            raise GoCold(describe(error)) from None
        stored = self.stores.get(path, lambda: store.read_store(self.source, self.directory))
        if stored is None or (not problem and not stored.has_compiled(key)):
            raise GoCold("the policy is not compiled")
        state = (stored, problem, tuple(key))
        last = self._policy
        if last is not None and last[0] == state:
            return last[1]
        policy = stored.policy(self.source, key, problem)
        self._policy = (state, policy)
        return policy


class Asking(Caller):
    """The process that front is in. `given`: the descriptor that came with the request."""

    __slots__ = ("_connection", "_deadline", "_given", "_memory", "_said")

    def __init__(self, memory: Memory, request: Request, connection: socket.socket, given: int, began: float) -> None:
        super().__init__({b"XDG_RUNTIME_DIR": request.runtime_directory} if request.runtime_directory else {})
        self._memory = memory
        self._connection = connection
        self._given = given
        self._deadline = began + _SECONDS
        self._said: list[str] = []

    def said(self) -> str:
        """What is for the caller's standard error."""
        return "".join(self._said)

    def still_waits(self) -> None:
        """Raises GoCold if front has started cold, or is about to."""
        if time.monotonic() > self._deadline:
            raise GoCold("too late")
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        if poll.poll(0):
            raise GoCold("nobody waits")

    def say(self, text: str) -> None:
        """As the cold start says it."""
        self._said.append(f"reassert: {message(text)}\n")

    def policy(self, options: Options) -> Policy:
        """The policy in force; its source and store are the agent's own (`answer`)."""
        return self._memory.policy()

    def state(self) -> bytes:
        """Of the copy of stdin that front made, without moving its offset: a cold start may have to read it."""
        size = os.fstat(self._given).st_size
        if size > _LARGEST:
            raise GoCold(f"{STATE} is large")
        return os.pread(self._given, size, 0)

    def parents_arguments(self) -> list[str]:
        """Of the agent's own parent they would be."""
        raise GoCold("the bundle is on the runtime's command line")

    def config(self, path: str) -> bytes:
        """As the cold start reads it, unless it is large."""
        plain(path)
        _small(path, _LARGEST)
        return super().config(path)

    def process_file(self, path: str) -> tuple[bytes, bool]:
        """As the cold start reads it; a pipe can be read only once, and by the process that has it."""
        plain(path)
        if os.path.lexists(path) and (not os.path.isfile(path) or os.path.islink(path)):
            raise GoCold("the process file is no regular file")
        _small(path, _LARGEST)
        return super().process_file(path)

    def bundle(self, container_id: str, root: str | None, real: str) -> str:
        """As the cold start finds it, behind the keys of the real runtime's records."""
        kept = self._memory.bundles

        def recorded(base: str) -> str:
            if not base.startswith("/"):
                raise GoCold("--root is relative")
            return kept.get(base + STATE_JSON, lambda: from_state_json(base)) or kept.get(
                base + STATUS, lambda: from_status(base)
            )

        return bundle_of(container_id, root, real, self.environment, recorded)

    def decided(self, config: str) -> Reserved | None:
        """Behind the key of config.json."""
        if not config.startswith("/"):
            raise GoCold("the bundle is relative")
        plain(config)
        return self._memory.decisions.get(config, lambda: super(Asking, self).decided(config))

    def checkpoint(self, path: str, limit: int) -> bytes:
        """Behind its key."""
        _small(path, min(limit, _LARGEST_CHECKPOINT))
        return self._memory.checkpoints.get(path, lambda: super(Asking, self).checkpoint(path, limit))

    def replace(self, path: str, data: bytes) -> None:
        """Only while front waits: it is told the temporary file, and takes it away if it starts cold."""
        try:
            replace_file(path, data, before_rename=self._announce)
        except FileNotFoundError:
            self.still_waits()
            raise

    def _announce(self, temporary: str) -> None:
        self.still_waits()
        if len(os.fsencode(temporary)) >= os.pathconf("/", "PC_PATH_MAX"):
            raise GoCold("the path is too long for front")
        try:
            self._connection.send(protocol.temporary(temporary))
        except OSError:
            raise GoCold("nobody waits") from None

    def before_mounting(self) -> None:
        """What is to be mounted in a container, a cold start mounts: nothing may come late there."""
        raise GoCold("something is to be mounted")

    def log_event(self, path: str, event: dict[str, object]) -> None:
        """As the cold start writes it, if that one is not going to."""
        self.still_waits()
        events.write(path, event)

    def append(self, path: str, line: bytes) -> None:
        """As the cold start appends it, if that one is not going to."""
        self.still_waits()
        append_line(path, line, 0o644)


def answer(memory: Memory, request: Request, connection: socket.socket, given: int, began: float) -> bytes:
    """The frame that answers a request, in a thread of its own. Raises GoCold. Any error means cold too."""
    if request.version != __version__:
        raise GoCold(f"front is {request.version}, the agent {__version__}")
    if (request.policy, request.store, request.events) != (memory.source, memory.directory, memory.events):
        raise GoCold("the agent has another policy, store or event log")
    own_directories()
    os.umask(request.umask)
    caller = Asking(memory, request, connection, given, began)
    if request.kind == HOOK:
        return _of_hook(request, caller)
    os.fchdir(given)
    return _of_runtime(request, caller)


def _of_hook(request: Request, caller: Asking) -> bytes:
    try:
        options = hooks.options_of([*_where(request), *request.arguments])
    except Usage as error:
        raise GoCold(str(error)) from None
    if options.operands[0] not in _WARM_STAGES:
        raise GoCold(f"a hook at {options.operands[0]}")
    status = hooks.run(options, caller)
    return _ended(caller, status) if status else protocol.go()


def _of_runtime(request: Request, caller: Asking) -> bytes:
    try:
        more = ["--hook", request.hook] if request.hook else []
        options = Options(["--real", request.real, *_where(request), *more], ("real", "hook"))
    except Usage as error:
        raise GoCold(str(error)) from None
    invocation = Invocation(request.arguments)
    if invocation.starts_nothing():
        return protocol.go()
    _check_paths(invocation)
    try:
        arguments = runtime.passed_on(options, invocation, caller)
    except Refused as error:
        return _ended(caller, runtime.refuse(invocation, str(error), caller))
    if arguments == request.arguments:
        return protocol.go()
    frame = protocol.changed(arguments)
    if len(frame) > protocol.LIMIT or len(arguments) > protocol.ARGUMENTS:
        raise GoCold("the arguments are too many")
    return frame


def _ended(caller: Asking, status: int) -> bytes:
    caller.still_waits()
    return protocol.refused(status, caller.said())


def _where(request: Request) -> list[str]:
    return ["--policy", request.policy, "--store", request.store, "--events", request.events]


def _check_paths(invocation: Invocation) -> None:
    """Paths that mean something else here than in the caller's process: /proc/self, /dev/stdin. Raises GoCold."""
    log = (invocation.global_value("log") or "").removeprefix("file:")
    paths = [invocation.value("process"), invocation.global_value("root"), log]
    if invocation.verb != "exec":
        paths.append(runtime.config_path(invocation))
    for path in paths:
        if path:
            plain(path)


def plain(path: str) -> None:
    """Raises GoCold for a path that depends on the process which follows it; what is missing, does not."""
    for place in (path, os.path.dirname(path) or "."):
        try:
            fd = open_plain(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                continue
            raise GoCold(f"{path} is not a plain path") from None
        try:
            if os.fstat(fd).st_dev in (os.stat("/proc").st_dev, os.stat("/dev").st_dev):
                raise GoCold(f"{path} is in /proc or /dev")
        finally:
            os.close(fd)
        return


def _small(path: str, limit: int) -> None:
    try:
        size = os.stat(path).st_size
    except OSError:
        return
    if size > limit:
        raise GoCold(f"{path} is large")
