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

        if len(source.rules()) > MOST_RULES:
            given = f"rules: {len(source.rules())} given; a policy has at most {MOST_RULES}"
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


class _At:
    """A place in the policy file. `problem` is for the value there, or for one that `below` leads to."""

    def __init__(self, source: Source, *path: str | int) -> None:
        self._source = source
        self._path = path

    def __call__(self, *below: str | int) -> _At:
        return _At(self._source, *self._path, *below)

    def problem(self, message: str, *below: str | int, key: bool = False, severity: str = "error") -> Problem:
        return self._source.problem((*self._path, *below), message, key=key, severity=severity)

    def path(self, path: str, *below: str | int) -> list[Problem]:
        """The problem of a path of the node or of a container that must be absolute and plain, if there is one."""
        field = next(step for step in reversed((*self._path, *below)) if isinstance(step, str))
        reason = ""
        if not path.startswith("/"):
            reason = f"is relative; write it from the root: /{path.removeprefix('./')}"
        elif ".." in path.split("/"):
            reason = f"has a '..' in it; write {clean(path)}"
        elif "\0" in path:
            reason = "contains a NUL byte"
        return [self.problem(f"{field} {path!r} {reason}", *below)] if reason else []


def check_meaning(source: Source, shape: Shape) -> Iterator[Problem]:
    """Checks that a schema cannot express: paths, names, selectors. Items that violate the schema are left out."""
    root = source.kubelet_root()
    if isinstance(root, str):
        yield from _At(source).path(root, "spec", "kubelet", "root")
    names: dict[str, int] = {}
    valid = dict(shape.well_formed(source.rules(), _RULES))
    for number, rule in enumerate(source.rules()):
        if not isinstance(rule, dict):
            continue
        at = _At(source, *_RULES, number)
        name = str(rule.get("name", ""))
        if name in names:
            first = source.place([*_RULES, names[name], "name"])[0]
            yield at.problem(f"duplicate rule name {name}; the first one is at line {first}", "name")
        names.setdefault(name, number)
        entries = list(shape.well_formed(rule.get("env"), [*_RULES, number, "env"]))
        has_home = any(env["name"] == HOME and "absent" not in env for _, env in entries)
        for position, env in entries:
            yield from _check_env(at("env", position), env)
            yield from _check_home(at("env", position), env, has_home)
        mounts = list(shape.well_formed(rule.get("mounts"), [*_RULES, number, "mounts"]))
        for position, mount in mounts:
            yield from _check_mount(at("mounts", position), mount)
            yield from _check_above(at("mounts", position), mount, [other for _, other in mounts])
        if number in valid:
            if not _reserves(rule):
                fields = "trust, env, mounts, annotations, deviceAllocations or sharedProcesses"
                yield at.problem(f"rule {name} reserves nothing: give it {fields}")
            yield from _check_exclusive(at("deviceAllocations", "exclusive"), rule)
            yield from _check_trust(at("trust"), rule.get("trust") or {})
            yield from _check_selector(at("match", "podSelector", "matchExpressions"), rule)


def _check_exclusive(at: _At, rule: dict[str, Any]) -> Iterator[Problem]:
    for position, path in enumerate((rule.get("deviceAllocations") or {}).get("exclusive") or []):
        free = next((device for device in EVERY_CONTAINERS if path[0] == "/" and glob_match(path, device)), "")
        if path.startswith("/") and clean(path) != path:
            yield at.problem(f"device path {path!r} matches nothing; write {clean(path)}", position)
        elif free == path:
            why = "runtimes let every container use this device; leave it out"
            yield at.problem(f"device path {path!r}: {why}", position)
        elif free:
            why = f"does not close {free} and the like: runtimes let every container use these"
            yield at.problem(f"device path {path!r} {why}", position, severity="warning")


