"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O. Part of the start path: builtins only.

Every adapter asks this one function and none has an opinion of its own.
"""

from hook.container.model import Container
from hook.container.paths import clean, is_below
from hook.edits import Edit, PlaceMount, SetEnv, UnsetEnv, name_of, values_of
from hook.policy.match import Match, excluded, glob_match, select
from hook.policy.model import AUDIT, FAIL, Env, Mount, Policy, Rule


class Denial:
    """A reason to refuse the container. `rule`: whose; "" where it is no rule's. `kind`: env, mount, or "" for all."""

    __slots__ = ("kind", "message", "rule")

    def __init__(self, rule: str, kind: str, message: str) -> None:
        self.rule = rule
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.message}" if self.rule else self.message


class Plan:
    """What is to be done about a container.

    `edits`: in the order in which they apply. `denials`: what the policy forbids. `errors`: what reassert could not
    find out. `reserved`: the env that this container's every process gets, as `Reserved`. `excluded`: why the policy
    leaves it alone, or "". `matches`: every candidate rule with its verdicts.
    """

    __slots__ = ("denials", "edits", "errors", "excluded", "matches", "policy", "reserved")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.matches: list[Match] = []
        self.edits: list[Edit] = []
        self.denials: list[Denial] = []
        self.errors: list[Denial] = []
        self.reserved = Reserved({}, [])
        self.excluded = ""

    def audit_only(self) -> bool:
        """Whether to log what would be done, and do nothing."""
        return self.policy.mode == AUDIT

    def refusal(self) -> str:
        """Why the container must not start, or "" where it may."""
        if self.audit_only():
            return ""
        reasons = self.denials + (self.errors if self.policy.failure_policy == FAIL else [])
        return "; ".join(str(reason) for reason in reasons)

    def narrow(self, kinds: "tuple[str, ...]") -> None:
        """Keep what concerns env, or mounts, only."""
        self.edits = [edit for edit in self.edits if edit.kind in kinds]
        self.denials = [denial for denial in self.denials if denial.kind in ("", *kinds)]
        self.errors = [error for error in self.errors if error.kind in ("", *kinds)]

    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to say."""
        return not (self.edits or self.denials or self.errors)


class Reserved:
    """Reserved env, apart from any one process: `values` by name, None where it must be absent; `absent` patterns."""

    __slots__ = ("absent", "values")

    def __init__(self, values: "dict[str, str | None]", absent: "list[str]") -> None:
        self.values = values
        self.absent = absent

    def __bool__(self) -> bool:
        return bool(self.values or self.absent)

    def edits(self, env: "list[str]", rules: "dict[str, str] | None" = None) -> "list[SetEnv | UnsetEnv]":
        """What has to change in a process's env. `rules`: the rule behind each name or pattern."""
        found: list[SetEnv | UnsetEnv] = []
        rules = rules or {}
        everything = "\n".join(env)  # searched at once for each name, and few stand there
        for name, value in self.values.items():
            before = values_of(env, name) if name in everything else []
            if value is not None and before != [value]:
                found.append(SetEnv(rules.get(name, ""), name, value, before))
            elif value is None and before:
                found.append(UnsetEnv(rules.get(name, ""), name, before))
        if self.absent:
            for name in dict.fromkeys(map(name_of, env)):
                pattern = self.owner(name)
                if pattern and name not in self.values:
                    found.append(UnsetEnv(rules.get(pattern, ""), name, values_of(env, name)))
        return found

    def owner(self, name: str) -> str:
        """The reserved name or pattern that an env name falls under, or ""."""
        if name in self.values:
            return name
        for pattern in self.absent:
            if glob_match(pattern, name):
                return pattern
        return ""


def plan(policy: Policy, container: Container, matches: "list[Match] | None" = None) -> Plan:
    """Decide. `matches` spares a second `select` to whoever had to know them to gather the container's facts."""
    decided = Plan(policy)
    who = container.identity
    decided.excluded = excluded(policy, who)
    if decided.excluded:
        return decided
    if policy.missing:
        decided.denials.append(Denial("", "", f"no node policy: {policy.missing}"))
        return decided
    decided.matches = select(policy, who) if matches is None else matches
    rules = [match.rule for match in decided.matches if match.applies]
    _plan_env(decided, rules, container)
    _plan_mounts(decided, rules, container)
    return decided


