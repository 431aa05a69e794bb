"""One round: every running container of the node, judged by the policy in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import read_file
from hook.core.container import cdi
from hook.core.container.identity import Identity
from hook.core.decide import Case
from hook.core.linux import workers
from hook.ops.audit.inventory import Running
from hook.ops.audit.judge import STALE, Actual, Difference, Judge
from hook.ops.audit.process import ContainerGone, Process
from hook.ops.audit.why import Round

IN_POLICY, DRIFTED, EXEMPT, UNKNOWN = "in policy", "drifted", "exempt", "unknown"
STATES = (DRIFTED, UNKNOWN, EXEMPT, IN_POLICY)

ALL_IN_POLICY, DRIFT, NOT_ALL_SEEN = 0, 1, 2
"""Exit statuses."""


@dataclass(frozen=True)
class ContainerReport:
    """What was found of one container.

    `state`: of STATES. `because`: why it is exempt or unknown. `line`: FILE:LINE of the policy that exempts it.
    """

    id: str
    title: str
    namespace: str
    pod: str
    engine: str
    pid: int
    state: str
    because: str = ""
    line: str = ""
    differences: tuple[Difference, ...] = ()
    rules: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Auditor:
    """Judges containers by one policy. `round`: what is known of the node."""

    round: Round
    judge: Judge = field(init=False)
    read: Callable[[str, int], bytes] = field(default_factory=lambda: lru_cache(64)(read_file))

    def __post_init__(self) -> None:
        self.judge = Judge(self.round.why)

    def finding(self, container: Running, taken: Process | Exception) -> ContainerReport | None:
        """The finding; None if the container has ended meanwhile. Never raises for what a container can cause."""
        try:
            identity = container.identity
            if identity is None and not isinstance(taken, ContainerGone):
                return _found(container, UNKNOWN, because=container.problem)
            if isinstance(taken, Exception):
                raise taken
            return self._judged(container, identity, taken) if identity else None
        except ContainerGone:
            return None
        except (ReassertError, OSError, ValueError, MemoryError) as error:
            return _found(container, UNKNOWN, because=describe(error))

    def _judged(self, container: Running, identity: Identity, process: Process) -> ContainerReport:
        try:
            spec = container.spec()
        except OSError:  # the engine removes the bundle of a container that has ended
            process.check()
            raise
        case = Case("audit", container.id, lambda: self.round.policy, self.read)
        decided = case.decide(identity, Actual(spec, process.environ()))
        if decided.excluded:
            because, line = self.round.exemption(identity)
            return _found(container, EXEMPT, because=because or decided.excluded, line=line)
        differences = self.judge.differences(container, spec, decided, process)
        said = {(difference.rule, difference.message) for difference in differences}
        denied = self.judge.denied(container, spec, decided)
        differences += [difference for difference in denied if (difference.rule, difference.message) not in said]
        rules = tuple(match.rule.name for match in decided.matches if match.applies)
        if decided.errors and not differences:
            because = "; ".join(str(reason) for reason in decided.errors)
            return _found(container, UNKNOWN, because=because, rules=rules)
        state = DRIFTED if differences else IN_POLICY
        return _found(container, state, differences=tuple(differences), rules=rules)


@dataclass(frozen=True)
class Audit:
    """The findings of one round, drifted containers first."""

    round: Round
    findings: list[ContainerReport]

    def counts(self) -> dict[str, int]:
        """The number of containers by state."""
        return {state: sum(finding.state == state for finding in self.findings) for state in STATES}

    def exit_status(self) -> int:
        """DRIFT if one differs, even if others could not be seen; NOT_ALL_SEEN if that is all."""
        counts = self.counts()
        return DRIFT if counts[DRIFTED] else NOT_ALL_SEEN if counts[UNKNOWN] else ALL_IN_POLICY

    def stale(self) -> list[ContainerReport]:
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
    auditor = Auditor(known)
    if not known.policy.missing and any(rule.uses_allocations for rule in known.policy.candidates(None)):
        cdi.convert_all()

    def look(number: int, taken: Process | Exception) -> dict[str, Any]:
        finding = auditor.finding(there[number], taken)
        return finding.as_dict() if finding else {}

    findings = []
    for done, (number, result) in enumerate(workers.each(len(there), lambda number: take(there[number]), look), 1):
        progress(done, len(there))
        if result != {}:
            findings.append(_finding(there[number], result))
    findings.sort(key=lambda f: (STATES.index(f.state), f.namespace, f.pod, f.title, f.id))
    return Audit(known, findings)


def take(container: Running) -> Process | Exception:
    """Open what a look at a container needs rights for. Returns what went wrong instead of raising it."""
    if not container.pid:
        return ReassertError(container.problem)
    try:
        process = Process(container.pid, container.started)
        process.hold()
        return process
    except (ReassertError, OSError) as error:
        return error


def _finding(container: Running, data: Any) -> ContainerReport:
    """What the process that looked at a container says. A container that took it over can only speak of itself."""
    try:
        texts = {name: str(data[name]) for name in ("because", "line")}
        differences = tuple(
            Difference(**{name: str(each[name]) for name in Difference.__dataclass_fields__})
            for each in data["differences"]
        )
        state = STATES[STATES.index(data["state"])]
        return _found(container, state, **texts, differences=differences, rules=tuple(map(str, data["rules"])))
    except (TypeError, KeyError, ValueError):
        because = f"looking at it took longer than {workers.SECONDS:.0f} s, or could not be done"
        return _found(container, UNKNOWN, because=because)


def _found(container: Running, state: str, **more: Any) -> ContainerReport:
    about = (container.id, container.title, container.namespace, container.pod, container.engine, container.pid)
    return ContainerReport(*about, state, **more)
