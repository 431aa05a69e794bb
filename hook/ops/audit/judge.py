"""Judge one running container: what plan() wants of it, against what its process and mount namespace really have."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from hook.core.base.errors import Undecided, named
from hook.core.base.finding import WARNING
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.core.linux.walk import MountMismatch
from hook.core.plan import Plan
from hook.core.reserve import node_paths
from hook.core.reserve.devices import KIND as DEVICE
from hook.core.reserve.edits import Edit, Reason
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import SetEnv
from hook.entry.write_spec import Decision, of_the_image
from hook.inside import running as real
from hook.inside.containers import Running
from hook.inside.process import Process
from hook.ops.at_create import decision_of

STALE = "stale file"
"""`kind` of a difference: a mount of a file or directory that the node has replaced since."""


class Why(NamedTuple):
    """Why a container differs. `severity`: of hook.core.base.finding. `cause`: the same for all such containers.

    `text`: about this one.
    """

    severity: str
    cause: str
    text: str


INSIDE = Why(WARNING, "changed from inside", "changed from inside: its config.json has what the policy wants")
"""Why a container differs although it started as the policy wants."""

_ELSEWHERE = INSIDE._replace(
    text="changed from inside, or replaced on the node: its config.json has what the policy wants"
)
_REPLACED = Why(
    WARNING,
    "with a file that the node has replaced since",
    "a bind mount keeps the old one: restart the container. A file in a mounted directory has no such limit",
)


@dataclass(frozen=True)
class Difference:
    """One difference between a container and what the policy wants. `message` never has an env value.

    `why`, `severity`, `cause`: of Why.
    """

    rule: str
    kind: str
    name: str
    message: str
    why: str
    severity: str = WARNING
    cause: str = ""

    @classmethod
    def of(cls, rule: str, kind: str, name: str, message: str, why: Why) -> Self:
        """Returns the difference with why it is."""
        return cls(rule, kind, name, message, why.text, why.severity, why.cause)


def actual(spec: Spec, env: list[str]) -> Start:
    """What a running container has: the env of its process, and all else of its config.json."""
    start = spec.copied()
    start.env = env
    return start


@dataclass
class Judge:
    """Compares containers with a plan. `why`: says why a container differs, by what reassert decided at its create.

    `node`: its mounts.
    """

    why: Callable[[Running, Decision | None], Why]
    node: real.Node = field(default_factory=real.Node)

    def differences(self, container: Running, spec: Spec, decided: Plan, process: Process) -> list[Difference]:
        """How a container differs from a plan made of its process's env. Raises ReassertError, OSError."""
        created = decision_of(spec)
        of_config = decided.env.within(spec.env).differences(spec.env)
        wrong_in_config = {edit.name for edit in of_config if not edit.takes_effect()}
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
        rootfs = rootfs_of(container, spec)
        mounts, devices = real.look(process.mounts(), decided, spec, self.node, rootfs)
        process.check()
        found += [self._mount(edit, problem, container, spec, decided) for edit, problem in mounts]
        why = self.why(container, created)
        if not any(edit.kind == DEVICE for edit in decided.edits):
            why = INSIDE
        found += [Difference.of(device.rule, device.kind, "", device.message, why) for device in devices]
        return found

    def _mount(
        self, edit: PlaceMount, problem: MountMismatch, container: Running, spec: Spec, decided: Plan
    ) -> Difference:
        created = decision_of(spec)
        there = bool(edit.mount) and has_mount(spec, edit.name, edit.source())
        if problem.row and edit.mount and self.node.is_stale(problem.row, edit.source(), lambda: there):
            message = f"{named(edit.name)} is what {edit.source()} was before it was replaced on the node"
            return Difference.of(edit.rule, STALE, edit.name, message, _REPLACED)
        right = there or edit not in decided.edits or bool(created and edit.name in created.mounts)
        if right and problem.row:
            return Difference.of(edit.rule, edit.kind, edit.name, str(problem), _ELSEWHERE)
        return self._difference(edit, str(problem), container, created, right)

    def not_again(self, container: Running, spec: Spec, decided: Plan, process: Process) -> list[Reason]:
        """Why a container would not start again, by its image and its files and mounts now, as a start looks at them.

        None for what the plan refuses by itself. Raises ReassertError, OSError.
        """
        if not decided.mounts or decided.reasons():
            return []
        rootfs = rootfs_of(container, spec)
        with suppress(FileNotFoundError):  # the engine has unmounted it here
            if reasons := of_the_image(decided, spec, container.bundle):
                return reasons
        return real.foreseen_mounts(process.mounts(), decided, spec, self.node, rootfs)

    def denied(self, container: Running, spec: Spec, decided: Plan) -> list[Difference]:
        """What the policy refuses a new container for, beyond its edits and its volumes of the node's own files."""
        created = decision_of(spec)
        said = {edit.conflict() for edit in decided.edits}
        reasons = [r for r in decided.denials if r.kind != node_paths.KIND and r.message not in said]
        return [Difference.of(r.rule, r.kind, "", r.message, self.why(container, created)) for r in reasons]

    def _difference(
        self, edit: Edit, message: str, container: Running, created: Decision | None, right: bool
    ) -> Difference:
        """`right`: config.json has what the policy wants."""
        why = self.why(container, created)
        return Difference.of(edit.rule, edit.kind, edit.name, message, INSIDE if right else why)


def rootfs_of(container: Running, spec: Spec) -> str:
    """The container's root on the node, without symbolic links."""
    path = spec.root.get("path")
    if not isinstance(path, str):
        raise Undecided("config.json has no root.path")
    return os.path.realpath(os.path.join(container.bundle, path))


def has_mount(spec: Spec, destination: str, source: str) -> bool:
    """Whether config.json has a mount from a hostPath at a path."""
    return any(mount.destination == destination and mount.source == source for mount in spec.mounts)
