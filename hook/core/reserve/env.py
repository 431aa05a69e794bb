"""Reserved env: names that have one given value or are absent. Part of the start path: builtins only."""

from hook.core.base.compare import glob_match, is_pattern, literal_start
from hook.core.base.errors import named
from hook.core.base.jsontext import Strings
from hook.core.reserve import EDITS, Edit, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hook.core.plan import Container
    from hook.core.policy.model import Rule
    from hook.core.reserve.target import Editable, Entries, Places

KIND = "env"

VALUE, FILE, ALLOCATED, ABSENT = "value", "file", "allocated", "absent"
KEEP = "Keep"
"""The `default` of a `deviceAllocation` that leaves the name unchanged if no device plugin set it."""


_FEW = 16
"""Exact names up to which looking for each of them in the whole env is faster than looking at each entry."""


class Env:
    """One reserved env name. `source` says what `text` is.

    VALUE: `text` is the value. FILE: `text` is the path of a file whose first line is the value. ALLOCATED: `text` is
    the default if no device plugin set the name, None for absent; with `keep` the name is left unchanged instead;
    `trusted`: as in the policy file. ABSENT: `text` is None, and `name` may be a pattern.
    """

    def __init__(
        self, name: str, source: str, text: "str | None" = None, keep: bool = False, trusted: "Sequence[Any]" = ()
    ) -> None:
        self.name = name
        self.source = source
        self.text = text
        self.keep = keep
        self.trusted = trusted

    def is_pattern(self) -> bool:
        """Whether `name` is a pattern of names that must be absent."""
        return self.source == ABSENT and is_pattern(self.name)


