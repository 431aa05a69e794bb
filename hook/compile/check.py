"""The checks of a policy file. They list all problems, each with line, column and what would be right."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hook.compile import ineffective
from hook.compile.overlap import always_overlap, contradicting
from hook.compile.source import Path, PolicyInvalid, Problem, Source
from hook.compile.trust import ASIDE, DEFAULTS, table
from hook.core.base.compare import clean, glob_match, is_below, is_pattern
from hook.core.container.identity import SANDBOX, TYPES
from hook.core.policy.entries import BUILT_BY_THE_RUNTIME, POD_UID
from hook.core.policy.model import Rule
from hook.core.policy.sources import DEFAULT, DENY, ELSE, KEEP, Allowed, Env, reserved
from hook.core.policy.trust_layout import LIVE
from hook.core.reserve import shared_processes
from hook.core.reserve.listed_annotations import FIELD, POD

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

EVERY_CONTAINERS_PATHS = tuple(
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
    text = resources.files("hook.compile").joinpath("schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


class Shape:
    """The violations of the JSON Schema."""

    def __init__(self, source: Source) -> None:
        """Raises PolicyInvalid for more than MOST_RULES: checking more takes too long."""
        from jsonschema import Draft202012Validator  # slow to import

        if len(source.rules()) > MOST_RULES:
            given = f"rules: {len(source.rules())} given; a policy has at most {MOST_RULES}"
            raise PolicyInvalid(source.path, [source.problem(_RULES, given, key=True)])
        _refuse_another_kind(source)
        errors = list(Draft202012Validator(schema()).iter_errors(source.data))
        self._wrong = {tuple(error.absolute_path)[:end] for error in errors for end in range(len(error.path) + 1)}
        problems = {problem for error in errors for problem in _explain(source, error)}
        self.problems = sorted(problems, key=lambda problem: (problem.line, problem.column, problem.message))
        """The violations, as text for the author of the policy."""

    def well_formed(self, items: object, path: Path) -> Iterator[tuple[int, Any]]:
        """The items of the list at a path without a violation, with their numbers.

        The checks after the schema look at these only, so that a violation in one item does not hide problems in
        others.
        """
        for number, item in enumerate(items if isinstance(items, list) else []):
            if (*path, number) not in self._wrong:
                yield number, item


POLICY_KIND = "NodePolicy"


def _refuse_another_kind(source: Source) -> None:
    """Raises PolicyInvalid for a document of another kind, whose fields would all be unknown."""
    kind = source.data.get("kind") if isinstance(source.data, dict) else None
    if not isinstance(kind, str) or "node" in kind.lower():  # a misspelling
        return
    about = f"this is a {kind} ({source.data.get('apiVersion', 'no apiVersion')}), and not a {POLICY_KIND}"
    data = source.data.get("data")
    keys = [key for key, text in data.items() if POLICY_KIND in str(text)] if isinstance(data, dict) else []
    hint = f"; the policy is the text of data[{json.dumps(keys[0])}]: check that alone" if keys else ""
    begins = hint or f"; a policy begins with `apiVersion: reassert/v1` and `kind: {POLICY_KIND}`"
    raise PolicyInvalid(source.path, [source.problem(("kind",), about + begins)])


def _explain(source: Source, error: ValidationError) -> list[Problem]:
    """A schema error as text for the author of a policy."""
    path: list[str | int] = list(error.absolute_path)
    value, argument = cast(Any, error.instance), cast(Any, error.validator_value)
    rule = cast(dict[str, Any], error.schema if isinstance(error.schema, dict) else {})
    name = str(path[-1]) if path and isinstance(path[-1], str) else f"item {path[-1]}" if path else "the policy"
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
        branches = [each for branch in argument for each in branch.get("anyOf", [branch])]
        alternatives = [branch["required"][0] for branch in branches]
        given = ", ".join(key for key in value if key in alternatives) or "none"
        return [source.problem(path, f"{name}: {given} given; it takes {expected}")]
    if error.validator == "enum":
        choices = ", ".join(map(str, argument))
        given = _given(source, path, value)
        return [source.problem(path, f"{name}: {given} is not one of {choices}{_suggestion(value, argument)}")]
    if error.validator == "const":
        return [source.problem(path, f"{name}: {_yaml(value)} must be {json.dumps(argument)}")]
    if error.validator == "type":
        wanted = _TYPE_NAMES.get(str(argument), str(argument))
        scalar = not isinstance(value, (dict, list, str)) and value is not None
        given = (scalar and source.written(path)) or _yaml(value)
        hint = f'; quote it: "{given}"' if argument == "string" and scalar else ""
        if argument == "array" and isinstance(value, dict):
            hint = _as_list(name, value)
        given = _given(source, path, value) if isinstance(value, dict) else given
        return [source.problem(path, f"{name}: {given} is not {wanted}{hint}")]
    if error.validator == "minItems":
        hint = " to match everything" if "match" in path else ""
        return [source.problem(path, f"{name}: the list is empty; leave it out{hint}")]
    if error.validator == "anyOf":
        forms = " nor ".join(_form(form) for form in argument)
        return [source.problem(path, f"{name}: {_yaml(value)} is neither {forms}")]
    hint = f"; it takes {expected}" if expected else ""
    return [source.problem(path, f"{name}: {_given(source, path, value)} is not allowed{hint}")]


def _form(form: dict[str, Any]) -> str:
    """What an alternative of the schema takes."""
    constants = {field: each["const"] for field, each in form.get("properties", {}).items()}
    shown = ", ".join(f"{field}: {json.dumps(value)}" for field, value in constants.items())
    return f"{{{shown}}}" if constants else _TYPE_NAMES[form["type"]]


def _given(source: Source, path: list[str | int], value: object) -> str:
    """A value as its author knows it. YAML reads `{{ a }}` of a template that was not rendered as a mapping."""
    if not isinstance(value, (dict, list)):
        return repr(value)
    line = source.text.splitlines()[source.place(path)[0] - 1 :][:1]
    is_template = any("{{" in each for each in line)
    return "a template, which must be rendered first," if is_template else _yaml(value)


def _as_list(field: str, value: dict[Any, Any]) -> str:
    """The right form of a list that was written as a mapping, as in a Compose file."""
    if field != "env":
        return "; write `- ` before each entry"
    name, text = next(iter(value.items()), ("NAME", "value"))
    shown = json.dumps(text) if isinstance(text, str) else "…"
    return f"; write a list: - {{name: {name}, value: {shown}}}"


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


class _Place:
    """A place in the policy file. `problem` is for the value there, or for one that `below` leads to."""

    def __init__(self, source: Source, *path: str | int) -> None:
        self._source = source
        self._path = path

    def __call__(self, *below: str | int) -> _Place:
        return _Place(self._source, *self._path, *below)

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
        yield from _Place(source).path(root, "spec", "kubelet", "root")
    names: dict[str, int] = {}
    valid = dict(shape.well_formed(source.rules(), _RULES))
    for number, rule in enumerate(source.rules()):
        if not isinstance(rule, dict):
            continue
        place = _Place(source, *_RULES, number)
        name = str(rule.get("name", ""))
        if name in names:
            first = source.place([*_RULES, names[name], "name"])[0]
            yield place.problem(f"duplicate rule name {name}; the first one is at line {first}", "name")
        names.setdefault(name, number)
        entries = list(shape.well_formed(rule.get("env"), [*_RULES, number, "env"]))
        has_home = any(env["name"] == HOME and not reserved(env).may_be_pattern for _, env in entries)
        for position, env in entries:
            yield from _check_env(place("env", position), reserved(env))
            yield from _check_allowed(place("env", position), env, reserved(env))
            yield from _check_home(place("env", position), reserved(env), has_home)
        mounts = list(shape.well_formed(rule.get("mounts"), [*_RULES, number, "mounts"]))
        for position, mount in mounts:
            yield from _check_mount(place("mounts", position), mount)
            yield from _check_above(place("mounts", position), mount, [other for _, other in mounts])
        if number in valid:
            if not _reserves(rule):
                *fields, last = [field for field in schema()["$defs"]["rule"]["properties"] if field not in _ABOUT]
                yield place.problem(f"rule {name} reserves nothing: give it {', '.join(fields)} or {last}")
            yield from _check_exclusive(place("deviceAllocations", "exclusive"), rule)
            yield from _check_trust(place("trust"), rule.get("trust") or {})
            yield from _check_sandbox(place, rule, source.spec().get("exclude"))
            yield from _check_selector(place("match", "podSelector", "matchExpressions"), rule)
    yield from ineffective.warnings(source, valid)


def _check_exclusive(place: _Place, rule: dict[str, Any]) -> Iterator[Problem]:
    for position, path in enumerate((rule.get("deviceAllocations") or {}).get("exclusive") or []):
        free = next((device for device in EVERY_CONTAINERS_PATHS if path[0] == "/" and glob_match(path, device)), "")
        if path.startswith("/") and clean(path) != path:
            yield place.problem(f"device path {path!r} matches nothing; write {clean(path)}", position)
        elif free == path:
            why = "runtimes let every container use this device; leave it out"
            yield place.problem(f"device path {path!r}: {why}", position)
        elif free:
            why = f"does not close {free} and the like: runtimes let every container use these"
            yield place.problem(f"device path {path!r} {why}", position, severity="warning")


_ABOUT = ("name", "mode", "match", "onConflict")
"""Fields of a rule that say where and how it holds. Each other field can reserve something."""


def _reserves(rule: dict[str, Any]) -> bool:
    """Whether a rule reserves anything. A value such as 0 does; no empty list, and no field that is switched off."""
    off = {"deviceAllocations": not any((rule.get("deviceAllocations") or {}).values())}
    off[shared_processes.KIND] = rule.get(shared_processes.KIND) != "Refuse"
    return any(value != [] and not off.get(field) for field, value in rule.items() if field not in _ABOUT)


def _check_trust(place: _Place, trust: dict[str, Any]) -> Iterator[Problem]:
    if not trust:
        return

    bundle = str(trust["bundle"])
    wrong = place.path(bundle, "bundle") if bundle.startswith("/") else []
    yield from wrong
    yield from _check_uid(place, bundle, "bundle")
    path = clean(bundle)
    if not wrong and path.endswith(f"/{LIVE}"):
        yield place.problem(f"bundle {bundle!r}: write the directory above: {path[: -len(LIVE) - 1]}", "bundle")
    if trust.get("mount") == ASIDE and "volumesAbove" in trust:
        message = f"volumesAbove has no effect with mount: {ASIDE}, above which is no volume"
        yield place.problem(message, "volumesAbove", key=True)
    known = [DEFAULTS, *table()[1]]
    for position, name in enumerate(trust.get("stacks") or []):
        if name not in known:
            hint = _suggestion(name, known) or f"; the stacks are {', '.join(known)}"
            yield place.problem(f"unknown stack {name!r}{hint}", "stacks", position)


def _check_env(place: _Place, env: Env) -> Iterator[Problem]:
    name = env.name
    if not name or "=" in name or "\0" in name:
        yield place.problem(f"env name {name!r}: it must not be empty or contain '=' or NUL", "name")
    elif is_pattern(name) and not env.may_be_pattern:
        yield place.problem(f"env name {name!r} is a pattern; only absent: true takes one", "name")
    for path in env.files:
        yield from place.path(path, *env.PLACE)
    for field, text in env.literals():
        if "\0" in text:
            yield place.problem(f"{_last(field)} of {name}: a NUL byte cannot be in an env value", *field)
    if env.trusted and env.by_default(str) is None:
        why = f"with default: {KEEP} every container keeps its value"
        yield place.problem(f"trusted of {name}: {why}", *env.PLACE, "trusted")


def _last(path: tuple[str | int, ...]) -> str:
    """The last field of a path, whose end may be the position in a list."""
    return next(step for step in reversed(path) if isinstance(step, str))


def _check_allowed(place: _Place, env: dict[str, Any], source: Env) -> Iterator[Problem]:
    """Problems of `oneOf` and `pattern`, and of what belongs to them."""
    name = source.name
    if not isinstance(source, Allowed):
        for field in (ELSE, DEFAULT):
            if field in env:
                why = "is for allowed values: it needs oneOf or pattern"
                yield place.problem(f"{field} of {name} {why}", field, key=True)
        return
    for field, text in ((field, env.get(field)) for field in (ELSE, DEFAULT)):
        if isinstance(text, str) and text.lower() in ("absent", DENY.lower()) and (field, text) != (ELSE, DENY):
            right = f"{ELSE}: {DENY if text.lower() == DENY.lower() else '{absent: true}'}"
            why = f"gives the container the text {text!r}; did you mean {right}?"
            yield place.problem(f"{field} of {name} {why}", field, severity="warning")
    if source.default is not None and source.instead is None and not source.denies:
        why = f"removes {name}, and default gives it to a container without it; leave one of them out"
        yield place.problem(f"{ELSE} of {name} {why}", ELSE)
    if name == HOME:
        why = "a runtime then sets it by /etc/passwd of the image"
        if source.default is None:
            yield place.problem(f"a container may be without {name}: {why}; give it a default", "name")
        if source.pattern is not None and glob_match(source.pattern, ""):
            yield place.problem(f"pattern of {name}: it matches an empty one: {why}", "pattern")


def _check_home(place: _Place, env: Env, has_home: bool) -> Iterator[Problem]:
    """Problems of what no adapter can enforce. `has_home`: the rule gives HOME a value, which counts before a pattern.

    runc (libcontainer's finalizeNamespace, `prepareEnv`) and crun (libcrun's set_home_env) set HOME after reassert.
    """
    why = "a runtime then sets it by /etc/passwd of the image; give it a value"
    name, given = env.name, env.by_default(str)
    if name == HOME and given and given.text is None:
        yield place.problem(f"env name {name!r} cannot be absent: {why}", "name")
    elif env.may_be_pattern and glob_match(name, HOME) and not has_home:
        yield place.problem(f"env name {name!r} matches HOME, which cannot be absent: {why}", "name")
    elif name == HOME:
        for field, text in env.literals():
            if not text:
                yield place.problem(f"{_last(field)} of {name}: it cannot be empty: {why}", *field)


def _check_mount(place: _Place, mount: dict[str, Any]) -> Iterator[Problem]:
    if "hostPath" in mount:
        yield from place.path(mount["hostPath"], "hostPath")
        yield from _check_uid(place, mount["hostPath"], "hostPath")
    if "absent" in mount:
        for field in ("readOnly", "options", "onMissingSource", "volumesAbove"):
            if field in mount:
                yield place.problem(f"{field} has no effect with absent: true, which allows no mount", field, key=True)
    yield from _check_empty_dir(place, mount)
    path = clean(mount["mountPath"])
    wrong = place.path(mount["mountPath"], "mountPath")
    tree = next((tree for tree in BUILT_BY_THE_RUNTIME if path == tree or is_below(path, tree)), "")
    if not wrong and path == "/":
        wrong = [place.problem("mountPath / would replace the container's whole root filesystem", "mountPath")]
    elif not wrong and tree:
        wrong = [place.problem(f"mountPath {path} is in {tree}, which the runtime builds", "mountPath")]
    yield from wrong
    for position, allowed in enumerate(mount.get("allowBelow") or []):
        bad = place.path(allowed, "allowBelow", position)
        yield from bad
        if not bad and not wrong and not is_below(clean(allowed), path):
            yield place.problem(f"allowBelow {allowed!r} is not below mountPath {path}", "allowBelow", position)


def _check_uid(place: _Place, path: str, field: str) -> Iterator[Problem]:
    """The pod's UID must be a whole name of a path: no part of another name tells pods apart."""
    if any(POD_UID in name and name != POD_UID for name in path.split("/")):
        yield place.problem(f"{field} {path!r}: {POD_UID} must be a whole name between two slashes", field)


