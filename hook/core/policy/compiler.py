"""The policy compiler: from the policy file to the store. It runs once per change of the file, not in a start."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hook import __version__
from hook.core import events
from hook.core.base import logfile
from hook.core.base.compare import clean
from hook.core.base.errors import ReassertError, TooLarge, describe
from hook.core.base.jsontext import encode
from hook.core.base.mountinfo import LOCAL, mount_table
from hook.core.base.system import make_directory, read_file, replace_file, timestamp, trusted
from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.facts.gather import gather
from hook.core.plan import SHARED_PROCESSES, plan
from hook.core.policy.entries import ABSENT, ALLOCATED, EXCLUSIVE, FILE, KEEP, VALUE, Env, Mount
from hook.core.policy.model import AUDIT, ENFORCE, MIXED, Match, Policy, Rule
from hook.core.policy.source import PolicyInvalid, Problem, Source, parse
from hook.core.policy.store import (
    FORMAT,
    LIMIT,
    NO_RULES,
    SOURCE_LIMIT,
    STORE,
    Stored,
    file_key,
    path_state,
    store_path,
)

_COMPILED = ("name", "mode", "match", "trust", "env", "mounts", "deviceAllocations", "onConflict", SHARED_PROCESSES)
"""Fields of a rule that a start reads in another form than the policy file's."""

WRITER_SECONDS = 1.0
"""How long a compile waits for a process that has the policy file open for writing."""

_CUT = (
    "its last line has no end, as after a write that was interrupted: end it with a newline, or write the file beside "
    "it and rename"
)

_TICK, _FINE_TICK = 1.1, 0.02
"""Seconds after which a file gets another time by an edit: one whose times are whole seconds, and any other."""

_BIND = ("bind", "rbind")
_PROPAGATION = ("private", "rprivate", "slave", "rslave")
_UNITS: dict[str, int] = {
    unit + i: base**power for i, base in (("", 1000), ("i", 1024)) for power, unit in enumerate("kmgt", 1)
}


LOADED = "policy.loaded"


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
            "onMissingFiles": spec.get("onMissingFiles", NO_RULES["onMissingFiles"]),
            "failurePolicy": spec.get("failurePolicy", NO_RULES["failurePolicy"]),
            "excludedNamespaces": list(exclude.get("namespaces") or []),
            "excludedTypes": list(exclude.get("containerTypes") or []),
            "kubeletRoot": _kubelet_root(source),
            "eventLog": _event_log(spec.get("eventLog") or {}),
            "asks": bool(_APPS & {*(exclude.get("containerTypes") or [])}) or any(map(_asks, rules)),
            "allowedAnnotations": list(spec.get("allowedAnnotations") or []),
            "nodePaths": dict(spec.get("nodePaths") or {}),
            "rules": len(rules),
            # By these, `policy show` distinguishes the entries of `trust` from a rule's own.
            "trust": {str(rule["name"]): rule["trust"] for rule in source.rules() if rule.get("trust")},
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


class BeingWrittenError(ReassertError):
    """A process has the policy file open for writing. `status`: the file's."""

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.status = status
        super().__init__(f"{path} is being written: a process has it open; write beside it, then rename")


def read_source(path: str, seconds: float | None = None) -> tuple[bytes, os.stat_result]:
    """A policy file's content and its status. Raises ReassertError.

    `seconds`: how long to wait for its writers to close it, before BeingWrittenError. None: it is read at once.

    fstat comes before read: if the file changes in between, the stored key no longer matches and the next start
    recompiles.
    """
    try:
        with Path(path).open("rb") as file:
            deadline = time.monotonic() + (seconds or 0.0)
            while seconds is not None and _is_open_for_writing(file.fileno()):
                if time.monotonic() > deadline:
                    raise BeingWrittenError(path, os.fstat(file.fileno()))
                time.sleep(0.02)
            status = os.fstat(file.fileno())
            content = file.read(SOURCE_LIMIT + 1)
    except OSError as error:
        raise ReassertError(describe(error)) from None
    if len(content) > SOURCE_LIMIT:
        raise ReassertError(f"{path} is larger than the limit of {SOURCE_LIMIT} bytes")
    return content, status


def _is_open_for_writing(fd: int) -> bool:
    """Whether a process has a file open for writing. Otherwise the kernel grants a lease for reading (fcntl(2)).

    Until `fd` is closed, the lease makes a new writer wait. One on a network, or without leases, does not tell; nor
    does a process whose /proc is of another PID namespace, such as that of a plugin in another mount namespace.
    """
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        kinds = [row.filesystem for row in mount_table("thread-self").values() if row.device == device]
        if kinds and kinds[0] not in LOCAL:
            return False
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # a writer that waits sends it; it ends no process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (OSError, TooLarge) as error:
        return getattr(error, "errno", 0) == errno.EAGAIN
    return False


