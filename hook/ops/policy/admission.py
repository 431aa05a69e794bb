"""`reassert policy export --admission`: a ValidatingAdmissionPolicy, which tells an author what a node will do.

It explains at `kubectl apply`, by what the API server sees of a pod, and enforces nothing: the node does. Its
expressions are CEL (https://github.com/google/cel-spec) with the macros and functions of each implementation.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.core.base.compare import glob_match, is_pattern, parents
from hook.core.base.errors import ReassertError
from hook.core.base.text import printable
from hook.core.container.identity import CONTAINER, NOT_LISTED
from hook.core.policy.entries import EXCLUSIVE, Mount
from hook.core.policy.model import AUDIT, DOES_NOT_EXIST, EXISTS, IN, Policy, Rule
from hook.core.policy.sources import KEEP, Allocated, Allowed, Env, FromFile
from hook.core.reserve import shared_processes
from hook.ops.policy.show import as_yaml

NAME = "reassert-node-policy"
"""The name of the policy and of its binding."""

LARGEST = 1_000_000
"""Bytes of one object: etcd takes 1.5 MiB of a request by default (etcd, --max-request-bytes)."""

LONGEST = 100_000
"""Characters of one expression (github.com/google/cel-go parser/options.go, expressionSizeCodePointLimit)."""

WARN, DENY = ["Warn", "Audit"], ["Deny", "Audit"]
"""What the API server does (`validationActions`): Deny and Warn exclude each other."""

UNSEEN = (
    "an image's ENV, and the env and mounts that a device plugin or a resource claim adds",
    "the values of envFrom, and those of valueFrom where values are allowed by oneOf or pattern",
    "$(NAME) in a value, which kubelet expands",
    "the env of the namespace's Services (NAME_SERVICE_HOST), and the mounts of /etc/hosts, /etc/hostname and "
    "/etc/resolv.conf, which kubelet and the engine add",
    "where a symbolic link of an image or of a volume leads",
    "where a path with `..` leads: one that has all names of a reserved path counts as that path",
    "annotations, devices, and volumes of the node's own files: `reassert explain POD.yaml` says what becomes of these",
)
"""What no API server sees of a pod."""

_WORKLOADS = (("apps", ("deployments", "daemonsets", "statefulsets")), ("batch", ("jobs", "cronjobs")))

_VARIABLES = {
    "pod": "has(object.spec.template) ? object.spec.template"
    " : has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : object",
    "labels": "has(variables.pod.metadata) && has(variables.pod.metadata.labels) ? variables.pod.metadata.labels : {}",
    "debugs": 'has(request.subResource) && request.subResource == "ephemeralcontainers"',
    "init": "has(variables.pod.spec.initContainers) && !variables.debugs ? variables.pod.spec.initContainers : []",
    "apps": "(variables.debugs ? [] : variables.pod.spec.containers)"
    ' + variables.init.filter(c, has(c.restartPolicy) && c.restartPolicy == "Always")',
    "others": 'variables.init.filter(c, !(has(c.restartPolicy) && c.restartPolicy == "Always"))'
    " + (has(variables.pod.spec.ephemeralContainers) ? variables.pod.spec.ephemeralContainers : [])",
}
"""CEL variables: each may use those before it. `apps` has sidecars too, `others` what kubelet does not list."""


def export(path: str, denies: bool) -> int:
    """Print both objects for a policy file. Raises ReassertError."""
    sys.stdout.write(text(compile_bytes(path, read_source(path)[0]).policy(), denies))
    return 0


def text(policy: Policy, denies: bool) -> str:
    """Both objects as YAML, with what they do not see as comments. Raises ReassertError."""
    rules = [rule for rule in policy.candidates(None) if not rule.is_audited]
    made = [as_yaml(each) for each in (_policy(policy, rules), _binding(denies))]
    if max(map(len, made)) > LARGEST:
        raise ReassertError(f"{policy.path}: too large for one object of the API server ({LARGEST} bytes)")
    comments = [
        f"Made by `reassert policy export --admission` of {policy.path}, sha256 {policy.fingerprint}.",
        "It tells the author of a pod what the nodes do. It enforces nothing: delete it, and the nodes do the same.",
        *(["The policy is in Audit mode: the nodes only report."] if policy.mode == AUDIT else []),
        "It does not see:",
        *[f"- {each}" for each in [*UNSEEN, *_unseen_of(policy)]],
    ]
    return "".join(f"# {printable(each)}\n" for each in comments) + "---\n".join(made)


def _unseen_of(policy: Policy) -> Iterator[str]:
    """What it leaves out of a policy, rule by rule."""
    for rule in policy.candidates(None):
        if rule.is_audited:
            yield f"rule {rule.name}, which is only tried (mode: Audit)"
            continue
        if "images" in rule.conditions:
            yield f"rule {rule.name}: an image that its engine names otherwise than the pod, or that a pod gets later"
        if rule.allocations or rule.raw.get(EXCLUSIVE):
            yield f"rule {rule.name}: deviceAllocations"
        kept = [env.name for env in rule.env if isinstance(env, Allocated) and env.given.get("default") == KEEP]
        if kept:
            yield f"rule {rule.name}: {', '.join(kept)}, which only a device plugin's value changes"


def _policy(policy: Policy, rules: list[Rule]) -> dict[str, Any]:
    groups = [
        ("", "v1", ["pods"], ["CREATE"]),
        ("", "v1", ["pods/ephemeralcontainers"], ["UPDATE"]),
        *[(group, "v1", [*resources], ["CREATE", "UPDATE"]) for group, resources in _WORKLOADS],
    ]
    conditions = [  # an update of a finalizer or of a label is none of its business
        ("changes", 'request.operation == "CREATE" || object.spec != oldObject.spec'),
        *(
            [("namespace", f"!({_any(policy.excluded_namespaces, 'request.namespace')})")]
            if policy.excluded_namespaces
            else []
        ),
    ]
    made = [each for rule in rules for each in _validations(policy, rule, rules)]
    for expression, message in made:
        if len(expression) > LONGEST:
            about = printable(message)[:200]
            raise ReassertError(f"{policy.path}: too long for the API server ({LONGEST} characters): {about}")
    validations = [
        {"expression": expression, "message": printable(message), "reason": "Forbidden"} for expression, message in made
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [group], "apiVersions": [version], "operations": on, "resources": resources}
                    for group, version, resources, on in groups
                ]
            },
            "matchConditions": [{"name": name, "expression": expression} for name, expression in conditions],
            "variables": [{"name": name, "expression": expression} for name, expression in _VARIABLES.items()],
            "validations": validations or [{"expression": "true", "message": "no rule reserves what is seen here"}],
        },
    }


def _binding(denies: bool) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": DENY if denies else WARN},
    }


def _validations(policy: Policy, rule: Rule, rules: list[Rule]) -> Iterator[tuple[str, str]]:
    """Expressions that hold unless a node overrides or refuses what a container has, each with its message."""
    containers = _containers(policy, rule)
    if not containers:
        return
    pod = _of_pod(rule)
    beginning = f"!({pod}) || " if pod else ""
    for env in rule.env:
        violates = _env(env, rule, rules)
        if violates:
            shown = f"has(c.env) && {violates}"
            yield f"{beginning}{containers}.all(c, !({shown}))", f"rule {rule.name}: {_of_env(env, rule)}"
    for mount in rule.mounts:
        for violates, what in _mount(mount, rule):
            yield f"{beginning}{containers}.all(c, !({violates}))", f"rule {rule.name}: {what}"
    if shared_processes.KIND in rule.raw:
        shared = [
            f"has(variables.pod.spec.{f}) && variables.pod.spec.{f}" for f in ("hostPID", "shareProcessNamespace")
        ]
        joins = "has(c.targetContainerName) && c.targetContainerName != ''"
        expression = f"{containers}.all(c, !({' || '.join(f'({each})' for each in [*shared, joins])}))"
        yield f"{beginning}{expression}", f"rule {rule.name}: processes are shared, and nodes refuse the containers"


# -- conditions


def _containers(policy: Policy, rule: Rule) -> str:
    """The list of the containers that a rule is for, as far as its conditions are of one container; "" for none."""
    wanted = rule.conditions.get("containerTypes", [CONTAINER, *NOT_LISTED])
    excluded = {*policy.excluded_types}
    has_apps = CONTAINER in wanted and CONTAINER not in excluded
    of_others = [kind in wanted for kind in NOT_LISTED]
    met = all(of_others) or (any(of_others) and not rule.skip_unknown)
    has_others = met and not {*NOT_LISTED} <= excluded
    lists = [name for name, has in (("variables.apps", has_apps), ("variables.others", has_others)) if has]
    if not lists:
        return ""
    limits = _of_container(rule)
    found = f"({' + '.join(lists)})" if len(lists) > 1 else lists[0]
    return f"{found}.filter(c, {' && '.join(limits)})" if limits else found


def _of_container(rule: Rule) -> list[str]:
    """The conditions of a rule that are about a container `c`, each one."""
    fields = (("containerNames", "c.name"), ("images", "(has(c.image) ? c.image : '')"))
    found = [_any(rule.conditions[field], of) for field, of in fields if field in rule.conditions]
    return [each for each in found if each != "true"]


def _conditions(rule: Rule) -> str:
    """Whether a rule is for a container `c`, but for its type; "" if it is for each."""
    return " && ".join(f"({each})" for each in [_of_pod(rule), *_of_container(rule)] if each)


def _of_pod(rule: Rule) -> str:
    """The conditions of a rule that are about the pod; "" for none."""
    found = []
    if "namespaces" in rule.conditions:
        found.append(_any(rule.conditions["namespaces"], "request.namespace"))
    for key, operator, values in rule.conditions.get("podSelector", []):
        has = f"{_text(key)} in variables.labels"
        if operator in (EXISTS, DOES_NOT_EXIST):
            found.append(has if operator == EXISTS else f"!({has})")
        else:
            is_one = f"({has} && variables.labels[{_text(key)}] in {_list(values)})"
            found.append(is_one if operator == IN else f"!{is_one}")
    return " && ".join(f"({each})" for each in found if each != "true")


def _any(globs: list[str], of: str) -> str:
    """Whether a text is one of some globs."""
    if "*" in globs:
        return "true"
    exact = [glob for glob in globs if not is_pattern(glob)]
    found = [f"{of} in {_list(exact)}"] if exact else []
    return " || ".join([*found, *[f"{of}.matches({_text(_expression(glob))})" for glob in globs if is_pattern(glob)]])


def _expression(glob: str) -> str:
    """The regular expression (RE2) of a glob."""
    return f"^(?s:{re.sub('.', _wildcard, glob, flags=re.DOTALL)})$"


def _wildcard(match: re.Match[str]) -> str:
    return {"*": ".*", "?": "."}.get(match[0], re.escape(match[0]) if match[0].isascii() else match[0])


def _text(value: str) -> str:
    """A string of CEL, whose escapes those of JSON are."""
    return json.dumps(value, ensure_ascii=False)


def _list(values: list[str]) -> str:
    return json.dumps(values, ensure_ascii=False)


# -- env

_OWN = "(has(e.value) ? e.value : '')"
_HAS_SOURCE = "has(e.valueFrom)"


def _env(env: Env, rule: Rule, rules: list[Rule]) -> str:
    """Whether a container `c` with env sets the name to what a node overrides or refuses; "" if that is never seen."""
    if env.is_pattern():
        other = "".join(_except(env, each, "" if each is rule else _conditions(each)) for each in rules)
        return f"c.env.exists(e, e.name.matches({_text(_expression(env.name))}){other})"
    if isinstance(env, Allowed):
        return _last(env, f"!{_HAS_SOURCE} && !({_allows(env)})")
    given = env.by_default(str)
    if given is None:
        return ""
    if given.text is None or isinstance(env, FromFile):
        violates = _last(env, "true")
    else:
        violates = _last(env, f"{_HAS_SOURCE} || {_OWN} != {_text(given.text)}")
    trusted = [glob for each in env.trusted for glob in each["namespaces"]]
    return f"!({_any(trusted, 'request.namespace')}) && {violates}" if trusted else violates


def _except(pattern: Env, rule: Rule, when: str) -> str:
    """What leaves out the names that a rule reserves itself: where it applies, a node puts them before a pattern."""
    names = sorted({each.name for each in rule.env if not each.is_pattern() and glob_match(pattern.name, each.name)})
    return f" && !(e.name in {_list(names)}{f' && {when}' if when else ''})" if names else ""


def _last(env: Env, holds: str) -> str:
    """Whether something holds of the last entry `e` of a name: kubelet hands on no other."""
    entries = f"c.env.filter(e, e.name == {_text(env.name)})"
    return f"[{entries}].exists(l, l.size() > 0 && [l[l.size() - 1]].exists(e, {holds}))"


def _allows(env: Allowed) -> str:
    found = [f"{_OWN} in {_list(env.listed)}"] if env.listed else []
    if env.pattern is not None:
        matches = _any([env.pattern], _OWN)
        out = f" && !{_OWN}.matches({_text(_CLIMBS)})" if env.pattern.startswith("/") else ""
        found.append(f"({matches}){out}" if out else matches)
    return " || ".join(f"({each})" for each in found)


def _of_env(env: Env, rule: Rule) -> str:
    given = env.by_default(str)
    if isinstance(env, Allowed):
        what, instead = "has a value that is not allowed", env.instead
        denies = env.denies
    else:
        what, instead, denies = "is reserved", given.text if given else None, False
    if rule.deny or denies:
        return f"env {env.name} {what}; nodes refuse the container"
    does = "remove it" if instead is None else "use another value"
    return f"env {env.name} {what}; nodes {does}"


# -- mounts

_START, _SLASH, _END = r"^(\.?/)*", r"/(\.?/)*", r"(/\.?)*$"
"""Of a regular expression for the spellings of a path: `//` and `/./` say nothing."""


_CLIMBS = r"(^|/)\.\.(/|$)"
"""A path with `..`. Where it leads no expression says: one with all names of a reserved path counts as that."""

_TO_ROOT = r"(^|/)\.\.(/\.?)*$"
"""A path that ends with `..`, as each with one does that leads to `/`."""


def _at(path: str, end: str = _END) -> str:
    return _START + _SLASH.join(re.escape(name) for name in path.split("/")[1:]) + end


def _below(path: str) -> str:
    """Whatever lies at a path or below it."""
    return _at(path, "(/.*)?$")


def _climbs(path: str, field: str) -> str:
    """Whether what a field names may lie at a path, or below it, by a `..` in its own."""
    names = "(/.*)?/".join(re.escape(name) for name in path.split("/")[1:])
    return f"({field}.matches({_text(_CLIMBS)}) && {field}.matches({_text(f'(^|/){names}(/|$)')}))"


def _is_mounted(holds: Callable[[str], str]) -> str:
    """Whether something holds of a path at which a container `c` has a volume, or kubelet's file for its last words.

    `holds`: the expression for the field with the path.
    """
    volumes = f"has(c.volumeMounts) && c.volumeMounts.exists(m, {holds('m.mountPath')})"
    return f"({volumes}) || (has(c.terminationMessagePath) && {holds('c.terminationMessagePath')})"


def _mount(mount: Mount, rule: Rule) -> Iterator[tuple[str, str]]:
    """Whether a container `c` has a volume at a reserved path, below it or above it, each with what becomes of it."""
    path = mount.destination
    does = "refuse the container" if rule.deny else "take it away"
    yield _is_mounted(partial(_at_or_below, mount)), f"a volume at {path} or below is reserved; nodes {does}"
    if not mount.source and not mount.volume:
        return
    device = f"has(c.volumeDevices) && c.volumeDevices.exists(d, d.devicePath.matches({_text(_below(path))}))"
    yield device, f"a device at {path} or below; nodes refuse the container"
    own = {other.destination for other in rule.mounts}
    above = [each for each in parents(path) if each not in own]
    if above:
        exists = _is_mounted(partial(_above, above))
        if mount.volumes_above:
            found = (
                f"has(m.mountPropagation) && m.mountPropagation == 'Bidirectional' && {_above(above, 'm.mountPath')}"
            )
            exists = f"has(c.volumeMounts) && c.volumeMounts.exists(m, {found})"
        yield exists, f"a volume above {path}, which is reserved; nodes refuse the container"


def _at_or_below(mount: Mount, field: str) -> str:
    stays = "".join(f" && !{field}.matches({_text(_below(allowed))})" for allowed in mount.allow_below)
    path = mount.destination
    return f"({field}.matches({_text(_below(path))}){stays} || {_climbs(path, field)})"


def _above(paths: list[str], field: str) -> str:
    spellings = "|".join(f"{_START}\\.?$|{_TO_ROOT}" if each == "/" else _at(each) for each in paths)
    climbs = [f" || {_climbs(each, field)}" for each in paths if each != "/"]
    return f"({field}.matches({_text(spellings)}){''.join(climbs)})"