class SetEnv(Edit):
    """Exactly one entry `name=value`, or none if `value` is None.

    `before`: the values in the container, None for an entry `NAME` without `=`. Such an entry counts, since crun's
    putenv(3) unsets the variable for it.
    """

    kind = KIND

    def __init__(self, rule: str, name: str, value: "str | None", before: "list[str | None]") -> None:
        super().__init__(rule, name)
        self.value = value
        self.before = before

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or "". It never includes the value."""
        if self.value is None:
            return f"env {named(self.name)} must be absent and was set" if self.before else ""
        if any(value != self.value for value in self.before):
            return f"env {named(self.name)} is reserved and was set to something else"
        return ""

    def takes_effect(self) -> bool:
        """Whether processes have the value already: of a name that occurs twice, runc and crun use the last value."""
        return self.value is not None and self.before[-1:] == [self.value]

    def before_and_after(self) -> "tuple[object, object]":
        """The values before, and the value after."""
        return self.before, self.value


class Reserved:
    """Reserved env, for every process of a container.

    `values`: by name, None for a name that must be absent. `absent`: patterns of names that must be absent. An exact
    name overrides a pattern. `create` decides it, and `exec` applies the same (hook.entry.write_spec).
    """

    def __init__(self, values: "dict[str, str | None]", absent: "list[str]") -> None:
        self.values = values
        self.absent = absent
        self._starts: tuple[str, ...] = ()
        self._ends: tuple[str, ...] = ()
        self._rest: list[tuple[str, str]] = []
        if not absent:
            return
        # One call rules a name out for all patterns: by their literal starts, or their ends where they have no start.
        # Almost no name matches. A pattern without both (`*x*`) is tried on each name that contains its literal.
        ends = [(p, p.rpartition("*")[2].rpartition("?")[2]) for p in absent if not literal_start(p)]
        self._starts = tuple([start for start in map(literal_start, absent) if start])
        self._ends = tuple([end for _, end in ends if end])
        rest = [pattern for pattern, end in ends if not end]
        self._rest = [(max(pattern.replace("?", "*").split("*"), key=len), pattern) for pattern in rest]

    def __bool__(self) -> bool:
        return bool(self.values or self.absent)

    def owner(self, name: str) -> str:
        """The reserved name, or else the pattern, that an env name matches, or ""."""
        if name in self.values:
            return name
        if name.startswith(self._starts) or name.endswith(self._ends):
            return next((pattern for pattern in self.absent if glob_match(pattern, name)), "")
        for literal, pattern in self._rest:
            if literal in name and glob_match(pattern, name):
                return pattern
        return ""

    def differences(self, env: "Entries", places: "Places | None" = None) -> "list[SetEnv]":
        """The edits that a process's env needs, exact names first. `places`: those of `search`, if they are known.

        Soon after more than EDITS names matched patterns, it looks for no further names.
        """
        before: dict[str, list[str | None]] = {name: [] for name in self.values}
        by_pattern: dict[str, list[str | None]] = {}
        for _, name, value in self.search(env)[1] if places is None else places:
            values = before.get(name)
            if values is None and len(by_pattern) <= EDITS:
                values = by_pattern.setdefault(name, [])
            if values is not None:
                values.append(value)
        wrong = [
            SetEnv("", name, value, before[name])
            for name, value in self.values.items()
            if before[name] != ([] if value is None else [value])
        ]
        return wrong + [SetEnv("", name, None, values) for name, values in by_pattern.items()]

    def correct(self, env: "Entries", found: "tuple[Entries, Places] | None" = None) -> "Entries":
        """The corrected env: each reserved value replaces the first entry of its name, or is appended.

        `found`: the result of `search`, if it is known.
        """
        if isinstance(env, Strings):
            env, places = found or self.search(env)
        left = {name: f"{name}={value}" for name, value in self.values.items() if value is not None}
        if isinstance(env, Strings):
            edits = [(at, name if v is None else f"{name}={v}", left.pop(name, None)) for at, name, v in places]
            return env.replaced(edits, list(left.values()))
        corrected: list[str] = []
        for entry in env:
            name = entry[: entry.find("=")] if "=" in entry else entry  # partition(3) copies the value too
            if name in left:
                corrected.append(left.pop(name))
            elif name not in self.values and not self.owner(name):
                corrected.append(entry)
        return [*corrected, *left.values()]

    def search(self, env: "Entries") -> "tuple[Entries, Places]":
        """The places of reserved names in an env, and that env: as a list if its text cannot be searched."""
        if len(self.values) <= _FEW and not self.absent:
            if isinstance(env, Strings):
                text, mark = env.text, '"'
                is_plain = all(
                    map(str.isidentifier, self.values)
                )  # else a name could begin with what is between strings
            else:
                text, mark = "\0".join(["", *env, ""]), "\0"
                is_plain = text.count(mark) == len(env) + 1
            if is_plain:
                return env, sorted([(at, name, v) for name in self.values for at, v in _entries(name, text, mark)])
        env = list(env)
        split = [(entry.partition("=")[0], entry) for entry in env]
        known = self.values
        found = [(name, entry) for name, entry in split if name in known or self.owner(name)]
        return env, [(at, n, e[len(n) + 1 :] if len(e) > len(n) else None) for at, (n, e) in enumerate(found)]


def _entries(name: str, text: str, mark: str) -> "Iterator[tuple[int, str | None]]":
    """The entries of a name in a text of entries between marks: the position of the mark before it, and the value."""
    at = -1
    while (at := text.find(mark + name, at + 1)) >= 0:
        after = at + 1 + len(name)
        sign = text[after : after + 1]
        if sign == mark:
            yield at, None
        elif sign == "=":
            yield at, text[after + 1 : text.index(mark, after)]


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Collect the env that the rules reserve, and compare the container's env with it."""
    values: dict[str, str | None] = {}
    absent: dict[str, None] = {}
    owners: dict[str, str] = {}
    origins: dict[str, str] = {}
    denying: dict[str, str] = {}
    for rule in rules:
        wanted = list(rule.env)
        if KIND in rule.allocations:
            from hook.core.reserve.allocated import env_of

            wanted += env_of(container.facts)
        for env in wanted:
            if rule.deny:
                denying.setdefault(env.name, rule.name)
            if env.is_pattern():
                absent[env.name] = None
            else:
                value = env.text
                if env.source in (FILE, ALLOCATED):
                    from hook.core.reserve.allocated import env_value

                    result = env_value(rule.name, env, container, outcome, origins)
                    if not result:
                        continue
                    value = result[0]
                if values.setdefault(env.name, value) != value:
                    message = f"wants another value for env {env.name} than rule {owners[env.name]}"
                    outcome.deny(rule.name, KIND, message)
            owners.setdefault(env.name, rule.name)
    reserved = outcome.env = Reserved(values, list(absent))
    found = reserved.search(container.env)
    outcome.searched = container.env, found
    for edit in reserved.differences(*found):
        exact = edit.name in reserved.values
        edit.rule = owners[edit.name if exact else reserved.owner(edit.name)]
        edit.origin = origins.get(edit.name, "") if edit.value is not None else ""
        if not exact and not outcome.count(KIND, edit.rule):
            break  # exact names have no limit: the policy lists each of them
        outcome.edits.append(edit)
        asked = [name for name in denying if name == edit.name or (not exact and glob_match(name, edit.name))]
        if asked and edit.conflict():
            outcome.deny(denying[asked[0]], KIND, edit.conflict())


def apply(outcome: Outcome, target: "Editable") -> None:
    """Correct the env of `target`."""
    if any(edit.kind == KIND for edit in outcome.edits):
        env, found = outcome.searched
        target.env = outcome.env.correct(target.env, found if target.env is env else None)