def _seems_cut(content: bytes, status: os.stat_result, last: dict[str, Any]) -> bool:
    """Whether the file of the store was written over in place, and its last line has no end.

    So is a file whose writer died. JSON is complete if it can be parsed. `last`: the header in the store, of the last
    good policy and of a file that is held back.
    """
    held = last.get("heldKey") or [0]
    waits = last.get("heldFor") and held == file_key(status)  # for files of the node: it was renamed, or is whole
    in_place = status.st_ino in ((last.get("key") or [0])[0], 0 if waits else held[0])
    return in_place and not content.endswith(b"\n") and not content.lstrip().startswith(b"{")


def _seconds_left(status: os.stat_result) -> float:
    """How long after a change a policy file can change again and keep its key.

    The kernel's clock for file times ticks every 1 to 10 ms. Some file systems have them in whole seconds, such as ext4
    with inodes of 128 bytes.
    """
    age = time.time() - status.st_ctime_ns / 1e9
    tick = _FINE_TICK if status.st_ctime_ns % 10**9 else _TICK
    return tick - age if 0 <= age < tick else 0.0


def refresh(path: str, store: str) -> str:
    """Compile the policy file, write the result into the store, and return the store's text.

    A policy file with errors does not replace the last good policy; the store then holds that policy and the errors. So
    does a new policy that would refuse every container for files that the node lacks (`_lacking`), and one that a
    writer may not have finished. A store that cannot be written (a full disk) is no error: the caller has the text.

    A policy that another version compiled is replaced by a good policy only. Where an upgrade stops at a policy file
    with errors, that version runs on, and this is its last good policy.
    """
    being_written = ""
    try:
        content, status = read_source(path, WRITER_SECONDS)
        while (rest := _seconds_left(status)) > 0:
            time.sleep(rest)
            content, status = read_source(path, WRITER_SECONDS)
    except BeingWrittenError as error:
        content, status, being_written = b"", error.status, str(error)
    key = file_key(status)
    compiled, errors = None, [being_written]
    if not being_written:
        try:
            compiled = compile_bytes(path, content)
        except PolicyInvalid as error:
            errors = [each.at(path) for each in error.problems if each.severity == "error"]
    try:
        before, lines = _stored(path, store, waits=False)  # another process may have stored it while this one compiled
    except BlockingIOError:  # not stored: what the policy file says counts for this start, whatever was in force
        return _held(path, {}, [], key, errors) if compiled is None else _taken(path, compiled, key)
    last = before if before.get("format") == FORMAT else {}
    if compiled is None:
        text = _held(path, last, lines, key, errors)
        if being_written or (before.get("sha256") and not last):
            return text  # not stored: no key changes when a writer closes the file
    else:
        why, files = _lacking(compiled, last)
        if last.get("sha256") != compiled.source.sha256 and _seems_cut(content, status, last):
            why, files = f"{path}: {_CUT}", []
        since = last["since"] if last.get("sha256") == compiled.source.sha256 else ""
        text = _held(path, last, lines, key, [why], files) if why else _taken(path, compiled, key, since)
    try:
        make_directory(store, 0o700)
        replace_file(store_path(path, store), text.encode("ascii"))
    except OSError:
        return text
    if store == STORE:  # another store has a log of its own, which is unknown here
        _tell(before, Stored(text).policy(path, [], ""), json.loads(text.partition("\n")[0]))
    return text


def _tell(before: dict[str, Any], policy: Policy, header: dict[str, Any]) -> None:
    """Log that another policy is in force, or why a new policy file is not. `before`: the header in the store.

    The compiler does this for all adapters: whichever start sees a change first runs it, and only once.
    """
    held, was_held = header["heldErrors"], before.get("heldErrors") or []
    if held == was_held and header["sha256"] == before.get("sha256", ""):
        return
    audited = sum(rule.is_audited or policy.mode == AUDIT for rule in policy.candidates(None))
    event: dict[str, object] = {
        "timestamp": timestamp(time.time_ns()),
        "adapter": "compiler",
        "event": events.HELD if held else LOADED,
        "level": "info" if not held else "warning" if header["sha256"] else "error",
        "message": f"{header['source']} is not in force: {'; '.join(held)}" if held else "the policy is in force",
        "policy": {"path": header["source"], "sha256": header["sha256"]},
        "version": __version__,
        "before": before.get("sha256") or None,
        "mode": header["mode"],
        "rules": {"enforced": header["rules"] - audited, "tried": audited},
    }
    events.SETTINGS[:] = header["eventLog"]
    events.write(events.EVENTS, event)


def _lacking(compiled: Compiled, last: dict[str, Any]) -> tuple[str, list[list[Any]]]:
    """Why a new policy would refuse every container on this node, and the state of the files that it lacks.

    "" if it would not, if `onMissingFiles` is Enforce, or if there is no other good policy. `last`: the header in
    the store. `plan` decides this, for a container that overrides nothing.
    """
    header = compiled.header
    if header["onMissingFiles"] == ENFORCE or not last.get("sha256") or last["sha256"] == header["sha256"]:
        return "", []
    files: dict[str, Any] = {}
    why = ""
    for _ in range(2):  # a file that comes between the look and its state must not be waited for
        try:
            why, lacks = _refusal(compiled.policy())
        except (ReassertError, OSError):
            return "", []
        if not why:
            return "", []
        files = {path: files[path] if path in files else path_state(path) for path in lacks}
    path = compiled.source.path
    return f"{path}: it would refuse every container on this node: {why}", [[*item] for item in files.items()]


