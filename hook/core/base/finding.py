"""What is wrong with a node, or worth knowing. Each is found once; every command and metric shows the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR, WARNING, NOTE, OK = "error", "warning", "note", "ok"
SEVERITIES = (ERROR, WARNING, NOTE, OK)
"""The worst first. ERROR: a container can start without the policy, or none starts, or that is not known. WARNING:
nothing is broken, and something should be done. NOTE: worth knowing. OK: it was looked at, and nothing is wrong."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    severity: str
    """One of SEVERITIES."""
    part: str
    """What it is about, such as `policy` or `handler/runc`."""
    text: str
    """One sentence, without the remedy."""
    remedy: str = ""
    """The command against it, or that shows more; "" if there is none."""
    place: str = ""
    """The file, or FILE:LINE:COLUMN."""
    engine: str = ""
    """The engine's name, "" if it is about no engine."""

    def __str__(self) -> str:
        """Returns it as one line: the engine, the text, the remedy."""
        text = f"{self.engine}: {self.text}" if self.engine else self.text
        return f"{text}: run `{self.remedy}`" if self.remedy else text


def worst(severities: Iterable[str]) -> str:
    """Returns the worst of some severities; OK without any."""
    return min(severities, key=SEVERITIES.index, default=OK)


def having(severity: str, findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings of one severity."""
    return [finding for finding in findings if finding.severity == severity]


_EXIT = {ERROR: 1, WARNING: 4, NOTE: 0, OK: 0}


def exit_status(severities: Iterable[str]) -> int:
    """Returns the exit status of a command that shows findings of these severities: that of the worst."""
    return _EXIT[worst(severities)]