def _reserves(rule: dict[str, Any]) -> bool:
    allocations = rule.get("deviceAllocations") or {}
    lists = (entries for entries in rule.values() if isinstance(entries, list))
    return any(lists) or any(allocations.values()) or bool(rule.get("trust")) or rule.get("sharedProcesses") == "Refuse"


def _check_trust(at: _At, trust: dict[str, Any]) -> Iterator[Problem]:
    if not trust:
        return
    from hook.core.policy.trust import DEFAULTS, table  # few policies have it

    bundle = str(trust["bundle"])
    wrong = at.path(bundle, "bundle") if bundle.startswith("/") else []
    yield from wrong
    path = clean(bundle)
    if not wrong and path.endswith(f"/{LIVE}"):
        yield at.problem(f"bundle {bundle!r}: write the directory above: {path[: -len(LIVE) - 1]}", "bundle")
    known = [DEFAULTS, *table()[1]]
    for position, name in enumerate(trust.get("stacks") or []):
        if name not in known:
            hint = _suggestion(name, known) or f"; the stacks are {', '.join(known)}"
            yield at.problem(f"unknown stack {name!r}{hint}", "stacks", position)


_DEFAULT = ("valueFrom", "deviceAllocation", "default")


def _check_env(at: _At, env: dict[str, Any]) -> Iterator[Problem]:
    name, origin = env["name"], env.get("valueFrom") or {}
    allocation = origin.get("deviceAllocation") or {}
    if not name or "=" in name or "\0" in name:
        yield at.problem(f"env name {name!r}: it must not be empty or contain '=' or NUL", "name")
    elif ("*" in name or "?" in name) and "absent" not in env:
        yield at.problem(f"env name {name!r} is a pattern; only absent: true takes one", "name")
    if "\0" in env.get("value", ""):
        yield at.problem(f"value of {name}: a NUL byte cannot be in an env value", "value")
    if "file" in origin:
        yield from at.path(origin["file"], "valueFrom", "file")
    if "\0" in allocation.get("default", ""):
        yield at.problem(f"default of {name}: a NUL byte cannot be in an env value", *_DEFAULT)
    if allocation.get("default") == KEEP and "trusted" in allocation:
        why = "with default: Keep every container keeps its value"
        yield at.problem(f"trusted of {name}: {why}", "valueFrom", "deviceAllocation", "trusted")


def _check_home(at: _At, env: dict[str, Any], has_home: bool) -> Iterator[Problem]:
    """Problems of what no adapter can enforce. `has_home`: the rule gives HOME a value, which counts before a pattern.

    runc (libcontainer's finalizeNamespace, `prepareEnv`) and crun (libcrun's set_home_env) set HOME after reassert.
    """
    name, allocation = env["name"], (env.get("valueFrom") or {}).get("deviceAllocation")
    why = "a runtime then sets it by /etc/passwd of the image; give it a value"
    if name == HOME and ("absent" in env or (allocation is not None and "default" not in allocation)):
        yield at.problem(f"env name {name!r} cannot be absent: {why}", "name")
    elif "absent" in env and glob_match(name, HOME) and not has_home:
        yield at.problem(f"env name {name!r} matches HOME, which cannot be absent: {why}", "name")
    elif name == HOME and env.get("value") == "":
        yield at.problem(f"value of {name}: it cannot be empty: {why}", "value")
    elif name == HOME and (allocation or {}).get("default") == "":
        yield at.problem(f"default of {name}: it cannot be empty: {why}", *_DEFAULT)


