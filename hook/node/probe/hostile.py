"""What a pod author would write who wants to get around a policy; and which of its rules such a pod can try."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from hook.container.identity import CONTAINER, Identity
from hook.policy.model import Condition, Match, Policy, Rule, evaluate, select
from hook.policy.words import actual, wanted
from hook.reserve.mounts import Mount

PLUGIN, POD = "reassert-verify-plugin", "reassert-verify-pod"
"""The values that a reserved name is given: first as a device plugin's, then the pod's, as kubelet orders them."""


def covering(policy: Policy, who: Identity) -> tuple[list[Match], dict[str, str]]:
    """The rules that hold for a container whatever its adapter can see, and why each of the others is not tried."""
    judged = [{match.rule.name: match for match in select(policy, each)} for each in _views(who)]
    certain: list[Match] = []
    others: dict[str, str] = {}
    for rule in policy.candidates(None):
        seen = [matches.get(rule.name) for matches in judged]
        if all(match is not None and match.applies for match in seen):
            certain += [match for match in seen[:1] if match]
        elif any(match is not None and match.applies for match in seen):
            others[rule.name] = "whether it holds for a probe depends on what the adapter can see"
        else:
            others[rule.name] = "; ".join(
                _why_not(condition, who) for condition in evaluate(rule, who) if condition.met is False
            )
    return certain, others


def _why_not(condition: Condition, who: Identity) -> str:
    if who.kubernetes is False and condition.field in ("namespaces", "podSelector"):
        return f"{condition.field}: the probe is of no pod"
    return f"{condition.field} {actual(condition)} is not {wanted(condition)}"


def _views(who: Identity) -> Iterator[Identity]:
    """The same container as one adapter and another see it: pod labels, image and container type may be unknown."""
    labels = (who.labels, {}) if who.kubernetes else (who.labels,)
    for seen, image, types in product(labels, {who.image, None}, {who.types, (CONTAINER,)}):
        yield Identity(who.engine, who.kubernetes, who.namespace, who.pod, who.uid, who.container, types, image, seen)


def env(rules: list[Rule], gentle: bool = False) -> list[tuple[str, str]]:
    """Other values for what the rules reserve. `gentle`: nothing that must be absent, or that a rule would deny."""
    # A name that is left as it is without an allocation is not reserved for a probe, which has none.
    reserved = [e for rule in rules if not (gentle and rule.deny) for e in rule.env if not e.keep]
    valued = dict.fromkeys(e.name for e in reserved if e.text is not None)
    absent = dict.fromkeys(_instance(e.name) for e in reserved if e.text is None and not gentle)
    pairs = [(name, value) for value in (PLUGIN, POD) for name in valued]
    return pairs + [(name, POD) for name in absent if name not in valued]


def _instance(pattern: str) -> str:
    """A name that a pattern stands for."""
    return pattern.replace("*", "REASSERT").replace("?", "X")


def mounts(rules: list[Rule], absent: set[str], directory: str, gentle: bool = False) -> list[tuple[str, str]]:
    """(path on the node, path in the container): something else over each reserved path, and one below it.

    `absent`: hostPaths that this node does not have. What is to be mounted is made in `directory`. Raises OSError.
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
    """Make what is mounted over a reservation, of the same kind. Returns the name of what is mounted below it, or "".

    That one exists in the reserved source too: a runtime would make what is missing there, on the node.
    """
    if mount.source and not os.path.isdir(mount.source):
        Path(own).write_text("from reassert node verify\n", "ascii")
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
