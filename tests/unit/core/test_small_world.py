"""`plan` over a whole small world: each policy of one or two rules, with each start of a container. No sample.

Names A, B and C, values 1, 2 and 3, and up to two entries of env in every order; mounts; annotations and shared
processes. The oracle is written from docs/policy.md ("env", "mounts", "annotations", "Rules that meet") and uses
nothing of hook/.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import permutations, product
from typing import Any

import pytest

from hook.core.container.allocation import Allocation
from hook.core.container.start import UNSEEN, Start
from hook.core.facts import Container, Facts
from hook.core.plan import plan
from hook.core.policy.model import Policy
from unit.support import POD, policy, values_of

NAMES, VALUES = ("A", "B", "C"), ("1", "2", "3")
FILE, HOST, CLAIMED = "/etc/value", "/etc/company", "3"

ENTRIES: tuple[dict[str, Any], ...] = (
    *({"name": "A", "value": value} for value in VALUES),
    {"name": "A", "absent": True},
    {"name": "?", "absent": True},
    {"name": "A", "valueFrom": {"file": FILE}},
    *({"name": "A", "valueFrom": {"deviceAllocation": given}} for given in ({}, {"default": "1"}, {"default": "Keep"})),
    {"name": "A", "oneOf": ["1", "3"]},
    {"name": "A", "oneOf": ["1"], "else": "2"},
    {"name": "A", "pattern": "3*", "oneOf": ["1"], "else": "Deny", "default": "1"},
    {"name": "B", "value": "2"},
    {"name": "A", "of a plugin": True},
)
"""All kinds of reserved env. A pattern stands for every name, and an exact name has precedence over it. The last one is
a rule with `deviceAllocations: {env: true}`: the plugin sets A."""


def reserves(entry: dict[str, Any]) -> dict[str, Any]:
    """The members of a rule with an entry of ENTRIES."""
    return {"deviceAllocations": {"env": True}} if "of a plugin" in entry else {"env": [entry]}


RESERVED = {"hostPath": HOST, "mountPath": "/m"}
MOUNTS: tuple[dict[str, Any], ...] = (
    RESERVED,
    {"mountPath": "/m", "absent": True},
    {**RESERVED, "volumesAbove": "Allow"},
    {"hostPath": HOST, "mountPath": "/m/n", "volumesAbove": "Allow"},
    {**RESERVED, "allowBelow": ["/m/n"]},
)
PLACES = ("/m", "/m/n", "/p")


def environments() -> Iterator[list[str]]:
    """Every env of at most two entries, and three in each order, with the name A twice."""
    entries = [f"{name}={value}" for name, value in product(NAMES, VALUES)]
    yield []
    yield from ([entry] for entry in entries)
    yield from (list(pair) for pair in product(entries, entries))
    yield from (list(order) for order in permutations(("A=1", "B=2", "A=3")))


def policies() -> Iterator[tuple[Policy, list[tuple[dict[str, Any], bool]], bool]]:
    """Each policy, with its entries, whether each is of a rule that denies, and whether it is in Audit mode."""
    for first, second in product(ENTRIES, (None, *ENTRIES)):
        for denies, audit in product((False, True), repeat=2):
            rules: list[dict[str, Any]] = [
                {"name": "one", **reserves(first), "onConflict": "Deny" if denies else "Override"}
            ]
            entries = [(first, denies)]
            if second is not None:
                # Rules that always match the same containers may not contradict each other.
                rules[0]["match"] = {"containerNames": ["app"]}
                rules.append({"name": "two", "match": {"namespaces": ["team-a"]}, **reserves(second)})
                entries.append((second, False))
            yield policy(*rules, mode="Audit" if audit else "Enforce"), entries, audit


REFUSED = "refused"
"""What an entry wants that refuses the container's value."""


def wanted(entry: dict[str, Any], name: str, env: list[str], allocated: bool) -> tuple[str | None, bool] | None:
    """What an entry wants of a name: its value or None for absent; and whether it is a pattern. None: nothing."""
    if entry["name"] not in (name, "?"):
        return None
    if "oneOf" in entry:
        own = values_of(env, name)
        if not own:
            return (entry["default"], False) if "default" in entry else None
        if is_allowed(entry, own[-1]):
            return own[-1], False
        return (REFUSED if entry.get("else") == "Deny" else entry.get("else")), False
    if "of a plugin" in entry:
        return (CLAIMED, False) if allocated else None
    if entry.get("absent"):
        return None, entry["name"] == "?"
    if "value" in entry:
        return entry["value"], False
    source = entry["valueFrom"]
    if "file" in source:
        return "2", False
    if allocated:
        return CLAIMED, False
    default = source["deviceAllocation"].get("default")
    return None if default == "Keep" else (default, False)


def is_allowed(entry: dict[str, Any], value: str | None) -> bool:
    """Whether a container may choose a value. What the policy file gives it in place of another is allowed too."""
    listed = [*entry["oneOf"], entry.get("else"), entry.get("default")]
    return value in listed or ("pattern" in entry and fnmatchcase(str(value), entry["pattern"]))


