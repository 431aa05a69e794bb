"""The compiled policy, and the rules of it that a container matches. Part of the start path: builtins only.

The compiler writes a header line and one line of JSON per rule. A container start parses only the rules that its
namespace can match, so a thousand rules cost little more than one.
"""

from hook.core.base.compare import glob_match
from hook.core.base.jsontext import parse
from hook.core.policy.entries import ALLOCATED, Env, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.core.container.identity import Identity

    Value = str | tuple[str, ...] | dict[str, str] | None

ENFORCE, AUDIT, MIXED = "Enforce", "Audit", "Mixed"
FAIL, IGNORE = "Fail", "Ignore"
HELD = "the last good policy stays in force"

_FIELDS = {
    "namespaces": "namespace",
    "containerNames": "container",
    "images": "image",
    "containerTypes": "types",
    "podSelector": "labels",
}
"""The attribute of an Identity that each field of `match` is about."""


class Rule:
    """A rule of the policy: its conditions and what it reserves.

    `conditions`: the fields of `match`; a rule without any matches every container. `skip_unknown`: `ifUnknown: Skip`.
    `deny`: `onConflict: Deny`. `raw_lists`: by field of the policy file, what needs no compiled form.
    `allocations`: the parts of a device plugin's answer that are reserved. `is_audited`: in Audit mode beside others.
    `uses_allocations`: whether the rule needs kubelet's device checkpoint.
    """

    def __init__(
        self,
        name: str,
        conditions: "dict[str, list[Any]]",
        skip_unknown: bool,
        env: "list[Env]",
        mounts: "list[Mount]",
        deny: bool,
        raw_lists: "dict[str, Any]",
        allocations: "list[str]",
        is_audited: bool,
    ) -> None:
        self.name = name
        self.conditions = conditions
        self.skip_unknown = skip_unknown
        self.env = env
        self.mounts = mounts
        self.deny = deny
        self.raw_lists = raw_lists
        self.allocations = allocations
        self.is_audited = is_audited
        listed = allocations or raw_lists.get("annotations") or raw_lists.get("exclusive")
        self.uses_allocations = bool(listed) or ALLOCATED in [entry.source for entry in env]


class Policy:
    """The policy in force.

    `mode`: MIXED if some rules are enforced and others are not. `path`: the policy file. `fingerprint`: the sha256 of
    the file that was compiled. `warning`: why a newer version of it is not in force, or "". `missing`: why there is no
    policy, or "".
    `asks`: whether the engine is asked for what config.json lacks, pod labels and the type of a pod's container.
    `node_paths`: Refuse or Report, for volumes that reach files of "reassert" or of the "engine".
    """

    def __init__(self, path: str, header: "dict[str, Any]", lines: "list[str]", warning: str = "") -> None:
        self.path = path
        self._lines = lines
        self._rules: dict[int, Rule] = {}
        self.warning = warning
        self.missing = ""
        self.fingerprint: str = header["sha256"]
        self.mode: str = header["mode"]
        self.failure_policy: str = header["failurePolicy"]
        self.excluded_namespaces: list[str] = header["excludedNamespaces"]
        self.excluded_types: list[str] = header["excludedTypes"]
        self.kubelet_root: str = header["kubeletRoot"]
        self.event_log: list[Any] = header.get("eventLog", [])
        self.allowed_annotations: list[str] = header.get("allowedAnnotations", [])
        self.asks: bool = header.get("asks", False)
        self.node_paths: dict[str, str] = {"reassert": "Refuse", "engine": "Report", **header.get("nodePaths", {})}
        self.on_missing_files: str = header["onMissingFiles"]
        self._index: dict[str, list[int]] = header["index"]
        self._patterns: dict[str, list[int]] = header["patterns"]

    def candidates(self, namespace: "str | None") -> "list[Rule]":
        """The rules that a container of this namespace can match, in the policy's order. None: an unknown namespace."""
        if namespace is None:
            numbers = list(range(len(self._lines)))
        else:
            matching = [rules for pattern, rules in self._patterns.items() if glob_match(pattern, namespace)]
            numbers = sorted({*self._index.get(namespace, []), *[n for rules in matching for n in rules]})
        return [self._rule(number) for number in numbers]

    def _rule(self, number: int) -> Rule:
        """A rule by its number. It is parsed once, for the NRI plugin, which uses a policy for many containers."""
        rule = self._rules.get(number)
        if rule is None:
            name, conditions, skip, env, mounts, *rest = parse(self._lines[number])  # by compiler.rule_to_line
            rule = Rule(name, conditions, skip, [Env(*e) for e in env], [Mount(*m) for m in mounts], *rest)
            self._rules[number] = rule
        return rule


class Condition:
    """A condition of a rule, evaluated for a container. `met`: True, False, or None if it is unknown to the adapter.

    `wanted`: the condition as compiled. `actual`: the container's value, None if it is unknown.
    """

    def __init__(self, field: str, wanted: "list[Any]", actual: "Value", met: "bool | None") -> None:
        self.field = field
        self.wanted = wanted
        self.actual = actual
        self.met = met


class Match:
    """A rule, evaluated for a container. `applies`: whether its reservations apply. `tried`: whether they are tried."""

    def __init__(self, rule: Rule, conditions: "list[Condition]", tampered: bool = False) -> None:
        """`tampered`: a pod's or image's author may have caused the unknown fields, so `ifUnknown: Skip` is ignored."""
        self.rule = rule
        self.conditions = conditions
        met = [condition.met for condition in conditions]
        matches = False not in met and not (None in met and rule.skip_unknown and not tampered)
        self.applies, self.is_audited = matches and not rule.is_audited, matches and rule.is_audited


def select(policy: Policy, identity: "Identity") -> "list[Match]":
    """Evaluate every rule that the container's namespace can match, in the policy's order."""
    tampered = identity.kubernetes is None
    return [Match(rule, evaluate(rule, identity), tampered) for rule in policy.candidates(identity.namespace)]


def evaluate(rule: Rule, identity: "Identity") -> "list[Condition]":
    """Evaluate each condition of a rule for a container."""
    conditions: list[Condition] = []
    for field, wanted in rule.conditions.items():
        actual = getattr(identity, _FIELDS[field])
        if identity.kubernetes is False and field in ("namespaces", "podSelector"):
            met: bool | None = False  # outside Kubernetes there are neither, so nothing is unknown
        elif field == "containerTypes":
            met = _types(wanted, actual)
        else:
            met = (_selects if field == "podSelector" else _any_glob)(wanted, actual)
            if field == "images" and identity.digest:
                met = met or _any_glob(wanted, identity.digest)
        conditions.append(Condition(field, wanted, actual, met))
    return conditions


def excluded(policy: Policy, identity: "Identity") -> str:
    """Why the policy's `exclude` excludes the container, or "". An unknown namespace or type excludes nothing."""
    for pattern in policy.excluded_namespaces:
        if identity.kubernetes and identity.namespace is not None and glob_match(pattern, identity.namespace):
            return f"namespace {identity.namespace}"
    if len(identity.types) == 1 and identity.types[0] in policy.excluded_types:
        return f"container type {identity.types[0]}"
    return ""


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
    if labels is None:  # as always in config.json
        return None if requirements else True

    return selects(requirements, labels)


IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
"""Operators of a Kubernetes label selector (apimachinery, meta/v1 LabelSelectorOperator)."""


def selects(requirements: "list[Any]", labels: "dict[str, str]") -> bool:
    """Whether all requirements [key, operator, values] are met, by apimachinery's labels.Requirement.Matches."""
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
