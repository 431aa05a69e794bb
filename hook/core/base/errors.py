"""The exceptions of reassert, and their text for users."""

from __future__ import annotations

from hook.core.base.text import inert, shortened

_ACTIVE = frozenset("`$&|;<>()")
"""Characters by which a shell ends a command, opens a file or substitutes something. Messages reach files."""

_NAME = 64
"""Bytes of UTF-8 that are kept of a name or path inside a message, so that text.STRING bytes hold the reason too."""


class ReassertError(Exception):
    """Base of all errors that are shown to a user as one line, without a traceback."""


class Undecided(ReassertError):
    """reassert cannot decide, because of the node: a file that it needs is missing, say. `failurePolicy` applies."""


class TooLarge(Undecided):
    """A file or stream is larger than its limit."""


class Unacceptable(ReassertError):
    """Input of a pod, an image or an engine's user makes a decision impossible. Enforce mode always refuses it.

    `failurePolicy` does not apply: with `failurePolicy: Ignore`, such input would switch enforcement off. Audit mode
    only logs it.
    """


class NotWritten(Unacceptable):
    """The correction cannot be written. The container must not start without it, whatever `failurePolicy` says.

    An engine's user can cause it, by a limit of the size of files, say (RLIMIT_FSIZE).
    """


class Refused(ReassertError):
    """The container must not start. The message is for the engine; the event log has it too."""


class Usage(ReassertError):
    """The command line is wrong."""


CAUSED_BY_THE_CONTAINER = (Unacceptable, TooLarge, MemoryError, RecursionError, UnicodeError)
"""Errors of a decision that a container's own text can cause. Files of the node raise Undecided or OSError."""


def describe(error: BaseException) -> str:
    """An error as one line of text.

    A ReassertError is its message. An OSError is `FILE: No space left on device`. Any other error is a bug of reassert,
    and the text asks for a report.
    """
    if isinstance(error, ReassertError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename  # link(2) and rename(2) have two; the second is the new name
        return f"{_inert(str(path))}: {error.strerror}" if path else error.strerror
    return f"internal error, please report it: {type(error).__name__}: {_inert(str(error))}"


def named(name: str, limit: int = _NAME) -> str:
    """A name or path of a pod, as a message quotes it: a longer one is cut, and nothing in it is code for a shell."""
    if len(name) <= limit and name.isascii() and _ACTIVE.isdisjoint(name):
        return name

    return shortened(name, limit, _inert)


def _inert(text: str) -> str:
    """The text with each of _ACTIVE escaped."""
    if _ACTIVE.isdisjoint(text):
        return text

    return inert(text, _ACTIVE)
