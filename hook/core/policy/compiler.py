"""The policy compiler: from the policy file to the store. It runs once per change of the file, not in a start."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core.base import logfile
from hook.core.base.compare import clean
from hook.core.base.errors import ReassertError, describe
from hook.core.base.jsontext import encode
from hook.core.base.system import make_directory, replace_file, timestamp, trusted
from hook.core.plan import SHARED_PROCESSES
from hook.core.policy.entries import ABSENT, ALLOCATED, EXCLUSIVE, FILE, KEEP, VALUE, Env, Mount
from hook.core.policy.model import AUDIT, ENFORCE, Policy, Rule
from hook.core.policy.source import PolicyInvalid, Problem, Source, parse
from hook.core.policy.store import FORMAT, NO_RULES, SOURCE_LIMIT, STORE, file_key, store_path

_COMPILED = ("name", "mode", "match", "trust", "env", "mounts", "deviceAllocations", "onConflict", SHARED_PROCESSES)
"""Fields of a rule that a start reads in another form than the policy file's."""

_TICK = 1.1
"""Seconds after which a file whose times are whole seconds gets another time by an edit."""

_BIND = ("bind", "rbind")
_PROPAGATION = ("private", "rprivate", "slave", "rslave")
_UNITS: dict[str, int] = {
    unit + i: base**power for i, base in (("", 1000), ("i", 1024)) for power, unit in enumerate("kmgt", 1)
}


class Compiled:
    """A policy file without errors. `header` and `lines`: its content in the store."""

    def __init__(self, source: Source, rules: list[Rule], warnings: list[Problem]) -> None:
        self.source = source
        self.warnings = warnings
        spec = source.data["spec"]
        exclude = spec.get("exclude") or {}
        index, patterns = _index(rules)
        self.header: dict[str, Any] = {
            "sha256": source.sha256,
            "mode": _mode(source, rules),
            "failurePolicy": spec.get("failurePolicy", NO_RULES["failurePolicy"]),
            "excludedNamespaces": list(exclude.get("namespaces") or []),
            "excludedTypes": list(exclude.get("containerTypes") or []),
            "kubeletRoot": _kubelet_root(source),
            "eventLog": _event_log(spec.get("eventLog") or {}),
            "asks": bool(_APPS & {*(exclude.get("containerTypes") or [])}) or any(map(_asks, rules)),
            "allowedAnnotations": list(spec.get("allowedAnnotations") or []),
            "nodePaths": dict(spec.get("nodePaths") or {}),
            "rules": len(rules),
            "trust": {str(rule["name"]): _plain(rule["trust"]) for rule in source.rules() if rule.get("trust")},
            "index": index,
            "patterns": patterns,
        }
        self.lines = [encode(rule_to_line(rule)) for rule in rules]

    def policy(self) -> Policy:
        """The policy as a container start reads it from the store."""
        return Policy(self.source.path, json.loads(json.dumps(self.header)), self.lines)


def rule_to_line(rule: Rule) -> list[object]:
    """A rule in the compiled form, which `hook.core.policy.model.Policy` reads."""
    return [
        rule.name,
        rule.conditions,
        rule.skip_unknown,
        [[e.name, e.source, e.text, e.keep, e.trusted] for e in rule.env],
        [
            [m.source, m.destination, m.options, m.allow_below, m.skip_missing, m.volumes_above, m.volume]
            for m in rule.mounts
        ],
        rule.deny,
        rule.raw_lists,
        rule.allocations,
        rule.is_audited,
    ]


def compile_bytes(path: str, content: bytes) -> Compiled:
    """Check and compile a policy file. Raises PolicyInvalid with all problems."""
    from hook.core.policy.check import Shape, check_meaning, check_rules  # jsonschema: slow to import

    source = parse(path, content)
    shape = Shape(source)
    rules = {number: _rule(rule, source) for number, rule in shape.well_formed(source.rules(), ("spec", "rules"))}
    problems = [*shape.problems, *check_meaning(source, shape), *check_rules(source, rules)]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    if any(problem.severity == "error" for problem in problems):
        raise PolicyInvalid(path, problems)
    if len(rules) != len(source.rules()):
        raise ReassertError(
            f"{path}: only {len(rules)} of {len(source.rules())} rules were understood; please report it"
        )
    return Compiled(source, list(rules.values()), problems)


