"""The env and mounts of a hostile test container, and the rules of a policy that it can try."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from copy import copy
from itertools import product
from pathlib import Path

from hook.core.container.identity import Identity
from hook.core.policy.entries import Mount
from hook.core.policy.model import Match, Policy, Rule, select
from hook.core.policy.sources import Allowed, Env, Given
from hook.node.words import actual, wanted

PLUGIN, POD = "reassert-verify-plugin", "reassert-verify-pod"
"""The two values that a reserved name gets, in kubelet's order: the device plugin's, then the pod's."""


def covering(policy: Policy, identity: Identity) -> tuple[list[Match], dict[str, str]]:
    """Returns the rules that match a container for every adapter, and why each other rule is not tried."""
    judged = [{match.rule.name: match for match in select(policy, each)} for each in _views(identity)]
    certain: list[Match] = []
    others: dict[str, str] = {}
    for rule in policy.candidates(None):
        seen = [matches.get(rule.name) for matches in judged]
        if rule.is_audited:  # it is tried on every container: nothing is left out
            continue
        if all(match is not None and match.applies for match in seen):
            certain += [match for match in seen[:1] if match]
        elif any(match is not None and match.applies for match in seen):
            others[rule.name] = "whether it matches a test container depends on what the adapter can see"
        else:
            match = Match(rule, identity)
            others[rule.name] = "; ".join(_why_not(match, field) for field, met in match.met.items() if met is False)
    return certain, others


def _why_not(match: Match, field: str) -> str:
    if match.identity.kubernetes is False and field in ("namespaces", "podSelector"):
        return f"{field}: the test container is not in a pod"
    return f"{field} {actual(match, field)} is not {wanted(match, field)}"


def _views(identity: Identity) -> Iterator[Identity]:
    """Yields the container as different adapters see it: pod labels and image may be unknown."""
    labels = (identity.labels, {}) if identity.kubernetes else (identity.labels,)
    for seen, image in product(labels, {identity.image, None}):
        view = copy(identity)
        view.image, view.labels = image, seen
        yield view


def env(rules: list[Rule], gentle: bool = False) -> list[tuple[str, str]]:
    """Returns other values for reserved names. `gentle`: leave out names that must be absent or are denied."""
    # A test container has no allocation, so a name that stays unchanged without one is not reserved for it.
    reserved = [
        (e.name, given)
        for rule in rules
        if not (gentle and rule.deny)
        for e in rule.env
        if (given := _instead(e, gentle))
    ]
    valued = dict.fromkeys(name for name, given in reserved if given.text is not None)
    patterns = [name for name, given in reserved if given.text is None and not gentle]
    absent = dict.fromkeys(pattern.replace("*", "REASSERT").replace("?", "X") for pattern in patterns)
    pairs = [(name, value) for value in (PLUGIN, POD) for name in valued]
    return pairs + [(name, POD) for name in absent if name not in valued]


def _instead(env: Env, gentle: bool) -> Given | None:
    """What a container gets in place of POD. None: it keeps that value, or is refused for it and `gentle` is true."""
    if not isinstance(env, Allowed):
        return env.by_default(str)
    return None if env.allows(POD) or (gentle and env.denies) else Given(env.instead)


def mounts(rules: list[Rule], absent: set[str], directory: str, gentle: bool = False) -> list[tuple[str, str]]:
    """Returns (path on the node, path in the container): another mount at each reserved path, and one below it.

    `absent`: hostPaths that this node does not have. The sources of the mounts are made in `directory`. Raises OSError.
    """
    found: dict[str, str] = {}
    for rule in rules:
        for mount in rule.mounts:
            if mount.destination in found or mount.source in absent or (gentle and rule.deny):
                continue
            own = f"{directory}/{len(found)}"
            inside = _make(own, mount)
            found[mount.destination] = own
            if inside:
                found.setdefault(f"{mount.destination}/{inside}", f"{own}/{inside}")
    return [(own, path) for path, own in found.items()]


def _make(own: str, mount: Mount) -> str:
    """Makes the source of a mount over a reserved path: a file or a directory, as the reserved source is.

    Returns the name to mount below it, or "". The reserved source has that name too; otherwise a runtime would create
    it there, on the node.
    """
    if mount.source and not os.path.isdir(mount.source):
        Path(own).write_text("from reassert verify\n", "ascii")
        return ""
    Path(own).mkdir()
    if not mount.source:
        return ""
    for name in sorted(os.listdir(mount.source)):
        mode = os.lstat(f"{mount.source}/{name}").st_mode
        if f"{mount.destination}/{name}" in mount.allow_below or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            continue
        if stat.S_ISDIR(mode):
            Path(own, name).mkdir()
        else:
            Path(own, name).touch()
        return name
    return ""
