"""The files of this node that a policy names: every hostPath, and every file that an env value is read from.

A policy can be valid and yet refuse every container, because a hostPath is missing on this node. `policy check --node`,
`status` and `install` all look with `look_at`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from hook.compile.overlap import glob_covers
from hook.core.base.compare import literal_start, parents
from hook.core.base.errors import Undecided, describe
from hook.core.base.finding import ERROR, NOTE, WARNING, Finding
from hook.core.base.system import Untrusted, trusted
from hook.core.container.allocation import KUBELETS_SOCKET, checkpoint_path, plugins_beside
from hook.core.container.identity import APP_TYPES, CONTAINER, NOT_LISTED
from hook.core.facts.cri import POD_RESOURCES
from hook.core.facts.files import first_line
from hook.core.facts.mount_points import lacks
from hook.core.policy.entries import Mount
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.core.policy.sources import Env
from hook.core.policy.trust_layout import build_command
from hook.core.reserve.mounts import no_place
from hook.core.reserve.unsafe_annotations import HARMLESS, PREFIXES
from hook.node.engines.facts import FACTS
from hook.resident.terminal import counted

POLICY = "policy"
"""The part of each finding."""

Place = tuple[str | int, ...]
"""The keys and indices that lead to a value in the policy file."""

Placed = tuple[Place, Finding]
"""A finding, and where the policy file names what it is about."""


def look_at(policy: Policy) -> Iterator[Placed]:
    """Yields what is wrong with the files of this node that a policy names, in the policy's order.

    An ERROR refuses containers, or they start without a reserved entry.
    """
    for number, rule in enumerate(policy.candidates(None)):
        for index, env in enumerate(rule.env):
            place: Place = ("spec", "rules", number, "env", index, *env.PLACE)
            for path in env.files:
                yield from _at(place, rule, _value_file(rule, env, path, policy))
        looked_at: set[str] = {""}
        for index, mount in enumerate(rule.mounts):
            if mount.source not in looked_at:
                looked_at.add(mount.source)
                place = ("spec", "rules", number, "mounts", index, "hostPath")
                yield from _at(place, rule, _host_path(rule, mount, policy))
            for finding in _without_place(rule, mount, policy):
                field = "allowBelow" if finding.severity == WARNING else "mountPath"
                yield from _at(("spec", "rules", number, "mounts", index, field), rule, [finding])


def _at(place: Place, rule: Rule, findings: Iterable[Finding]) -> Iterator[Placed]:
    """With the place of each. An error of a rule that is audited is a warning: the rule refuses nothing."""
    for finding in findings:
        is_tried = rule.is_audited and finding.severity == ERROR
        yield place, replace(finding, severity=WARNING) if is_tried else finding


def unreadable(policy: Policy) -> Iterator[Placed]:
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
                remedy = f"chmod o+r{'x' if wanted & 1 else ''} {mount.source}"
                why = "only root and its group can read it in a container"
                yield place, Finding(WARNING, POLICY, f"{text}: {why}", remedy)


_ENTRIES = 5000
"""How many names of a directory are looked at for links."""


def leads_out(policy: Policy) -> Iterator[Placed]:
    """Yields a warning for each mounted directory with links to outside of it, which lead nowhere in a container.

    Debian, Flatcar and SUSE have such links in /etc/ssl/certs.
    """
    for number, rule in enumerate(policy.candidates(None)):
        for index, mount in enumerate(rule.mounts):
            links, example = _links_out(mount.source, mount.destination) if mount.source else (0, "")
            if links:
                place: Place = ("spec", "rules", number, "mounts", index, "hostPath")
                text = (
                    f"rule {rule.name}: {counted(links, 'link')} in hostPath {mount.source} lead out of it ({example})"
                )
                why = "a container without that path finds nothing there; for CA files, `trust` has a store of files"
                yield place, Finding(WARNING, POLICY, f"{text}: {why}")


def _links_out(source: str, destination: str) -> tuple[int, str]:
    """How many links in a directory lead to outside of it, and the first.

    A link is read in the container, where the directory is at `destination`.
    """
    links, example = 0, ""
    try:
        with os.scandir(source) as entries:
            for entry in islice(entries, _ENTRIES):
                if not entry.is_symlink():
                    continue
                target = os.readlink(entry.path)
                at = os.path.normpath(os.path.join(destination, target))
                if not f"{at}/".startswith(f"{destination.rstrip('/')}/"):
                    links += 1
                    example = example or f"{entry.name} -> {target}"
    except OSError:
        pass  # `look_at` has that
    return links, example


_APPS = frozenset(APP_TYPES)

OF_PODS = ("namespaces", "podSelector")
"""The conditions of `match` that no container meets that belongs to no pod."""


def never_known(policy: Policy, engines: Iterable[str]) -> Iterator[Placed]:
    """Yields a note for each condition that no container of a wired engine can be held against.

    `engines`: the names of the wired engines. containerd and CRI-O know all but the type (hook.core.facts.cri).
    """
    yield from _unknown_types(policy)
    for engine, known in ((engine, FACTS[engine]) for engine in engines if engine in FACTS):
        for number, rule in enumerate(policy.candidates(None)):
            place: Place = ("spec", "rules", number, "match")
            for field, wanted in rule.conditions.items():
                if field in known.unknown:
                    becomes = "is not met" if rule.skip_unknown else "counts as met"
                    text = f"selects by {field}, which is never known under {engine}: the condition {becomes} there"
                elif field in OF_PODS and not known.runs_pods and wanted != ["*"]:
                    text = f"selects by {field}: it applies to no container of {engine}, which has no pods"
                else:
                    continue
                yield (*place, field), Finding(NOTE, POLICY, f"rule {rule.name} {text}")


def _unknown_types(policy: Policy) -> Iterator[Placed]:
    """Yields what of `containerTypes` stays unknown: init against ephemeral, and all where kubelet cannot be asked."""
    why = _unanswered(f"{policy.kubelet_root}/{POD_RESOURCES}")
    for number, rule in enumerate(policy.candidates(None)):
        wanted = _APPS & {*rule.conditions.get("containerTypes", [])}
        place: Place = ("spec", "rules", number, "match", "containerTypes")
        one = _one_of_two(wanted)
        if one:
            becomes = "for these the condition is not met" if rule.skip_unknown else "it counts as met for both"
            text = f"rule {rule.name} selects by containerTypes {one[0]}: {_INDISTINCT}; {becomes}"
            yield place, Finding(NOTE, POLICY, f"{text}. Name both types")
        if why and wanted < _APPS and wanted:
            becomes = "is not met" if rule.skip_unknown else "counts as met"
            text = f"rule {rule.name} selects by containerTypes, and {why}: it {becomes}"
            yield place, Finding(NOTE, POLICY, text)
    excluded = _APPS & {*policy.excluded_types}
    place, one = ("spec", "exclude", "containerTypes"), _one_of_two(excluded)
    if one:
        text = f"exclude: the type {one[0]} excludes no container: {_INDISTINCT}. Name both types"
        yield place, Finding(NOTE, POLICY, text)
    if why and (CONTAINER in excluded or {*NOT_LISTED} <= excluded) and excluded < _APPS:
        yield place, Finding(NOTE, POLICY, f"exclude: {why}: no container is excluded by its type but sandboxes")


_INDISTINCT = "kubelet does not tell init containers from ephemeral ones"


def _one_of_two(wanted: frozenset[str]) -> list[str]:
    """The type of NOT_LISTED that is wanted, if it is one of them."""
    found = sorted(wanted & {*NOT_LISTED})
    return found if len(found) == 1 else []


def _unanswered(socket: str) -> str:
    """Why kubelet cannot be asked, "" if it can."""
    try:
        trusted(socket)
    except Untrusted as error:
        return f"the type is unknown: kubelet's socket {error}"
    except OSError as error:
        return f"the type is unknown: kubelet's socket {socket}: {error.strerror}"
    return ""


def taken_away(policy: Policy, annotations: dict[str, list[str]]) -> Iterator[Placed]:
    """Yields a note for annotations that an engine lets through to a runtime and that a rule takes away.

    `annotations`: patterns by handler (Config.annotations).
    """
    if not any(not rule.is_audited for rule in policy.candidates(None)):
        return
    handlers: dict[str, list[str]] = {}
    for handler, patterns in sorted(annotations.items()):
        for pattern in dict.fromkeys(patterns):
            if _steers(pattern) and not any(glob_covers(allowed, pattern) for allowed in policy.allowed_annotations):
                handlers.setdefault(pattern, []).append(handler)
    for pattern, names in handlers.items():
        text = (
            f"the annotation {pattern}, which the engine lets through for handler {', '.join(names)}, can steer a "
            "runtime: it is removed where a rule applies. If pods need it, name it in spec.allowedAnnotations"
        )
        yield ("spec", "allowedAnnotations"), Finding(NOTE, POLICY, text)


def _steers(pattern: str) -> bool:
    """Whether a pattern of annotations has some that steer a runtime."""
    start = literal_start(pattern)
    if start == pattern:
        return pattern.startswith(PREFIXES) and HARMLESS.get(pattern, (None,)) != ()
    return any(start.startswith(prefix) or prefix.startswith(start) for prefix in PREFIXES)


def no_checkpoint(policy: Policy) -> Iterator[Placed]:
    """Yields a note if rules need kubelet's device checkpoint, kubelet runs, and the checkpoint is missing."""
    path = checkpoint_path(policy.kubelet_root)
    rules = [(number, rule) for number, rule in enumerate(policy.candidates(None)) if rule.uses_allocations]
    if not rules or os.path.lexists(path) or not os.path.lexists(f"{os.path.dirname(path)}/{KUBELETS_SOCKET}"):
        return
    plugins = plugins_beside(path)
    becomes = "nothing is allocated on this node, as long as no device plugin registers"
    if plugins:
        becomes = f"{plugins[0]} is a device plugin's, so what is allocated is not known: failurePolicy decides"
    number, rule = rules[0]
    text = f"rule {rule.name} needs kubelet's device checkpoint, kubelet runs, and {path} is missing: {becomes}"
    yield ("spec", "rules", number), Finding(NOTE, POLICY, text)


