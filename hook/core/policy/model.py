"""The compiled policy, and the rules of it that a container matches.

The compiler writes a header line and one line of JSON per rule. A container start parses only the rules that its
namespace can match, so a thousand rules cost little more than one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hook.core.base.compare import glob_match
from hook.core.base.jsontext import parse
from hook.core.container.identity import Identity
from hook.core.policy.entries import EXCLUSIVE, Mount
from hook.core.policy.sources import SOURCES, Env

Value: TypeAlias = str | tuple[str, ...] | dict[str, str] | None

ENFORCE, AUDIT, MIXED = "Enforce", "Audit", "Mixed"
FAIL, IGNORE = "Fail", "Ignore"
HELD_BACK = "the last good policy stays in force"

NODE_PATHS_DEFAULTS = {"reassert": "Refuse", "engine": "Report"}
"""The defaults of nodePaths."""

_FIELDS = {
    "namespaces": "namespace",
    "containerNames": "container",
    "images": "image",
    "containerTypes": "types",
    "podSelector": "labels",
}
"""The attribute of an Identity that each field of `match` is about."""


class Rule:
    """A rule of the policy: its conditions and what it reserves."""

    def __init__(
        self,
        name: str,
        conditions: dict[str, list[Any]],
        skip_unknown: bool,
        env: list[Env],
        mounts: list[Mount],
        deny: bool,
        raw: dict[str, Any],
        allocations: list[str],
        is_audited: bool,
    ) -> None:
        self.name = name
        self.conditions = conditions
        """The fields of `match`; a rule without any matches every container."""
        self.skip_unknown = skip_unknown
        """Whether `ifUnknown` is Skip."""
        self.env = env
        self.mounts = mounts
        self.deny = deny
        """Whether `onConflict` is Deny."""
        self.raw = raw
        """By field of the policy file, the values that need no compiled form."""
        self.allocations = allocations
        """The parts of a device plugin's answer that are reserved."""
        self.is_audited = is_audited
        """Whether the rule is in Audit mode beside others that are not."""
        exclusive, allocated = raw.get(EXCLUSIVE), True in [entry.uses_allocations for entry in env]
        self.uses_claims = bool(allocations or exclusive) or allocated
        """Whether it needs the pod's resource claims too."""
        self.uses_allocations = self.uses_claims or bool(raw.get("annotations"))
        """Whether the rule needs kubelet's device checkpoint."""


class Policy:
    """The policy in force."""

    def __init__(self, path: str, header: dict[str, Any], lines: list[str], warning: str = "") -> None:
        self.path = path
        """The policy file."""
        self._lines = lines
        self._rules: dict[int, Rule] = {}
        self.warning = warning
        """Why a newer version of it is not in force, or ""."""
        self.missing = ""
        """Why there is no policy, or ""."""
        self.fingerprint: str = header["sha256"]
        """The sha256 of the file that was compiled."""
        self.mode: str = header["mode"]
        """MIXED if some rules are enforced and others are not."""
        self.failure_policy: str = header["failurePolicy"]
        self.excluded_namespaces: list[str] = header["excludedNamespaces"]
        self.excluded_types: list[str] = header["excludedTypes"]
        self.kubelet_root: str = header["kubeletRoot"]
        self.event_log: list[Any] = header.get("eventLog", [])
        """`eventLog`, as the last arguments of hook.core.base.logfile.try_to_append."""
        self.allowed_annotations: list[str] = header.get("allowedAnnotations", [])
        self.asks: bool = header.get("asks", False)
        """Whether the rules need what config.json lacks: pod labels, of the engine, or the container's type, of
        kubelet."""
        self.given: dict[str, Any] = header.get("nodePaths", {})
        self.node_paths: dict[str, str] = {**NODE_PATHS_DEFAULTS, **header.get("nodePathsInForce", {})}
        """Refuse, Try or Report, for volumes that reach files of "reassert" or of the "engine"; `given` has what the
        file says, and its `except`. Try: the policy is on trial, wholly or in part."""
        self.node_paths_except: list[str] = self.given.get("except", {}).get("namespaces", [])
        self.closes: bool = header.get("closes", True)
        """Whether such volumes are made read-only where that suffices."""
        self.on_missing_files: str = header["onMissingFiles"]
        self._index: dict[str, list[int]] = header["index"]
        self._patterns: dict[str, list[int]] = header["patterns"]

    def enforce_all(self) -> None:
        """Let nothing be on trial: for a test of what the policy does, not of whether it is switched on."""
        self.mode, self.closes = ENFORCE, True
        self.node_paths = {field: self.given.get(field, default) for field, default in NODE_PATHS_DEFAULTS.items()}
        for rule in self.candidates(None):
            rule.is_audited = False

    def candidates(self, namespace: str | None) -> list[Rule]:
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
            reserved: list[Env] = [SOURCES[source](each, given) for each, source, given in env]
            rule = Rule(name, conditions, skip, reserved, [Mount(*m) for m in mounts], *rest)
            self._rules[number] = rule
        return rule