def _plan_env(decided: Plan, rules: "list[Rule]", container: Container) -> None:
    """An exact name beats a pattern; two rules that want different things for one name refuse the container."""
    owners: dict[str, str] = {}
    denying: dict[str, str] = {}
    for rule in rules:
        for env in rule.env:
            if rule.deny:
                denying.setdefault(env.name, rule.name)
            if env.is_pattern():
                if env.name not in decided.reserved.absent:
                    decided.reserved.absent.append(env.name)
                    owners[env.name] = rule.name
                continue
            value, problem = _value(env, container)
            if problem:
                decided.errors.append(Denial(rule.name, "env", problem))
                continue
            values = decided.reserved.values
            if env.name in values and values[env.name] != value:
                decided.denials.append(
                    Denial(rule.name, "env", f"wants another value for env {env.name} than rule {owners[env.name]}")
                )
                continue
            values[env.name] = value
            owners.setdefault(env.name, rule.name)
    for edit in decided.reserved.edits(container.env, owners):
        decided.edits.append(edit)
        reserved = edit.name if edit.name in decided.reserved.values else ""
        asked = [name for name in denying if name == reserved or (not reserved and glob_match(name, edit.name))]
        conflict = edit.conflict()
        if asked and conflict:
            decided.denials.append(Denial(denying[asked[0]], "env", conflict))


def _value(env: Env, container: Container) -> "tuple[str | None, str]":
    """The wanted value, None for absent; and why it cannot be known, or ""."""
    if env.file is None:
        return env.value, ""
    if env.file in container.facts.files:
        return container.facts.files[env.file], ""
    reason = container.facts.unreadable.get(env.file, f"{env.file} was not read")
    return None, f"cannot tell the value of env {env.name}: {reason}"


def _plan_mounts(decided: Plan, rules: "list[Rule]", container: Container) -> None:
    """Shallow before deep; everything at or below a reserved path goes, but for `allowBelow`."""
    wanted: dict[str, tuple[Rule, Mount]] = {}
    denying: dict[str, str] = {}
    for rule in rules:
        for mount in rule.mounts:
            if rule.deny:
                denying.setdefault(mount.destination, rule.name)
            if mount.source in container.facts.absent_sources:
                if not mount.skip_missing:
                    missing = f"hostPath {mount.source} for mount {mount.destination} does not exist on this node"
                    decided.denials.append(Denial(rule.name, "mount", missing))
                continue
            first = wanted.setdefault(mount.destination, (rule, mount))
            if not same_mount(first[1], mount):
                decided.denials.append(
                    Denial(rule.name, "mount", f"wants another mount at {mount.destination} than rule {first[0].name}")
                )
    if not wanted:
        return
    there = [(clean(str(mount["destination"])), mount) for mount in container.mounts]
    reserved = [mount for _, mount in wanted.values()]
    ours = [mount.as_oci() for mount in reserved]
    companions = frozenset(wanted).union(path for path, _ in there if _is_let_through(path, reserved))
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)):
        rule, mount = wanted[path]
        oci = mount.as_oci()
        before = [
            other
            for at, other in there
            if other not in ours and (at == path or is_below(path, at) or (is_below(at, path) and at not in companions))
        ]
        edit = PlaceMount(rule.name, oci, companions, before)
        if path in denying and edit.conflict():
            decided.denials.append(Denial(denying[path], "mount", edit.conflict()))
        if not edit.verify(container):
            decided.edits.append(edit)


def _is_let_through(path: str, reserved: "list[Mount]") -> bool:
    """Whether every reserved mount above the path allows it; one that says nothing of it is as good as a no."""
    above = [mount for mount in reserved if is_below(path, mount.destination)]
    return bool(above) and all(
        any(path == root or is_below(path, root) for root in mount.allow_below) for mount in above
    )


def same_mount(one: Mount, other: Mount) -> bool:
    """Whether two reservations of one path ask for the same thing."""
    return one.source == other.source and set(one.options) == set(other.options)
