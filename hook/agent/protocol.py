"""What front and the agent say to each other (packaging/front/front.c, docs/agent.md).

A connection of SOCK_SEQPACKET (unix(7)) carries one request and its answer. A frame is one packet of strings, each with
a NUL at its end, so no frame arrives in half. With the request comes one descriptor: of the working directory in which
a runtime was called, or of what a hook was given on stdin.
"""

from __future__ import annotations

REQUEST, ANSWER = b"reassert-front/1", b"reassert-agent/1"

STATUS = b"reassert-status/1\0"
"""A request for the agent's counts; the answer is JSON (hook.agent.status)."""

LIMIT = 65536
"""Bytes of a frame, front's own buffer."""

ARGUMENTS = 1024
"""Arguments of an answer, front's own limit."""

SECONDS = 1.0
"""How long front waits."""

RUNTIME, HOOK = "runtime", "hook"


class Malformed(Exception):
    """A frame that no front has sent."""


class Request:
    """One call of an engine.

    `kind`: RUNTIME or HOOK. `real`: the real runtime. `policy`, `store`, `events`, `hook`: as `reassert runtime` takes
    them. `runtime_directory`: XDG_RUNTIME_DIR. `arguments`: those that the engine gave.
    """

    __slots__ = (
        "arguments",
        "events",
        "hook",
        "kind",
        "policy",
        "real",
        "runtime_directory",
        "store",
        "umask",
        "version",
    )

    def __init__(self, frame: bytes) -> None:
        """Raises Malformed."""
        parts = frame.split(b"\0")
        if parts[0] != REQUEST or len(parts) < 11 or parts.pop():
            raise Malformed("not a request")
        strings = [part.decode("utf-8", "surrogateescape") for part in parts]
        _, self.version, self.kind, self.real, self.policy, self.store, self.events, self.hook = strings[:8]
        self.runtime_directory = parts[8]
        self.arguments = strings[10:]
        if not (len(parts[9]) == 3 and parts[9].isdigit() and b"8" not in parts[9] and b"9" not in parts[9]):
            raise Malformed("not a umask")
        self.umask = int(parts[9], 8)
        if self.kind not in (RUNTIME, HOOK):
            raise Malformed("neither a runtime nor a hook")


def go() -> bytes:
    """Go on as you are: to the real runtime with the arguments that came; a hook has nothing left to do."""
    return ANSWER + b"\0G"


def changed(arguments: list[str]) -> bytes:
    """Go on to the real runtime with these arguments."""
    return ANSWER + b"\0A" + b"".join(_string(argument) for argument in arguments)


def refused(status: int, text: str) -> bytes:
    """End with this exit status, after this text on standard error."""
    return ANSWER + b"\0R" + bytes([status]) + _string(text)


def cold(reason: str) -> bytes:
    """Start cold. `reason`: a word for the event (docs/agent.md); front hands it to the cold start."""
    return ANSWER + b"\0C" + _string(reason)


def temporary(path: str) -> bytes:
    """The path of a file that is about to be renamed; whoever starts cold after this removes it first."""
    return ANSWER + b"\0T" + _string(path)


def _string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"
