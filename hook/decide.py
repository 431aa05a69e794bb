"""One container at one adapter: load, identify, select, gather, plan; act; then one event that says what was done.

Every adapter and `explain` go this way, and none has a step of its own. Part of the start path: builtins only.
"""

from hook import events
from hook.base.errors import CAUSED_BY_THE_CONTAINER, describe
from hook.base.system import read_file
from hook.base.text import joined
from hook.container.identity import Identity
from hook.container.model import Container
from hook.gather import gather
from hook.plan import ALL, Plan, plan
from hook.policy.match import select
from hook.policy.model import AUDIT, IGNORE, Policy
from hook.reserve.outcome import Edit, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from hook.reserve.outcome import Target

    T = TypeVar("T", bound=Target)

CONFIG, CONTAINER, NOWHERE = "config.json", "container", ""
"""Where an adapter looked at the result: config.json as the runtime reads it, the container's own mount namespace, or
nowhere, because it only asked another program for it."""


class Done:
    """What an adapter did about a plan.

    `verified`: where it looked at the result: CONFIG, CONTAINER or NOWHERE. `denials`: why the container must not start
    after all. `edits`: those that the event names, all of the plan's unless given. `handed_on`: somebody who looks
    later writes the event. `draft`: the event that an adapter before this one handed on.
    """

    __slots__ = ("denials", "draft", "edits", "handed_on", "verified")

    def __init__(
        self,
        verified: str = NOWHERE,
        denials: "Sequence[Reason]" = (),
        edits: "Sequence[Edit] | None" = None,
        handed_on: bool = False,
        draft: "dict[str, object] | None" = None,
    ) -> None:
        self.verified = verified
        self.denials = tuple(denials)
        self.edits = edits
        self.handed_on = handed_on
        self.draft = draft


class Verdict:
    """How it ended.

    `refusal`: one line for the engine, or "". `event`: for the log, or None. `plan`: None where nobody could decide.
    `reasons`: why Enforce mode would refuse the container.
    """

    __slots__ = ("event", "plan", "reasons", "refusal")

    def __init__(
        self,
        refusal: str,
        event: "dict[str, object] | None",
        decided: "Plan | None" = None,
        reasons: "Sequence[Reason]" = (),
    ) -> None:
        self.refusal = refusal
        self.event = event
        self.plan = decided
        self.reasons = reasons


class Case:
    """One container in front of one adapter. `load`: how the policy in force is had.

    `read`: reads a file of kubelet, up to a size limit. `where`: the file that an OSError without a path is about.
    `reads_node`: whether it is waiting for the policy or for what `gather` reads of the node, which may hang.
    """

    __slots__ = (
        "adapter",
        "clock",
        "container",
        "container_id",
        "load",
        "policy",
        "read",
        "reads_node",
        "where",
        "who",
    )

    def __init__(
        self,
        adapter: str,
        container_id: str,
        load: "Callable[[], Policy]",
        read: "Callable[[str, int], bytes]" = read_file,
    ) -> None:
        self.adapter = adapter
        self.container_id = container_id
        self.load = load
        self.read = read
        self.where = ""
        self.clock = events.Clock()
        self.reads_node = False
        self.policy: Policy | None = None
        self.who: Identity | None = None

    def decide(self, who: Identity, target: "Target", kinds: "frozenset[str]" = ALL) -> Plan:
        """What the policy in force wants of a container. Raises Undecided; Unacceptable for what a pod can cause."""
        self.who = who
        self.reads_node = True
        self.policy = self.load()
        matches = select(self.policy, who)
        facts = gather(self.policy, who, matches, self.read)
        self.reads_node = False
        self.container = Container.of(who, target, facts)
        return plan(self.policy, self.container, matches, kinds)

    def settle(
        self,
        read: "Callable[[], tuple[Identity, T]]",
        act: "Callable[[Plan, T], Done]",
        kinds: "frozenset[str]" = ALL,
    ) -> Verdict:
        """The whole way. Never raises.

        `read`: who the container is and what it would start with. `act`: makes the plan true and looks at the result;
        not called for a container that is refused anyway.
        """
        try:
            who, target = read()
            decided = self.decide(who, target, kinds)
            done = Done() if decided.refusal() else act(decided, target)
        except Exception as error:  # whatever it is, the policy says what a container gets then
            return self.failed(error)
        reasons = decided.reasons() + done.denials
        refused = bool(reasons) and not decided.audit_only()
        event = None if done.handed_on and not refused else self.event(decided, done)
        return Verdict(self._refusal(joined(reasons)) if refused else "", event, decided, reasons)

    def event(self, decided: Plan, done: Done) -> "dict[str, object] | None":
        """The record of a decision and of what was done about it; None where there is nothing to say."""
        edits = decided.edits if done.edits is None else done.edits
        if not (edits or done.draft or done.denials or decided.denials or decided.errors or decided.policy.warning):
            return None
        return events.plan_event(self._fields(), decided, edits, done.denials, done.verified, done.draft)

    def failed(self, error: Exception) -> Verdict:
        """Reassert itself could not decide or act: `failurePolicy` says what happens.

        But for what a pod, an image or a CLI user can cause: no `failurePolicy` lets that through.
        """
        text = describe(error)
        if isinstance(error, OSError) and self.where not in text:
            text = f"{self.where}: {text}"
        if self.policy is None:  # it failed before anybody asked for the policy
            self.policy = self.load()
        audit = self.policy.mode == AUDIT
        if isinstance(error, CAUSED_BY_THE_CONTAINER):
            event = events.denial_event(self._fields(), text, audit)
            return Verdict("" if audit else self._refusal(text), event)
        starts = audit or self.policy.failure_policy == IGNORE
        would_deny = audit and self.policy.failure_policy != IGNORE
        event = events.error_event(self._fields(), text, starts, would_deny)
        return Verdict("" if starts else self._refusal(text), event)

    def is_probe(self) -> bool:
        """Whether `node verify` started the container; see hook.events."""
        return events.is_probe(self.adapter, self.container_id, self.who)

    def _refusal(self, reasons: str) -> str:
        return f"refused {self.who or self.container_id or 'a container'}: {reasons}"

    def _fields(self) -> "dict[str, object]":
        return events.container_event(self.clock, self.adapter, self.container_id, self.who, self.policy)
