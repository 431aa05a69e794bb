"""The policy compiler: from the policy file to the store. It runs once per change of the file, not in a start."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from hook.compile import check, trust
from hook.compile.source import PolicyInvalid, Problem, Source, parse
from hook.core.base import logfile
from hook.core.base.compare import clean
from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import encode
from hook.core.container.identity import APP_TYPES, CONTAINER, NOT_LISTED
from hook.core.policy.entries import EXCLUSIVE, POD_UID, Mount
from hook.core.policy.model import AUDIT, ENFORCE, MIXED, NODE_PATHS_DEFAULTS, Policy, Rule
from hook.core.policy.sources import reserved
from hook.core.policy.store import (
    NO_RULES,
)
from hook.core.reserve import shared_processes
from hook.core.reserve.node_paths import REFUSE, TRY

_COMPILED = (
    "name",
    "mode",
    "match",
    "trust",
    "env",
    "mounts",
    "deviceAllocations",
    "onConflict",
    shared_processes.KIND,
)
"""Fields of a rule that a start reads in another form than the policy file's."""

_BIND = ("bind", "rbind")
_PROPAGATION = ("private", "rprivate", "slave", "rslave")
_UNITS: dict[str, int] = {
    unit + i: base**power for i, base in (("", 1000), ("i", 1024)) for power, unit in enumerate("kmgt", 1)
}


class Compiled:
    """A policy file without errors."""

    def __init__(self, source: Source, rules: list[Rule], warnings: list[Problem]) -> None:
        self.source = source
        self.warnings = warnings
        spec = source.data["spec"]
        exclude = spec.get("exclude") or {}
        index, patterns = _index(rules)
        mode = _mode(source, rules)
        self.header: dict[str, Any] = {
            "sha256": source.sha256,
            "mode": mode,
            "onMissingFiles": spec.get("onMissingFiles", NO_RULES["onMissingFiles"]),
            "failurePolicy": spec.get("failurePolicy", NO_RULES["failurePolicy"]),
            "excludedNamespaces": list(exclude.get("namespaces") or []),
            "excludedTypes": list(exclude.get("containerTypes") or []),
            "kubeletRoot": _kubelet_root(source),
            "eventLog": _event_log(spec.get("eventLog") or {}),
            "asks": _excludes_by_kubelet(exclude.get("containerTypes") or []) or any(map(_asks, rules)),
            "allowedAnnotations": list(spec.get("allowedAnnotations") or []),
            "nodePaths": dict(spec.get("nodePaths") or {}),
            **_node_paths(source, mode, bool(rules)),
            "rules": len(rules),
            # By these, `policy show` distinguishes the entries of `trust` from a rule's own.
            "trust": {str(rule["name"]): rule["trust"] for rule in source.rules() if rule.get("trust")},
            "index": index,
            "patterns": patterns,
        }
        """The first line of the policy's file in the store."""
        self.lines = [encode(rule_to_line(rule)) for rule in rules]
        """The other lines, one for each rule."""

    def policy(self) -> Policy:
        """The policy as a container start reads it from the store."""
        return Policy(self.source.path, json.loads(json.dumps(self.header)), self.lines)


def rule_to_line(rule: Rule) -> list[object]:
    """A rule in the compiled form, which `hook.core.policy.model.Policy` reads."""
    return [
        rule.name,
        rule.conditions,
        rule.skip_unknown,
        [[env.name, env.PLACE[-1], env.given] for env in rule.env],
        [
            [m.source, m.destination, m.options, m.allow_below, m.skip_missing, m.volumes_above, m.volume]
            for m in rule.mounts
        ],
        rule.deny,
        rule.raw,
        rule.allocations,
        rule.is_audited,
    ]


def compile_bytes(path: str, content: bytes) -> Compiled:
    """Check and compile a policy file. Raises PolicyInvalid with all problems."""
    source = parse(path, content)
    shape = check.Shape(source)
    rules = {number: _rule(rule, source) for number, rule in shape.well_formed(source.rules(), ("spec", "rules"))}
    problems = [*shape.problems, *check.check_meaning(source, shape), *check.check_rules(source, rules)]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    if any(problem.severity == "error" for problem in problems):
        raise PolicyInvalid(path, problems)
    if len(rules) != len(source.rules()):
        raise ReassertError(
            f"{path}: only {len(rules)} of {len(source.rules())} rules were understood; please report it"
        )
    return Compiled(source, list(rules.values()), problems)


def _event_log(given: dict[str, Any]) -> list[Any]:
    """Size limit in bytes, number of kept files, and whether events go to the journal too; [] for the defaults."""
    if not given:
        return []
    limit = int(given["maxSizeMiB"]) << 20 if "maxSizeMiB" in given else logfile.LOG_LIMIT
    return [limit, int(given.get("keep", logfile.LOGS_KEPT)), bool(given.get("journal"))]


