"""Match a container against the rules of the policy. Part of the start path: builtins only."""

from hook.base.glob import glob_match
from hook.container.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.policy.model import Policy, Rule

    Value = str | tuple[str, ...] | dict[str, str] | None

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
"""Operators of a Kubernetes label selector (apimachinery, meta/v1 LabelSelectorOperator)."""


class Condition:
    """A condition of a rule, evaluated for a container. `met`: True, False, or None if it is unknown to the adapter.

    `wanted`: the condition as compiled. `actual`: the container's value, None if it is unknown.
    """

    __slots__ = ("actual", "field", "met", "wanted")

    def __init__(self, field: str, wanted: "list[Any]", actual: "Value", met: "bool | None") -> None:
        self.field = field
        self.wanted = wanted
        self.actual = actual
        self.met = met


class Match:
    """A rule, evaluated for a container. `applies`: whether its reservations apply."""

    __slots__ = ("applies", "conditions", "rule")

    def __init__(self, rule: "Rule", conditions: "list[Condition]", tampered: bool = False) -> None:
        """`tampered`: a pod's or image's author may have caused the unknown fields, so `ifUnknown: Skip` is ignored."""
        self.rule = rule
        self.conditions = conditions
        met = [condition.met for condition in conditions]
        self.applies = False not in met and not (None in met and rule.skip_unknown and not tampered)


def select(policy: "Policy", identity: Identity) -> "list[Match]":
    """Evaluate every rule that the container's namespace can match, in the policy's order."""
    tampered = identity.kubernetes is None
    return [Match(rule, evaluate(rule, identity), tampered) for rule in policy.candidates(identity.namespace)]


def evaluate(rule: "Rule", identity: Identity) -> "list[Condition]":
    """Evaluate each condition of a rule for a container."""
    conditions: list[Condition] = []
    actual: Value
    for field, wanted in rule.conditions.items():
        if field == "namespaces":
            actual = identity.namespace
            met = _pods_only(identity, _any_glob(wanted, identity.namespace))
        elif field == "containerNames":
            met, actual = _any_glob(wanted, identity.container), identity.container
        elif field == "images":
            met, actual = _any_glob(wanted, identity.image), identity.image
        elif field == "containerTypes":
            met, actual = _types(wanted, identity.types), identity.types
        else:
            actual = identity.labels
            met = _pods_only(identity, _selects(wanted, identity.labels))
        conditions.append(Condition(field, wanted, actual, met))
    return conditions


def excluded(policy: "Policy", identity: Identity) -> str:
    """Why the policy's `exclude` excludes the container, or "". An unknown namespace or type excludes nothing."""
    for pattern in policy.excluded_namespaces:
        if identity.kubernetes and identity.namespace is not None and glob_match(pattern, identity.namespace):
            return f"namespace {identity.namespace}"
    if len(identity.types) == 1 and identity.types[0] in policy.excluded_types:
        return f"container type {identity.types[0]}"
    return ""


def _pods_only(identity: Identity, met: "bool | None") -> "bool | None":
    """False for a container outside Kubernetes: it has no namespace and no pod labels, so nothing is unknown."""
    return False if identity.kubernetes is False else met


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
    """Whether all requirements [key, operator, values] are met, by apimachinery's labels.Requirement.Matches."""
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