def of_policy(policy: Policy, engines: Iterable[str] = ()) -> Iterator[Finding]:
    """Yields what `status` and `install` say of a policy. In Audit mode nothing is an error: no container is refused.

    `engines`: as for `never_known`.
    """
    for _, finding in [*look_at(policy), *never_known(policy, engines), *no_checkpoint(policy)]:
        is_tried = finding.severity == ERROR and policy.mode == AUDIT
        yield replace(finding, severity=NOTE) if is_tried else finding


def _refused(rule: Rule, policy: Policy, why: str) -> str:
    """What becomes of a container that a rule refuses. `why`: after the word."""
    if policy.mode == AUDIT or rule.is_audited:
        return f"would be refused{why}; in Audit mode it starts and is reported"
    return f"is refused{why}"


def _value_file(rule: Rule, env: Env, path: str, policy: Policy) -> Iterator[Finding]:
    """Yields the problem of a file with a value, if any. Reads the file as a container start does."""
    try:
        first_line(path)
    except (Untrusted, Undecided, OSError) as error:
        becomes = _refused(rule, policy, " (failurePolicy: Fail)")
        if policy.failure_policy != "Fail":
            becomes = "starts without it (failurePolicy: Ignore)"
        why, remedy = _said(error, path)
        text = f"rule {rule.name}: env {env.name}: {why}; every container that the rule matches {becomes}"
        yield Finding(ERROR, POLICY, text, remedy)


