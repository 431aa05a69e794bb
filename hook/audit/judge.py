"""Judge one running container: what plan() wants of it, against what its process and its mount namespace really have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from hook.adapters import decision
from hook.audit.inventory import Running
from hook.audit.process import Gone, Process
from hook.audit.why import Round
from hook.base.errors import ReassertError, Undecided, describe, named
from hook.base.system import read_file
from hook.container.spec import Spec
from hook.decide import Case
from hook.linux import running as real
from hook.linux.walk import NotSo
from hook.plan import Plan
from hook.reserve.env import SetEnv
from hook.reserve.mounts import PlaceMount
from hook.reserve.outcome import Edit, Reason

IN_POLICY, DRIFTED, EXEMPT, UNKNOWN = "in policy", "drifted", "exempt", "unknown"
STATES = (DRIFTED, UNKNOWN, EXEMPT, IN_POLICY)

STALE = "stale file"
"""`kind` of a difference: a mount of a file that the node has replaced since."""


@dataclass(frozen=True)
class Difference:
    """One thing that a container has not as the policy wants it. `message` never has an env value."""

    rule: str
    kind: str
    name: str
    message: str
    why: str


@dataclass(frozen=True)
class Finding:
    """What was found of one container. `state`: of STATES. `because`: of an exempt or unknown one. `line`: FILE:LINE."""

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


class Actual:
    """What a running container has, for plan(): env of its process, the rest of its config.json."""

    def __init__(self, spec: Spec, env: list[str]) -> None:
        self.env = env
        self.mounts = spec.mounts
        self.annotations = spec.annotations
        self.devices = spec.devices
        self.device_rules = spec.device_rules


@dataclass
class Judge:
    """Judges containers by one policy. `round`: what is known of the node. `node`: its mounts."""

    round: Round
    node: real.Node = field(default_factory=real.Node)
    read: Callable[[str, int], bytes] = field(default_factory=lambda: lru_cache(64)(read_file))

    def finding(self, container: Running) -> Finding | None:
        """The finding; None if the container has ended meanwhile. Never raises for what a container can cause."""
        try:
            if container.spec is None or container.identity is None:
                _check_runs(container)
                return self._found(container, UNKNOWN, because=container.problem)
            with Process(container.pid, container.started) as process:
                return self._judged(container, container.spec, process)
        except Gone:
            return None
        except (ReassertError, OSError, ValueError, MemoryError) as error:
            return self._found(container, UNKNOWN, because=describe(error))

    def _judged(self, container: Running, spec: Spec, process: Process) -> Finding:
        env = process.environ()
        case = Case("audit", container.id, lambda: self.round.policy, self.read)
        decided = case.decide(container.identity, Actual(spec, env))  # type: ignore[arg-type]  # it is not None
        if decided.excluded:
            because, line = self.round.exemption(container.identity)  # type: ignore[arg-type]  # it is not None
            return self._found(container, EXEMPT, because=because or decided.excluded, line=line)
        differences = self.differences(container, spec, decided, process)
        said = {(difference.rule, difference.message) for difference in differences}
        differences += [d for d in self._denied(decided, container, spec) if (d.rule, d.message) not in said]
        rules = tuple(match.rule.name for match in decided.matches if match.applies)
        if decided.errors and not differences:
            because = "; ".join(str(reason) for reason in decided.errors)
            return self._found(container, UNKNOWN, because=because, rules=rules)
        state = DRIFTED if differences else IN_POLICY
        return self._found(container, state, differences=tuple(differences), rules=rules)

    def differences(self, container: Running, spec: Spec, decided: Plan, process: Process) -> list[Difference]:
        """How a container differs from a plan that was made of its process's env. Raises Gone, ReassertError, OSError."""
        created = decision.read(spec.annotations)
        wrong_in_config = {edit.name for edit in decided.env.differences(spec.env) if not edit.takes_effect()}
        found: list[Difference] = []
        for edit in decided.edits:
            if isinstance(edit, SetEnv):
                if not edit.takes_effect():
                    right = edit.name not in wrong_in_config
                    message = edit.conflict() or f"env {named(edit.name)} is missing"
                    found.append(self._difference(edit, message, container, created, right))
            elif not isinstance(edit, PlaceMount):  # mounts are looked at below
                found.append(
                    self._difference(
                        edit, edit.conflict() or f"{edit.kind} {named(edit.name)} differs", container, created, False
                    )
                )
        if not decided.is_seen_in_the_container():
            return found
        rootfs = _rootfs(container, spec)
        mounts, devices = real.look(container.pid, decided, spec, self.node, rootfs, process.check)
        process.check()
        found += [self._mount(edit, problem, container, spec, decided) for edit, problem in mounts]
        found += [Difference(d.rule, d.kind, "", d.message, self.round.why(container, created)) for d in devices]
        return found

    def _mount(self, edit: PlaceMount, problem: NotSo, container: Running, spec: Spec, decided: Plan) -> Difference:
        if problem.row and edit.mount and self.node.is_stale(problem.row, edit.source()):
            message = f"{named(edit.name)} is the file that {edit.source()} was before it was replaced on the node"
            why = "a bind mount of a file keeps the old file: restart the container, or mount its directory instead"
            return Difference(edit.rule, STALE, edit.name, message, why)
        created = decision.read(spec.annotations)
        there = edit.mount and any(
            mount["destination"] == edit.name and mount.get("source") == edit.source() for mount in spec.mounts
        )
        right = bool(there or edit not in decided.edits or (created and edit.name in created.mounts))
        return self._difference(edit, str(problem), container, created, right)

    def _denied(self, decided: Plan, container: Running, spec: Spec) -> list[Difference]:
        """What the policy refuses a new container for, beyond its edits."""
        created = decision.read(spec.annotations)
        said = {edit.conflict() for edit in decided.edits}
        reasons: list[Reason] = [reason for reason in decided.denials if reason.message not in said]
        return [Difference(r.rule, r.kind, "", r.message, self.round.why(container, created)) for r in reasons]

    def _difference(
        self, edit: Edit, message: str, container: Running, created: decision.Decision | None, right: bool
    ) -> Difference:
        """`right`: config.json has what the policy wants."""
        why = self.round.why(container, created)
        if right:
            why = "changed from inside: its config.json has what the policy wants"
        return Difference(edit.rule, edit.kind, edit.name, message, why)

    @staticmethod
    def _found(container: Running, state: str, **more: Any) -> Finding:
        about = (container.id, container.title, container.namespace, container.pod, container.engine, container.pid)
        return Finding(*about, state, **more)


def _check_runs(container: Running) -> None:
    """Raises Gone for a container whose process ended since its record was read."""
    if container.pid:
        Process(container.pid, container.started).close()


def _rootfs(container: Running, spec: Spec) -> str:
    """The container's root on the node, without symbolic links."""
    root = spec.member("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str):
        raise Undecided("config.json has no root.path")
    return os.path.realpath(os.path.join(container.bundle, path))
