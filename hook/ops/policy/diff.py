"""`reassert policy diff`: what a change of a policy means, not which lines of the file it touches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hook.compile.compiler import compile_bytes
from hook.compile.in_force import read_source
from hook.core.policy.model import Policy
from hook.core.reserve.node_paths import TRY
from hook.ops.policy.show import effective
from hook.resident.terminal import columns, table

ABSENT = "-"


@dataclass(frozen=True)
class Change:
    """One difference. `rule`: "" for the policy itself. `what`: a field or an entry. `old`, `new`: or ABSENT."""

    rule: str
    what: str
    old: str
    new: str


def diff(old: str, new: str, output: str) -> int:
    """Print the changes between two policy files. Returns 1 if there is a change. Raises ReassertError."""
    found = list(changes(_read(old), _read(new)))
    if output == "json":
        print(json.dumps({"changes": [asdict(change) for change in found]}, indent=2))
    elif found:
        rows = [[change.rule or "(policy)", change.what, change.old, change.new] for change in found]
        print(table(rows, ["RULE", "WHAT", "OLD", "NEW"], columns(output)))
    else:
        print("no change of meaning")
    return 1 if found else 0


def changes(old: Policy, new: Policy) -> Iterator[Change]:
    """What the new policy changes: of the policy itself, then of each rule. The order of rules has no meaning.

    A rule with another name and the same content is renamed.
    """
    before, after = _fields(old), _fields(new)
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


def _read(path: str) -> Policy:
    return compile_bytes(path, read_source(path)[0]).policy()


def _compared(rule: str, old: dict[str, str], new: dict[str, str]) -> Iterator[Change]:
    for what in {**old, **new}:
        before, after = old.get(what, ABSENT), new.get(what, ABSENT)
        if before != after:
            yield Change(rule, what, before, after)


def _fields(policy: Policy) -> dict[str, str]:
    """The fields of a policy but for its rules, with what is in force of nodePaths while rules are tried."""
    tried = {f"nodePaths.{field}": "tried, as rules" for field, value in policy.node_paths.items() if value == TRY}
    return _flat(effective(policy)["spec"]) | tried


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
