"""Reserved env names, and where their values come from: one class for each source.

docs/internals/architecture.md, "Add a source", has the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hook.core.base.compare import glob_match, is_pattern
from hook.core.base.errors import ReassertError, Unacceptable, Undecided, named
from hook.core.container.allocation import Allocation
from hook.core.container.claims import Claim
from hook.core.container.identity import Identity
from hook.core.container.start import Start


class Node(Protocol):
    """What a source can know of the node: a part of hook.core.facts.Facts, which describes each attribute."""

    files: dict[str, str]
    unreadable: dict[str, str]
    allocations: list[Allocation]
    allocation_problem: str
    cdi_env: dict[str, list[str]]
    claims: list[Claim]
    claimed_env: dict[str, list[tuple[str, str]]]
    shared_devices: dict[str, dict[str, str]]


class Asked(Protocol):
    """The container that an env name is reserved in: a part of hook.core.facts.Container."""

    @property
    def identity(self) -> Identity:
        """Which container it is."""

    @property
    def start(self) -> Start:
        """What it would start with."""

    @property
    def facts(self) -> Node:
        """What the node says."""


KEEP = "Keep"
"""The `default` of a `deviceAllocation` that leaves the name unchanged if no device plugin set it."""


class Given:
    """What a source gives an env name."""

    def __init__(self, text: str | None, origin: str = "") -> None:
        self.text = text
        """The value; None if the name must be absent."""
        self.origin = origin
        """The allocation that the value comes from; "" if it comes from the policy."""


class Env:
    """One reserved env name, with its source. `by_default` and `value` are each source's own."""

    PLACE: tuple[str, ...] = ()
    """Where an entry of a rule's `env` has it. The last field names the source in the compiled policy."""

    fields: tuple[str, ...] = ()
    """All fields of the entry that it has, if there is more than one; `given` then has each by its name."""

    may_be_pattern = False
    """Whether the env name may be a pattern. Such a source must give None for each name that matches."""

    files: tuple[str, ...] = ()
    """Files of the node that it needs. `Node.files` then has the first line of each, or `Node.unreadable` the error."""

    uses_allocations = False
    """Whether it needs what device plugins and resource claims gave the container."""

    trusted: Sequence[Any] = ()
    """Who may name devices that other pods hold: mappings with `namespaces` and `reservedBy` (hook.core.facts.sharing).
    `Node.shared_devices` then has the devices."""

    constant: str | None = None
    """The value, where the policy file has it."""

    def __init__(self, name: str, given: Any) -> None:
        self.name = name
        """The name, or a pattern of names."""
        self.given = given
        """What the policy file has at PLACE. The compiled policy has it unchanged."""

    def is_pattern(self) -> bool:
        """Whether `name` is a pattern of names that must be absent."""
        return self.may_be_pattern and is_pattern(self.name)

    def literals(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The values that the policy file has, each with its place in the entry. The compiler checks their text."""
        return [] if self.constant is None else [(self.PLACE, self.constant)]

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """What each container gets for which the node says nothing of its own. None: it keeps what it has.

        `read`: returns the first line of one of `files`, None if it is not known.
        """
        raise NotImplementedError

    def value(self, container: Asked) -> Given | None:
        """What a container gets. None: nothing is reserved for it.

        Raises Undecided if the node does not tell the value (`failurePolicy` applies), Unacceptable if the container
        makes it unknown.
        """
        raise NotImplementedError

    def as_written(self) -> dict[str, Any]:
        """The part of the policy file's entry that names the source."""
        written = self.given
        if self.fields:
            return dict(written)
        for field in reversed(self.PLACE):
            written = {field: written}
        return dict(written)


class Absent(Env):
    """`absent: true`: the container must not have the name."""

    PLACE = ("absent",)
    may_be_pattern = True

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """No value."""
        return Given(None)

    def value(self, container: Asked) -> Given | None:
        """No value."""
        return Given(None)


class Value(Env):
    """`value`: the text in the policy file."""

    PLACE = ("value",)

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name, given)
        self.constant = str(given)

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """The text."""
        return Given(self.constant)

    def value(self, container: Asked) -> Given | None:
        """The text."""
        return Given(self.constant)


