"""`reassert policy diff`: what a change of a policy means, not which lines of the file it touches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.text import joined
from hook.core.decide import Case
from hook.core.policy.compiler import compile_bytes, read_source
from hook.core.policy.model import AUDIT, Policy
from hook.entry.write_spec import ANNOTATION
from hook.node.terminal import counted, table
from hook.node.words import words
from hook.ops.policy.show import effective

if TYPE_CHECKING:
    from hook.core.container.identity import Identity
    from hook.core.container.start import Start
    from hook.core.plan import Plan
    from hook.ops.audit.inventory import Running

ABSENT = "-"


@dataclass(frozen=True)
class Change:
    """One difference. `rule`: "" for the policy itself. `what`: a field or an entry. `old`, `new`: or ABSENT."""

    rule: str
    what: str
    old: str
    new: str


@dataclass(frozen=True)
class Affected:
    """A running container about which the policies decide differently. `problem`: why `entries` are not known."""

    id: str
    container: str
    engine: str
    entries: tuple[str, ...]
    problem: str = ""


def diff(old: str, new: str, output: str, running: Callable[[], list[Running]] | None = None) -> int:
    """Print the changes between two policy files, and which of the containers of `running` they affect.

    Returns 1 if there is a change. Raises ReassertError.
    """
    before, after = _read(old), _read(new)
    found = list(changes(before, after))
    there: list[Affected] | None = None
    count = 0
    if running:
        from hook.ops.audit.inventory import learn_all

        containers = running()
        for policy in (before, after):
            learn_all(policy, containers)
        count, there = len(containers), list(affected(before, after, containers))
    if output == "json":
        told: dict[str, Any] = {"changes": [asdict(change) for change in found]}
        if there is not None:
            told["running"] = {"count": count, "affected": [asdict(container) for container in there]}
        print(json.dumps(told, indent=2))
        return 1 if found else 0
    if found:
        rows = [[change.rule or "(policy)", change.what, change.old, change.new] for change in found]
        print(table(rows, ["RULE", "WHAT", "OLD", "NEW"]))
    else:
        print("no change of meaning")
    if there is not None:
        print()
        if there:
            lines = [
                [
                    each.container,
                    each.id[:12],
                    each.engine or ABSENT,
                    ", ".join(each.entries) or f"not known: {each.problem}",
                ]
                for each in there
            ]
            print(table(lines, ["CONTAINER", "ID", "ENGINE", "DECIDED DIFFERENTLY"]))
        print(_sum(there, count))
    return 1 if found else 0


def affected(old: Policy, new: Policy, containers: Iterable[Running]) -> Iterator[Affected]:
    """The running containers that would start differently, and those about which that is not known."""
    for each in containers:
        about = each.id, each.title, each.engine
        if each.identity is None:
            yield Affected(*about, (), each.problem)
            continue
        try:
            wrong, gone = compared(old, new, each.identity, each.spec())
            if wrong or gone:
                lost = f"its config.json does not say what it had without {', '.join(gone)}" if gone else ""
                yield Affected(*about, tuple(wrong), lost)
        except (ReassertError, OSError) as error:
            yield Affected(*about, (), describe(error))


def _sum(there: list[Affected], count: int) -> str:
    unknown = sum(not each.entries for each in there)
    text = f"{len(there) - unknown} of {counted(count, 'running container')} would start differently"
    return text + (f"; of {unknown} it is not known" if unknown else "")


def changes(old: Policy, new: Policy) -> Iterator[Change]:
    """What the new policy changes: of the policy itself, then of each rule. The order of rules has no meaning.

    A rule with another name and the same content is renamed.
    """
    before, after = _flat(effective(old)["spec"]), _flat(effective(new)["spec"])
    yield from _compared("", before, after)
    rules_before, rules_after = _rules(old), _rules(new)
    gone = {name: rule for name, rule in rules_before.items() if name not in rules_after}
    added = {name: rule for name, rule in rules_after.items() if name not in rules_before}
    for name, rule in list(gone.items()):
        to = next((other for other, fields in added.items() if fields == rule), None)
        if to is not None:
            yield Change(name, "name", name, to)
            del gone[name], added[to]
    for name in [*rules_before, *added]:
        if name in gone:
            yield Change(name, "rule", "present", ABSENT)
            yield from _compared(name, rules_before[name], {})
        elif name in added:
            yield Change(name, "rule", ABSENT, "present")
            yield from _compared(name, {}, rules_after[name])
        elif name in rules_after:
            yield from _compared(name, rules_before[name], rules_after[name])


def compared(old: Policy, new: Policy, identity: Identity, target: Start) -> tuple[list[str], list[str]]:
    """How the results of two policies differ for a container, and what it got that the new one no longer reserves.

    It reads the node's facts, as a container start does. Raises what a decision raises. A policy in Audit mode changes
    nothing, except beside another one in Audit mode: then both are compared as if they were enforced.
    """
    audited = old.mode == new.mode == AUDIT
    decided = [Case("diff", "", lambda policy=policy: policy).decide(identity, target) for policy in (old, new)]  # type: ignore[misc]  # mypy does not infer a lambda's default
    in_force = [each for each in decided if audited or not each.audit_only()]
    one, other = (_made(each) if each in in_force else {} for each in decided)
    wrong = [name for name in {**one, **other} if one.get(name, ABSENT) != other.get(name, ABSENT)]
    was, remains = (_reserved(each) if each in in_force else [] for each in decided)
    return wrong, [name for name in was if ANNOTATION in target.annotations and name not in remains]


def _made(decided: Plan) -> dict[str, str]:
    """What a decision would change in the container, by the name of each entry."""
    if reasons := decided.reasons():
        return {"refusal": joined(reasons)}
    return {f"{edit.kind} {edit.name}": words(edit)[1] for edit in decided.edits}


def _reserved(decided: Plan) -> list[str]:
    """The names of what a policy reserves in the container, changed or not."""
    env = [*decided.env.values, *decided.env.absent]
    return [*(f"env {name}" for name in env), *(f"mount {edit.name}" for edit in decided.mounts)]


def _read(path: str) -> Policy:
    return compile_bytes(path, read_source(path)[0]).policy()


def _compared(rule: str, old: dict[str, str], new: dict[str, str]) -> Iterator[Change]:
    for what in {**old, **new}:
        before, after = old.get(what, ABSENT), new.get(what, ABSENT)
        if before != after:
            yield Change(rule, what, before, after)


def _rules(policy: Policy) -> dict[str, dict[str, str]]:
    return {
        rule["name"]: _flat({k: v for k, v in rule.items() if k != "name"})
        for rule in effective(policy)["spec"]["rules"]
    }


def _flat(value: Any, at: str = "") -> dict[str, str]:
    """The fields of a mapping by their paths. An entry of a list of mappings is found by its name or path."""
    found: dict[str, str] = {}
    for key, item in value.items():
        path = f"{at}.{key}" if at else key
        if key == "rules" and not at:
            continue
        if isinstance(item, dict):
            found |= _flat(item, path)
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for entry in item:
                found[f"{path}: {_key(entry)}"] = _entry(entry)
        elif isinstance(item, list):
            found[path] = ", ".join(sorted(map(str, item)))
        else:
            found[path] = str(item)
    return found


def _key(entry: dict[str, Any]) -> str:
    if "operator" in entry:
        return f"{entry['key']} {entry['operator']}"
    return str(entry.get("mountPath") or entry.get("name"))


def _entry(entry: dict[str, Any]) -> str:
    """What an entry wants, in one line."""
    rest = {key: value for key, value in entry.items() if key not in ("name", "mountPath", "key", "operator")}
    if rest.keys() == {"value"}:
        return repr(rest["value"])
    if rest.keys() == {"absent"}:
        return "absent"
    return json.dumps(rest, sort_keys=True)
