"""One round: every running container of the node, judged by the policy in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.compile.source import Source, parse
from hook.compile.stored import header_of
from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError, describe
from hook.core.base.finding import ERROR, OK, WARNING, exit_status, worst
from hook.core.base.isotime import seconds_of
from hook.core.base.system import read_file
from hook.core.container import cdi
from hook.core.container.identity import Identity
from hook.core.container.runtime_records import record_in
from hook.core.decide import Case
from hook.core.facts.cri import SANDBOX_ID
from hook.core.plan import Plan
from hook.core.policy import store
from hook.core.policy.model import AUDIT, Policy, excludes_type
from hook.core.policy.trust_layout import store_of
from hook.entry.write_spec import Decision
from hook.inside import running as real
from hook.inside import workers
from hook.inside.containers import Running, learn_all
from hook.inside.process import ContainerGone, Process
from hook.node import kept
from hook.node.accepted import ENGINE, Accepted, accepted_of
from hook.node.change.record import Record
from hook.node.engines.facts import containers_of
from hook.node.kept import DRIFTED, EXEMPT, IN_POLICY, STATES, UNKNOWN, UNSEEN, Container, Gap
from hook.node.words import about
from hook.ops.adapter import Command
from hook.ops.audit.draft import compared
from hook.ops.audit.judge import Difference, Judge, Why, actual
from hook.ops.trust.generation import Store

REFUSED = "refused: "
"""How an entry of `next_start` begins for a container that would not start."""

AT_ITS_START, AS_IN_FORCE = "its next start under this policy", "its next start, under the policy in force too"
"""Why a container differs from a draft."""


@dataclass(frozen=True)
class Round:
    """The policy in force and what is known of this node. Times are seconds since the epoch, 0 if unknown.

    `compiled`: since when this policy is in force. `installed`: when the first install of an engine had ended, and
    `adapters`: both by `Identity.engine`. `gaps`: when handlers were not wired (hook.node.kept). `store`: the
    directory of the compiled policy. `generations`: the newest of each trust store that the policy mounts, by its
    directory. `is_preflight`: the policy file by this version of reassert, which need not be the node's. `in_force`:
    the policy in force, if `policy` is a draft of another one. `accepted`: what an administrator has left out by name,
    by `Identity.engine`; "" for all engines.
    """

    policy: Policy
    compiled: float = 0.0
    installed: dict[str, float] = field(default_factory=dict)
    adapters: dict[str, list[str]] = field(default_factory=dict)
    store: str = store.STORE
    gaps: tuple[Gap, ...] = ()
    generations: dict[str, int] = field(default_factory=dict)
    is_preflight: bool = False
    in_force: Policy | None = None
    accepted: dict[str, Accepted] = field(default_factory=dict)

    def why(self, container: Running, created: Decision | None) -> Why:
        """Why a container differs. `created`: what reassert decided when the container was created.

        It is an error if the container started without reassert, by what no administrator has accepted by name.
        """
        if self.policy.mode == AUDIT:
            return Why(WARNING, "in Audit mode", "the policy's mode is Audit: no container is changed")
        if self.is_preflight:
            return Why(WARNING, "at its next start", "its next start under this version")
        if self.in_force is not None:
            return Why(WARNING, "at its next start", AT_ITS_START)
        at = f"created at {_moment(container.created)}"
        if created is not None:
            if created.policy != self.policy.fingerprint:
                return Why(WARNING, "created under an earlier policy", f"{at} under an earlier policy")
            text = "a file or an allocation that the policy takes values from changed since it was created"
            return Why(WARNING, "with values that have changed since", text)
        installed = self.installed.get(container.engine, 0.0)
        if container.created < installed:
            text = f"{at}, before the install at {_moment(installed)}"
            return Why(WARNING, "created before the install", text)
        for gap in self.gaps:
            if gap.engine == container.engine and gap.since <= container.created <= (gap.until or float("inf")):
                until = f"{_moment(gap.since)} to {_moment(gap.until) if gap.until else 'now'}"
                text = f"{at}, while handler {gap.handler} was not wired ({until})"
                return Why(ERROR, "created while a handler was not wired", text)
        if self.compiled and container.created < self.compiled:
            text = f"{at}, before this policy, which came at {_moment(self.compiled)}"
            return Why(WARNING, "created before this policy", text)
        return self._past(container)

    def _past(self, container: Running) -> Why:
        """How a container started past reassert."""
        wired = self.adapters.get(container.engine, [])
        accepted = self.accepted.get(container.engine if wired else "", Accepted())
        engine, status = container.engine or "its engine", "reassert status"
        if not wired:
            severity = WARNING if accepted.covers(f"{ENGINE}{container.engine}") else ERROR
            what = f"created without reassert: {engine} is not wired"
            return Why(severity, f"created without reassert by {engine}, which is not wired", f"{what} ({status})")
        if "runtime" in wired:
            if _sandbox_created(container) < self.installed.get(container.engine, 0.0):
                cause = "created in a pod from before the install"
                return Why(
                    WARNING, cause, f"{cause}, which keeps the runtime that it was created with: recreate the pod"
                )
            handler = container.handler
            severity = WARNING if accepted.leaves_out(handler) else ERROR
            by = f"handler {handler}, which is not wired" if handler else "a runtime or handler that is not wired"
            return Why(severity, f"created without reassert, by {by}", f"created without reassert: by {by} ({status})")
        if "nri" in wired:
            return Why(ERROR, "created while the NRI plugin was away", "the NRI plugin was away when it was created")
        text = f"the adapter {' and '.join(wired)} cannot correct this"
        return Why(ERROR, f"which {text}", text)


def _sandbox_created(container: Running) -> float:
    """When the sandbox of a container's pod was created; infinite without one, or where it is not known."""
    with suppress(ReassertError, OSError):
        name = container.spec().annotations.get(SANDBOX_ID.get(container.engine, ""), "")
        if name and "/" not in name and container.state:
            return seconds_of(record_in(f"{os.path.dirname(container.state)}/{name}")[0].get("created")) or float("inf")
    return float("inf")


