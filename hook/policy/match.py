"""Which rules a container matches, and what could not be known. Part of the start path: builtins only."""

from hook.base.glob import glob_match
from hook.container.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.policy.model import Policy, Rule

    Seen = str | tuple[str, ...] | dict[str, str] | None

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
"""Operators of a Kubernetes label selector (apimachinery, meta/v1 LabelSelectorOperator)."""


class Verdict:
    """One condition of a rule held against a container: `met` is True, False, or None where it cannot be known."""

    __slots__ = ("_seen", "_wanted", "field", "met")

    def __init__(self, field: str, wanted: "list[Any]", seen: "Seen", met: "bool | None") -> None:
        self.field = field
        self._wanted = wanted
        self._seen = seen
        self.met = met

    @property
    def wanted(self) -> str:
        """The condition in words; a start does not need them."""
        return _say(self.field, self._wanted)

    @property
    def seen(self) -> str:
        """The container in the same words."""
        if isinstance(self._seen, dict):
            return ",".join(f"{key}={value}" for key, value in self._seen.items())
        return "|".join(self._seen) if isinstance(self._seen, tuple) else self._seen or "unknown"


class Match:
    """A rule held against a container. `applies`: whether its reservations hold; `verdicts`: why."""

    __slots__ = ("applies", "rule", "verdicts")

    def __init__(self, rule: "Rule", verdicts: "list[Verdict]", tampered: bool = False) -> None:
        """`tampered`: what is unknown about the container may be its author's doing; then nothing is skipped."""
        self.rule = rule
        self.verdicts = verdicts
        met = [verdict.met for verdict in verdicts]
        self.applies = False not in met and not (None in met and rule.skip_unknown and not tampered)

    def unknown(self) -> "list[str]":
        """Names of the conditions that this adapter cannot see."""
        return [verdict.field for verdict in self.verdicts if verdict.met is None]


def select(policy: "Policy", who: Identity) -> "list[Match]":
    """Every rule that the container's namespace leaves possible, held against it, in the policy's order."""
    tampered = who.kubernetes is None
    return [Match(rule, judge(rule, who), tampered) for rule in policy.candidates(who.namespace)]


def judge(rule: "Rule", who: Identity) -> "list[Verdict]":
    """Each condition of a rule held against a container."""
    verdicts: list[Verdict] = []
    seen: Seen
    for field, wanted in rule.conditions.items():
        if field == "namespaces":
            met = _pod_only(who, _any_glob(wanted, who.namespace))
            seen = who.namespace
        elif field == "containerNames":
            met, seen = _any_glob(wanted, who.container), who.container
        elif field == "images":
            met, seen = _any_glob(wanted, who.image), who.image
        elif field == "containerTypes":
            met, seen = _types(wanted, who.types), who.types
        else:
            met = _pod_only(who, _selects(wanted, who.labels))
            seen = who.labels
        verdicts.append(Verdict(field, wanted, seen, met))
    return verdicts


def excluded(policy: "Policy", who: Identity) -> str:
    """Why the policy's `exclude` takes this container out, or "". Only what is known for certain takes it out."""
    for pattern in policy.excluded_namespaces:
        if who.kubernetes and who.namespace is not None and glob_match(pattern, who.namespace):
            return f"namespace {who.namespace}"
    if len(who.types) == 1 and who.types[0] in policy.excluded_types:
        return f"container type {who.types[0]}"
    return ""


def _pod_only(who: Identity, met: "bool | None") -> "bool | None":
    """A container of no pod has no namespace and no pod labels: such a condition is not met, not unknown."""
    return False if who.kubernetes is False else met


def _any_glob(patterns: "list[Any]", text: "str | None") -> "bool | None":
    if "*" in patterns:
        return True
    if text is None:
        return None
    return any(glob_match(str(pattern), text) for pattern in patterns)


def _types(wanted: "list[Any]", possible: "tuple[str, ...]") -> "bool | None":
    within = [kind in wanted for kind in possible]
    return all(within) if all(within) or not any(within) else None


def _selects(requirements: "list[Any]", labels: "dict[str, str] | None") -> "bool | None":
    """All requirements `[key, operator, values]`, as apimachinery's labels.Requirement.Matches reads them."""
    if labels is None:
        return None if requirements else True
    for key, operator, values in requirements:
        if operator == IN:
            met = key in labels and labels[key] in values
        elif operator == NOT_IN:
            met = key not in labels or labels[key] not in values
        else:
            met = (key in labels) == (operator == EXISTS)
        if not met:
            return False
    return True


def _say(field: str, wanted: "list[Any]") -> str:
    if field != "podSelector":
        return "|".join(str(pattern) for pattern in wanted)
    words: list[str] = []
    for key, operator, values in wanted:
        words.append(f"{key} {operator}" + (f" ({', '.join(values)})" if values else ""))
    return ", ".join(words)
