"""What a draft of a policy would change: how it decides about a running container, beside the policy in force."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hook.core.base.text import joined
from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.core.decide import Case
from hook.core.plan import Plan
from hook.core.policy.model import AUDIT, Policy
from hook.core.reserve.edits import Reason
from hook.inside.running import Node, foreseen
from hook.node.words import words
from hook.ops.adapter import Command
from hook.ops.at_create import is_corrected


def compared(
    old: Policy,
    new: Policy,
    identity: Identity,
    target: Start,
    node: Node | None = None,
    look: Callable[[Plan], Sequence[Reason]] = lambda plan: (),
) -> tuple[list[str], list[str]]:
    """How the results of two policies differ for a container, and what it got that the new one no longer reserves.

    The first list has the names of edits, as `env NAME`, and `refusal`. What a container would have without the second
    one is not in its config.json, which reassert corrected.

    It reads the node's facts, as a container start does. Raises what a decision raises. A policy in Audit mode changes
    nothing, except beside another one in Audit mode: then both are compared as if they were enforced. `node`: as for
    `foreseen`. `look`: why the container would not start under a plan that does not refuse it by itself.
    """
    audited = old.mode == new.mode == AUDIT
    decided = [Case(Command("audit", policy), "").decide(identity, target) for policy in (old, new)]
    in_force = [each for each in decided if audited or not each.audit_only()]
    one, other = (_made(each, foreseen(each, target, node), look) if each in in_force else {} for each in decided)
    wrong = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    was, remains = (_reserved(each) if each in in_force else [] for each in decided)
    return wrong, [name for name in was if is_corrected(target) and name not in remains]


def _made(decided: Plan, seen: Plan, look: Callable[[Plan], Sequence[Reason]]) -> dict[str, str]:
    """What a decision would change in the container, by the name of each entry. `seen`: what its volumes reach."""
    if reasons := decided.reasons() or seen.denials or look(decided):
        return {"refusal": joined(reasons)}
    edits = {f"{edit.kind} {edit.name}": words(edit)[1] for edit in decided.edits}
    return edits | {f"volume {path}": "made read-only" for path in seen.read_only if decided.policy.closes}


def _reserved(decided: Plan) -> list[str]:
    """The names of what a policy reserves in the container, changed or not."""
    env = [*decided.env.values, *decided.env.absent]
    return [*(f"env {name}" for name in env), *(f"mount {edit.name}" for edit in decided.mounts)]