def _exemption(policy: Policy, identity: Identity) -> tuple[str, str]:
    """Why the policy excludes a container, and FILE:LINE of the entry; the line is "" if the file was changed."""
    for index, pattern in enumerate(policy.excluded_namespaces):
        if identity.kubernetes and identity.namespace is not None and glob_match(pattern, identity.namespace):
            return f"namespace {identity.namespace} is excluded", _line(policy, "namespaces", index)
    if excludes_type(policy, identity):
        index = min(policy.excluded_types.index(kind) for kind in identity.types)
        return f"container type {' or '.join(identity.types)} is excluded", _line(policy, "containerTypes", index)
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
    remembered = kept.read(store_directory)
    accepted: dict[str, Accepted] = {}
    try:
        record = Record.read()
        parts = {containers_of(name): record.parts[name] for name in record.engines()}
        adapters = {name: part.adapters for name, part in parts.items()}
        ended = {containers_of(name): when for name, when in remembered.wiring.since.items()}
        installed = {
            name: max(part.since or os.stat(record.path).st_mtime, ended.get(name, 0)) for name, part in parts.items()
        }
        for name in record.engines():
            accepted[containers_of(name)] = accepted_of(name, record.parts[name], remembered)
        accepted[""] = Accepted(tuple(pattern for each in accepted.values() for pattern in each.patterns))
    except (ReassertError, OSError):
        adapters, installed = {}, {}
    gaps = tuple(gap._replace(engine=containers_of(gap.engine)) for gap in remembered.wiring.gaps)
    since = seconds_of(header_of(policy_file, store_directory).get("since"))
    stores = {store_of(mount.source) for rule in policy.candidates(None) for mount in rule.mounts} - {""}
    generations = {trust: numbers[-1] for trust in stores if (numbers := Store(trust).numbers())}
    return Round(policy, since, installed, adapters, store_directory, gaps, generations, accepted=accepted)


def preflight(policy_file: str) -> Round:
    """The node's policy file, as this version compiles it: nothing is stored. Raises ReassertError."""
    return Round(_compiled(policy_file), is_preflight=True)


def draft(policy_file: str, in_force: Policy) -> Round:
    """A draft beside the policy in force: nothing is stored. Raises ReassertError."""
    return Round(_compiled(policy_file), in_force=in_force)


