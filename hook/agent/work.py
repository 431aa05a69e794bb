"""The answer to one request of front, made by the functions that a cold start runs.

Each request is answered in a thread with its own root, working directory and umask (unshare(2), CLONE_FS). So the
thread can use the caller's working directory, and can enter a container's mount namespace (setns(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time

from hook import __version__
from hook.agent import answers
from hook.agent.answers import Fallback
from hook.agent.clients import Client
from hook.agent.memory import Memory
from hook.core import events
from hook.core.base.errors import Refused, Usage
from hook.core.base.system import (
    OWN_STDERR,
    hooks_stderr,
    is_file,
    is_link,
    read_fd,
    replace_file,
    stat_of,
    temporary_of,
)
from hook.core.base.text import message
from hook.core.container.identity import Identity
from hook.core.container.runtime_records import (
    STATE_JSON,
    STATUS,
    bundle_from,
    bundle_of,
    from_sandbox,
)
from hook.core.container.spec import CONFIG_LIMIT
from hook.core.decide import Case
from hook.core.facts import cri
from hook.core.linux.mountns import open_plain
from hook.core.policy.model import Policy
from hook.core.reserve.reserved_env import Reserved
from hook.core.verdict import Verdict
from hook.entry import hook as hooks
from hook.entry import process, protocol, runtime
from hook.entry.caller import WRAPPER, Options
from hook.entry.cmdline import Invocation
from hook.entry.protocol import HOOK, Request
from hook.entry.runtime import refuse
from hook.resident.service import tell_undecided

_SECONDS = protocol.ANSWER_SECONDS * 0.9
"""The age of a request from which the agent changes nothing for it: front is about to start cold."""

_LARGEST = 4 << 20
"""The largest file of a container in bytes. Parsing a larger file would delay other requests; a cold start does it."""

_LARGEST_WRITTEN = 256 << 10
"""The largest file that is replaced, in bytes. /run is a tmpfs: its pages count for the memory of who writes them, here
the agent's (memory.high in its unit), until the container's bundle is removed. A cold start writes larger ones."""

_ENTRIES = 10_000
"""The most entries of a file: each is examined, and other threads run only in between. A usual
config.json has 1,500, most of them system calls in the seccomp profile."""

_CPU = 0.02
"""Seconds of CPU time for one request. Python runs one thread at a time, so others wait that long at most for it."""

_LARGEST_CHECKPOINT = 32 << 20

_ANSWERS, _LONGEST = 1024, 8192
"""The most answers of CRI that are cached, and the most characters of one, which a pod's author chooses. Neither the
labels of a sandbox nor the annotations of a container ever change in CRI."""

_DISPATCHERS = 64
"""The most real runtimes whose options are cached."""

_NOT_PLAIN = (errno.ELOOP, errno.ENOSYS, errno.EPERM)
"""Errors of openat2(2): a magic link is part of the path, or systemd's system call filter does not know the call."""

_WARM_STAGES = (hooks.PRESTART, hooks.CREATE_RUNTIME, hooks.POSTSTOP)


