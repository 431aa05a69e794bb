"""A find made as small as is cheap: features, then parts of the policy are left out one by one while it still fails."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator

from reality.bundle import Case


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
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
    for number in range(len(case["features"])):
        less = copy.deepcopy(case)
        gone = less["features"].pop(number)
        if gone["kind"] == "volume":
            name = gone["name"]
            less["features"] = [
                one for one in less["features"] if one.get("volume") != name and one.get("source") != f"volume:{name}"
            ]
        yield less
    spec = case["policy"]["spec"]
    for key in ("exclude", "failurePolicy", "kubelet", "mode"):
        if key in spec:
            less = copy.deepcopy(case)
            del less["policy"]["spec"][key]
            yield less
    for number, rule in enumerate(spec["rules"]):
        if len(spec["rules"]) > 1:
            less = copy.deepcopy(case)
            less["policy"]["spec"]["rules"].pop(number)
            yield less
        for key in ("env", "mounts"):
            for at in range(len(rule[key])):
                less = copy.deepcopy(case)
                less["policy"]["spec"]["rules"][number][key].pop(at)
                if less["policy"]["spec"]["rules"][number]["env"] or less["policy"]["spec"]["rules"][number]["mounts"]:
                    yield less
        for key in ("match", "onConflict"):
            if key in rule:
                less = copy.deepcopy(case)
                del less["policy"]["spec"]["rules"][number][key]
                yield less
        for at, mount in enumerate(rule["mounts"]):
            for key in ("allowBelow", "options", "readOnly"):
                if key in mount:
                    less = copy.deepcopy(case)
                    del less["policy"]["spec"]["rules"][number]["mounts"][at][key]
                    yield less
    if case["engine"]["name"] != "none":
        yield {**copy.deepcopy(case), "engine": {"name": "none"}}


def shape(case: Case) -> str:
    """What two finds of one cause have in common: the features that were left, without their accidental names."""
    parts = []
    for one in case["features"]:
        detail = one.get("op", one.get("how", one.get("type", "")))
        if one["kind"] == "image" and one["op"] == "link":
            detail += " to " + "/".join(one["to"].split("/")[:3])
        if one["kind"] == "env":
            detail = "NUL" if "\0" in one["entry"] else "bare" if "=" not in one["entry"] else ""
        if one["kind"] == "annotation":
            detail = one["key"]
        if one["kind"] == "member":
            detail = "/".join(map(str, [*one["at"], one["key"]]))
        if one["kind"] == "sidecar":
            detail = one["when"] + " " + "+".join(step[0] for step in one["ops"])
        if one["kind"] == "volume":
            detail = "+".join(sorted({step["op"] for step in one["ops"]}))
        parts.append(f"{one['kind']} {detail}".strip())
    return json.dumps(sorted(parts), ensure_ascii=True)
