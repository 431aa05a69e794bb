"""One container in front of one adapter: what all adapters do alike. Part of the start path: builtins only."""

from hook import events
from hook.base.errors import CAUSED_BY_THE_CONTAINER, Refused, Usage, describe
from hook.container.identity import Identity, identify
from hook.container.model import Container
from hook.container.spec import Spec
from hook.facts import gather
from hook.plan import Plan, plan
from hook.policy import store
from hook.policy.match import select
from hook.policy.model import AUDIT, IGNORE, Policy


class Settings:
    """Where things are, from an adapter's command line; every path absolute.

    `rest`: the arguments after `--`, None without one. `operands`: arguments that are no options.
    """

    __slots__ = ("events", "flags", "operands", "policy", "real", "rest", "store")

    def __init__(self, arguments: "list[str]", paths: "tuple[str, ...]" = (), flags: "tuple[str, ...]" = ()) -> None:
        """`paths` and `flags`: what this adapter takes beyond --policy, --store and --events. Raises Usage."""
        self.real = ""
        self.policy = store.SOURCE
        self.store = store.STORE
        self.events = events.EVENTS
        self.flags: set[str] = set()
        self.operands: list[str] = []
        self.rest: list[str] | None = None
        paths = ("policy", "store", "events", *paths)
        pending = list(arguments)
        while pending:
            argument = pending.pop(0)
            if argument == "--":
                self.rest = pending
                return
            name, equals, value = argument[2:].partition("=")
            if not argument.startswith("--"):
                self.operands.append(argument)
            elif name in flags and not equals:
                self.flags.add(name)
            elif name in paths:
                if not equals:
                    value = pending.pop(0) if pending else ""
                if not value.startswith("/"):
                    raise Usage(f"--{name} takes an absolute path, not {value!r}")
                setattr(self, name, value)
            else:
                raise Usage(f"unknown option {argument!r}")


class Case:
    """The decision about one container, with its event and its failure handling."""

    __slots__ = ("adapter", "clock", "container_id", "policy", "settings", "who")

    def __init__(self, adapter: str, settings: Settings, container_id: str) -> None:
        self.adapter = adapter
        self.settings = settings
        self.container_id = container_id
        self.clock = events.Clock()
        self.policy: Policy | None = None
        self.who: Identity | None = None

    def decide(self, spec: Spec) -> Plan:
        """What the policy in force wants of this container. Raises Undecided."""
        self.policy = store.load(self.settings.policy, self.settings.store)
        self.who = identify(spec)
        matches = select(self.policy, self.who)
        facts = gather(self.policy, self.who, matches)
        container = Container(self.who, spec.env, spec.mounts, facts, spec.annotations, spec.devices, spec.device_rules)
        return plan(self.policy, container, matches)

    def finish(self, decided: Plan) -> None:
        """Write the event, if there is something to say. Raises Refused where the container must not start."""
        if not decided.is_empty() or decided.policy.warning:
            events.write(self.settings.events, events.plan_event(self._event(), decided))
        refusal = decided.refusal()
        if refusal:
            raise Refused(f"refused {self.who}: {refusal}")

    def fail(self, error: Exception, where: str) -> None:
        """Reassert itself could not decide or act: `failurePolicy` says what happens. Raises Refused, or returns."""
        text = describe(error)
        if isinstance(error, OSError) and where not in text:
            text = f"{where}: {text}"
        if isinstance(error, CAUSED_BY_THE_CONTAINER):
            self.refuse("", text)
            return
        if self.policy is None:  # it failed before anybody asked for the policy
            self.policy = store.load(self.settings.policy, self.settings.store)
        let_through = self.policy.failure_policy == IGNORE or self.policy.mode == AUDIT
        events.write(self.settings.events, events.error_event(self._event(), text, let_through))
        if not let_through:
            raise Refused(f"refused {self.who or self.container_id or 'a container'}: {text}") from None

    def refuse(self, rule: str, message: str) -> None:
        """Refuse for a reason found while acting; in Audit mode it is only logged. Raises Refused, or returns."""
        if self.policy is None:
            self.policy = store.load(self.settings.policy, self.settings.store)
        events.write(self.settings.events, events.denial_event(self._event(), rule, message))
        if self.policy.mode != AUDIT:
            raise Refused(f"refused {self.who or self.container_id or 'a container'}: {message}") from None

    def _event(self) -> "dict[str, object]":
        return events.container_event(self.clock, self.adapter, self.container_id, self.who, self.policy)
