"""The result of each adapter for a container that an engine would be asked to start: `explain POD.yaml`, `policy test`.

A way is a tuple of adapters that see the same container, as an engine is wired with them.
"""

from __future__ import annotations

from hook.core.base.text import joined
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.plan import Plan
from hook.core.policy.entries import VALUE
from hook.core.policy.model import Policy
from hook.entry.hook import late_edits, too_late
from hook.node.change.record import Record
from hook.node.engines.base import HOOK, NRI, RUNTIME
from hook.nri.adjust import adjust

ADAPTERS = RUNTIME, NRI, HOOK

Way = tuple[str, ...]

_OF_PODS = "containerd", "crio", "k3s", "rke2", "docker"


def ways(adapter: str | None = None) -> list[Way]:
    """The given adapter; else those that this node's engine of pods is wired with; else each one. Raises NodeError.

    Without root the wiring of the node is not known.
    """
    if adapter:
        return [(adapter,)]
    try:
        record = Record.read()
    except PermissionError:
        return [(name,) for name in ADAPTERS]
    wired = [record.parts[name].adapters for name in _OF_PODS if name in record.engines()]
    found = tuple(name for name in ADAPTERS if wired and name in wired[0])
    return [found] if found else [(name,) for name in ADAPTERS]


def add_base_env(way: Way, policy: Policy, start: Start, files: dict[str, str]) -> None:
    """Put the env into `start` that `node install` writes into containerd's base_runtime_spec without the wrapper.

    containerd replaces such an entry in place. `files`: first lines of the files that a policy names.
    """
    if RUNTIME in way:
        return
    base: dict[str, str] = {}
    for rule in policy.candidates(None):
        for env in [] if rule.is_audited else rule.env:
            value = env.text if env.source == VALUE else files.get(str(env.text))
            if value is not None:
                base.setdefault(env.name, value)
    others = []
    for entry in start.env:
        name, _, value = entry.partition("=")
        if name in base:
            base[name] = value
        else:
            others.append(entry)
    start.env = [*(f"{name}={value}" for name, value in base.items()), *others]


def refusal(way: Way, decided: Plan, container: Container) -> str:
    """Why the container would not start, also for what an adapter cannot do; "" if it would start."""
    if decided.refusal() or decided.audit_only():
        return decided.refusal()
    if NRI in way:
        return joined(adjust(decided, container, removes_mounts=True)[1])
    return "" if RUNTIME in way else joined([too_late(edit) for edit in late_edits(decided)])
