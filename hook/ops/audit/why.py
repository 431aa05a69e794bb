"""Why a running container differs from the policy, and which line of the policy exempts one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError
from hook.core.container.identity import Identity
from hook.core.policy import store
from hook.core.policy.compiler import read_source, stored_header
from hook.core.policy.model import AUDIT, Policy
from hook.core.policy.source import Source, parse
from hook.entry.write_spec import Decision
from hook.node.change.record import Record
from hook.ops.audit.inventory import Running
from hook.ops.events.reader import seconds_of


@dataclass(frozen=True)
class Round:
    """The policy in force and what is known of this node. Times are seconds since the epoch, 0 if unknown.

    `compiled`: since when this policy is in force. `installed`: when the node was wired last. `adapters`: by engine.
    """

    policy: Policy
    compiled: float = 0.0
    installed: float = 0.0
    adapters: dict[str, list[str]] = field(default_factory=dict)

    def why(self, container: Running, created: Decision | None) -> str:
        """Why a container differs. `created`: what reassert decided when the container was created."""
        if self.policy.mode == AUDIT:
            return "the policy's mode is Audit: no container is changed"
        if created is not None:
            if created.policy != self.policy.fingerprint:
                return f"created at {_moment(container.created)} under an earlier policy"
            return "a file or an allocation that the policy takes values from changed since it was created"
        if self.installed and container.created < self.installed:
            return f"created at {_moment(container.created)}, before the install at {_moment(self.installed)}"
        if self.compiled and container.created < self.compiled:
            return (
                f"created at {_moment(container.created)}, before this policy, which came at {_moment(self.compiled)}"
            )
        wired = self.adapters.get(container.engine.replace("cri-o", "crio"), [])
        if "runtime" in wired:
            return "created without reassert: by a runtime or handler that is not wired (reassert node status)"
        if "nri" in wired:
            return "the NRI plugin was away when it was created"
        if wired:
            return f"the adapter {' and '.join(wired)} cannot correct this"
        return f"created without reassert: {container.engine or 'its engine'} is not wired (reassert node status)"

    def exemption(self, identity: Identity) -> tuple[str, str]:
        """Why the policy excludes a container, and FILE:LINE of the entry; the line is "" if the file was changed."""
        return _exemption(self.policy, identity.namespace if identity.kubernetes else None, identity.types)


@lru_cache(4096)
def _exemption(policy: Policy, namespace: str | None, types: tuple[str, ...]) -> tuple[str, str]:
    for index, pattern in enumerate(policy.excluded_namespaces):
        if namespace is not None and glob_match(pattern, namespace):
            line = _line(policy, "namespaces", index)
            return f"namespace {namespace} is excluded", line
    for index, kind in enumerate(policy.excluded_types):
        if len(types) == 1 and types[0] == kind:
            line = _line(policy, "containerTypes", index)
            return f"container type {kind} is excluded", line
    return "", ""


def _line(policy: Policy, name: str, index: int) -> str:
    source = _source(policy.path)
    if source is None or source.sha256 != policy.fingerprint:
        return ""
    return f"{policy.path}:{source.place(('spec', 'exclude', name, index))[0]}"


@lru_cache(1)
def _source(path: str) -> Source | None:
    try:
        return parse(path, read_source(path)[0])
    except ReassertError:
        return None


def read_round(policy_file: str, store_directory: str) -> Round:
    """The policy in force, and since when. Never raises for a node that is not wired."""
    _source.cache_clear()
    policy = store.load(policy_file, store_directory)
    header, _ = stored_header(policy_file, store_directory)
    try:
        record = Record.read()
        adapters = {name: record.parts[name].adapters for name in record.engines()}
        installed = os.stat(record.path).st_mtime if adapters else 0.0
    except (ReassertError, OSError):
        adapters, installed = {}, 0.0
    return Round(policy, seconds_of((header or {}).get("compiledAt")), installed, adapters)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
