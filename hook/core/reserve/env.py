"""Reserved env: names that have one given value, one of some values, or are absent."""

from __future__ import annotations

from hook.core.base.compare import glob_match
from hook.core.base.errors import Unacceptable, Undecided
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.policy.model import Rule
from hook.core.policy.sources import Allowed, Env, Given
from hook.core.reserve import allocated
from hook.core.reserve.plan import Plan
from hook.core.reserve.reserved_env import Reserved

KIND = "env"


def concerns(rules: list[Rule], container: Container) -> bool:
    """Whether a rule reserves env."""
    return True in [bool(rule.env) or KIND in rule.allocations for rule in rules]


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Collect the env that the rules reserve, and compare the container's env with it."""
    owners: dict[str, str] = {}
    origins: dict[str, str] = {}
    denying: dict[str, str] = {}
    entries: list[tuple[Rule, Env]] = []
    for rule in rules:
        wanted = [*rule.env, *(allocated.env_of(container.facts) if KIND in rule.allocations else ())]
        entries += [(rule, env) for env in wanted]
        for env in wanted if rule.deny else ():
            denying.setdefault(env.name, rule.name)
    reserved = plan.env = _reserved(entries, container, plan, owners=owners, origins=origins)
    searched = reserved.search(container.start.env)
    plan.env_search = container.start.env, searched
    for edit in reserved.differences(*searched):
        exact = edit.name in reserved.values
        edit.rule = owners[edit.name if exact else reserved.owner(edit.name)]
        edit.origin = origins.get(edit.name, "") if edit.value is not None else ""
        if not exact and not plan.count(KIND, edit.rule):
            break  # exact names have no limit: the policy lists each of them
        plan.edits.append(edit)
        asked = [name for name in denying if name == edit.name or (not exact and glob_match(name, edit.name))]
        if asked and edit.conflict():
            plan.deny(denying[asked[0]], KIND, edit.conflict())


def _reserved(
    entries: list[tuple[Rule, Env]],
    container: Container,
    plan: Plan,
    *,
    owners: dict[str, str],
    origins: dict[str, str],
) -> Reserved:
    """What the entries reserve. What contradicts an earlier entry is a denial of the plan.

    `owners`: gets the first rule that reserves a name or pattern; `origins`: the allocation that a value comes from.
    """
    values: dict[str, str | None] = {}
    absent: dict[str, None] = {}
    allowed: dict[str, Allowed] = {}
    fixed: set[str] = set()
    for rule, env in entries:
        if env.is_pattern():
            absent[env.name] = None
            owners.setdefault(env.name, rule.name)
            continue
        if isinstance(env, Allowed):
            owner = owners.setdefault(env.name, rule.name)
            if allowed.setdefault(env.name, env).given != env.given:
                plan.deny(rule.name, KIND, f"allows other values of env {env.name} than rule {owner}")
        given = _given(rule, env, container, plan)
        if given is None:
            continue
        owner = owners.setdefault(env.name, rule.name)
        if values.setdefault(env.name, given.text) != given.text:
            plan.deny(rule.name, KIND, f"wants another value for env {env.name} than rule {owner}")
        if given.origin:
            origins[env.name] = given.origin
        if not isinstance(env, Allowed):
            fixed.add(env.name)  # where a rule gives a value, no process may choose another one
    return Reserved(values, list(absent), {name: env for name, env in allowed.items() if name not in fixed})


def _given(rule: Rule, env: Env, container: Container, plan: Plan) -> Given | None:
    """What a rule gives a name. None: nothing; if that is for a reason, `plan` has it."""
    try:
        return env.value(container)
    except Undecided as error:
        plan.cannot_tell(rule.name, KIND, f"cannot tell the value of env {env.name}: {error}")
    except Unacceptable as error:
        plan.deny(rule.name, KIND, str(error))
    return None


def apply(plan: Plan, target: Start) -> None:
    """Correct the env of `target`."""
    if any(edit.kind == KIND for edit in plan.edits):
        env, searched = plan.env_search
        target.env = plan.env.correct(target.env, searched if target.env is env else None)
