"""One round: every running container of the node, judged by the policy in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hook.audit import workers
from hook.audit.inventory import Running
from hook.audit.judge import DRIFTED, STALE, STATES, UNKNOWN, Difference, Finding, Judge
from hook.audit.why import Round

ALL_IN_POLICY, DRIFT, NOT_ALL_SEEN = 0, 1, 2
"""Exit statuses."""


@dataclass(frozen=True)
class Audit:
    """The findings of one round, drifted containers first."""

    round: Round
    findings: list[Finding]

    def counts(self) -> dict[str, int]:
        """The number of containers by state."""
        return {state: sum(finding.state == state for finding in self.findings) for state in STATES}

    def exit_status(self) -> int:
        """DRIFT if one differs, even if others could not be seen; NOT_ALL_SEEN if that is all."""
        counts = self.counts()
        return DRIFT if counts[DRIFTED] else NOT_ALL_SEEN if counts[UNKNOWN] else ALL_IN_POLICY

    def stale(self) -> list[Finding]:
        """Containers with a mount of a file that the node has replaced since."""
        return [f for f in self.findings if any(difference.kind == STALE for difference in f.differences)]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        policy = self.round.policy
        return {
            "policy": {"path": policy.path, "sha256": policy.fingerprint, "mode": policy.mode},
            "counts": {state.replace(" ", "-"): count for state, count in self.counts().items()},
            "containers": [finding.as_dict() for finding in self.findings],
        }


def audit(known: Round, there: list[Running], progress: Callable[[int, int], None] = lambda done, count: None) -> Audit:
    """Look at these containers. `progress`: called with the number of those that are done and of all."""
    judge = Judge(known)

    def work(number: int) -> dict[str, Any] | None:
        finding = judge.finding(there[number])
        return finding.as_dict() if finding else {}

    findings = []
    for done, (number, result) in enumerate(workers.each(len(there), work), 1):
        progress(done, len(there))
        if result:
            findings.append(_finding(result))
        elif result is None:
            findings.append(_not_seen(there[number]))
    findings.sort(key=lambda f: (STATES.index(f.state), f.namespace, f.pod, f.title, f.id))
    return Audit(known, findings)


def _finding(data: dict[str, Any]) -> Finding:
    differences = tuple(Difference(**difference) for difference in data["differences"])
    return Finding(**{**data, "differences": differences, "rules": tuple(data["rules"])})


def _not_seen(container: Running) -> Finding:
    about = (container.id, container.title, container.namespace, container.pod, container.engine, container.pid)
    because = f"looking at it took longer than {workers.SECONDS:.0f} s, or could not be done"
    return Finding(*about, UNKNOWN, because=because)
