"""Plan: the decision about one container, to which each step adds (hook.core.plan)."""

from __future__ import annotations

from typing import Protocol, TypeVar

from hook.core.base.text import joined
from hook.core.container.start import Entries, Places, Start
from hook.core.facts import Container
from hook.core.policy.model import AUDIT, FAIL, Match, Policy, Rule
from hook.core.reserve.edits import EDITS, Edit, Reason
from hook.core.reserve.exclusive import Closed
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.reserved_env import Reserved

T = TypeVar("T", bound=Start)


class Step(Protocol):
    """What each of STEPS (hook.core.plan) has: a module of hook.core.reserve."""

    KIND: str

    def concerns(self, rules: list[Rule], container: Container) -> bool:
        """Whether the step may have something to say; False leaves it out. `rules`: those that apply."""

    def want(self, rules: list[Rule], container: Container, plan: Plan) -> None:
        """Compare the container with the rules, and add edits, denials and errors to the plan."""

    def apply(self, plan: Plan, target: Start) -> None:
        """Make the plan's edits of this step in a container."""


class Plan:
    """The decision about one container. `hook.core.plan.plan` makes it, and nothing changes it afterwards.

    A look into a running container fills one with what it finds (hook.core.linux.look_node_paths.reached).
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        """The policy by which it was decided."""
        self.excluded = ""
        """Why the policy does not apply to the container, or ""."""
        self.matches: list[Match] = []
        """Every candidate rule with its conditions; none if the container is excluded."""
        self.steps: list[Step] = []
        """The steps that were taken, in the order in which they make edits."""

        self.edits: list[Edit] = []
        """The differences between the container and the policy."""
        self.denials: list[Reason] = []
        """What the policy forbids."""
        self.errors: list[Reason] = []
        """What reassert could not find out."""

        self.env = Reserved({}, [])
        """The reserved env, for every process of the container."""
        self.env_search: tuple[Entries, tuple[Entries, Places]] = [], ([], [])
        """The env that was compared, and the result of `Reserved.search` for it."""
        self.mounts: list[PlaceMount] = []
        """Every reserved mount, also those that need no edit."""
        self.reorders_mounts = False
        """Whether a correct mount is moved behind others, which is not an edit."""
        self.exclusive: Closed | None = None
        """The devices that the container must not have; None without a rule with `exclusive`."""
        self.refuses_sharing = ""
        """The name of a rule whose `sharedProcesses` is Refuse, or ""."""

        self.node_paths_of_reassert: tuple[str, ...] = ()
        """The beginnings of reassert's own paths; none if no mount can show them (hook.core.reserve.node_paths)."""
        self.node_paths: list[str] = []
        """What volumes reach of reassert or an engine and is only reported, each with the volume's path."""
        self.node_logs: list[str] = []
        """The volumes in which a hook has to cover reassert's log."""
        self.read_only: list[str] = []
        """What of the volumes is made read-only, as the container has it. Only a look fills it."""
        self.audited: list[Reason] = []
        """Why the container would not start if `nodePaths` were not on trial."""

        self._counts: dict[str, int] = {}

    def deny(self, rule: str, kind: str, message: str) -> None:
        """Add a reason to refuse the container: the policy forbids something that it has or lacks."""
        self.denials.append(Reason(rule, kind, message))

    def cannot_tell(self, rule: str, kind: str, message: str) -> None:
        """Add an error: reassert could not find something out. `failurePolicy` says whether the container starts."""
        self.errors.append(Reason(rule, kind, message))

    def count(self, kind: str, rule: str) -> bool:
        """Whether one more edit of a kind is within EDITS; if not, adds one reason to refuse the container."""
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        if number == EDITS + 1:
            self.deny(rule, kind, f"more than {EDITS} {kind} entries of the container are reserved or must be absent")
        return number <= EDITS

    def audit_only(self) -> bool:
        """Whether the policy is in Audit mode: the event says what would be done, and nothing is done."""
        return self.policy.mode == AUDIT

    def reasons(self) -> list[Reason]:
        """Why Enforce mode would not let the container start."""
        return self.denials + (self.errors if self.policy.failure_policy == FAIL else [])

    def refusal(self) -> str:
        """Why the container must not start, or "" if it may start."""
        reasons = self.reasons()
        return "" if not reasons or self.audit_only() else joined(reasons)

    def is_seen_in_the_container(self) -> bool:
        """Whether only a look into the container's mount namespace tells if the policy holds."""
        has_nodes = self.exclusive is not None and bool(self.exclusive.nodes or self.exclusive.unread)
        return bool(self.mounts or self.refuses_sharing or self.node_paths_of_reassert or has_nodes)

    def is_empty(self) -> bool:
        """Whether the plan has no edits, no denials and no errors."""
        return not (self.edits or self.denials or self.errors)

    def applied(self, start: T) -> T:
        """A copy with the edits made."""
        other = start.copied()
        self.apply(other)
        return other

    def apply(self, target: Start) -> None:
        """Make the edits in `target`."""
        for step in self.steps if self.edits or self.reorders_mounts else ():
            step.apply(self, target)
