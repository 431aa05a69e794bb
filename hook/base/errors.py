"""What can go wrong, said once for whoever reads it at 3 a.m. Part of the start path: builtins only."""


class ReassertError(Exception):
    """Base of every error that is shown to a user as one line, never as a traceback."""


class Undecided(ReassertError):
    """reassert itself cannot decide (unreadable spec, unreadable node value): `failurePolicy` says what happens."""


class TooLarge(Undecided):
    """A file or stream beyond its limit."""


class Unacceptable(ReassertError):
    """What a pod, an image or an engine's user wrote is why nobody can decide: refused, whatever `failurePolicy` says.

    Else whoever writes it would choose what `failurePolicy: Ignore` gives. In Audit mode it is only logged.
    """


CAUSED_BY_THE_CONTAINER = (Unacceptable, TooLarge, MemoryError, RecursionError, UnicodeError)
"""Errors of a decision that a container's own text can cause. What is read of the node raises Undecided or OSError."""


class Refused(ReassertError):
    """The container must not start. The message goes to the engine and into the event log."""


class Usage(ReassertError):
    """The command line was wrong."""


def describe(error: BaseException) -> str:
    """One line for any error: our own as they are, `FILE: No space left on device`, else with its type."""
    if isinstance(error, ReassertError):
        return str(error)
    if isinstance(error, OSError) and not error.strerror and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])  # shutil.Error: (source, target, why) of every file of a tree
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename  # of a link or a new name, that one
        return f"{path}: {error.strerror}" if path else error.strerror
    return f"internal error, please report it: {type(error).__name__}: {error}"