def _check_sandbox(place: _Place, rule: dict[str, Any], exclude: Any) -> Iterator[Problem]:
    """A warning of a rule for the sandboxes of pods, which start before a directory for their UID can be made."""
    needed = [str(mount.get("hostPath", "")) for mount in rule.get("mounts") or () if "onMissingSource" not in mount]
    needed.append(str((rule.get("trust") or {}).get("bundle", "")))
    match = rule.get("match") or {}
    excluded = exclude.get("containerTypes") if isinstance(exclude, dict) else None
    applies = SANDBOX in match.get("containerTypes", [SANDBOX]) and SANDBOX not in (excluded or ())
    if applies and any(POD_UID in path for path in needed):
        why = f"a pod's sandbox container starts before its directory for {POD_UID} is there, so the pod never starts"
        cure = "add containerTypes: [init, container, ephemeral] to its match"
        yield place.problem(
            f"rule {rule['name']}: {why}; {cure}", *(["match"] if match else ["name"]), severity="warning"
        )


def _check_above(place: _Place, mount: dict[str, Any], mounts: list[dict[str, Any]]) -> Iterator[Problem]:
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
            yield place.problem(f"mountPath {path} {why}", "mountPath", severity="warning")
            return


def _check_empty_dir(place: _Place, mount: dict[str, Any]) -> Iterator[Problem]:
    volume = mount.get("emptyDir", {})
    if "emptyDir" in mount and "onMissingSource" in mount:
        message = "onMissingSource has no effect with emptyDir, which is made where it is missing"
        yield place.problem(message, "onMissingSource", key=True)
    if "sizeLimit" in volume and not volume.get("medium"):
        message = "sizeLimit needs medium: Memory; nothing on the node limits a directory on disk"
        yield place.problem(message, "emptyDir", "sizeLimit", key=True)
    if volume.get("medium"):
        message = "medium: Memory: the NRI plugin cannot mount a tmpfs, so failurePolicy decides there; the wrapper can"
        yield place.problem(message, "emptyDir", "medium", severity="warning")