class FromFile(Env):
    """`valueFrom.file`: the first line of a file of the node."""

    PLACE = ("valueFrom", "file")

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name, given)
        self.path = str(given)
        self.files = (self.path,)

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """The line."""
        return Given(read(self.path))

    def value(self, container: Asked) -> Given | None:
        """The line. Raises Undecided if it could not be read."""
        facts = container.facts
        if self.path in facts.files:
            return Given(facts.files[self.path])
        raise Undecided(facts.unreadable.get(self.path, f"{self.path} was not read"))


class Allocated(Env):
    """`valueFrom.deviceAllocation`: what a device plugin or a resource claim set for the container, else `default`."""

    PLACE = ("valueFrom", "deviceAllocation")
    uses_allocations = True

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name, given)
        self.trusted = given.get("trusted", ())
        default = given.get("default")
        self._default = None if default == KEEP else Given(default)

    def literals(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The default."""
        text = self._default.text if self._default else None
        return [] if text is None else [((*self.PLACE, "default"), text)]

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """`default`: no value if the policy file has none, None for KEEP."""
        return self._default

    def value(self, container: Asked) -> Given | None:
        """The value that was allocated. Raises Unacceptable if plugins disagree and the container does not tell."""
        facts = container.facts
        if facts.allocation_problem:
            return None  # plan() adds this error once for the whole rule
        name = self.name
        set_by = [allocation for allocation in facts.allocations if name in allocation.env]
        is_allocated = bool(set_by or name in facts.cdi_env)
        claimed = _claimed(name, is_allocated, container)
        if claimed:
            return claimed
        if not is_allocated:
            return self._shared(container) or self._default
        names = [str(allocation) for allocation in set_by]
        value = _allocated(name, set_by, container)
        if value is None:
            raise Unacceptable(f"{' and '.join(names)} set env {name} differently, and the container has neither value")
        return Given(value, "; ".join(names) or "CDI")

    def _shared(self, container: Asked) -> Given | None:
        """The container's own value, if it names nothing but devices that the pods of `trusted` hold for it."""
        holders = container.facts.shared_devices.get(self.name) if self.trusted else None
        value = container.start.values(self.name)[-1:] if holders else []
        if not holders or not value or value[0] is None:
            return None
        wanted = value[0].split(",")
        if not all(device in holders for device in wanted):
            return None
        by = dict.fromkeys(holders[device] for device in wanted)
        return Given(value[0], "shared, held by another pod: " + "; ".join(by))


def _claimed(name: str, is_allocated: bool, container: Asked) -> Given | None:
    """The value that the CDI spec of a resource claim set. None if the container has none of them.

    If it is not known which of the devices are the container's, process.env tells it. A CDI spec's value is the last
    entry of its name. `is_allocated`: a device plugin set the name for this container; then only the last entry shows
    that the claim's value is right.
    """
    claims = dict(container.facts.claimed_env.get(name, ()))
    values = container.start.values(name) if claims else []
    for value in values[-1:] if is_allocated else reversed(values):
        if value is not None and value in claims:
            return Given(value, claims[value])
    whole = [str(claim) for claim in container.facts.claims if claim.is_whole and not is_allocated]
    return next((Given(value, claim) for value, claim in reversed(claims.items()) if claim in whole), None)


def _allocated(name: str, set_by: list[Allocation], container: Asked) -> str | None:
    """The allocated value. None if two plugins set different values and the container has neither.

    The env of a CDI spec comes after all other env: CDI's library appends it or, after its version 1.1.0, puts it in
    place of the last entry of the name. So if the last entry of the name holds one of the CDI values, that value is
    right. If two plugins set one name, kubelet takes either value; the first entry in process.env that holds one of
    them tells which.
    """
    has = container.start.values(name)
    cdi = container.facts.cdi_env.get(name, [])
    if has and has[-1] in cdi:
        return has[-1]
    values = list(dict.fromkeys(allocation.env[name] for allocation in set_by))
    if len(values) > 1:
        return next((value for value in has if value in values), None)
    return values[0] if values else cdi[-1]


ONE_OF, PATTERN, ELSE, DEFAULT = "oneOf", "pattern", "else", "default"
"""The fields of an entry with allowed values."""

DENY = "Deny"
"""The `else` that refuses the container."""


class Allowed(Env):
    """`oneOf` and `pattern`: the values that a container may choose. `else` says what it gets for another one.

    Of a name that occurs twice, the last value is the container's: runc and crun use that.
    """

    PLACE = (ONE_OF,)
    fields = (ONE_OF, PATTERN, ELSE, DEFAULT)

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name, given)
        self.pattern: str | None = given.get(PATTERN)
        """A glob, None without one."""
        instead = given.get(ELSE)
        self.denies = instead == DENY
        """Whether a value that is not allowed refuses the container."""
        self.default: str | None = given.get(DEFAULT)
        """The value of a container without the name, None if it stays without."""
        text = self.default if instead is None else instead
        self.instead: str | None = text if isinstance(text, str) and not self.denies else None
        """The value in place of one that is not allowed, None if the name is removed: never beside a default, which a
        hook would then want after the wrapper."""
        self.listed: list[str] = [*given.get(ONE_OF, ()), *[text for _, text in self._others()]]
        """The allowed values that the policy file has."""

    def literals(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The values of `oneOf`, of `else` and of `default`."""
        listed = [((ONE_OF, number), text) for number, text in enumerate(self.given.get(ONE_OF, ()))]
        return [*listed, *self._others()]

    def _others(self) -> list[tuple[tuple[str, ...], str]]:
        """The values of `else` and of `default`."""
        both = ((field, self.given.get(field)) for field in (ELSE, DEFAULT))
        return [((field,), text) for field, text in both if isinstance(text, str) and (field, text) != (ELSE, DENY)]

    def by_default(self, read: Callable[[str], str | None]) -> Given | None:
        """`default`, None without one: the container is without the name."""
        return None if self.default is None else Given(self.default)

    def value(self, container: Asked) -> Given | None:
        """The container's own value if it is allowed. Raises Unacceptable for another one, if `else` is Deny."""
        own = container.start.values(self.name)
        if own and own[-1] is not None and self.denies and not self.allows(own[-1]):
            raise Unacceptable(not_allowed(self.name))
        return Given(self.choice(own)) if own else self.by_default(str)

    def choice(self, own: Sequence[str | None]) -> str | None:
        """What takes the place of the values that a process has of the name, at least one. None: it is removed."""
        if own[-1] is None:  # an entry without `=`: putenv(3) of crun unsets the variable for it
            return self.default
        return own[-1] if self.allows(own[-1]) else self.instead

    def allows(self, text: str) -> bool:
        """Whether a process may have a value: one that the policy file has, or one that the whole of `pattern` matches.

        A pattern of absolute paths matches none that leads out of them by `..`.
        """
        if text in self.listed:
            return True
        if self.pattern is None or not glob_match(self.pattern, text):
            return False
        return not (self.pattern[:1] == "/" and "/../" in f"{text}/")

    def shows_own(self, text: str | None) -> bool:
        """Whether a value is the container's own: allowed by `pattern`, and not in the policy file."""
        return text is not None and text not in self.listed


def not_allowed(name: str) -> str:
    """The reason why a value of an env name is overridden, or refuses the container. It does not have the value."""
    return f"env {named(name)} was set to a value that is not allowed"


SOURCES = {source.PLACE[-1]: source for source in (Absent, Value, FromFile, Allocated, Allowed)} | {PATTERN: Allowed}
"""Every source, by the field that names it."""


def reserved(entry: dict[str, Any]) -> Env:
    """A checked entry of a rule's `env`. Raises ReassertError for a source that SOURCES does not have."""
    name = str(entry["name"])
    fields = {**entry, **(entry.get("valueFrom") or {})}
    for field, source in SOURCES.items():
        if field in fields:
            of_it = {each: entry[each] for each in source.fields if each in entry}
            return source(name, of_it if source.fields else fields[field])
    others = ", ".join(sorted({*fields} - {"name", "valueFrom"})) or "nothing"
    raise ReassertError(f"env {name}: no source of values is named {others}; please report it")
