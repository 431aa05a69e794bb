"""What can be reserved, one file for each kind: it reads the rule, compares, applies and describes.

Here is what each kind gives to plan(): edits, and reasons to refuse the container. Start path: builtins only.
"""

from hook.core.base.compare import clean, glob_match, is_below, literal_start
from hook.core.base.errors import named
from hook.core.base.jsontext import Strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hook.core.container.start import Entries, Places
    from hook.core.reserve.exclusive import Closed

    OciMount = dict[str, object]

SHOWN = 64
"""How many of the container's own entries one edit describes. The rest is only counted."""

STEERING = ("run.oci.", "krun.", "module.wasm.image/", "org.criu.", "org.systemd.property.", "bundle", "dev.gvisor.")
"""Prefixes of annotations that tell a runtime to do more than the spec (hook.core.reserve.annotations.STEER)."""

OF_HOOKS = "run.oci.hooks."
"""The prefix of those of STEERING that concern all hooks, also those of a node (crun.1)."""

EDITS = 1000
"""How many edits of one kind a container may need: each costs time and memory, and no honest pod needs so many."""


class Reason:
    """Why a container must not start, or why reassert cannot tell.

    `rule`: name of the rule, "" if no rule is the reason. `kind`: the reserved kind, "" for all.
    """

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message

    def describe(self) -> "dict[str, object]":
        """Returns the entry for events."""
        return {"rule": self.rule, "message": self.message}


def _shown(value: object) -> object:
    if isinstance(value, str) and "@" in value:
        from hook.core.base.urls import without_credentials

        return without_credentials(value)
    return [_shown(item) for item in value] if isinstance(value, list) else value


class Edit:
    """One difference between what a container would start with and what the policy wants.

    `rule`: name of the rule that wants the edit. `name`: env name, mount path, device path or annotation key. `before`:
    what the container would start with. `origin`: the allocation that the wanted value comes from, "" if it comes from
    the policy.
    """

    kind = ""

    def __init__(self, rule: str, name: str, origin: str = "") -> None:
        self.rule = rule
        self.name = name
        self.origin = origin

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or "". It never includes an env value."""
        raise NotImplementedError

    def before_and_after(self) -> "tuple[object, object]":
        """What the container would have started with and what it gets, as JSON; None: absent."""
        raise NotImplementedError

    def shown(self) -> "tuple[object, object]":
        """Returns the same for logs and terminals: without the user and password of a URL."""
        before, after = self.before_and_after()
        return _shown(before), _shown(after)

    def describe(self) -> "dict[str, object]":
        """Returns the entry for events."""
        before, after = self.shown()
        described = {"rule": self.rule, "kind": self.kind, "name": self.name, "before": before, "after": after}
        if self.origin:
            described["from"] = self.origin
        return described


_FEW = 16
"""Exact names up to which looking for each of them in the whole env is faster than looking at each entry."""


class SetEnv(Edit):
    """Exactly one entry `name=value`, or none if `value` is None.

    `before`: the values in the container, None for an entry `NAME` without `=`. Such an entry counts, since crun's
    putenv(3) unsets the variable for it.
    """

    kind = "env"

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
    name overrides a pattern. `create` decides it, and `exec` applies the same decision (hook.entry.write_spec).
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
                is_plain = all(map(str.isidentifier, self.values))  # else a name could begin with a separator
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


class PlaceMount(Edit):
    """A reserved mount as the last one mounted at its path, or no mount at the path.

    `mount`: the OCI object, None if nothing may be mounted. `companions`: cleaned destinations of mounts that may come
    after it: the plan's other reserved mounts and the mounts that `allowBelow` allows. Every other mount at the path or
    below it is removed. `before`: the mounts that are removed, and the mounts above it, which stay if `volumes_above`.
    `volume`: of an emptyDir, as in hook.core.policy.entries.Mount.
    """

    kind = "mount"
    volume: "Sequence[Any]" = ()

    def __init__(
        self,
        rule: str,
        name: str,
        mount: "OciMount | None",
        companions: "frozenset[str]",
        before: "list[OciMount]",
        origin: str = "",
        volumes_above: bool = False,
    ) -> None:
        super().__init__(rule, name, origin)
        self.mount = mount
        self.companions = companions
        self.before = before
        self.volumes_above = volumes_above

    def source(self) -> str:
        """The path on the node, "" if nothing may be mounted."""
        return str(self.mount["source"]) if self.mount else ""

    def options(self) -> "list[str]":
        """The mount(8) options."""
        options = self.mount.get("options") if self.mount else None
        return [str(option) for option in options] if isinstance(options, list) else []

    def can_be_written(self) -> bool:
        """Whether a runtime that has made all mounts can make a file in this one.

        runc obeys `ro` at once, crun only `rro`, which a rule's directory has too (`Mount.as_oci`).
        """
        options = self.options()
        return self.mount is not None and ("ro" not in options or (self.origin != "" and "rro" not in options))

    def is_shared(self) -> bool:
        """Whether other containers may write there: they could remove another reserved mount that is below it."""
        return bool(self.volume) or ("rw" in self.options() and not self.origin)

    def displaces(self, path: str) -> bool:
        """Whether a mount at a cleaned path has to be removed."""
        return path == self.name or (is_below(path, self.name) and path not in self.companions)

    def in_place(self, paths: "list[str]", there: "list[OciMount]", displaced: "list[int]") -> bool:
        """Whether config.json needs no edit for this mount.

        `there`: the container's mounts. `paths`: their cleaned destinations. `displaced`: indexes of those to remove.
        Only companions may come after the mount: by a link of the image, another path could lead to a place above it.
        """
        if self.mount is None or len(displaced) != 1 or there[displaced[0]] != self.mount:
            return not displaced and self.mount is None
        return all(path in self.companions and not is_below(self.name, path) for path in paths[displaced[0] + 1 :])

    def conflict(self) -> str:
        """What the container asked for that this edit overrides, or ""."""
        asked = [str(mount["destination"]) for mount in self.before]
        others = sorted({path for path in asked if self.displaces(clean(path))})[:SHOWN]
        if not others:  # a mount above stays if `volumesAbove` allows it
            return ""
        return f"mount {named(self.name)} is reserved and {named(', '.join(others))} was mounted"

    def before_and_after(self) -> "tuple[object, object]":
        """Destinations and sources of the mounts before; source and options of the reserved mount."""
        before = [{"destination": m["destination"], "source": m.get("source")} for m in self.before]
        return before, {"source": self.source(), "options": self.options()} if self.mount else None


class Outcome:
    """The results of all kinds. `env` and `mounts`: all reserved env and mounts, whether or not they need an edit.

    `closed`: the devices that the container must not have, None without a rule with `exclusive`. `alone`: a rule whose
    `sharedProcesses` is Refuse, or "". `node_paths`: what its volumes reach (hook.core.reserve.nodepaths). `moves`:
    whether a correct mount is moved behind others, which is not an edit.
    """

    def __init__(self, env: "Reserved") -> None:
        self.edits: list[Edit] = []
        self.denials: list[Reason] = []
        self.errors: list[Reason] = []
        self.env = env
        self.env_matches: tuple[Entries, tuple[Entries, Places]] = (
            [],
            ([], []),
        )  # an env, and the result of `search` for it
        self.mounts: list[PlaceMount] = []
        self.moves = False
        self.closed: Closed | None = None
        self.alone = ""
        self._counts: dict[str, int] = {}
        self.node_paths: list[str] = []
        self.node_paths_of_reassert: tuple[str, ...] = ()

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