def expected(
    entries: list[tuple[dict[str, Any], bool]], env: list[str], allocated: bool
) -> tuple[bool, dict[str, Any]]:
    """Whether the container is refused, and what each reserved name must be afterwards."""
    result: dict[str, Any] = {}
    refused = False
    for name in NAMES:
        claims = [
            (*found, denies) for entry, denies in entries if (found := wanted(entry, name, env, allocated)) is not None
        ]
        choices = [entry for entry, _ in entries if entry["name"] == name and "oneOf" in entry]
        if len(choices) == 2 and choices[0] != choices[1]:
            refused = True  # whatever the container has
            continue
        exact = [claim for claim in claims if not claim[1]]
        counting = exact or claims
        if not counting:
            continue
        if len({value for value, _, _ in counting}) > 1 or REFUSED in [value for value, _, _ in counting]:
            refused = True  # two rules contradict each other
            continue
        result[name] = counting[0][0]
        own = values_of(env, name)
        conflicts = [value for value in own if value != result[name]]
        if choices and len(exact) == len(choices):  # of a name that the container may choose, the last value is its own
            conflicts = [value for value in own[-1:] if not is_allowed(choices[0], value)]
        kept = any(  # also by a rule that leaves it as it is
            entry["name"] == name and denies for entry, denies in entries if allocated or "of a plugin" not in entry
        )
        refused |= bool(conflicts) and (kept or any(denies for _, _, denies in counting))
    return refused, result


@pytest.mark.slow
def test_every_env_under_every_policy() -> None:
    """The container has exactly one entry of a reserved name or none, others stay in their order, or it is refused."""
    cases = 0
    all_env = list(environments())
    given = Allocation("x/y", ["1"], b"\x0a\x06\x0a\x01A\x12\x013")
    for reserved, entries, audit in policies():
        for allocated, env in product((False, True), all_env):
            facts = Facts()
            facts.files[FILE] = "2"
            facts.allocations = [given] if allocated else []
            start = Start(list(env), [], annotations=[], devices=[], device_rules={})
            decided = plan(reserved, Container(POD, start, facts))
            refused, values = expected(entries, env, allocated)
            about = (entries, audit, allocated, env)
            assert bool(decided.denials) == refused, about
            assert bool(decided.refusal()) == (refused and not audit), about
            cases += 1
            if refused:
                continue
            decided.apply(start)
            there = [entry.partition("=")[::2] for entry in start.env]
            for name, value in values.items():
                assert [text for key, text in there if key == name] == ([] if value is None else [value]), about
            others = [entry for entry in env if entry[0] not in values]
            assert [entry for entry in start.env if entry[0] not in values] == others, about
            assert decided.is_empty() == (start.env == env), about
    assert cases == 4 * len(ENTRIES) * (len(ENTRIES) + 1) * 2 * len(all_env)


def mount_lists() -> Iterator[list[str]]:
    """Every list of at most three mounts of a pod at three paths, in every order."""
    for count in range(4):
        yield from (list(places) for places in permutations(PLACES, count))


def test_every_mount_under_every_policy() -> None:
    """By the table of docs/policy.md: at the reserved path and below it removed, above it a reason to refuse."""
    for entry, denies, places in product(MOUNTS, (False, True), mount_lists()):
        reserved = policy({"name": "one", "mounts": [entry], "onConflict": "Deny" if denies else "Override"})
        start = Start(
            [],
            [{"destination": place, "type": "bind", "source": "/pods"} for place in places],
            annotations=[],
            devices=[],
            device_rules={},
        )
        facts = Facts()
        facts.directories = {HOST}
        decided = plan(reserved, Container(POD, start, facts))
        path = entry["mountPath"]
        lost = [p for p in places if p == path or (p.startswith(path + "/") and p not in entry.get("allowBelow", ()))]
        above = [p for p in places if path.startswith(p + "/")]
        refused = bool(lost and denies) or bool(above and entry.get("volumesAbove") != "Allow")
        about = (entry, denies, places)
        assert bool(decided.refusal()) == refused, about
        if refused:
            continue
        decided.apply(start)
        found = [(mount.destination, mount.source) for mount in start.mounts]
        assert sorted(p for p, source in found if source == "/pods") == sorted(set(places) - set(lost)), about
        assert [p for p, source in found if source == HOST] == ([] if entry.get("absent") else [path]), about


def test_every_annotation_and_every_shared_process_under_every_policy() -> None:
    """Annotations are removed, unless the plugin set them so; whose processes are unknown, `failurePolicy` decides."""
    plugins = Allocation("x/y", ["1"], b"\x22\x06\x0a\x01a\x12\x013")
    annotations = [
        {key: value for key, value in (("a", first), ("b", second)) if value}
        for first, second in product(("", *VALUES), repeat=2)
    ]
    for pattern, denies, audit, ignores, refuses in product(("a", "b", "c", "?"), *[(False, True)] * 4):
        reserved: dict[str, Any] = {
            "name": "one",
            "annotations": [{"name": pattern, "absent": True, "of": "Container"}],
        }
        reserved |= {"onConflict": "Deny"} if denies else {}
        reserved |= {"sharedProcesses": "Refuse"} if refuses else {}
        modes = {"mode": "Audit" if audit else "Enforce", "failurePolicy": "Ignore" if ignores else "Fail"}
        for given, allocated, shared in product(annotations, (False, True), (UNSEEN, "", "joins another")):
            facts = Facts()
            facts.allocations = [plugins] if allocated else []
            start = Start([], [], annotations=dict(given), shared_processes=shared)
            decided = plan(policy(reserved, **modes), Container(POD, start, facts))
            matched = {key for key in given if pattern in (key, "?")}
            gone = {key for key in matched if not (allocated and (key, given[key]) == ("a", CLAIMED))}
            failed = refuses and shared is UNSEEN
            refused = (bool(gone) and denies) or (refuses and bool(shared)) or (failed and not ignores)
            about = (pattern, denies, modes, refuses, given, allocated, shared)
            assert bool(decided.refusal()) == (refused and not audit), about
            assert bool(decided.errors) == failed, about
            if not refused and not failed:
                decided.apply(start)
                assert start.annotations.keys() == given.keys() - gone, about
