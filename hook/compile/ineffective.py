"""Warnings of what has no effect, or another one than its author meant: patterns that match nothing, values with `$`.

A pattern is a glob: `*` for any characters, `?` for one, and every other character for itself. No value is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hook.compile.source import Path, Problem, Source
from hook.core.base.compare import glob_match, is_pattern
from hook.core.policy.entries import POD_UID
from hook.core.policy.sources import ONE_OF, PATTERN, Allowed, reserved

_GLOB = "a pattern has `*` for any characters and `?` for one, and no regular expression"

_NAMESPACE = re.compile(r"[a-z0-9*?-]{1,63}")
"""What a namespace, or a container's name, consists of (Kubernetes: an RFC 1123 label), and a pattern of it."""

_IMAGE = re.compile(r"[\w./:@*?-]+", re.ASCII)

_ENV_NAME = re.compile(r"[\w.*?-]+", re.ASCII)
"""What names of env consist of that programs read. Runtimes take any character but `=` and NUL."""

_EXPANSION = re.compile(r"(?<!\$)\$(\([\w.]+\)|\{\w+[^}]*\}|[A-Za-z_]\w*)", re.ASCII)
"""`$(X)` of kubelet, `${X}` and `$X` of shells."""

LONGEST = 131_071
"""Bytes of an entry NAME=VALUE that a program can be started with (Linux, MAX_ARG_STRLEN, less the final NUL)."""

_USUAL = ("/usr/bin", "/bin")
"""A PATH without either finds no program in nearly every image."""

PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
"""Names that programs read in lower case, in upper case, or in both: curl prefers the lower case, and reads http_proxy
in no other (curl(1)); Python prefers it too (urllib.request.getproxies_environment)."""


def warnings(source: Source, rules: dict[int, dict[str, Any]]) -> Iterator[Problem]:
    """The warnings about a policy. `rules`: those without a violation of the schema, by their numbers."""
    spec = source.spec()
    yield from _patterns(
        source, ("spec", "exclude", "namespaces"), _list(spec.get("exclude"), "namespaces"), _namespace
    )
    for number, rule in rules.items():
        place = ("spec", "rules", number)
        match = rule.get("match") or {}
        for field, judge in (("namespaces", _namespace), ("containerNames", _container), ("images", _image)):
            yield from _patterns(source, (*place, "match", field), _list(match, field), judge)
        entries = _list(rule, "env")
        for position, entry in enumerate(entries):
            yield from _env(source, (*place, "env", position), entry)
        for position, mount in enumerate(_list(rule, "mounts")):
            if why := _literal_path(str(mount.get("hostPath", ""))):
                yield source.problem((*place, "mounts", position, "hostPath"), why, severity="warning")
        yield from _other_case(source, (*place, "env"), entries)


def _list(mapping: Any, field: str) -> list[Any]:
    value = mapping.get(field) if isinstance(mapping, dict) else None
    return value if isinstance(value, list) else []


def _patterns(source: Source, place: Path, patterns: list[Any], judge: Any) -> Iterator[Problem]:
    for position, pattern in enumerate(patterns):
        if isinstance(pattern, str) and (why := judge(pattern)):
            yield source.problem((*place, position), f"{pattern!r} matches nothing: {why}", severity="warning")


def _namespace(pattern: str, kind: str = "namespace") -> str:
    if _NAMESPACE.fullmatch(pattern):
        return ""
    if len(pattern) > 63:
        return f"a {kind} has at most 63 characters"
    if _NAMESPACE.fullmatch(pattern.lower()):
        return f"a {kind} is in lower case; write {pattern.lower()}"
    if re.search(r"[,;|\s]", pattern):
        return f"it is one pattern; write a list with an entry for each {kind}"
    if pattern.startswith("!"):
        return f"no pattern takes a {kind} out; write a rule for the others"
    return f"a {kind} has only lower-case letters, digits and `-`; {_GLOB}"


def _container(pattern: str) -> str:
    return _namespace(pattern, "container name")


