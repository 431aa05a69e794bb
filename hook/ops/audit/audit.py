"""One round: every running container of the node, judged by the policy in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import read_file
from hook.core.container import cdi
from hook.core.container.identity import Identity
from hook.core.decide import Case
from hook.core.policy import store
from hook.core.policy.compiler import read_source, stored_header
from hook.core.policy.model import AUDIT, Policy
from hook.core.policy.source import Source, parse
from hook.core.policy.trust_layout import store_of
from hook.entry.write_spec import Decision
from hook.node import running as real
from hook.node import wired, workers
from hook.node.change.record import Record
from hook.node.engines.registry import CONTAINERS_OF
from hook.node.words import about
from hook.ops.audit.inventory import Running, learn_all
from hook.ops.audit.judge import Difference, Judge, actual
from hook.ops.audit.process import ContainerGone, Process
from hook.ops.events.reader import seconds_of
from hook.ops.trust.generation import Store

IN_POLICY, DRIFTED, EXEMPT, UNKNOWN = "in policy", "drifted", "exempt", "unknown"
STATES = (DRIFTED, UNKNOWN, EXEMPT, IN_POLICY)

ALL_IN_POLICY, DRIFT, NOT_ALL_SEEN = 0, 1, 2
"""Exit statuses."""


@dataclass(frozen=True)
class Round:
    """The policy in force and what is known of this node. Times are seconds since the epoch, 0 if unknown.

    `compiled`: since when this policy is in force. `installed`: when an engine was wired first, and
    `adapters`: both by `Identity.engine`. `gaps`: when handlers were not wired (hook.node.wired.gaps). `store`: the
    directory of the compiled policy. `generations`: the newest of each trust store that the policy mounts, by its
    directory.
    """

    policy: Policy
    compiled: float = 0.0
    installed: dict[str, float] = field(default_factory=dict)
    adapters: dict[str, list[str]] = field(default_factory=dict)
    store: str = store.STORE
    gaps: tuple[tuple[str, str, int, int], ...] = ()
    generations: dict[str, int] = field(default_factory=dict)

    def why(self, container: Running, created: Decision | None) -> str:
        """Why a container differs. `created`: what reassert decided when the container was created."""
        if self.policy.mode == AUDIT:
            return "the policy's mode is Audit: no container is changed"
        if created is not None:
            if created.policy != self.policy.fingerprint:
                return f"created at {_moment(container.created)} under an earlier policy"
            return "a file or an allocation that the policy takes values from changed since it was created"
        installed = self.installed.get(container.engine, 0.0)
        if container.created < installed:
            return f"created at {_moment(container.created)}, before the install at {_moment(installed)}"
        for engine, handler, start, end in self.gaps:
            if engine == container.engine and start <= container.created and (not end or container.created <= end):
                until = f"{_moment(start)} to {_moment(end) if end else 'now'}"
                return f"created at {_moment(container.created)}, while handler {handler} was not wired ({until})"
        if self.compiled and container.created < self.compiled:
            return (
                f"created at {_moment(container.created)}, before this policy, which came at {_moment(self.compiled)}"
            )
        wired = self.adapters.get(container.engine, [])
        if "runtime" in wired:
            return "created without reassert: by a runtime or handler that is not wired (reassert node status)"
        if "nri" in wired:
            return "the NRI plugin was away when it was created"
        if wired:
            return f"the adapter {' and '.join(wired)} cannot correct this"
        return f"created without reassert: {container.engine or 'its engine'} is not wired (reassert node status)"


def _exemption(policy: Policy, identity: Identity) -> tuple[str, str]:
    """Why the policy excludes a container, and FILE:LINE of the entry; the line is "" if the file was changed."""
    for index, pattern in enumerate(policy.excluded_namespaces):
        if identity.kubernetes and identity.namespace is not None and glob_match(pattern, identity.namespace):
            return f"namespace {identity.namespace} is excluded", _line(policy, "namespaces", index)
    for index, kind in enumerate(policy.excluded_types):
        if identity.types == (kind,):
            return f"container type {kind} is excluded", _line(policy, "containerTypes", index)
    return "", ""


def _line(policy: Policy, name: str, index: int) -> str:
    source = _source(policy.path)
    if source is None or source.sha256 != policy.fingerprint:
        return ""
    return f"{policy.path}:{source.place(('spec', 'exclude', name, index))[0]}"


@lru_cache(1)
def _source(path: str) -> Source | None:
    try:
        return parse(path, read_source(path)[0])
    except ReassertError:
        return None


def read_round(policy_file: str, store_directory: str) -> Round:
    """The policy in force, and since when. Never raises for a node that is not wired."""
    _source.cache_clear()
    policy = store.load(policy_file, store_directory)
    header, _ = stored_header(policy_file, store_directory)
    try:
        record = Record.read()
        parts = {CONTAINERS_OF.get(name, name): record.parts[name] for name in record.engines()}
        adapters = {name: part.adapters for name, part in parts.items()}
        installed = {name: part.since or os.stat(record.path).st_mtime for name, part in parts.items()}
    except (ReassertError, OSError):
        adapters, installed = {}, {}
    gaps = tuple((CONTAINERS_OF.get(engine, engine), *rest) for engine, *rest in wired.gaps(store_directory))
    since = seconds_of((header or {}).get("since"))
    stores = {store_of(mount.source) for rule in policy.candidates(None) for mount in rule.mounts} - {""}
    generations = {trust: numbers[-1] for trust in stores if (numbers := Store(trust).numbers())}
    return Round(policy, since, installed, adapters, store_directory, gaps, generations)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True)
class ContainerReport:
    """What was found of one container.

    `state`: of STATES. `because`: why it is exempt or unknown. `line`: FILE:LINE of the policy that exempts it.
    `reaches`: files of an engine or of reassert that its volumes reach, where `nodePaths` is Report. `trusts`: the
    trust stores that it sees undamaged, each with its generation.
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
    reaches: tuple[str, ...] = ()
    trusts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The findings of one round, drifted containers first."""

    round: Round
    findings: list[ContainerReport]

    def counts(self) -> dict[str, int]:
        """The number of containers by state."""
        return {state: sum(finding.state == state for finding in self.findings) for state in STATES}

    def exit_status(self) -> int:
        """DRIFT if one differs, even if others could not be seen; NOT_ALL_SEEN if none differs and one was not seen."""
        counts = self.counts()
        return DRIFT if counts[DRIFTED] else NOT_ALL_SEEN if counts[UNKNOWN] else ALL_IN_POLICY

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        policy = self.round.policy
        return {
            **about(),
            "policy": {"path": policy.path, "sha256": policy.fingerprint, "mode": policy.mode},
            "counts": {state.replace(" ", "-"): count for state, count in self.counts().items()},
            "containers": [asdict(finding) for finding in self.findings],
        }


def audit(known: Round, containers: list[Running], seconds: float = workers.SECONDS) -> Audit:
    """Look at containers, each for so many seconds in a process of its own without rights (hook.node.workers)."""
    judge = Judge(known.why)
    read = lru_cache(64)(read_file)
    if not known.policy.missing and any(rule.uses_allocations for rule in known.policy.candidates(None)):
        cdi.convert_all()

    learn_all(known.policy, containers, known.store)

    def report(number: int, taken: Process | Exception) -> dict[str, Any]:
        found = _report(known, judge, read, containers[number], taken)
        return asdict(found) if found else {}

    results = workers.each(len(containers), lambda number: take(containers[number]), report, seconds)
    findings = [_checked(containers[number], result) for number, result in results if result != {}]
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


def _report(
    known: Round, judge: Judge, read: Callable[[str, int], bytes], container: Running, taken: Process | Exception
) -> ContainerReport | None:
    """The finding about a container; None if it has ended. Never raises for what a container can cause."""
    identity = container.identity
    try:
        if (identity is None or container.problem) and not isinstance(taken, ContainerGone):
            return _found(container, UNKNOWN, because=container.problem)
        if isinstance(taken, Exception):
            raise taken
        return _judged(known, judge, read, container, identity, taken) if identity else None
    except ContainerGone:
        return None
    except (ReassertError, OSError, ValueError, MemoryError) as error:
        return _found(container, UNKNOWN, because=describe(error))


def _judged(
    known: Round,
    judge: Judge,
    read: Callable[[str, int], bytes],
    container: Running,
    identity: Identity,
    process: Process,
) -> ContainerReport:
    try:
        spec = container.spec()
    except OSError:  # the engine removes the bundle of a container that has ended
        process.check()
        raise
    decided = Case("audit", container.id, lambda: known.policy, read).decide(identity, actual(spec, process.environ()))
    if decided.excluded:
        because, line = _exemption(known.policy, identity)
        return _found(container, EXEMPT, because=because or decided.excluded, line=line)
    differences = judge.differences(container, spec, decided, process)
    said = {(difference.rule, difference.message) for difference in differences}
    reached, paths = real.look_at_node_paths(process.mounts(), decided, judge.node)
    denied = judge.denied(container, spec, decided, reached)
    differences += [difference for difference in denied if (difference.rule, difference.message) not in said]
    rules = tuple(match.rule.name for match in decided.matches if match.applies)
    if decided.errors and not differences:
        because = "; ".join(str(reason) for reason in decided.errors)
        return _found(container, UNKNOWN, because=because, rules=rules)
    state = DRIFTED if differences else IN_POLICY
    wrong = {difference.name for difference in differences}
    stores = {edit.name: store_of(edit.source()) for edit in decided.mounts if edit.mount}
    whole = set(stores.values()) - {stores.get(name) for name in wrong}
    trusts = tuple(f"{trust} generation {number}" for trust, number in known.generations.items() if trust in whole)
    return _found(container, state, differences=tuple(differences), rules=rules, reaches=tuple(paths), trusts=trusts)


def _checked(container: Running, data: Any) -> ContainerReport:
    """The result of the process that looked at a container. A container that took it over can only falsify this one."""
    try:
        texts = {name: str(data[name]) for name in ("because", "line")}
        differences = tuple(
            Difference(**{name: str(each[name]) for name in Difference.__dataclass_fields__})
            for each in data["differences"]
        )
        state = STATES[STATES.index(data["state"])]
        listed = {name: tuple(map(str, data[name])) for name in ("rules", "reaches", "trusts")}
        return _found(container, state, **texts, differences=differences, **listed)
    except (TypeError, KeyError, ValueError):
        return _found(container, UNKNOWN, because="looking at it took too long, or could not be done")


def _found(container: Running, state: str, **more: Any) -> ContainerReport:
    about = (container.id, container.title, container.namespace, container.pod, container.engine, container.pid)
    return ContainerReport(*about, state, **more)
