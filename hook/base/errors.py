"""The exceptions of reassert, and their text for users. Part of the start path: builtins only."""

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


class Refused(ReassertError):
    """The container must not start. The message is for the engine; the event log has it too."""


class Usage(ReassertError):
    """The command line is wrong."""


def describe(error: BaseException) -> str:
    """An error as one line of text.

    A ReassertError is its message. An OSError is `FILE: No space left on device`. Any other error is a bug of reassert,
    and the text asks for a report.
    """
    if isinstance(error, ReassertError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename  # link(2) and rename(2) have two; the second is the new name
        return f"{path}: {error.strerror}" if path else error.strerror
    return f"internal error, please report it: {type(error).__name__}: {error}"


def named(name: str) -> str:
    """A name or path of a pod, as a message quotes it: a longer one is cut."""
    if len(name) <= _NAME and name.isascii():
        return name
    from hook.base.text import shortened

    return shortened(name, _NAME)
