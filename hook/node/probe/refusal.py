"""reassert's refusal of a test container, in the message with which the engine says that it did not start."""

from __future__ import annotations

import re

_OURS = re.compile(
    r"reassert: refused"
    r"|executing hook `[^`]*/reassert(-hook)?` \(exit code: 1\)"
    r"|executing \[reassert hook [^]]*\]: exit status 1"
)
"""Matches a refusal of reassert in an engine's message. crun, and podman for precreate, leave out the hook's output."""

_APPENDED = r"(: unknown)?( Error: failed to start containers: \S+)?( time=\"[^\"]*\" level=.*)?$"
"""What containerd 1.x, docker and podman append."""


def refusal(message: str) -> str:
    """Returns reassert's part of an engine's message, "" if reassert did not refuse the container."""
    if not _OURS.search(message):
        return ""
    at = message.find("reassert: refused")
    if at < 0:
        return "refused by the hook; the reason is in the event log, the engine does not show it"
    return re.sub(_APPENDED, "", message[at:])
