"""Reserved env: names that have one given value or are absent. Part of the start path: builtins only."""

from hook.core.base.compare import glob_match
from hook.core.policy.entries import ALLOCATED, FILE
from hook.core.reserve import Outcome, Reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.start import Start
    from hook.core.facts import Container
    from hook.core.policy.model import Rule

KIND = "env"


def want(rules: "list[Rule]", container: "Container", outcome: Outcome) -> None:
    """Collect the env that the rules reserve, and compare the container's env with it."""
    values: dict[str, str | None] = {}
    absent: dict[str, None] = {}
    owners: dict[str, str] = {}
    origins: dict[str, str] = {}
    denying: dict[str, str] = {}
    for rule in rules:
        wanted = list(rule.env)
        if KIND in rule.allocations:
            from hook.core.reserve.allocated import env_of

            wanted += env_of(container.facts)
        for env in wanted:
            if rule.deny:
                denying.setdefault(env.name, rule.name)
            if env.is_pattern():
                absent[env.name] = None
            else:
                value = env.text
                if env.source in (FILE, ALLOCATED):
                    from hook.core.reserve.allocated import env_value

                    result = env_value(rule.name, env, container, outcome, origins)
                    if not result:
                        continue
                    value = result[0]
                if values.setdefault(env.name, value) != value:
                    message = f"wants another value for env {env.name} than rule {owners[env.name]}"
                    outcome.deny(rule.name, KIND, message)
            owners.setdefault(env.name, rule.name)
    reserved = outcome.env = Reserved(values, list(absent))
    found = reserved.search(container.start.env)
    outcome.env_matches = container.start.env, found
    for edit in reserved.differences(*found):
        exact = edit.name in reserved.values
        edit.rule = owners[edit.name if exact else reserved.owner(edit.name)]
        edit.origin = origins.get(edit.name, "") if edit.value is not None else ""
        if not exact and not outcome.count(KIND, edit.rule):
            break  # exact names have no limit: the policy lists each of them
        outcome.edits.append(edit)
        asked = [name for name in denying if name == edit.name or (not exact and glob_match(name, edit.name))]
        if asked and edit.conflict():
            outcome.deny(denying[asked[0]], KIND, edit.conflict())


def apply(outcome: Outcome, target: "Start") -> None:
    """Correct the env of `target`."""
    if any(edit.kind == KIND for edit in outcome.edits):
        env, found = outcome.env_matches
        target.env = outcome.env.correct(target.env, found if target.env is env else None)