def _check_selector(place: _Place, rule: dict[str, Any]) -> Iterator[Problem]:
    selector = (rule.get("match") or {}).get("podSelector") or {}
    for position, expression in enumerate(selector.get("matchExpressions") or []):
        operator, values = expression["operator"], expression.get("values")
        if operator in ("In", "NotIn") and not values:
            yield place.problem(f"operator {operator} needs values", position)
        if operator in ("Exists", "DoesNotExist") and values:
            yield place.problem(f"operator {operator} takes no values", position, "values")


def check_rules(source: Source, rules: Mapping[int, Rule]) -> list[Problem]:
    """Contradictions between rules, by their numbers."""
    problems: list[Problem] = []
    wants: dict[tuple[str, str], list[_Want]] = {}
    for number, rule in rules.items():
        problems += _check_rule(_Place(source, *_RULES, number), rule)
        for position, env in enumerate(rule.env):
            place = source.origin((*_RULES, number, "env", position))
            want = _Want(rule, place, json.dumps(env.as_written(), sort_keys=True))
            wants.setdefault(("env", env.name), []).append(want)
        for position, mount in enumerate(rule.mounts):
            want = _Want(rule, source.origin((*_RULES, number, "mounts", position)), mount.wanted())
            wants.setdefault(("mount", mount.destination), []).append(want)
    for (kind, name), all_wants in wants.items():
        for one, other in contradicting([(want.rule, want.what) for want in all_wants]):
            problems.append(_contradiction(source, f"{kind} {name}", all_wants[one], all_wants[other]))
            if len(problems) > MOST_CONTRADICTIONS:
                return problems
    return list(dict.fromkeys(problems))  # two different stores differ in many entries


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
        types = [{*rule.conditions.get("containerTypes", TYPES)} for rule in (one.rule, other.rule)]
        why = "" if types[0] & types[1] else ": nothing distinguishes init containers from ephemeral ones"
        return source.problem(other.path, f"{message}, and match the same containers (see line {line}){why}")
    return source.problem(other.path, f"{message}; a container that matches both is refused", severity="warning")


def _check_rule(place: _Place, rule: Rule) -> Iterator[Problem]:
    """Entries that a rule has twice, and warnings of annotations that only the NRI plugin sees."""
    for kind, names in (("env", [env.name for env in rule.env]), ("mounts", [m.destination for m in rule.mounts])):
        for position, name in enumerate(names):
            if name in names[:position]:
                yield place.problem(f"rule {rule.name} has {name} twice; keep one", kind, position)
    for position, entry in enumerate(rule.raw.get(FIELD, [])):
        if entry.get("of") == POD:
            only = (
                "annotations of the pod itself reach the NRI plugin alone; with every other adapter this entry does "
                "nothing (reassert install --adapter nri)"
            )
            yield place.problem(f"rule {rule.name}: {only}", FIELD, position, "of", severity="warning")
