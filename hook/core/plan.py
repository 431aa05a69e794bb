"""plan(policy, container) -> Plan: the whole decision. Pure: no I/O.

A Plan (hook.core.reserve.plan) is what the policy wants of one container: the edits that it needs, and why it must not
start. Each step reads the rules that apply, compares, and adds to it.
"""

from __future__ import annotations

from hook.core.facts import Container
from hook.core.policy.model import Match, Policy, excluded, select
from hook.core.reserve import (
    allocated,
    devices,
    env,
    listed_annotations,
    mounts,
    node_paths,
    shared_processes,
    unsafe_annotations,
)
from hook.core.reserve.plan import Plan, Step

__all__ = ["ALL", "STEPS", "Plan", "plan"]

STEPS: tuple[Step, ...] = (
    shared_processes,
    env,
    mounts,
    devices,
    listed_annotations,
    unsafe_annotations,
    node_paths,
)
"""What a policy can want, in the order in which a refusal names its reasons and in which edits are made.

shared_processes and node_paths only refuse a container: the first for rules with `sharedProcesses`, the last for
volumes of the node's own files, also without a rule. The others correct it. `devices` and `node_paths` need the mounts
that are reserved, `unsafe_annotations` what listed_annotations removes.
"""

ALL = frozenset(step.KIND for step in STEPS)
"""What can be reserved, and what can be refused."""


def plan(policy: Policy, container: Container, matches: list[Match] | None = None, kinds: frozenset[str] = ALL) -> Plan:
    """Decide about one container.

    `matches`: the result of `select`, if the caller already has it. `kinds`: the kinds that the adapter enforces.
    """
    decided, steps = Plan(policy), STEPS
    decided.excluded = excluded(policy, container.identity)
    if decided.excluded:
        steps = (unsafe_annotations,)  # a sandbox's annotations are for all containers of the pod
    elif policy.missing:
        decided.deny("", "", f"no node policy: {policy.missing}")
        return decided
    else:
        decided.matches = select(policy, container.identity) if matches is None else matches
    rules = [match.rule for match in decided.matches if match.applies]
    for rule in rules if container.facts.allocation_problem else ():
        if not kinds.isdisjoint(allocated.kinds_of(rule)):
            decided.cannot_tell(rule.name, "", container.facts.allocation_problem)
    for step in steps:
        if step.KIND in kinds and step.concerns(rules, container):
            decided.steps.append(step)
            step.want(rules, container, decided)
    return decided