def read_source(path: str) -> tuple[bytes, os.stat_result]:
    """A policy file's content and its status. Raises ReassertError.

    fstat comes before read: if the file changes in between, the stored key no longer matches and the next start
    recompiles.
    """
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(SOURCE_LIMIT + 1)
    except OSError as error:
        raise ReassertError(describe(error)) from None
    if len(content) > SOURCE_LIMIT:
        raise ReassertError(f"{path} is larger than the limit of {SOURCE_LIMIT} bytes")
    return content, status


def _seconds_left(status: os.stat_result) -> float:
    """For how long a policy file can still change and keep its key.

    Some file systems have times in whole seconds, such as ext4 with inodes of 128 bytes. The kernel's clock for them
    is up to 10 ms behind.
    """
    age = time.time() - status.st_ctime_ns / 1e9
    return _TICK - age if status.st_ctime_ns % 10**9 == 0 and 0 <= age < _TICK else 0.0


def refresh(path: str, store: str) -> str:
    """Compile the policy file, write the result into the store, and return the store's text.

    A policy file with errors does not replace the last good policy; the store then holds that policy and the errors. A
    store that cannot be written (a full disk) is no error: the caller has the text.

    A policy that another version compiled is replaced by a good policy only. Where an upgrade stops at a policy file
    with errors, that version runs on, and this is its last good policy.
    """
    content, status = read_source(path)
    while (rest := _seconds_left(status)) > 0:
        time.sleep(rest)
        content, status = read_source(path)
    try:
        text = _store_text(compile_bytes(path, content), file_key(status))
    except PolicyInvalid as error:
        errors = [problem.at(path) for problem in error.problems if problem.severity == "error"]
        text = _held_text(path, store, file_key(status), errors)
        if _is_of_another_version(path, store):
            return text
    try:
        make_directory(store, 0o700)
        replace_file(store_path(path, store), text.encode("ascii"))
    except OSError:
        pass
    return text


def _store_text(compiled: Compiled, key: list[int]) -> str:
    header = {
        "format": FORMAT,
        "version": __version__,
        "source": compiled.source.path,
        "key": key,
        "compiledAt": timestamp(time.time_ns()),
        "heldKey": None,
        "heldSince": "",
        "heldErrors": [],
        **compiled.header,
    }
    return "\n".join([encode(header), *compiled.lines, ""])


def _held_text(path: str, store: str, key: list[int], errors: list[str]) -> str:
    """The store's text for a policy file with errors: the last good policy, or NO_RULES, and the errors."""
    header, lines = stored_header(path, store)
    if header is None:
        header = {"format": FORMAT, "version": __version__, "source": path, "key": None, "compiledAt": "", **NO_RULES}
        lines = []
    header.update(heldKey=key, heldSince=timestamp(time.time_ns()), heldErrors=errors)
    return "\n".join([encode(header), *lines, ""])


