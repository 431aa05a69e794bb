"""The files of this node that a policy names: every hostPath, and every file that an env value is read from.

A policy can be valid and yet refuse every container, because a hostPath is missing on this node. `policy check --node`,
`node status` and `node install` all look with `look_at`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hook.core.base.errors import Undecided, describe
from hook.core.base.system import Untrusted, trusted
from hook.core.container.identity import APP_TYPES
from hook.core.facts.files import first_line
from hook.core.policy.entries import FILE, Env, Mount
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.core.policy.trust_layout import build_command

ERROR, WARNING = "error", "warning"

Place = tuple[str | int, ...]
"""The keys and indices that lead to a value in the policy file."""


@dataclass(frozen=True)
class Finding:
    """A problem of one file that the policy names.

    `severity`: ERROR if containers are refused or start without a reserved entry, else WARNING. `place`: where the
    policy file names the path.
    """

    severity: str
    place: Place
    message: str


def look_at(policy: Policy) -> Iterator[Finding]:
    """Yields all problems of the files of this node that a policy names, in the policy's order."""
    for number, rule in enumerate(policy.candidates(None)):
        for index, env in enumerate(rule.env):
            if env.source == FILE:
                place: Place = ("spec", "rules", number, "env", index, "valueFrom", "file")
                for text in _value_file(rule, env, policy):
                    yield Finding(_severity(rule), place, text)
        looked_at: set[str] = {""}
        for index, mount in enumerate(rule.mounts):
            if mount.source not in looked_at:
                looked_at.add(mount.source)
                place = ("spec", "rules", number, "mounts", index, "hostPath")
                for severity, text in _host_path(rule, mount):
                    yield Finding(WARNING if severity == WARNING else _severity(rule), place, text)


def _severity(rule: Rule) -> str:
    """WARNING for a rule in Audit mode while others are enforced: it refuses nothing."""
    return WARNING if rule.is_audited else ERROR


def unreadable(policy: Policy) -> Iterator[Finding]:
    """Yields a warning for each mounted file or directory that a process of another user than root cannot read."""
    for number, rule in enumerate(policy.candidates(None)):
        for index, mount in enumerate(rule.mounts):
            try:
                mode = os.stat(mount.source).st_mode if mount.source else 0
            except OSError:
                continue  # `look_at` has that
            wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
            if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & wanted != wanted:
                place: Place = ("spec", "rules", number, "mounts", index, "hostPath")
                text = f"rule {rule.name}: hostPath {mount.source} has mode {stat.S_IMODE(mode):04o}"
                remedy = f"chmod o+r{'x' if wanted & 1 else ''}"
                yield Finding(WARNING, place, f"{text}: only root and its group can read it in a container ({remedy})")


_APPS = frozenset(APP_TYPES)

_UNKNOWN = {"docker": ("images", "containerTypes"), "crio": ("containerTypes",)}
"""The conditions of `match` that are never known of a container of an engine, whatever the node does."""

_UNDER = {"crio": "crio without NRI"}
"""How an engine is called there. CRI-O's CRI answers about a container when it is created."""

_UNMET = {"podman": ("namespaces", "podSelector")}
"""Conditions that are never met, since no container of the engine belongs to a pod."""


def never_known(policy: Policy, engines: Iterable[str]) -> Iterator[Finding]:
    """Yields a warning for each condition that no container of a wired engine can be held against.

    `engines`: the names of the wired engines. containerd knows all of them (hook.core.facts.cri).
    """
    for engine in engines:
        under = _UNDER.get(engine, engine)
        for number, rule in enumerate(policy.candidates(None)):
            place: Place = ("spec", "rules", number, "match")
            for field, wanted in rule.conditions.items():
                if field in _UNKNOWN.get(engine, ()) and (field != "containerTypes" or _APPS & {*wanted} < _APPS):
                    becomes = "is not met" if rule.skip_unknown else "counts as met"
                    text = f"selects by {field}, which is never known under {under}: the condition {becomes} there"
                elif field in _UNMET.get(engine, ()) and wanted != ["*"]:
                    text = f"selects by {field}: it applies to no container of {engine}, which has no pods"
                else:
                    continue
                yield Finding(WARNING, (*place, field), f"rule {rule.name} {text}")
        kinds = sorted(_APPS & {*policy.excluded_types}) if "containerTypes" in _UNKNOWN.get(engine, ()) else []
        for kind in kinds:
            text = f"exclude: the type {kind} is never known under {under}: it excludes no container there"
            yield Finding(WARNING, ("spec", "exclude", "containerTypes"), text)


def problems_and_hints(policy: Policy, engines: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Returns two lists for `status` and `install`: findings by which containers are refused now, and all others.

    `engines`: as for `never_known`.
    """
    problems: list[str] = []
    hints: list[str] = []
    for finding in [*look_at(policy), *never_known(policy, engines)]:
        if finding.severity == ERROR and policy.mode != AUDIT:
            problems.append(finding.message)
        elif finding.severity == ERROR:
            hints.append(f"{finding.message} (not in Audit mode, which is in force)")
        else:
            hints.append(finding.message)
    return problems, hints


def _value_file(rule: Rule, env: Env, policy: Policy) -> Iterator[str]:
    """Yields the problem of a `valueFrom.file`, if any. Reads the file as a container start does."""
    try:
        first_line(str(env.text))
    except (Untrusted, Undecided, OSError) as error:
        becomes = "is refused (failurePolicy: Fail)"
        if policy.failure_policy != "Fail":
            becomes = "starts without it (failurePolicy: Ignore)"
        why = _said(error, str(env.text))
        yield f"rule {rule.name}: env {env.name}: {why}; every container that the rule matches {becomes}"


def _host_path(rule: Rule, mount: Mount) -> Iterator[tuple[str, str]]:
    """Yields the problems of a hostPath: it is missing, not root's alone, or neither a file nor a directory."""
    label = f"rule {rule.name}: hostPath {mount.source}"
    try:
        status = os.stat(mount.source)
    except PermissionError as error:
        yield ERROR, f"{label} cannot be read: {error.strerror}; run this as root"
        return
    except OSError as error:
        if mount.skip_missing:
            yield WARNING, f"{label}: {error.strerror}; the mount is left out on this node (onMissingSource: Skip)"
            return
        becomes = "every container that the rule matches is refused (onMissingSource: Fail)"
        command = build_command(mount.source)
        remedy = f"Run: {command}" if command else "Create it on this node, or set onMissingSource: Skip"
        yield ERROR, f"{label}: {error.strerror}; {becomes}. {remedy}"
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        yield WARNING, f"{label} is {_kind(status.st_mode)}, neither a file nor a directory"
    try:
        trusted(mount.source)
    except Untrusted as error:
        yield WARNING, f"{label}: {error}; a user who can write to it controls what containers read there"
    except OSError as error:
        yield ERROR, f"{label} cannot be read: {describe(error)}"


def _kind(mode: int) -> str:
    kinds = {stat.S_IFBLK: "a block device", stat.S_IFCHR: "a character device", stat.S_IFIFO: "a FIFO"}
    return kinds.get(stat.S_IFMT(mode), "a socket")


def _said(error: Exception, path: str) -> str:
    text = describe(error)
    return text if path in text else f"{path}: {text}"
