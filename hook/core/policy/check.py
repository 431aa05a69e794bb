"""The checks of a policy file. They list all problems, each with line, column and what would be right."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hook.core.base.compare import clean, glob_match, is_below
from hook.core.policy.entries import BUILT_BY_THE_RUNTIME, KEEP
from hook.core.policy.model import Rule
from hook.core.policy.overlap import always_overlap, contradicting
from hook.core.policy.source import Path, PolicyInvalid, Problem, Source
from hook.core.policy.trust_layout import LIVE
from hook.core.reserve.annotations import FIELD, POD

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

EVERY_CONTAINERS = tuple(
    f"/dev/{name}"
    for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/ptmx", "net/tun")
)
"""Devices that every container may use (`hook.core.reserve.exclusive` has their numbers)."""

HOME = "HOME"
"""The one env name that runtimes set where it is missing; some also where it is empty."""

_RULES = ("spec", "rules")
_KUBELET_ROOT = ("spec", "kubelet", "root")

MOST_RULES = 1000
"""Maximum number of rules of a policy: 100 are compiled in about 0.6 s, and a start may wait for that."""

MOST_CONTRADICTIONS = 1000
"""How many contradictions between rules are listed."""

_TYPE_NAMES = {"object": "a mapping", "array": "a list", "string": "a string", "boolean": "true or false"}


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the policy file."""
    text = resources.files("hook.core.policy").joinpath("schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


class Shape:
    """The violations of the JSON Schema. `problems`: as text for the author of the policy."""

    def __init__(self, source: Source) -> None:
        """Raises PolicyInvalid for more than MOST_RULES: checking more takes too long."""
        from jsonschema import Draft202012Validator  # slow to import

        rules = source.rules()
        if isinstance(rules, list) and len(rules) > MOST_RULES:
            given = f"rules: {len(rules)} given; a policy has at most {MOST_RULES}"
            raise PolicyInvalid(source.path, [source.problem(_RULES, given, key=True)])
        errors = list(Draft202012Validator(schema()).iter_errors(source.data))
        self._wrong = {tuple(error.absolute_path)[:end] for error in errors for end in range(len(error.path) + 1)}
        problems = {problem for error in errors for problem in _explain(source, error)}
        self.problems = sorted(problems, key=lambda problem: (problem.line, problem.column, problem.message))

    def well_formed(self, items: object, path: Path) -> Iterator[tuple[int, Any]]:
        """The items of the list at a path without a violation, with their numbers.

        The checks after the schema look at these only, so that a violation in one item does not hide problems in
        others.
        """
        for number, item in enumerate(items if isinstance(items, list) else []):
            if (*path, number) not in self._wrong:
                yield number, item


def _explain(source: Source, error: ValidationError) -> list[Problem]:
    """A schema error as text for the author of a policy."""
    path: list[str | int] = list(error.absolute_path)
    value, argument = cast(Any, error.instance), cast(Any, error.validator_value)
    rule = cast(dict[str, Any], error.schema if isinstance(error.schema, dict) else {})
    what = str(path[-1]) if path and isinstance(path[-1], str) else f"item {path[-1]}" if path else "the policy"
    expected = rule.get("description", "")
    if error.validator == "additionalProperties":
        allowed = list(rule.get("properties", {}))
        return [_unknown_key(source, path, key, allowed) for key in value if key not in allowed]
    if error.validator == "required":
        if isinstance(value, dict) and error.parent is not None:
            return []  # a branch of a oneOf; the error of the oneOf has a message of its own
        missing = error.message.split("'")[1]
        return [source.problem(path, f"{missing} is missing", key=not path)]
    if error.validator == "oneOf" and not isinstance(value, dict):
        return []  # the wrong type has a message of its own
    if error.validator == "oneOf":
        alternatives = [branch["required"][0] for branch in argument]
        given = ", ".join(key for key in value if key in alternatives) or "none"
        return [source.problem(path, f"{what}: {given} given; it takes {expected}")]
    if error.validator == "enum":
        choices = ", ".join(map(str, argument))
        return [source.problem(path, f"{what}: {value!r} is not one of {choices}{_suggestion(value, argument)}")]
    if error.validator == "const":
        return [source.problem(path, f"{what}: {_yaml(value)} must be {json.dumps(argument)}")]
    if error.validator == "type":
        wanted = _TYPE_NAMES.get(str(argument), str(argument))
        scalar = not isinstance(value, (dict, list, str)) and value is not None
        given = (scalar and source.written(path)) or _yaml(value)
        hint = f'; quote it: "{given}"' if argument == "string" and scalar else ""
        return [source.problem(path, f"{what}: {given} is not {wanted}{hint}")]
    if error.validator == "minItems":
        return [source.problem(path, f"{what}: the list is empty; leave it out to match everything")]
    hint = f"; it takes {expected}" if expected else ""
    return [source.problem(path, f"{what}: {value!r} is not allowed{hint}")]


def _yaml(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else json.dumps(value) if isinstance(value, (bool, str)) else str(value)


def _suggestion(value: object, choices: list[Any]) -> str:
    import difflib  # only where something is wrong

    close = difflib.get_close_matches(str(value).lower(), [str(c).lower() for c in choices], n=1)
    match = next((c for c in choices if close and str(c).lower() == close[0]), None)
    return f"; did you mean {match}?" if match else ""


def _unknown_key(source: Source, path: list[str | int], key: str, allowed: list[str]) -> Problem:
    hint = _suggestion(key, allowed) or f"; the fields are {', '.join(allowed)}"
    return source.problem([*path, key], f"unknown field {key!r}{hint}", key=True)


def check_meaning(source: Source, shape: Shape) -> list[Problem]:
    """Checks that a schema cannot express: paths, names, selectors. Items that violate the schema are left out."""
    found: list[Problem] = []
    names: dict[str, int] = {}
    valid = dict(shape.well_formed(source.rules(), _RULES))
    root: Any = source.data
    for step in _KUBELET_ROOT:
        root = root.get(step) if isinstance(root, dict) else None
    if isinstance(root, str):
        found += _check_path(source, list(_KUBELET_ROOT), root)
    for number, rule in enumerate(source.rules()):
        at: list[str | int] = ["spec", "rules", number]
        if not isinstance(rule, dict):
            continue
        name = str(rule.get("name", ""))
        if name in names:
            first = source.place(["spec", "rules", names[name], "name"])[0]
            found.append(source.problem([*at, "name"], f"duplicate rule name {name}; the first one is at line {first}"))
        names.setdefault(name, number)
        if number in valid and not _reserves(rule):
            fields = "trust, env, mounts, annotations, deviceAllocations or sharedProcesses"
            message = f"rule {name} reserves nothing: give it {fields}"
            found.append(source.problem(at, message))
        entries = list(shape.well_formed(rule.get("env"), [*at, "env"]))
        has_home = any(env["name"] == HOME and "absent" not in env for _, env in entries)
        for position, env in entries:
            found += _check_env(source, [*at, "env", position], env)
            found += _check_home(source, [*at, "env", position], env, has_home)
        mounts = list(shape.well_formed(rule.get("mounts"), [*at, "mounts"]))
        for position, mount in mounts:
            found += _check_mount(source, [*at, "mounts", position], mount)
            found += _check_above(source, [*at, "mounts", position], mount, [other for _, other in mounts])
        if number in valid:
            found += _check_exclusive(source, [*at, "deviceAllocations", "exclusive"], rule)
            found += _check_trust(source, [*at, "trust"], rule.get("trust") or {})
            selector = (rule.get("match") or {}).get("podSelector")
            found += _check_selector(source, [*at, "match", "podSelector"], selector)
    return found


def _check_exclusive(source: Source, at: list[str | int], rule: dict[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    for position, path in enumerate((rule.get("deviceAllocations") or {}).get("exclusive") or []):
        place = [*at, position]
        free = next((device for device in EVERY_CONTAINERS if path[0] == "/" and glob_match(path, device)), "")
        if path.startswith("/") and clean(path) != path:
            found.append(source.problem(place, f"device path {path!r} matches nothing; write {clean(path)}"))
        elif free == path:
            why = "runtimes let every container use this device; leave it out"
            found.append(source.problem(place, f"device path {path!r}: {why}"))
        elif free:
            why = f"does not close {free} and the like: runtimes let every container use these"
            found.append(source.problem(place, f"device path {path!r} {why}", severity="warning"))
    return found


def _reserves(rule: dict[str, Any]) -> bool:
    allocations = rule.get("deviceAllocations") or {}
    lists = (entries for entries in rule.values() if isinstance(entries, list))
    return any(lists) or any(allocations.values()) or bool(rule.get("trust")) or rule.get("sharedProcesses") == "Refuse"


def _check_trust(source: Source, at: list[str | int], trust: dict[str, Any]) -> list[Problem]:
    if not trust:
        return []
    from hook.core.policy.trust import DEFAULTS, table  # few policies have it

    bundle = str(trust["bundle"])
    found = _check_path(source, [*at, "bundle"], bundle) if bundle.startswith("/") else []
    path = clean(bundle)
    if not found and path.endswith(f"/{LIVE}"):
        found = [
            source.problem([*at, "bundle"], f"bundle {bundle!r}: write the directory above: {path[: -len(LIVE) - 1]}")
        ]
    known = [DEFAULTS, *table()[1]]
    for position, name in enumerate(trust.get("stacks") or []):
        if name not in known:
            hint = _suggestion(name, known) or f"; the stacks are {', '.join(known)}"
            found.append(source.problem([*at, "stacks", position], f"unknown stack {name!r}{hint}"))
    return found


def _check_env(source: Source, at: list[str | int], env: dict[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    name, origin = env["name"], env.get("valueFrom") or {}
    if not name or "=" in name or "\0" in name:
        found.append(source.problem([*at, "name"], f"env name {name!r}: it must not be empty or contain '=' or NUL"))
    elif ("*" in name or "?" in name) and "absent" not in env:
        found.append(source.problem([*at, "name"], f"env name {name!r} is a pattern; only absent: true takes one"))
    if "\0" in env.get("value", ""):
        found.append(source.problem([*at, "value"], f"value of {name}: a NUL byte cannot be in an env value"))
    if "file" in origin:
        found += _check_path(source, [*at, "valueFrom", "file"], origin["file"])
    if "\0" in (origin.get("deviceAllocation") or {}).get("default", ""):
        where: list[str | int] = [*at, "valueFrom", "deviceAllocation", "default"]
        found.append(source.problem(where, f"default of {name}: a NUL byte cannot be in an env value"))
    allocation = origin.get("deviceAllocation") or {}
    if allocation.get("default") == KEEP and "trusted" in allocation:
        where = [*at, "valueFrom", "deviceAllocation", "trusted"]
        found.append(source.problem(where, f"trusted of {name}: with default: Keep every container keeps its value"))
    return found


def _check_home(source: Source, at: list[str | int], env: dict[str, Any], has_home: bool) -> list[Problem]:
    """Problems of what no adapter can hold. `has_home`: the rule gives HOME a value, which counts before a pattern.

    runc (libcontainer's finalizeNamespace, `prepareEnv`) and crun (libcrun's set_home_env) set HOME after reassert.
    """
    name, allocation = env["name"], (env.get("valueFrom") or {}).get("deviceAllocation")
    why = "a runtime then sets it by /etc/passwd of the image; give it a value"
    if "absent" in env and glob_match(name, HOME) and not (has_home and name != HOME):
        what = f"{name!r} cannot be absent" if name == HOME else f"{name!r} matches HOME, which cannot be absent"
        return [source.problem([*at, "name"], f"env name {what}: {why}")]
    if name == HOME and allocation is not None and "default" not in allocation:
        return [source.problem([*at, "name"], f"env name {name!r} cannot be absent: {why}")]
    if name == HOME and env.get("value") == "":
        return [source.problem([*at, "value"], f"value of {name}: it cannot be empty: {why}")]
    if name == HOME and allocation is not None and allocation["default"] == "":
        return [
            source.problem(
                [*at, "valueFrom", "deviceAllocation", "default"], f"default of {name}: it cannot be empty: {why}"
            )
        ]
    return []


def _check_path(source: Source, at: list[str | int], path: str) -> list[Problem]:
    field = next(step for step in reversed(at) if isinstance(step, str))
    reason = ""
    if not path.startswith("/"):
        reason = f"is relative; write it from the root: /{path.removeprefix('./')}"
    elif ".." in path.split("/"):
        reason = f"has a '..' in it; write {clean(path)}"
    elif "\0" in path:
        reason = "contains a NUL byte"
    return [source.problem(at, f"{field} {path!r} {reason}")] if reason else []


def _check_mount(source: Source, at: list[str | int], mount: dict[str, Any]) -> list[Problem]:
    found = _check_path(source, [*at, "hostPath"], mount["hostPath"]) if "hostPath" in mount else []
    if "absent" in mount:
        found += [
            source.problem([*at, field], f"{field} has no effect with absent: true, which allows no mount", key=True)
            for field in ("readOnly", "options", "onMissingSource", "volumesAbove")
            if field in mount
        ]
    found += _check_empty_dir(source, at, mount)
    wrong = _check_path(source, [*at, "mountPath"], mount["mountPath"])
    path = clean(mount["mountPath"])
    if not wrong and path == "/":
        wrong = [source.problem([*at, "mountPath"], "mountPath / would replace the container's whole root filesystem")]
    for tree in BUILT_BY_THE_RUNTIME:
        if not wrong and (path == tree or is_below(path, tree)):
            wrong = [source.problem([*at, "mountPath"], f"mountPath {path} is in {tree}, which the runtime builds")]
    found += wrong
    for position, allowed in enumerate(mount.get("allowBelow") or []):
        where: list[str | int] = [*at, "allowBelow", position]
        bad = _check_path(source, where, allowed)
        if not bad and not wrong and not is_below(clean(allowed), path):
            bad = [source.problem(where, f"allowBelow {allowed!r} is not below mountPath {path}")]
        found += bad
    return found


def _check_above(
    source: Source, at: list[str | int], mount: dict[str, Any], mounts: list[dict[str, Any]]
) -> list[Problem]:
    """A warning of a mount that its own rule puts where containers write."""
    path = clean(mount["mountPath"])
    for other in mounts:
        above, source_is_writable = clean(other["mountPath"]), not other.get("readOnly", "emptyDir" not in other)
        if (
            source_is_writable
            and "absent" not in other
            and is_below(path, above)
            and mount.get("volumesAbove") != "Allow"
        ):
            why = f"is below {above}, to which containers write: they are refused (volumesAbove: Allow permits it)"
            return [source.problem([*at, "mountPath"], f"mountPath {path} {why}", severity="warning")]
    return []


def _check_empty_dir(source: Source, at: list[str | int], mount: dict[str, Any]) -> list[Problem]:
    volume = mount.get("emptyDir", {})
    found: list[Problem] = []
    if "emptyDir" in mount and "onMissingSource" in mount:
        what = "onMissingSource has no effect with emptyDir, which is made where it is missing"
        found.append(source.problem([*at, "onMissingSource"], what, key=True))
    if "sizeLimit" in volume and not volume.get("medium"):
        what = "sizeLimit needs medium: Memory; nothing on the node limits a directory on disk"
        found.append(source.problem([*at, "emptyDir", "sizeLimit"], what, key=True))
    if volume.get("medium"):
        what = "medium: Memory: the NRI plugin cannot mount a tmpfs, so failurePolicy decides there; the wrapper can"
        found.append(source.problem([*at, "emptyDir", "medium"], what, severity="warning"))
    return found


def _check_selector(source: Source, at: list[str | int], selector: dict[str, Any] | None) -> list[Problem]:
    found = []
    for position, expression in enumerate((selector or {}).get("matchExpressions") or []):
        operator, values = expression["operator"], expression.get("values")
        where: list[str | int] = [*at, "matchExpressions", position]
        if operator in ("In", "NotIn") and not values:
            found.append(source.problem(where, f"operator {operator} needs values"))
        if operator in ("Exists", "DoesNotExist") and values:
            found.append(source.problem([*where, "values"], f"operator {operator} takes no values"))
    return found


def check_rules(source: Source, rules: Mapping[int, Rule]) -> list[Problem]:
    """Contradictions between rules, by their numbers."""
    found: list[Problem] = []
    wants: dict[tuple[str, str], list[_Want]] = {}
    for number, rule in rules.items():
        found += _wants_twice(source, number, rule)
        found += _of_pods_alone(source, number, rule)
        for position, env in enumerate(rule.env):
            place = source.origin(("spec", "rules", number, "env", position))
            want = _Want(rule, place, (env.source, env.text, env.keep, str(env.trusted)))
            wants.setdefault(("env", env.name), []).append(want)
        for position, mount in enumerate(rule.mounts):
            want = _Want(rule, source.origin(("spec", "rules", number, "mounts", position)), mount.wanted())
            wants.setdefault(("mount", mount.destination), []).append(want)
    for (kind, name), all_wants in wants.items():
        for one, other in contradicting([(want.rule, want.what) for want in all_wants]):
            found.append(_contradiction(source, f"{kind} {name}", all_wants[one], all_wants[other]))
            if len(found) > MOST_CONTRADICTIONS:
                return found
    return list(dict.fromkeys(found))  # two different stores differ in many entries


class _Want(NamedTuple):
    rule: Rule
    path: Path
    what: Hashable


def _contradiction(source: Source, thing: str, one: _Want, other: _Want) -> Problem:
    """An error if the rules match the same containers, a warning if some container may match both."""
    if one.path[-1] == other.path[-1] == "trust":
        thing = "trust"
    message = f"rules {one.rule.name} and {other.rule.name} want different things for {thing}"
    if one.rule.is_audited != other.rule.is_audited:
        audited = one.rule.name if one.rule.is_audited else other.rule.name
        then = f"{audited} is only tried (mode: Audit), so nothing is refused for that until it is enforced"
        return source.problem(other.path, f"{message}; {then}", severity="warning")
    if always_overlap(one.rule, other.rule):
        line = source.place(one.path)[0]
        return source.problem(other.path, f"{message}, and match the same containers (see line {line})")
    return source.problem(other.path, f"{message}; a container that matches both is refused", severity="warning")


def _wants_twice(source: Source, number: int, rule: Rule) -> list[Problem]:
    found = []
    for kind, names in (("env", [env.name for env in rule.env]), ("mounts", [m.destination for m in rule.mounts])):
        for position, name in enumerate(names):
            if name in names[:position]:
                path: Path = ["spec", "rules", number, kind, position]
                found.append(source.problem(path, f"rule {rule.name} has {name} twice; keep one"))
    return found


def _of_pods_alone(source: Source, number: int, rule: Rule) -> list[Problem]:
    """Warnings of annotations that only the NRI plugin sees."""
    return [
        source.problem(
            ["spec", "rules", number, FIELD, position, "of"],
            f"rule {rule.name}: annotations of the pod itself reach the NRI plugin alone; with every other adapter "
            "this entry does nothing (reassert node install --adapter nri)",
            severity="warning",
        )
        for position, entry in enumerate(rule.raw_lists.get(FIELD, []))
        if entry.get("of") == POD
    ]
