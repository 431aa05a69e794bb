"""A find made as small as is cheap: features, then parts of the policy are left out one by one while it still fails."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator

from reality.reading import Case, Feature


def shrink(case: Case, fails: Callable[[Case], object], seconds: float) -> Case:
    """The smallest case found within `seconds` for which `fails` still holds."""
    until = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            if time.monotonic() > until:
                return case
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    count = len(case["features"])
    if count > 3:  # halves first
        for half in (case["features"][: count // 2], case["features"][count // 2 :]):
            yield {**copy.deepcopy(case), "features": copy.deepcopy(half)}
    for number in range(count):
        yield _without_feature(case, number)
        for key in ("count", "depth", "length"):
            if case["features"][number].get(key, 0) > 1:
                less = copy.deepcopy(case)
                less["features"][number][key] //= 2
                yield less
    paths: list[tuple[str | int, ...]] = [("exclude",), ("failurePolicy",), ("kubelet",), ("mode",)]
    for number, rule in enumerate(case["policy"]["spec"]["rules"]):
        here: tuple[str | int, ...] = ("rules", number)
        paths += [here, (*here, "match"), (*here, "onConflict"), (*here, "deviceAllocations")]
        for key in ("env", "mounts"):
            paths += [(*here, key, at) for at in range(len(rule[key]))]
        paths += [
            (*here, "mounts", at, key)
            for at in range(len(rule["mounts"]))
            for key in ("allowBelow", "options", "readOnly", "volumesAbove")
        ]
    for path in paths:
        yield from _without_part(case, path)
    if case["engine"]["name"] != "none":
        yield {**copy.deepcopy(case), "engine": {"name": "none"}}


def _without_feature(case: Case, number: int) -> Case:
    less = copy.deepcopy(case)
    gone = less["features"].pop(number)
    if gone["kind"] == "volume":  # what uses it goes too
        name = gone["name"]
        less["features"] = [
            one
            for one in less["features"]
            if name not in (one.get("volume"), str(one.get("source")).removeprefix("volume:"))
        ]
    return less


def _without_part(case: Case, path: tuple[str | int, ...]) -> Iterator[Case]:
    """The case without one part of its policy, if there is such a part and the rules still hold something."""
    less = copy.deepcopy(case)
    part = less["policy"]["spec"]
    for step in path[:-1]:
        part = part[step]
    if isinstance(part, dict) and path[-1] not in part:
        return
    del part[path[-1]]
    if less["policy"]["spec"]["rules"] and all(
        rule["env"] or rule["mounts"] or "deviceAllocations" in rule for rule in less["policy"]["spec"]["rules"]
    ):
        yield less


def like(case: Case, known: Case) -> Case | None:
    """The case with those of its features alone that are like a known find's; None where it has none like that."""
    wanted = [part(feature) for feature in known["features"]]
    features = []
    for feature in case["features"]:
        if part(feature) in wanted:
            wanted.remove(part(feature))
            features.append(feature)
    return None if wanted else {**case, "features": features}


def shape(case: Case) -> str:
    """What two finds of one cause have in common: the features that were left, without their accidental names."""
    return json.dumps(sorted(part(one) for one in case["features"]), ensure_ascii=True)


def part(one: Feature) -> str:
    """A feature's share in a shape."""
    kind = one["kind"]
    detail = str(one.get("op", one.get("how", one.get("type", ""))))
    if kind == "image" and one["op"] == "link":
        detail += " to " + "/".join(one["to"].split("/")[:4])
    elif kind == "env":
        detail = "NUL" if "\0" in one["entry"] else "bare" if "=" not in one["entry"] else ""
    elif kind == "exec":
        detail += (
            " NUL" if "\0" in "".join(one["env"]) else " bare" if any("=" not in entry for entry in one["env"]) else ""
        )
        detail += " member" if "members" in one else ""
    elif kind == "annotation":
        detail = one["key"]
    elif kind == "member":
        detail = "/".join(map(str, [*one["at"], one["key"]]))
    elif kind == "sidecar":
        detail = one["when"] + " " + "+".join(step[0] for step in one["ops"])
    elif kind == "volume":
        detail = "+".join(sorted({step["op"] for step in one["ops"]}))
    elif kind == "verb":
        detail = one["verb"] + " devices" * ("devices" in one.get("resources", {}))
    elif kind == "global":
        detail = one["words"][1]
    elif kind == "caller":
        detail = "+".join([*one["namespaces"], "capabilities" if one["capabilities"] else "none"])
    elif kind == "runtime-name":
        detail = one["name"]
    return f"{kind} {detail}".strip()