def _image(pattern: str) -> str:
    if _IMAGE.fullmatch(pattern):
        return ""
    if re.search(r"[,;\s]", pattern):
        return "it is one pattern; write a list with an entry for each image"
    return f"an image has only letters, digits and `.`, `/`, `:`, `@`, `_`, `-`; {_GLOB}"


def _env(source: Source, place: Path, entry: dict[str, Any]) -> Iterator[Problem]:
    env = reserved(entry)
    name = env.name
    if why := _env_name(name):
        yield source.problem((*place, "name"), f"env name {name!r} {why}", severity="warning")
    for field, text in env.literals():
        if match := _EXPANSION.search(text):
            why = f"nothing expands {match[0]}: the container gets these characters"
            yield source.problem((*place, *field), f"value of {name}: {why}", severity="warning")
        size = len(f"{name}={text}".encode(errors="surrogatepass"))
        if size > LONGEST:
            why = (
                f"with {size} bytes, no program starts: Linux takes at most {LONGEST} of NAME=VALUE (execve(2), E2BIG)"
            )
            yield source.problem((*place, *field), f"value of {name}: {why}", severity="warning")
    if isinstance(env, Allowed):
        yield from _allowed(source, place, env)
    if name == "PATH" and env.constant is not None and not {*_USUAL} & {*env.constant.split(":")}:
        why = f"has neither {' nor '.join(_USUAL)}, so most containers find no program"
        yield source.problem((*place, *env.PLACE), f"value of PATH {why}", severity="warning")


def _allowed(source: Source, place: Path, env: Allowed) -> Iterator[Problem]:
    """A `pattern` that was meant as a regular expression, or that allows all or nothing."""
    pattern, why = env.pattern or "", ""
    if re.search(r"^\^|\$$|\.[*+]|[()|]", pattern):
        why = f"matches no value, or another one than it looks like; {_GLOB}"
    elif pattern and not pattern.strip("*"):
        why = "allows every value"
    elif pattern[:1] == "/" and "/../" in f"{pattern}/":
        why = "matches nothing: no value with .. as a directory is allowed by a pattern"
    for position, text in enumerate(env.given.get(ONE_OF, ())):
        if is_pattern(text):
            about = f"oneOf of {env.name}: {text!r} is this text alone, with its wildcard; {PATTERN} takes a glob"
            yield source.problem((*place, ONE_OF, position), about, severity="warning")
    if why:
        yield source.problem((*place, "pattern"), f"pattern {pattern!r} of {env.name} {why}", severity="warning")


def _env_name(name: str) -> str:
    if is_pattern(name) and ".*" in name:
        return f"takes a `.` in it for itself; {_GLOB}: write {name.replace('.*', '*')!r}"
    if not name or "=" in name or "\0" in name or _ENV_NAME.fullmatch(name):
        return ""  # an error of its own
    other = next(character for character in name if not _ENV_NAME.fullmatch(character))
    why = f"; {_GLOB}" if other in "^$()[]{}|+\\" else ""
    return f"has {other!r} (U+{ord(other):04X}) in it, and hardly a program reads such a name{why}"


def _literal_path(path: str) -> str:
    if path.startswith("/~") or "/~/" in path:
        return f"hostPath {path!r}: `~` is no home directory here; write that directory"
    path = path.replace(POD_UID, "")
    if (match := _EXPANSION.search(path)) or (match := re.search(r"[*?\[]", path)):
        return f"hostPath {path!r}: nothing expands {match[0]}; write the path itself"
    return ""


def _other_case(source: Source, place: Path, entries: list[Any]) -> Iterator[Problem]:
    """A proxy's variable that a rule reserves in one case only: a pod can set the other, which many programs prefer."""
    names = [str(entry.get("name", "")) for entry in entries]
    absent = [str(entry["name"]) for entry in entries if "absent" in entry and "name" in entry]
    for position, name in enumerate(names):
        twin = name.upper() if name.islower() else name.lower()
        if name.lower() in PROXIES and twin not in names and not any(glob_match(pattern, twin) for pattern in absent):
            why = f"{name} is reserved and {twin} is not, which many programs prefer or read too; reserve both"
            yield source.problem((*place, position, "name"), why, severity="warning")