class Match:
    """A rule, evaluated for a container."""

    def __init__(self, rule: Rule, identity: Identity) -> None:
        self.rule = rule
        self.identity = identity
        self.met = {field: _is_met(field, wanted, identity) for field, wanted in rule.conditions.items()}
        """By field of the rule's conditions: whether it is met; None if the adapter does not know."""
        met = self.met.values()
        # The author of a pod or an image may have caused that nothing proves its annotations: no reason to skip.
        skips = None in met and rule.skip_unknown and identity.kubernetes is not None
        matches = False not in met and not skips
        self.applies = matches and not rule.is_audited
        """Whether the rule's reservations apply."""
        self.is_audited = matches and rule.is_audited
        """Whether they would, if the rule were not in Audit mode."""

    def seen(self, field: str) -> Value:
        """What the container has of a condition's field, None if it is unknown."""
        value: Value = getattr(self.identity, _FIELDS[field])
        return value


def select(policy: Policy, identity: Identity) -> list[Match]:
    """Evaluate every rule that the container's namespace can match, in the policy's order."""
    return [Match(rule, identity) for rule in policy.candidates(identity.namespace)]


def _is_met(field: str, wanted: list[Any], identity: Identity) -> bool | None:
    """Whether a container meets a condition."""
    actual = getattr(identity, _FIELDS[field])
    if identity.kubernetes is False and field in ("namespaces", "podSelector"):
        return False  # outside Kubernetes there are neither, so nothing is unknown
    if field == "containerTypes":
        return _types(wanted, actual)
    met = (_selects if field == "podSelector" else _any_glob)(wanted, actual)
    if field == "images" and identity.digest:
        met = met or _any_glob(wanted, identity.digest)
    return met


def excluded(policy: Policy, identity: Identity) -> str:
    """Why the policy's `exclude` excludes the container, or "". An unknown namespace or type excludes nothing."""
    for pattern in policy.excluded_namespaces:
        if identity.kubernetes and identity.namespace is not None and glob_match(pattern, identity.namespace):
            return f"namespace {identity.namespace}"
    return f"container type {' or '.join(identity.types)}" if excludes_type(policy, identity) else ""


def excludes_type(policy: Policy, identity: Identity) -> bool:
    """Whether `exclude.containerTypes` has each type that the container may have."""
    return identity.kubernetes is not None and {*identity.types} <= {*policy.excluded_types}


def _any_glob(patterns: list[Any], text: str | None) -> bool | None:
    if "*" in patterns:
        return True
    if text is None:
        return None
    return any(glob_match(str(pattern), text) for pattern in patterns)


def _types(wanted: list[Any], possible: tuple[str, ...]) -> bool | None:
    within = [kind in wanted for kind in possible]
    return all(within) if all(within) or not any(within) else None


def _selects(requirements: list[Any], labels: dict[str, str] | None) -> bool | None:
    if labels is None:  # as always in config.json
        return None if requirements else True

    return selects(requirements, labels)


IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
"""Operators of a Kubernetes label selector (apimachinery, meta/v1 LabelSelectorOperator)."""


def selects(requirements: list[Any], labels: dict[str, str]) -> bool:
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