def _check_mount(at: _At, mount: dict[str, Any]) -> Iterator[Problem]:
    if "hostPath" in mount:
        yield from at.path(mount["hostPath"], "hostPath")
    if "absent" in mount:
        for field in ("readOnly", "options", "onMissingSource", "volumesAbove"):
            if field in mount:
                yield at.problem(f"{field} has no effect with absent: true, which allows no mount", field, key=True)
    yield from _check_empty_dir(at, mount)
    path = clean(mount["mountPath"])
    wrong = at.path(mount["mountPath"], "mountPath")
    tree = next((tree for tree in BUILT_BY_THE_RUNTIME if path == tree or is_below(path, tree)), "")
    if not wrong and path == "/":
        wrong = [at.problem("mountPath / would replace the container's whole root filesystem", "mountPath")]
    elif not wrong and tree:
        wrong = [at.problem(f"mountPath {path} is in {tree}, which the runtime builds", "mountPath")]
    yield from wrong
    for position, allowed in enumerate(mount.get("allowBelow") or []):
        bad = at.path(allowed, "allowBelow", position)
        yield from bad
        if not bad and not wrong and not is_below(clean(allowed), path):
            yield at.problem(f"allowBelow {allowed!r} is not below mountPath {path}", "allowBelow", position)


def _check_above(at: _At, mount: dict[str, Any], mounts: list[dict[str, Any]]) -> Iterator[Problem]:
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
            yield at.problem(f"mountPath {path} {why}", "mountPath", severity="warning")
            return


def _check_empty_dir(at: _At, mount: dict[str, Any]) -> Iterator[Problem]:
    volume = mount.get("emptyDir", {})
    if "emptyDir" in mount and "onMissingSource" in mount:
        what = "onMissingSource has no effect with emptyDir, which is made where it is missing"
        yield at.problem(what, "onMissingSource", key=True)
    if "sizeLimit" in volume and not volume.get("medium"):
        what = "sizeLimit needs medium: Memory; nothing on the node limits a directory on disk"
        yield at.problem(what, "emptyDir", "sizeLimit", key=True)
    if volume.get("medium"):
        what = "medium: Memory: the NRI plugin cannot mount a tmpfs, so failurePolicy decides there; the wrapper can"
        yield at.problem(what, "emptyDir", "medium", severity="warning")


def _check_selector(at: _At, rule: dict[str, Any]) -> Iterator[Problem]:
    selector = (rule.get("match") or {}).get("podSelector") or {}
    for position, expression in enumerate(selector.get("matchExpressions") or []):
        operator, values = expression["operator"], expression.get("values")
        if operator in ("In", "NotIn") and not values:
            yield at.problem(f"operator {operator} needs values", position)
        if operator in ("Exists", "DoesNotExist") and values:
            yield at.problem(f"operator {operator} takes no values", position, "values")


def check_rules(source: Source, rules: Mapping[int, Rule]) -> list[Problem]:
    """Contradictions between rules, by their numbers."""
    found: list[Problem] = []
    wants: dict[tuple[str, str], list[_Want]] = {}
    for number, rule in rules.items():
        found += _check_rule(_At(source, *_RULES, number), rule)
        for position, env in enumerate(rule.env):
            place = source.origin((*_RULES, number, "env", position))
            want = _Want(rule, place, (env.source, env.text, env.keep, str(env.trusted)))
            wants.setdefault(("env", env.name), []).append(want)
        for position, mount in enumerate(rule.mounts):
            want = _Want(rule, source.origin((*_RULES, number, "mounts", position)), mount.wanted())
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


def _check_rule(at: _At, rule: Rule) -> Iterator[Problem]:
    """Entries that a rule has twice, and warnings of annotations that only the NRI plugin sees."""
    for kind, names in (("env", [env.name for env in rule.env]), ("mounts", [m.destination for m in rule.mounts])):
        for position, name in enumerate(names):
            if name in names[:position]:
                yield at.problem(f"rule {rule.name} has {name} twice; keep one", kind, position)
    for position, entry in enumerate(rule.raw_lists.get(FIELD, [])):
        if entry.get("of") == POD:
            only = (
                "annotations of the pod itself reach the NRI plugin alone; with every other adapter this entry does "
                "nothing (reassert node install --adapter nri)"
            )
            yield at.problem(f"rule {rule.name}: {only}", FIELD, position, "of", severity="warning")