def stored_header(path: str, store: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The header and the rule lines in the store for a policy file; None if there are none of this format."""
    header, lines = _stored(path, store)
    return (header, lines) if header.get("format") == FORMAT else (None, [])


def _stored(path: str, store: str) -> tuple[dict[str, Any], list[str]]:
    """The same of any format; an empty header if there is none."""
    try:
        trusted(store_path(path, store))
        first, *lines = Path(store_path(path, store)).read_text("ascii").splitlines()
        header = json.loads(first)
    except (OSError, ValueError, ReassertError):
        return {}, []
    return (header, lines) if isinstance(header, dict) else ({}, [])


def _is_of_another_version(path: str, store: str) -> bool:
    header, _ = _stored(path, store)
    return header.get("format") != FORMAT and bool(header.get("sha256"))


def clear(store: str = STORE) -> None:
    """Remove all compiled policies, the metrics' state, and the store if it is then empty."""
    for pattern in ("*.json", ".*.json.reassert-*", ".lock", "unchanged-starts*"):
        for path in Path(store).glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        os.rmdir(store)


def _event_log(given: dict[str, Any]) -> list[Any]:
    """Size limit in bytes, number of kept files, and whether events go to the journal too; [] for the defaults."""
    if not given:
        return []
    limit = int(given["maxSizeMiB"]) << 20 if "maxSizeMiB" in given else logfile.LIMIT
    return [limit, int(given.get("keep", logfile.KEPT)), bool(given.get("journal"))]


def _index(rules: list[Rule]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Rule numbers by namespace name, and by namespace pattern. A rule without the condition has the pattern `*`."""
    index: dict[str, list[int]] = {}
    patterns: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        for name in dict.fromkeys(str(name) for name in rule.conditions.get("namespaces", ["*"])):
            (patterns if "*" in name or "?" in name else index).setdefault(name, []).append(number)
    return index, patterns


_APPS = {"init", "container", "ephemeral"}
"""The types that config.json of containerd and of CRI-O does not tell apart."""


def _asks(rule: Rule) -> bool:
    """Whether a rule needs the pod's labels, or one of _APPS."""
    types = _APPS & {*rule.conditions.get("containerTypes", [])}
    return bool(rule.conditions.get("podSelector")) or types not in (set(), _APPS)


def _mode(source: Source, rules: list[Rule]) -> str:
    """Enforce if any rule is enforced: then those in Audit mode are tried. If none is, the whole policy is in Audit."""
    if not rules:
        return source.mode()
    if all(rule.is_audited for rule in rules):
        for rule in rules:
            rule.is_audited = False
        return AUDIT
    return ENFORCE


def _kubelet_root(source: Source) -> str:
    spec = source.data.get("spec")
    kubelet = spec.get("kubelet") if isinstance(spec, dict) else None
    return clean(str((kubelet if isinstance(kubelet, dict) else {}).get("root", NO_RULES["kubeletRoot"])))


def _rule(rule: dict[str, Any], source: Source) -> Rule:
    """A checked rule in compiled form: with defaults, normalised paths, and selectors as [key, operator, values]."""
    if rule.get("trust"):
        from hook.core.policy.trust import expanded  # few policies have it

        rule = expanded(rule)
    match = rule.get("match") or {}
    conditions: dict[str, list[Any]] = {
        field: [str(item) for item in match[field]]
        for field in ("namespaces", "containerNames", "images", "containerTypes")
        if match.get(field)
    }
    selector = match.get("podSelector")
    if selector is not None:
        conditions["podSelector"] = _requirements(selector)
    reserved_env = [_env(entry) for entry in rule.get("env") or []]
    reserved_mounts = [_mount(entry, source) for entry in rule.get("mounts") or []]
    deny = rule.get("onConflict") == "Deny"
    plain: dict[str, Any] = {field: entries for field, entries in rule.items() if field not in _COMPILED and entries}
    if rule.get(SHARED_PROCESSES) == "Refuse":
        plain[SHARED_PROCESSES] = "Refuse"
    parts = rule.get("deviceAllocations") or {}
    if parts.get(EXCLUSIVE):
        plain[EXCLUSIVE] = list(parts[EXCLUSIVE])
    allocations = [str(part) for part, wanted in parts.items() if wanted is True or wanted == "Allow"]
    skip = match.get("ifUnknown") == "Skip"
    tried = rule.get("mode", source.mode()) == AUDIT
    return Rule(str(rule["name"]), conditions, skip, reserved_env, reserved_mounts, deny, plain, allocations, tried)


def _env(entry: dict[str, Any]) -> Env:
    """A checked entry of a rule's `env`."""
    name, origin = str(entry["name"]), entry.get("valueFrom") or {}
    if "absent" in entry:
        return Env(name, ABSENT)
    if "value" in entry:
        return Env(name, VALUE, str(entry["value"]))
    if "file" in origin:
        return Env(name, FILE, str(origin["file"]))
    allocation = origin.get("deviceAllocation") or {}
    default, trusted = allocation.get("default"), allocation.get("trusted") or []
    return Env(name, ALLOCATED, None if default in (None, KEEP) else str(default), default == KEEP, trusted)


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
    return Mount(
        clean(str(entry["hostPath"])) if "hostPath" in entry else "",
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


def _plain(trust: dict[str, Any]) -> dict[str, Any]:
    """A rule's `trust` for the store, from which `policy show` tells its entries from the rule's own."""
    return {
        field: list(map(str, value)) if isinstance(value, list) else value if isinstance(value, bool) else str(value)
        for field, value in trust.items()
    }


def _requirements(selector: dict[str, Any]) -> list[Any]:
    labels = selector.get("matchLabels") or {}
    wanted: list[Any] = [[str(key), "In", [str(value)]] for key, value in labels.items()]
    expressions = selector.get("matchExpressions") or []
    return wanted + [
        [str(item["key"]), str(item["operator"]), [str(value) for value in item.get("values") or []]]
        for item in expressions
    ]
