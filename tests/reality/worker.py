"""A process that tries cases, one after the other, on a node of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from reality.generate import case as generated
from reality.judge import AuditedRules, Violation
from reality.node import LIBC, WatchedNode
from reality.reading import Case
from reality.shrink import like, shape, shrink

_PR_SET_CHILD_SUBREAPER = 36

SHRINKING = 300
"""Seconds from its start on in which a worker makes finds smaller; later ones are left as they are."""

MOST_KNOWN = 40


@dataclass(frozen=True)
class Job:
    """A case to try. `case`: None for the one that seed and number make. `one_adapter`: of those, by the number."""

    seed: int
    number: int
    runtime: str
    adapters: tuple[str, ...]
    case: Case | None = None
    shrink_seconds: float = 0
    one_adapter: bool = False
    attack: str = ""


@dataclass
class Result:
    """What came of a job: per adapter how it went, the finds as they are saved, the agent's answers."""

    number: int
    runtime: str
    outcomes: dict[str, str] = field(default_factory=dict)
    finds: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    agent: dict[str, int] = field(default_factory=dict)


class Worker:
    """Does jobs. Finds that are of a shape already known for their kind are not made smaller again."""

    def __init__(self, name: str, agent: bool) -> None:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.node = WatchedNode(name, agent)
        self._name = name
        self._count = 0
        self._known: dict[str, list[Case]] = {}
        self._until = time.monotonic() + SHRINKING

    def do(self, job: Job) -> Result:
        """Try the job's case through each adapter."""
        result = Result(job.number, job.runtime)
        case = job.case or generated(job.seed, job.number, attack=job.attack)
        audited = AuditedRules(self.node, case, job.runtime)
        one = job.adapters[job.number // 2 % len(job.adapters)]
        for adapter in [one] if job.one_adapter else job.adapters:
            outcome, found = self._try(audited, adapter)
            result.outcomes[adapter] = outcome
            for kind in dict.fromkeys(violation.kind for violation in found):
                detail = next(violation.detail for violation in found if violation.kind == kind)
                result.finds.append(self._find(job, case, adapter, Violation(kind, detail)))
        if self.node.agents:
            result.agent = self.node.agents.counts()
        return result

    def _try(self, audited: AuditedRules, adapter: str) -> tuple[str, list[Violation]]:
        self._count += 1
        return audited.through(adapter, f"{self._name}-{self._count}")

    def _find(self, job: Job, case: Case, adapter: str, violation: Violation) -> dict[str, Any]:
        small, detail = case, violation.detail
        if job.shrink_seconds:

            def fails(candidate: Case) -> str:
                found = self._try(AuditedRules(self.node, candidate, job.runtime), adapter)[1]
                return next((one.detail for one in found if one.kind == violation.kind), "")

            known = self._known.setdefault(violation.kind, [])
            alike = next((one for one in (like(case, each) for each in known) if one and fails(one)), None)
            small = alike or shrink(case, fails, min(job.shrink_seconds, self._budget()))
            if not alike and len(known) < MOST_KNOWN:
                known.append(small)
                known.sort(key=lambda one: len(one["features"]))
            detail = fails(small) or detail
        return {
            "kind": violation.kind, "adapter": adapter, "runtime": job.runtime, "shape": shape(small), "detail": detail,
            "seed": job.seed, "number": job.number, "case": small,
            "replay": f"tests/reality/run.sh --case FILE --adapter {adapter} --runtime {job.runtime}"
            + (" --agent" if self.node.agents else ""),
        }  # fmt: skip

    def _budget(self) -> float:
        """Seconds that are left for making finds smaller."""
        return max(0.0, self._until - time.monotonic())

    def close(self) -> None:
        """End what the node needed."""
        self.node.close()


def work(name: str, jobs: Iterator[Job], write: Callable[[dict[str, Any]], None], agent: bool) -> None:
    """A worker's whole life: do the jobs and write each result."""
    os.setpgid(0, 0)
    worker = Worker(name, agent)
    try:
        for job in jobs:
            began = time.monotonic()
            try:
                result = worker.do(job)
            except Exception as error:  # a fault of this program is told, and ends with status 2
                result = Result(job.number, job.runtime, error=f"{type(error).__name__}: {error}")
                if os.environ.get("REALITY_DEBUG"):
                    raise
            write({**vars(result), "seconds": round(time.monotonic() - began, 3)})
    finally:
        worker.close()
