"""The operation log: what services, and commands that change a node, say on standard error (docs/events.md).

The event log is evidence about containers. This log is for operation: each line has a level, the time in UTC, the name
of what happened, and its context. structlog makes the lines. It is loaded by `configure`, so a command without this log
does not pay for it, and the start path never imports this module.

Nothing waits for a reader: a service writes its lines in a thread. Those that no reader takes are dropped and counted.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from _socket import AF_UNIX, socket  # `socket` itself loads slowly
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.text import printable, shortened
from hook.core.base.urls import without_credentials

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

JSON, LOGFMT, CONSOLE = "json", "logfmt", "console"
LOG_FORMATS = (JSON, LOGFMT, CONSOLE)
LOG_LEVELS = ("debug", "info", "warning", "error")

BACKLOG = 1000
"""Lines that wait while standard error is full and not read. Further lines are dropped and counted."""

WINDOW = 60.0
"""Seconds in which a repeated line is counted, and not written."""

KEYS = 256
"""Different lines of a window that are told apart. Beyond them, lines count as repeated if their event is the same."""

VALUE_LIMIT = 1024
"""Bytes of UTF-8 that are kept of one value."""

_JOURNAL = "/run/systemd/journal/stdout"
"""journald's socket for what a service writes (systemd-journald.service(8))."""

_PRIORITIES = {"debug": 7, "info": 6, "notice": 5, "warning": 4, "error": 3}
"""journald's priorities (sd-daemon(3)). `notice`: a line with `notice=True`; a timer's unit drops what is below."""

_FIRST = ("timestamp", "level", "event")

_FRAMES = 12
"""Places of a traceback that are kept: the innermost."""

_Event = MutableMapping[str, Any]

_logger: FilteringBoundLogger | None = None
_lines: _Lines | None = None
_repeats: _Repeats | None = None


def configure(chosen: str | None, level: str | None, resident: bool) -> None:
    """Begins the log. `chosen`, `level`: the options; None: by what standard error is, and info.

    `resident`: whether this process is a service. A command that ends by itself has this log only if an option or
    journald asks for it: on a terminal, its output on standard output says the same.
    """
    global _logger, _lines, _repeats  # noqa: PLW0603  # one log for each process
    journal = is_journal(2)
    if not (resident or journal or chosen or level):
        return
    structlog = _structlog()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    form = chosen or (LOGFMT if journal or not terminal else CONSOLE)
    _lines = _Background() if resident else _Lines()
    _repeats = _Repeats(_lines) if resident else None
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        *([_repeats] if _repeats else []),
        _context,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _errors,
        _clean,
        _encoder(_renderer(structlog, form, terminal), journal),
    ]
    bound = structlog.make_filtering_bound_logger(level or "info")
    structlog.configure(processors=processors, wrapper_class=bound, logger_factory=lambda *_: _lines)
    _logger = structlog.get_logger().bind()
    if resident:
        sys.excepthook = lambda _, value, __: error("process.bug", exc_info=value)
        sys.unraisablehook = lambda given: error("process.bug", exc_info=given.exc_value)
        threading.excepthook = lambda given: error("process.bug", exc_info=given.exc_value)


def is_active() -> bool:
    """Whether this process has an operation log."""
    return _logger is not None


def debug(event: str, **context: object) -> None:
    """Logs what only a developer needs."""
    _log("debug", event, context)


def info(event: str, **context: object) -> None:
    """Logs what happened."""
    _log("info", event, context)


def warning(event: str, **context: object) -> None:
    """Logs what an operator should look at."""
    _log("warning", event, context)


def error(event: str, **context: object) -> None:
    """Logs what has failed. `exc_info`: the exception."""
    _log("error", event, context)


def _log(level: str, event: str, context: dict[str, object]) -> None:
    """Logs one line; never raises.

    Names of `context` with a meaning: `exc_info`, an exception. `key`: what a line must have in common with an earlier
    one, beside its event, to be counted as repeated; without it no line is. `who`: returns more context, and is called
    only if the line is written. `notice`: as in _PRIORITIES.
    """
    if _logger is not None:
        try:
            getattr(_logger, level)(event, **context)
        except Exception:  # a line must not end what it is about
            if _lines:
                _lines.dropped += 1


def close(seconds: float = 0.5) -> None:
    """Says what was counted, and waits up to `seconds` until all lines are written."""
    global _logger  # noqa: PLW0603  # one log for each process
    if _repeats:
        _repeats.tell(everything=True)
    if _lines:
        _lines.close(seconds)
    _logger = None