def _index(rules: list[Rule]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rule numbers by namespace name, and by namespace pattern. A rule without the condition has the pattern `*`."""
    index: dict[str, list[int]] = {}
    patterns: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        for name in dict.fromkeys(str(name) for name in rule.conditions.get("namespaces", ["*"])):
            (patterns if "*" in name or "?" in name else index).setdefault(name, []).append(number)
    return index, patterns


_APPS = {*APP_TYPES}


def _excludes_by_kubelet(types: list[str]) -> bool:
    """Whether kubelet's answer can prove that `exclude` is about a container."""
    return CONTAINER in types or {*NOT_LISTED} <= {*types}


def _asks(rule: Rule) -> bool:
    """Whether a rule needs the pod's labels, or one of _APPS."""
    types = _APPS & {*rule.conditions.get("containerTypes", [])}
    return bool(rule.conditions.get("podSelector")) or types not in (set(), _APPS)


def _mode(source: Source, rules: list[Rule]) -> str:
    """Mixed if some rules are enforced, and others in Audit mode. If none is enforced, the whole policy is in Audit."""
    if not rules:
        return source.mode()
    if all(rule.is_audited for rule in rules):
        for rule in rules:
            rule.is_audited = False
        return AUDIT
    return MIXED if any(rule.is_audited for rule in rules) else ENFORCE


def _node_paths(source: Source, mode: str, has_rules: bool) -> dict[str, Any]:
    """What of nodePaths is in force. It follows the stages of the rules.

    A policy without an enforced rule refuses nothing for it, nor does `spec.mode: Audit`. While some rules are tried,
    only what the file itself says is refused. In Audit mode everything is on trial, and no field says so.
    """
    given = source.data["spec"].get("nodePaths") or {}
    audits = AUDIT in (source.mode(), mode)
    in_force = {field: str(given.get(field, default)) for field, default in NODE_PATHS_DEFAULTS.items()}
    for field, value in in_force.items() if mode != AUDIT else ():
        if value == REFUSE and (audits or not has_rules or (mode == MIXED and field not in given)):
            in_force[field] = TRY
    return {"nodePathsInForce": in_force, "closes": not audits}


def _kubelet_root(source: Source) -> str:
    return clean(str(source.kubelet_root() or NO_RULES["kubeletRoot"]))


def _rule(rule: dict[str, Any], source: Source) -> Rule:
    """A checked rule in compiled form: with defaults, normalised paths, and selectors as [key, operator, values]."""
    if rule.get("trust"):
        rule = trust.expanded(rule)
    match = rule.get("match") or {}
    conditions: dict[str, list[Any]] = {
        field: [str(item) for item in match[field]]
        for field in ("namespaces", "containerNames", "images", "containerTypes")
        if match.get(field)
    }
    selector = match.get("podSelector")
    if selector is not None:
        conditions["podSelector"] = _requirements(selector)
    reserved_env = [reserved(entry) for entry in rule.get("env") or []]
    reserved_mounts = [_mount(entry, source) for entry in rule.get("mounts") or []]
    deny = rule.get("onConflict") == "Deny"
    raw: dict[str, Any] = {field: value for field, value in rule.items() if field not in _COMPILED and value != []}
    if rule.get(shared_processes.KIND) == "Refuse":
        raw[shared_processes.KIND] = "Refuse"
    parts = rule.get("deviceAllocations") or {}
    if parts.get(EXCLUSIVE):
        raw[EXCLUSIVE] = list(parts[EXCLUSIVE])
    allocations = [str(part) for part, wanted in parts.items() if wanted is True or wanted == "Allow"]
    skip = match.get("ifUnknown") == "Skip"
    audited = rule.get("mode", source.mode()) == AUDIT
    return Rule(str(rule["name"]), conditions, skip, reserved_env, reserved_mounts, deny, raw, allocations, audited)


def _mount(entry: dict[str, Any], source: Source) -> Mount:
    """A checked entry of a rule's `mounts`. Defaults: rbind, rprivate and ro; for an emptyDir also nosuid and nodev."""
    destination = clean(str(entry["mountPath"]))
    volume: list[Any] = []
    given = [str(option) for option in entry.get("options") or []]
    options = [option for option in given if option in _BIND] or ["rbind"]
    options += [option for option in given if option in _PROPAGATION] or ["rprivate"]
    options.append("ro" if entry.get("readOnly", "emptyDir" not in entry) else "rw")
    if "emptyDir" in entry:  # pods of other rules with the same path, medium and size share it: rules add up
        given += ["nosuid", "nodev"]
        size = _size(entry["emptyDir"])
        name = sha256(f"{destination}\0{size}".encode()).hexdigest()[:16]
        volume = [f"{_kubelet_root(source)}/pods", name, size]
    options += [option for option in dict.fromkeys(given) if option not in options]
    path = clean(str(entry["hostPath"])) if "hostPath" in entry else ""
    if POD_UID in path:
        path, volume = "", [path]
    return Mount(
        path,
        destination,
        options,
        [clean(str(path)) for path in entry.get("allowBelow") or []],
        entry.get("onMissingSource") == "Skip",
        entry.get("volumesAbove") == "Allow",
        volume,
    )


def _size(empty_dir: dict[str, Any]) -> int:
    """The size of an emptyDir's tmpfs in bytes, 0 without a `sizeLimit`; -1 if it is on disk."""
    if not empty_dir.get("medium"):
        return -1
    text = str(empty_dir.get("sizeLimit", "0")).lower()
    digits = text.rstrip("kmgti")
    return int(digits) * _UNITS.get(text[len(digits) :], 1)


def _requirements(selector: dict[str, Any]) -> list[Any]:
    labels = selector.get("matchLabels") or {}
    wanted: list[Any] = [[str(key), "In", [str(value)]] for key, value in labels.items()]
    expressions = selector.get("matchExpressions") or []
    return wanted + [
        [str(item["key"]), str(item["operator"]), [str(value) for value in item.get("values") or []]]
        for item in expressions
    ]
