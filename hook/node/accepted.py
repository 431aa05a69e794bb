"""What an administrator has accepted by name: what is not wired, and parts that `verify` does not try."""

from __future__ import annotations

from dataclasses import dataclass

from hook.core.base.compare import glob_match
from hook.node.change.record import OwnerRecord
from hook.node.kept import Kept

NOTE = "accepted"
"""A key in an engine's notes: the `--except` of its install."""

HANDLER, ENGINE = "handler/", "engine/"
"""How the part of a handler begins, and that of an engine that is not wired."""


@dataclass(frozen=True)
class Accepted:
    """What is accepted for an engine. `patterns`: of parts. `runtime_class`: the only handler to wire, or None."""

    patterns: tuple[str, ...] = ()
    runtime_class: str | None = None

    def covers(self, part: str) -> bool:
        """Whether a part is accepted."""
        return any(glob_match(pattern, part) for pattern in self.patterns)

    def leaves_out(self, handler: str) -> bool:
        """Whether a handler is left out. `handler`: "" if it is not known."""
        return self.runtime_class not in (None, handler) or (bool(handler) and self.covers(HANDLER + handler))


def accepted_of(engine: str, part: OwnerRecord, kept: Kept) -> Accepted:
    """Returns what the install of an engine and its last `verify` were to accept."""
    verified = kept.verified.get(engine)
    patterns = [*part.notes.get(NOTE, []), *(verified.accepted if verified else [])]
    return Accepted(tuple(dict.fromkeys(patterns)), part.runtime_class)