def _compiled(policy_file: str) -> Policy:
    _source.cache_clear()
    return compile_bytes(policy_file, read_source(policy_file)[0]).policy()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True)
class ContainerReport:
    """What was found of one container.

    `state`: of STATES. `because`: why it is exempt or unknown. `line`: FILE:LINE of the policy that exempts it.
    `reaches`: files of an engine or of reassert that its volumes reach, where `nodePaths` is Report. `next_start`: what
    becomes of it when it starts again, as a start looks at it. `trusts`: the trust stores that it sees undamaged, each
    with its generation. `changes`: what a draft decides about it otherwise than the policy in force, as `env NAME`,
    `mount PATH` or `refusal`. `unreserved`: what it has of the policy in force and the draft does not reserve; what it
    would have without is not known.
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
    next_start: tuple[str, ...] = ()
    trusts: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    unreserved: tuple[str, ...] = ()

    def severity(self) -> str:
        """How bad it is."""
        if self.state == UNKNOWN:
            return WARNING
        return worst(each.severity for each in self.differences)

    def cause(self) -> str:
        """The cause of its worst difference, as of Why; for one that could not be looked at, that."""
        if self.state == UNKNOWN:
            return UNSEEN
        return next((each.cause for each in self.differences if each.severity == self.severity()), "")

    def is_refused(self) -> bool:
        """Whether it would not start again."""
        return any(text.startswith(REFUSED) for text in self.next_start)

    def is_changed(self) -> bool:
        """Whether a draft would start it otherwise than the policy in force."""
        return bool(self.changes or self.unreserved)


@dataclass(frozen=True)
class Audit:
    """The findings of one round, drifted containers first. `directories`: of the containers' runtimes, by id."""

    round: Round
    findings: list[ContainerReport]
    directories: dict[str, str] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """The number of containers by state."""
        return {state: sum(finding.state == state for finding in self.findings) for state in STATES}

    def refused(self) -> int:
        """How many containers would not start again."""
        return sum(finding.is_refused() for finding in self.findings)

    def changed(self) -> int:
        """How many containers a draft would start otherwise."""
        return sum(finding.is_changed() for finding in self.findings)

    def as_kept(self) -> dict[str, Container]:
        """What is remembered of them, by id."""
        return {
            each.id: Container(
                each.state, self.directories.get(each.id, ""), each.engine, each.title, each.severity(), each.cause()
            )
            for each in self.findings
        }

    def exit_status(self) -> int:
        """That of the worst container.

        In a preflight 1 if a container would not start again, with a draft also if it would start otherwise than under
        the policy in force.
        """
        if self.round.is_preflight or self.round.in_force is not None:
            unseen = WARNING if self.counts()[UNKNOWN] else OK
            return exit_status([ERROR if self.refused() + self.changed() else unseen])
        return exit_status(each.severity() for each in self.findings)

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
    """Look at containers, each for so many seconds in a process of its own without rights (hook.inside.workers)."""
    judge = Judge(known.why)
    read = lru_cache(64)(read_file)
    if not known.policy.missing and any(rule.uses_allocations for rule in known.policy.candidates(None)):
        cdi.convert_all()

    learn_all(known.policy, containers, known.store)
    if known.in_force is not None:
        learn_all(known.in_force, containers, known.store)

    def report(number: int, taken: Process | Exception) -> dict[str, Any]:
        found = _report(known, judge, read, containers[number], taken)
        return asdict(found) if found else {}

    results = workers.each(len(containers), lambda number: take(containers[number]), report, seconds)
    findings = [_checked(containers[number], result) for number, result in results if result != {}]
    findings.sort(key=lambda f: (STATES.index(f.state), f.namespace, f.pod, f.title, f.id))
    return Audit(known, findings, {container.id: container.state for container in containers})


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