def is_journal(fd: int) -> bool:
    """Whether a descriptor leads to systemd's journal. The socket tells: the environment is not asked."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        stream = socket(fileno=os.dup(fd))
        try:
            return stream.family == AF_UNIX and stream.getpeername() == _JOURNAL
        finally:
            stream.close()
    except OSError:
        return False


def _structlog() -> Any:
    """structlog, without asyncio, which takes 7 MB of memory. Only its asynchronous methods need that."""
    if "structlog" not in sys.modules and "asyncio" not in sys.modules:
        sys.modules["asyncio"] = ModuleType("asyncio")
        try:
            import structlog
        finally:
            del sys.modules["asyncio"]
    import structlog

    return structlog


def _renderer(structlog: Any, form: str, terminal: bool) -> Any:
    if form == JSON:
        return structlog.processors.JSONRenderer()
    if form == LOGFMT:
        return structlog.processors.LogfmtRenderer(bool_as_flag=False)
    return structlog.dev.ConsoleRenderer(colors=terminal and _has_colours())


def _has_colours() -> bool:
    """Whether a terminal is to have colours (no-color.org; terminfo's dumb)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _encoder(render: Callable[[object, str, _Event], str], journal: bool) -> Any:
    """The last processor: the bytes of a line, with its priority in front for journald."""

    def encode(logger: object, method: str, event: _Event) -> bytes:
        level = "notice" if event.pop("notice", False) else method
        prefix = f"<{_PRIORITIES[level]}>" if journal else ""
        return f"{prefix}{render(logger, method, event)}\n".encode("utf-8", "backslashreplace")

    return encode


# -- processors (structlog's manual, "Processors"): each returns the event, changed


def _context(_: object, __: str, event: _Event) -> _Event:
    """Removes what is not for the line, and asks `client` for the rest of the context."""
    event.pop("key", None)
    client = event.pop("who", None)
    if client is not None:
        event.update(client())
    return event


def _errors(_: object, __: str, event: _Event) -> _Event:
    """Turns an exception into fields. Of a bug, it has the places and not the text, which may quote a container's."""
    error = event.pop("exc_info", None)
    if not isinstance(error, BaseException):
        return event
    if isinstance(error, ReassertError | OSError):
        event["error"] = describe(error)
        return event
    event["error"] = f"internal error, please report it: {type(error).__name__}"
    event["traceback"] = " < ".join(_places(error.__traceback__))
    return event


def _places(traceback: TracebackType | None) -> list[str]:
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append(f"{'/'.join(code.co_filename.split('/')[-2:])}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return places[: -_FRAMES - 1 : -1]


def _clean(_: object, __: str, event: _Event) -> _Event:
    """Makes each value text that no terminal or journal interprets; numbers and truth values stay. None is left out."""
    first = {name: event[name] for name in _FIRST}
    return {name: _plain(value) for name, value in {**first, **event}.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return _plain(" ".join(f"{name}:{number}" for name, number in value.items()))
    if isinstance(value, list | tuple | set):
        return _plain(", ".join(map(str, value)))
    return without_credentials(shortened(str(value), VALUE_LIMIT, printable))


class _Repeats:
    """Counts repeated lines: a window's first one is written at once, and the last one at its end, with their number.

    `lines`: told when a window has its first repeated line.
    """

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._lock = threading.RLock()  # a signal's handler may log while its thread is in here
        self._began: dict[tuple[object, ...], float] = {}
        self._repeated: dict[tuple[object, ...], tuple[str, int, _Event]] = {}

    def __call__(self, _: object, method: str, event: _Event) -> _Event:
        if "key" not in event:
            return event
        self.tell()
        key: tuple[object, ...] = (event["event"], event["key"])
        with self._lock:
            if key not in self._began and len(self._began) >= KEYS:
                key = key[:1]
            if key not in self._began:
                self._began[key] = time.monotonic()
                return event
            count = self._repeated[key][1] if key in self._repeated else 0
            self._repeated[key] = method, count + 1, event
        if not count:
            self._lines.wake()
        from structlog import DropEvent

        raise DropEvent

    def tell(self, everything: bool = False) -> None:
        """Writes the lines of windows that have ended."""
        now = time.monotonic()
        told = []
        with self._lock:
            for key in [key for key, began in self._began.items() if everything or now - began >= WINDOW]:
                began = self._began.pop(key)
                if key in self._repeated:
                    told.append((*self._repeated.pop(key), began))
        for method, count, event, began in told:
            context = {name: value for name, value in event.items() if name not in ("event", "level", "key", "who")}
            _log(method, event["event"], {**context, "repeated": count, "window_seconds": round(now - began)})

    def until(self) -> float | None:
        """Seconds until the next window ends that has repeated lines; None if there is none."""
        with self._lock:
            ends = [self._began[key] + WINDOW for key in self._repeated]
        return max(0.0, min(ends) - time.monotonic()) if ends else None


class _Lines:
    """Writes lines to standard error, at once. structlog calls the method of a line's level."""

    def __init__(self) -> None:
        self._is_closed = sys.stderr is None  # then another file may have descriptor 2
        self.dropped = 0
        self.debug = self.info = self.warning = self.error = self.take

    def take(self, line: bytes) -> None:
        """Writes a line."""
        self.write(line)

    def write(self, data: bytes) -> bool:
        """Writes bytes. A full disk, a closed pipe and a closed standard error lose the line; returns whether not."""
        try:
            if self._is_closed:
                raise BrokenPipeError
            while data:
                data = data[os.write(2, data) :]
        except OSError:
            self.dropped += 1
            return False
        return True

    def wake(self) -> None:
        """Has `_Repeats.until` asked again."""

    def close(self, seconds: float) -> None:
        """Waits until all lines are written."""


class _Background(_Lines):
    """The same in a thread: a standard error that is full and not read delays no other thread."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oplog", daemon=True)
        self._thread.start()

    def take(self, line: bytes) -> None:
        """Has a line written."""
        if self._queue.qsize() < BACKLOG:
            self._queue.put(line)
        else:
            self.dropped += 1

    def _run(self) -> None:
        told = 0
        while not (self._ends.is_set() and self._queue.empty()):
            line: bytes | None = None
            with suppress(Empty):
                line = self._queue.get(timeout=_repeats.until() if _repeats else None)
            if _repeats and not line:
                _repeats.tell()
            if line and self.write(line) and self.dropped > told and self._queue.qsize() < BACKLOG:
                lost, told = self.dropped - told, self.dropped
                warning("log.dropped", lines=lost)

    def wake(self) -> None:
        """Has `_Repeats.until` asked again."""
        self._queue.put(None)

    def close(self, seconds: float) -> None:
        """Waits until all lines are written."""
        self._ends.set()
        self._queue.put(None)
        self._thread.join(seconds)
