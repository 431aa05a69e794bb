"""Reserved env of a process, and the edits that it needs: for `create` as for each `exec`."""

from __future__ import annotations

from hook.core.base.compare import glob_match, literal_start
from hook.core.base.errors import named
from hook.core.base.jsontext import Strings
from hook.core.container.start import Entries, Places, places_of, values_of
from hook.core.policy.sources import Allowed, not_allowed
from hook.core.reserve.edits import EDITS, Edit

VISIBLE_GPUS, VOID = "NVIDIA_VISIBLE_DEVICES", "void"


class SetEnv(Edit):
    """Exactly one entry `name=value`, or none if `value` is None."""

    kind = "env"

    def __init__(
        self, rule: str, name: str, value: str | None, before: list[str | None], *, allowed: Allowed | None = None
    ) -> None:
        super().__init__(rule, name)
        self.value = value
        self.before = before
        """The values in the container, None for an entry `NAME` without `=`. Such an entry counts, since crun's
        putenv(3) unsets the variable for it."""
        self.allowed = allowed
        """The values that the container may choose, None if it may choose none."""
        self.keeps_own = allowed is not None and allowed.shows_own(value)

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or "". It never includes the value."""
        if self.allowed is not None:
            own = self.before[-1] if self.before else None
            return "" if own is None or self.allowed.allows(own) else not_allowed(self.name)
        if self.value is None:
            return f"env {named(self.name)} must be absent and was set" if self.before else ""
        if any(value != self.value for value in self.before):
            return f"env {named(self.name)} is reserved and was set to something else"
        return ""

    def takes_effect(self) -> bool:
        """Whether processes have the value already: of a name that occurs twice, runc and crun use the last value.

        NVIDIA's runtime gives the GPUs that the value names, and leaves `void`, which names none, in its place.
        """
        left = {self.value, VOID} if self.name == VISIBLE_GPUS else {self.value}
        return self.value is not None and bool(self.before) and self.before[-1] in left

    def before_and_after(self) -> tuple[object, object]:
        """The values before, and the value after."""
        return self.before, self.value


class Reserved:
    """Reserved env, for every process of a container."""

    def __init__(
        self, values: dict[str, str | None], absent: list[str], allowed: dict[str, Allowed] | None = None
    ) -> None:
        self.values = values
        """The values, by name; None for a name that must be absent."""
        self.allowed = allowed or {}
        """By name, the values that a process may choose. `values` has the container's choice, and no such name that the
        container is without."""
        self.refused: list[str] = []
        """Names of which a process has a value that refuses it (`within`)."""
        self.absent = absent
        """Patterns of names that must be absent. An exact name overrides a pattern. `create` decides it, and `exec`
        applies the same decision (hook.entry.write_spec)."""
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
        return bool(self.values or self.absent or self.allowed)

    def within(self, env: Entries) -> Reserved:
        """What is reserved for another process of the container, with this env.

        Of a name with allowed values it keeps its own value, if that is allowed; without one it has the container's.
        """
        if not self.allowed:
            return self
        found = Reserved(dict(self.values), self.absent, self.allowed)
        for name, allowed in self.allowed.items():
            own = values_of(name, env)
            if own:
                found.values[name] = allowed.choice(own)
                if own[-1] is not None and allowed.denies and not allowed.allows(own[-1]):
                    found.refused.append(name)
        return found

    def owner(self, name: str) -> str:
        """The reserved name, or else the pattern, that an env name matches, or ""."""
        if name in self.values or name in self.allowed:
            return name
        if name.startswith(self._starts) or name.endswith(self._ends):
            return next((pattern for pattern in self.absent if glob_match(pattern, name)), "")
        for literal, pattern in self._rest:
            if literal in name and glob_match(pattern, name):
                return pattern
        return ""

    def differences(self, env: Entries, places: Places | None = None) -> list[SetEnv]:
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
            SetEnv("", name, value, before[name], allowed=self.allowed.get(name))
            for name, value in self.values.items()
            if before[name] != ([] if value is None else [value])
        ]
        return wrong + [SetEnv("", name, None, values) for name, values in by_pattern.items()]

    def correct(self, env: Entries, searched: tuple[Entries, Places] | None = None) -> Entries:
        """The corrected env: each reserved value replaces the first entry of its name, or is appended.

        `searched`: the result of `search`, if it is known.
        """
        if isinstance(env, Strings):
            env, places = searched or self.search(env)
        left = {name: f"{name}={value}" for name, value in self.values.items() if value is not None}
        if isinstance(env, Strings):
            edits = [
                (position, name if v is None else f"{name}={v}", left.pop(name, None)) for position, name, v in places
            ]
            return env.replaced(edits, list(left.values()))
        corrected: list[str] = []
        for entry in env:
            name = entry[: entry.find("=")] if "=" in entry else entry  # partition(3) copies the value too
            if name in left:
                corrected.append(left.pop(name))
            elif name not in self.values and not self.owner(name):
                corrected.append(entry)
        return [*corrected, *left.values()]

    def search(self, env: Entries) -> tuple[Entries, Places]:
        """The places of reserved names in an env, and that env: as a list if its text cannot be searched."""
        places = None if self.absent else places_of(self.values, env)
        if places is not None:
            return env, places
        env = list(env)
        split = [(entry.partition("=")[0], entry) for entry in env]
        known = self.values
        entries = [(name, entry) for name, entry in split if name in known or self.owner(name)]
        return env, [
            (position, n, e[len(n) + 1 :] if len(e) > len(n) else None) for position, (n, e) in enumerate(entries)
        ]