def _host_path(rule: Rule, mount: Mount, policy: Policy) -> Iterator[Finding]:
    """Yields the problems of a hostPath: it is missing, not root's alone, or neither a file nor a directory."""
    label = f"rule {rule.name}: hostPath {mount.source}"
    try:
        status = os.stat(mount.source)
    except PermissionError as error:
        yield Finding(ERROR, POLICY, f"{label} cannot be read: {error.strerror}; run this as root")
        return
    except OSError as error:
        if mount.skip_missing:
            becomes = "the mount is left out on this node (onMissingSource: Skip)"
            yield Finding(NOTE, POLICY, f"{label}: {error.strerror}; {becomes}")
            return
        becomes = f"every container that the rule matches {_refused(rule, policy, ' (onMissingSource: Fail)')}"
        remedy = build_command(mount.source)
        how = "" if remedy else ". Create it on this node, or set onMissingSource: Skip"
        yield Finding(ERROR, POLICY, f"{label}: {error.strerror}; {becomes}{how}", remedy)
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        yield Finding(WARNING, POLICY, f"{label} is {_kind(status.st_mode)}, neither a file nor a directory")
    try:
        trusted(mount.source)
    except Untrusted as error:
        controls = "a user who can write to it controls what containers read there"
        yield Finding(WARNING, POLICY, f"{label}: {error.why}; {controls}", error.remedy)
    except OSError as error:
        yield Finding(ERROR, POLICY, f"{label} cannot be read: {describe(error)}")


def _without_place(rule: Rule, mount: Mount, policy: Policy) -> Iterator[Finding]:
    """Yields what cannot be mounted below a read-only hostPath, since that has no file or directory to mount it on."""
    if not mount.source or "ro" not in mount.options or not os.path.isdir(mount.source):
        return
    below = [(WARNING, path) for path in mount.allow_below]
    below += [
        (ERROR, other.destination)
        for other in rule.mounts
        if other.source and mount.destination in parents(other.destination)
    ]
    between = {path for _, path in below}
    for severity, path in below:
        if not between.isdisjoint(parents(path)) or not lacks(mount.source, path[len(mount.destination) :]):
            continue
        becomes = "every container that the rule matches" if severity == ERROR else "a container with a mount there"
        then = _refused(rule, policy, f": {no_place(path, mount.destination, mount.source)}")
        yield Finding(severity, POLICY, f"rule {rule.name}: {becomes} {then}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFBLK: "a block device", stat.S_IFCHR: "a character device", stat.S_IFIFO: "a FIFO"}
    return kinds.get(stat.S_IFMT(mode), "a socket")


def _said(error: Exception, path: str) -> tuple[str, str]:
    """Why a file cannot be used, with its path, and the command against that or ""."""
    text, remedy = (error.why, error.remedy) if isinstance(error, Untrusted) else (describe(error), "")
    return (text if path in text else f"{path}: {text}"), remedy
