"""The protocol between front and the agent (packaging/front/front.c, docs/internals/agent.md).

A SOCK_SEQPACKET connection (unix(7)) carries one request and its answer. A frame is one packet of strings, each ended
by a NUL, so a frame is never received in part. One descriptor comes with the request. For a runtime it is the working
directory of the call, for a hook a copy of its stdin.
"""

from __future__ import annotations

REQUEST, ANSWER = b"reassert-front/1", b"reassert-agent/1"
_REQUEST = REQUEST.decode()

STATUS = b"reassert-status/1\0"
"""A request for the agent's counts; the answer is JSON (hook.node.services.ask)."""

FRAME_LIMIT = 65536
"""The largest frame in bytes: the size of front's buffer."""

ARGUMENTS = 1024
"""The most arguments that an answer may have: front's limit."""

ANSWER_SECONDS = 1.0
"""The number of seconds that front waits for an answer."""

RUNTIME, HOOK = "runtime", "hook"

COLD_PROBE = " cold"
"""The end of the text of a file in hook.core.events.PROBES if the agent is not to answer the container's starts."""


class Malformed(Exception):
    """A frame that does not follow the protocol, so front did not send it."""


class Request:
    """One call of an engine, as front sent it."""

    def __init__(self, frame: bytes) -> None:
        """Parses a frame. Raises Malformed."""
        strings = frame.decode("utf-8", "surrogateescape").split("\0")
        if strings[0] != _REQUEST or len(strings) < 10 or strings.pop():
            raise Malformed("not a request")
        self.version, self.kind, self.real = strings[1:4]
        """front's version; RUNTIME or HOOK; the path of the real runtime."""
        self.policy, self.store, self.events, self.hook, directory = strings[4:9]
        """The values of the options of `reassert runtime`."""
        self.runtime_directory = directory.encode("utf-8", "surrogateescape")
        """XDG_RUNTIME_DIR."""
        self.arguments = strings[9:]
        """The arguments that the engine gave."""
        if self.kind not in (RUNTIME, HOOK):
            raise Malformed("neither a runtime nor a hook")


def go() -> bytes:
    """Returns the answer "run the real runtime with the engine's arguments". A hook ends with status 0."""
    return ANSWER + b"\0G"


def changed(arguments: list[str]) -> bytes:
    """Returns the answer "run the real runtime with these arguments"."""
    return ANSWER + b"\0A" + b"".join(_string(argument) for argument in arguments)


def refused(status: int, text: str) -> bytes:
    """Returns the answer "write this text to standard error and end with this exit status"."""
    return ANSWER + b"\0R" + bytes([status]) + _string(text)


def cold(reason: str) -> bytes:
    """Returns the answer "start cold". `reason`: a word for the event (docs/internals/agent.md); front passes it on."""
    return ANSWER + b"\0C" + _string(reason)


def _string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"