def _refusal(policy: Policy) -> tuple[str, list[str]]:
    """Why a container without mounts and env is refused by the rules for every container, and what the node lacks."""
    rules = [rule for rule in policy.candidates(None) if not rule.is_audited and _is_for_every_pod(rule)]
    matches = [Match(rule, []) for rule in rules]
    identity = Identity("", True, pod="pod", uid="0", container="c", types=("container",))
    facts = gather(policy, identity, matches)
    lacks = sorted({*facts.absent_sources, *facts.unreadable})
    if not lacks or "*" in policy.excluded_namespaces:
        return "", lacks
    start = Start([], [], shared_processes="")
    refusal = plan(policy, Container(identity, start, facts), matches).refusal()
    facts.files.update(dict.fromkeys(facts.unreadable, ""))
    facts.absent_sources, facts.unreadable = set(), {}
    otherwise = plan(policy, Container(identity, start, facts), matches).refusal()
    return "" if otherwise else refusal, lacks  # otherwise the files are not the reason


def _is_for_every_pod(rule: Rule) -> bool:
    """Whether the rule matches a container of each pod."""
    return all(
        "container" in wanted if field == "containerTypes" else not wanted or "*" in wanted
        for field, wanted in rule.conditions.items()
    )


def _header(
    path: str, content: dict[str, Any], key: list[int] | None = None, compiled_at: str = "", since: str = ""
) -> dict[str, Any]:
    """The store's header of a policy. `content`: NO_RULES, or what `Compiled` has."""
    about = {"format": FORMAT, "version": __version__, "source": path, "key": key, "compiledAt": compiled_at}
    return {**about, "since": since, "heldKey": None, "heldSince": "", "heldErrors": [], "heldFor": [], **content}


def _held(
    path: str, last: dict[str, Any], lines: list[str], key: list[int], errors: list[str], files: list[Any] | None = None
) -> str:
    """The store's text for a policy file with errors: the last good policy, or NO_RULES, and the errors.

    `last`, `lines`: what the store has, {} if it has nothing. `files`: those for which it is held back, with states.
    """
    held = {"heldKey": key, "heldSince": timestamp(time.time_ns()), "heldErrors": errors, "heldFor": files or []}
    return _text({**(last or _header(path, NO_RULES)), **held}, lines if last else [])


def _taken(path: str, compiled: Compiled, key: list[int], since: str = "") -> str:
    """The store's text for a policy file that is in force from now on, or `since` then."""
    now = timestamp(time.time_ns())
    return _text(_header(path, compiled.header, key, now, since or now), compiled.lines)


def _text(header: dict[str, Any], lines: list[str]) -> str:
    return "\n".join([encode(header), *lines, ""])


def stored_header(path: str, store: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The header and the rule lines in the store for a policy file; None if there are none of this format."""
    header, lines = _stored(path, store)
    return (header, lines) if header.get("format") == FORMAT else (None, [])


def _stored(path: str, store: str, waits: bool = True) -> tuple[dict[str, Any], list[str]]:
    """The same of any format; an empty header if there is none.

    `waits`: for the end of a lease (fcntl(2)), which a container can have that has the store as a read-only volume.
    Raises BlockingIOError without.
    """
    file = store_path(path, store)
    try:
        trusted(file)
        data = Path(file).read_bytes() if waits else read_file(file, LIMIT)
        first, *lines = data.decode("ascii").splitlines()
        header = json.loads(first)
    except BlockingIOError:
        raise
    except (OSError, ValueError, ReassertError):
        return {}, []
    return (header, lines) if isinstance(header, dict) else ({}, [])


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
    """Mixed if some rules are enforced, and others in Audit mode. If none is enforced, the whole policy is in Audit."""
    if not rules:
        return source.mode()
    if all(rule.is_audited for rule in rules):
        for rule in rules:
            rule.is_audited = False
        return AUDIT
    return MIXED if any(rule.is_audited for rule in rules) else ENFORCE


def _kubelet_root(source: Source) -> str:
    return clean(str(source.kubelet_root() or NO_RULES["kubeletRoot"]))


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


def _requirements(selector: dict[str, Any]) -> list[Any]:
    labels = selector.get("matchLabels") or {}
    wanted: list[Any] = [[str(key), "In", [str(value)]] for key, value in labels.items()]
    expressions = selector.get("matchExpressions") or []
    return wanted + [
        [str(item["key"]), str(item["operator"]), [str(value) for value in item.get("values") or []]]
        for item in expressions
    ]