class _Audit(Command):
    """The adapter of an audit. `read`: reads a record of kubelet, once for all containers."""

    def __init__(self, policy: Policy, read: Callable[[str, int], bytes]) -> None:
        super().__init__("audit", policy)
        self._read = read

    def read(self, path: str, limit: int) -> bytes:
        """See Adapter."""
        return self._read(path, limit)


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
    changes: list[str] = []
    unreserved: list[str] = []
    if known.in_force is not None:
        changes, unreserved = compared(
            known.in_force,
            known.policy,
            identity,
            spec,
            judge.node,
            lambda plan: judge.not_again(container, spec, plan, process),
        )
    otherwise = {"changes": tuple(changes), "unreserved": tuple(unreserved)}
    adapter = _Audit(known.policy, read)
    decided = Case(adapter, container.id).decide(identity, actual(spec, process.environ()))
    if decided.excluded:
        because, line = _exemption(known.policy, identity)
        return _found(container, EXEMPT, because=because or decided.excluded, line=line, **otherwise)
    differences = judge.differences(container, spec, decided, process)
    said = {(difference.rule, difference.message) for difference in differences}
    seen = real.look_at_node_paths(process.mounts(), decided, spec, judge.node)
    denied = judge.denied(container, spec, decided)
    differences += [difference for difference in denied if (difference.rule, difference.message) not in said]
    rules = tuple(match.rule.name for match in decided.matches if match.applies)
    if decided.errors and not differences:
        because = "; ".join(str(reason) for reason in decided.errors)
        return _found(container, UNKNOWN, because=because, rules=rules, **otherwise)
    if known.in_force is not None:
        differences = [
            replace(each, why=AS_IN_FORCE) if each.why == AT_ITS_START and not _is_new(each, changes) else each
            for each in differences
        ]
    state = DRIFTED if differences else IN_POLICY
    wrong = {difference.name for difference in differences}
    stores = {edit.name: store_of(edit.source()) for edit in decided.mounts if edit.mount}
    whole = set(stores.values()) - {stores.get(name) for name in wrong}
    trusts = tuple(f"{trust} generation {number}" for trust, number in known.generations.items() if trust in whole)
    if not seen.denials:
        seen.denials = judge.not_again(container, spec, decided, process)
    next_start = _next_start(known.policy, seen)
    if decided.refusal() and not seen.denials:
        next_start = (REFUSED + decided.refusal(), *next_start)
    volumes = {"reaches": tuple(seen.node_paths), "next_start": next_start, **otherwise}
    return _found(container, state, differences=tuple(differences), rules=rules, trusts=trusts, **volumes)


def _is_new(difference: Difference, changes: list[str]) -> bool:
    """Whether it is one of the changes of a draft."""
    return "refusal" in changes or f"{difference.kind} {difference.name}" in changes


def _next_start(policy: Policy, seen: Plan) -> tuple[str, ...]:
    """What becomes of a container at its next start. It runs on, and is not drifted. `seen`: what a look has found."""
    tried = policy.mode == AUDIT
    refused = [f"{'would be ' if tried else ''}{REFUSED}{reason.message}" for reason in seen.denials]
    refused += [f"would be {REFUSED}{reason.message}" for reason in seen.audited]
    closes = "made" if policy.closes and not tried else "would be made"
    return (*refused, *[f"{closes} read-only: {path}" for path in seen.read_only])


def _checked(container: Running, data: Any) -> ContainerReport:
    """The result of the process that looked at a container. A container that took it over can only falsify this one."""
    try:
        texts = {name: str(data[name]) for name in ("because", "line")}
        fields = Difference.__dataclass_fields__
        differences = tuple(Difference(**{name: str(each[name]) for name in fields}) for each in data["differences"])
        worst(each.severity for each in differences)
        state = STATES[STATES.index(data["state"])]
        listed = {name: tuple(map(str, data[name])) for name in _LISTED}
        return _found(container, state, **texts, differences=differences, **listed)
    except (TypeError, KeyError, ValueError):
        return _found(container, UNKNOWN, because="looking at it took too long, or could not be done")


def _found(container: Running, state: str, **more: Any) -> ContainerReport:
    about = (container.id, container.title, container.namespace, container.pod, container.engine, container.pid)
    return ContainerReport(*about, state, **more)


_LISTED = ("rules", "reaches", "next_start", "trusts", "changes", "unreserved")
"""The fields of a ContainerReport that are tuples of texts."""
