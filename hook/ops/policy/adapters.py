"""The result of each adapter for a container that an engine would be asked to start: `explain POD.yaml`, `policy test`.

A way is a tuple of adapters that see the same container, as an engine is wired with them.
"""

from __future__ import annotations

from hook.core.base.text import joined
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.plan import Plan
from hook.core.policy.model import Policy
from hook.core.reserve import node_paths
from hook.entry.hook import late_edits, too_late
from hook.node.change.record import Record
from hook.node.engines.base import HOOK, NRI, RUNTIME
from hook.node.engines.facts import FACTS
from hook.nri.adjust import adjust

ADAPTERS = RUNTIME, NRI, HOOK

Way = tuple[str, ...]

EACH, DEFAULT = "all", "default"
"""For `ways`: every adapter; the adapters of this node, else the one that `install` wires by default."""


def ways(adapter: str | None = None) -> list[Way]:
    """The given adapter; else those that this node's engine of pods is wired with; else each one. Raises NodeError.

    `adapter`: its name, EACH or DEFAULT.
    """
    each: list[Way] = [(name,) for name in ADAPTERS]
    if adapter == EACH:
        return each
    if adapter not in (None, DEFAULT):
        return [(str(adapter),)]
    wired = _wired()
    found = tuple(name for name in ADAPTERS if name in wired)
    return [found] if found else [(RUNTIME,)] if adapter == DEFAULT else each


def is_wired() -> bool:
    """Whether an engine of pods of this machine is wired. Without root that is not known. Raises NodeError."""
    return bool(_wired())


def _wired() -> list[str]:
    try:
        record = Record.read()
    except PermissionError:
        return []
    of_pods = [name for name, row in FACTS.items() if row.runs_pods]
    return next((record.parts[name].adapters for name in of_pods if name in record.engines()), [])


def add_base_env(way: Way, policy: Policy, start: Start, files: dict[str, str]) -> None:
    """Put the env into `start` that `install` writes into containerd's base_runtime_spec without the wrapper.

    containerd replaces such an entry in place. `files`: first lines of the files that a policy names.
    """
    if RUNTIME in way:
        return
    base: dict[str, str] = {}
    for rule in policy.candidates(None):
        for env in [] if rule.is_audited else rule.env:
            given = env.by_default(files.get)
            if given and given.text is not None:
                base.setdefault(env.name, given.text)
    others = []
    for entry in start.env:
        name, _, value = entry.partition("=")
        if name in base:
            base[name] = value
        else:
            others.append(entry)
    start.env = [*(f"{name}={value}" for name, value in base.items()), *others]


def refusal(way: Way, decided: Plan, container: Container, seen: Plan | None = None) -> str:
    """Why the container would not start, also for what an adapter cannot do; "" if it would start.

    `seen`: what its volumes reach (hook.inside.running.foreseen).
    """
    if decided.refusal() or decided.audit_only():
        return decided.refusal()
    if seen and seen.denials:
        return joined(seen.denials)
    if NRI in way:
        return joined(adjust(decided, container, removes_mounts=True)[1])
    if RUNTIME in way:
        return ""
    below = node_paths.stays_below(decided, container.start.mounts)
    return joined([*[too_late(edit) for edit in late_edits(decided)], *below])