class Asking(hooks.HookCaller, process.ExecCaller):
    """The process that runs front. `given`: the descriptor that came with the request."""

    __slots__ = ("_connection", "_cpu", "_deadline", "_given", "_held", "_log", "_memory", "_pid", "_replaced", "_said")

    def __init__(self, memory: Memory, request: Request, client: Client, given: int) -> None:
        directory = request.runtime_directory
        super().__init__(_options(memory, request, client.pid), {b"XDG_RUNTIME_DIR": directory} if directory else {})
        self.name = hooks.ADAPTER if request.kind == HOOK else WRAPPER
        self._memory = memory
        self._connection = client.connection
        self._pid = client.pid
        self._given = given
        self._deadline = client.began + _SECONDS
        self._cpu = time.thread_time() + _CPU
        self._said: list[str] = []
        self._held: tuple[str, int, os.stat_result] | None = None  # config.json, opened
        self._log = ""  # the runtime's --log
        self._replaced = ""  # path of a file that this request replaced, after `plain` had opened it
        self.started = {"start": "warm"}
        self.known = memory.known

    def said(self) -> str:
        """Returns the lines for the caller's standard error."""
        return "".join(self._said)

    def still_waits(self) -> None:
        """Raises Fallback if front has stopped waiting or is about to, or if other threads have waited long enough.

        Not once a file is replaced: its event is written. A cold start finds the corrected file, and has no event.
        """
        if not self._replaced:
            self._waits()

    def _waits(self) -> None:
        if time.monotonic() > self._deadline:
            raise Fallback(answers.LATE)
        if time.thread_time() > self._cpu:
            raise Fallback(answers.LONG)
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        if poll.poll(0):
            raise Fallback(answers.LATE)

    def say(self, text: str, is_hook: bool = False) -> None:
        """Adds a line for the caller's standard error, with the words of a cold start."""
        line = f"reassert: {message(text)}\n"
        stderr = hooks_stderr(self._pid) if is_hook else OWN_STDERR
        if stderr == OWN_STDERR:
            self._said.append(line)
        elif stderr >= 0:
            with open(stderr, "wb", buffering=0) as file, contextlib.suppress(OSError):
                file.write(line.encode())

    def policy(self) -> Policy:
        """Returns the policy in force. `answer` has checked that the caller names the agent's own policy and store."""
        return self._memory.policy()

    def state(self) -> bytes:
        """Returns the content of front's copy of stdin. The offset stays: a cold start may read the copy after this."""
        size = os.fstat(self._given).st_size
        if size > _LARGEST:
            raise Fallback(answers.SIZE)
        data = _few(os.pread(self._given, size, 0))
        _check_probe(data.decode("utf-8", "replace"))
        return data

    def parents_arguments(self) -> list[str]:
        """Raises Fallback: the agent's parent is not the runtime."""
        raise Fallback(answers.BUNDLE)

    def runtimes_arguments(self) -> list[str]:
        """Returns the arguments of front's parent."""
        try:
            parent = stat_of(self._pid)[1]
            with open(f"/proc/{parent}/cmdline", "rb") as file:
                return file.read(CONFIG_LIMIT).decode("utf-8", "surrogateescape").split("\0")[1:-1]
        except OSError:
            return []

    def config(self, path: str) -> bytes:
        """Returns a container's config.json. Raises Fallback if it is too large, and as a cold start does."""
        if path == self._replaced:
            return super().config(path)
        try:
            if self._held and self._held[0] == path:
                (_, fd, status), self._held = self._held, None
            else:
                fd, status = self._opened(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # the same, with the words of a cold start
            self.plain(path)
            return super().config(path)
        try:
            if not is_file(status):
                return super().config(path)
            if status.st_size > _LARGEST:
                raise Fallback(answers.SIZE)
            return _few(read_fd(fd, CONFIG_LIMIT, path, status.st_size))
        finally:
            os.close(fd)

    def check_paths(self, invocation: Invocation) -> None:
        """Raises Fallback for paths that differ between the caller and the agent, such as /proc/self and /dev/stdin.

        The --log counts only for a refusal (`check_log`).
        """
        self._log = (invocation.global_value("log") or "").removeprefix("file:")
        if invocation.verb not in ("create", "run", "restore"):
            for path in (invocation.value("process"), invocation.global_value("root")):
                if path:
                    self.plain(path)
            return
        config = runtime.config_path(invocation)
        if invocation.value("config"):  # crun: the bundle, to which a relative root.path belongs, may be elsewhere
            self.plain(invocation.value("bundle") or ".")
        try:
            self._held = (config, *self._opened(config, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            self.plain(config)

    def check_log(self) -> None:
        """Raises Fallback if the --log is another file for the caller."""
        if self._log:
            self.plain(self._log)

    def close(self) -> None:
        """Closes what is still open."""
        if self._held:
            os.close(self._held[1])

    def plain(self, path: str) -> None:
        """Raises Fallback for a path whose target depends on the process that opens it, but not for a missing file."""
        for way in (path, path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")):
            try:
                os.close(self._opened(way, os.O_PATH)[0])
                return
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _opened(self, path: str, flags: int) -> tuple[int, os.stat_result]:
        """Opens a file. Raises Fallback as `plain`, FileNotFoundError, NotADirectoryError."""
        try:
            fd = open_plain(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            if error.errno in _NOT_PLAIN:
                raise Fallback(answers.PATH) from None
            raise Fallback(answers.ERROR) from error
        status = os.fstat(fd)
        if status.st_dev in self._memory.own_trees:
            os.close(fd)
            raise Fallback(answers.PATH)
        return fd, status

    def process_file(self, path: str) -> tuple[bytes, bool]:
        """Returns what a cold start reads. Raises Fallback for a pipe: the cold start could not read it again."""
        try:
            fd, status = self._opened(path, os.O_PATH)
        except OSError:  # the same, with the words of a cold start
            self.plain(path)
            return super().process_file(path)
        os.close(fd)
        if not is_file(status) or is_link(path):
            raise Fallback(answers.PIPE)
        if status.st_size > _LARGEST:
            raise Fallback(answers.SIZE)
        data, is_pipe = super().process_file(path)
        return _few(data), is_pipe

    def resources(self, path: str) -> bytes:
        """Raises Fallback: the real runtime gets corrected resources through a descriptor of its own."""
        raise Fallback(answers.PIPE)

    def bundle(self, container_id: str, root: str | None, real: str) -> str:
        """Returns a container's bundle, cached while the real runtime's state file is unchanged."""
        kept = self._memory.bundles

        def recorded(base: str) -> str:
            if not base.startswith("/"):
                raise Fallback(answers.PATH)
            return (
                kept.get(base + STATE_JSON, lambda: bundle_from(base, STATE_JSON))
                or kept.get(base + STATUS, lambda: bundle_from(base, STATUS))
                or from_sandbox(base)
            )

        return bundle_of(container_id, root=root, real=real, environment=self.environment, recorded=recorded)

    def decided(self, config: str) -> Reserved | None:
        """Returns what was decided at the create, cached while config.json is unchanged."""
        if not config.startswith("/"):
            raise Fallback(answers.PATH)
        self.plain(config)
        return self._memory.decisions.get(config, lambda: super(Asking, self).decided(config))

    def read(self, path: str, limit: int) -> bytes:
        """Returns kubelet's device checkpoint, cached while the file is unchanged."""
        with contextlib.suppress(OSError):
            if os.stat(path).st_size > min(limit, _LARGEST_CHECKPOINT):
                raise Fallback(answers.SIZE)
        return self._memory.checkpoints.get(path, lambda: super(Asking, self).read(path, limit))

    def ask(self, directory: str, method: str, asked_id: str, identity: Identity) -> dict[str, str] | None:
        """Asks as a cold start does, and caches the answers by container. Raises Fallback without one in time."""
        kept = self._memory.answers
        found = kept.get((method, asked_id))
        if found is None:
            try:
                found = cri.asked(directory, method, asked_id, identity, seconds=self._deadline - time.monotonic())
            except TimeoutError:
                raise Fallback(answers.LATE) from None
            if found is not None and sum(len(key + value) for key, value in found.items()) <= _LONGEST:
                while len(kept) >= _ANSWERS:
                    kept.pop(next(iter(kept), ("", "")), None)
                kept[method, asked_id] = found
        return found

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file while front waits. A cold start removes the temporary file, so that it cannot come later."""
        if len(data) > _LARGEST_WRITTEN:
            raise Fallback(answers.SIZE)
        try:
            replace_file(path, data, temporary=temporary_of(path, self._pid), before_rename=self.still_waits)
            self._replaced = path
        except FileNotFoundError:
            self.still_waits()
            raise
        except FileExistsError as error:  # of an earlier process with this pid
            raise Fallback(answers.ERROR) from error

    def before_mounting(self) -> None:
        """Raises Fallback: only a cold start mounts, because an agent that is late could mount after front gave up."""
        raise Fallback(answers.MOUNT)

    before_placing = before_waiting = before_mounting

    def report(self, case: Case, verdict: Verdict) -> None:
        """Writes the event. Raises Refused if the verdict is a refusal; Fallback, if it cannot be appended to --log."""
        if verdict.refusal:
            self.check_log()
        if verdict.event:
            tell_undecided(verdict.event)
        super().report(case, verdict)

    def count(self, case: Case, is_exec: bool = False) -> None:
        """Counts a container that needed nothing, or an exec, in this process, while front waits.

        Also once a file is replaced: the start is cold then, and finds nothing to correct.
        """
        self._waits()
        self._memory.starts.add(self.options, case, is_exec)


def answer(memory: Memory, request: Request, client: Client, given: int) -> bytes:
    """Returns the frame that answers a request. Raises Fallback; any other error means cold too.

    In a thread with its own root, working directory and umask (`own_directories`).
    """
    if request.version != __version__:
        raise Fallback(answers.VERSION)
    if (request.policy, request.store, request.events) != (memory.source, memory.directory, memory.events):
        raise Fallback(answers.OPTIONS)
    os.umask(client.umask)
    caller = Asking(memory, request, client, given)
    if request.kind == HOOK:
        return _of_hook(request, caller)
    os.fchdir(given)
    try:
        return _of_runtime(request, caller)
    finally:
        caller.close()


def _of_hook(request: Request, caller: Asking) -> bytes:
    options = caller.options
    if caller.stage not in _WARM_STAGES:
        raise Fallback(answers.STAGE)
    if options.config.rpartition("/")[0] != options.bundle:
        caller.plain(options.bundle)
    status = hooks.run(caller)
    return _ended(caller, status) if status else protocol.go()


def _of_runtime(request: Request, caller: Asking) -> bytes:
    invocation = Invocation(request.arguments)
    _check_probe(invocation.container_id)
    caller.check_paths(invocation)
    try:
        arguments = runtime.passed_on(invocation, caller)
    except Refused as error:
        caller.check_log()
        return _ended(caller, refuse(invocation, str(error), caller))
    if arguments == request.arguments:
        return protocol.go()
    frame = protocol.changed(arguments)
    if len(frame) > protocol.FRAME_LIMIT or len(arguments) > protocol.ARGUMENTS:
        raise Fallback(answers.SIZE)
    return frame


def _ended(caller: Asking, status: int) -> bytes:
    caller.still_waits()
    return protocol.refused(status, caller.said())


def _options(memory: Memory, request: Request, pid: int) -> Options:
    """Returns the options of front, which has this pid. Raises Fallback.

    The wrapper's are the same in each request of one dispatcher.
    """
    kept = memory.options
    found = kept.get((request.real, request.hook)) if request.kind != HOOK else None
    if found:
        return found
    try:
        if request.kind == HOOK:
            return hooks.options_of([*_where(request), *request.arguments])
        more = ["--hook", request.hook] if request.hook else []
        found = Options(["--real", request.real, *_where(request), *more], ("real", "hook"))
    except Usage:
        raise Fallback(answers.OPTIONS) from None
    if len(kept) < _DISPATCHERS:
        kept[request.real, request.hook] = found
        memory.called.update(path for path in (request.hook, _dispatcher(pid)) if path[:1] == "/")
    return found


def _dispatcher(pid: int) -> str:
    """Returns the path of the file whose interpreter front is, "" if it is not known."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(CONFIG_LIMIT).split(b"\0")[1])
    except (OSError, IndexError):
        return ""


def _where(request: Request) -> list[str]:
    return ["--policy", request.policy, "--store", request.store, "--events", request.events]


def _check_probe(text: str) -> None:
    """Raises Fallback for a probe of `verify` that is to start cold. `text`: names the container."""
    if not os.access(events.PROBES, os.F_OK):  # the usual case, without the cost of an exception
        return
    try:
        marks = os.listdir(events.PROBES)
    except OSError:
        return
    for name in marks:
        if name not in text:
            continue
        try:
            with open(f"{events.PROBES}/{name}") as mark:
                is_cold = mark.read(256).endswith(protocol.COLD_PROBE)
        except (OSError, ValueError):
            continue
        if is_cold:
            raise Fallback(answers.PROBE)


def _few(data: bytes) -> bytes:
    """The JSON document. Raises Fallback if its lists may have more than _ENTRIES together."""
    if len(data) > _ENTRIES and data.count(b",") > _ENTRIES:
        raise Fallback(answers.SIZE)
    return data
