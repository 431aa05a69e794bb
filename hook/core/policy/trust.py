"""The env and mounts that `trust` in a rule stands for, from the table stacks.toml. Used by the compiler only.

A rule with `trust` is compiled as if the policy file listed these entries, after the rule's own. An entry of the rule's
own for the same env name or mountPath replaces the one of `trust`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from hook.core.base.compare import clean
from hook.core.policy.trust_layout import ALONE, LIVE, live

DEFAULTS = "defaults"
"""The name that stands for all stacks without a trade-off, in `stacks`."""

FILES = "Files"
"""The value of `mount` that mounts single files instead of directories."""


@dataclass(frozen=True)
class Layout:
    """Where the images of some distributions have their CA files.

    `directories`, `files`: path in the container, and path below the store's live directory.
    """

    id: str
    name: str
    source: str
    directories: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class Stack:
    """A TLS library or a program, and the env that leads it to the store. stacks.toml describes the fields."""

    id: str
    name: str
    source: str
    tested: bool
    env: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    default: bool = True
    tradeoff: str = ""
    alone: str = ""
    needs: str = ""
    cannot: str = ""


Entries = dict[str, tuple[dict[str, Any], str]]
"""Entries of a rule, each with the ids of the stacks, or of the layout, that it is for."""


@cache
def table() -> tuple[dict[str, Layout], dict[str, Stack]]:
    """The layouts and the stacks of stacks.toml, by id."""
    text = resources.files("hook.core.policy").joinpath("stacks.toml").read_text("utf-8")
    data = tomllib.loads(text)
    layouts = [Layout(**entry) for entry in data["layout"]]
    stacks = [Stack(**entry) for entry in data["stack"]]
    return {layout.id: layout for layout in layouts}, {stack.id: stack for stack in stacks}


def chosen(trust: dict[str, Any]) -> list[Stack]:
    """The stacks of a `trust` mapping. Unknown names are left out: `policy check` reports them."""
    stacks = table()[1]
    names: list[str] = []
    for name in trust.get("stacks", [DEFAULTS]):
        names += [stack.id for stack in stacks.values() if stack.default] if name == DEFAULTS else [str(name)]
    return [stacks[name] for name in dict.fromkeys(names) if name in stacks]


def directory(bundle: str) -> str:
    """The live directory of a bundle, which is the name of a store or the absolute path of one."""
    return f"{clean(bundle)}/{LIVE}" if bundle.startswith("/") else live(bundle)


def entries(trust: dict[str, Any]) -> tuple[Entries, Entries]:
    """The entries of `env` by name and of `mounts` by mountPath that `trust` stands for."""
    env: Entries = {}
    for stack in chosen(trust):
        wanted: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in stack.env.items()]
        wanted += [{"name": name, "absent": True} for name in stack.absent]
        for entry in wanted:
            name = str(entry["name"])
            env[name] = (entry, f"{env[name][1]}, {stack.id}" if name in env else stack.id)
    store = directory(str(trust["bundle"])) + ("" if trust.get("publicRoots", True) else f"/{ALONE}")
    above = {"volumesAbove": "Allow"} if trust.get("volumesAbove") == "Allow" else {}
    mounts: Entries = {}
    for layout in table()[0].values():
        places = layout.files if trust.get("mount") == FILES else layout.directories
        for path, part in places.items():
            mounts[path] = ({"hostPath": f"{store}/{part}", "mountPath": path, **above}, layout.id)
    return env, mounts


def expanded(rule: dict[str, Any]) -> dict[str, Any]:
    """A checked rule of a policy file with the entries of its `trust` after its own."""
    trust = rule.get("trust")
    if not trust:
        return rule
    env, mounts = entries(trust)
    own_env, own_mounts = list(rule.get("env") or []), list(rule.get("mounts") or [])
    names = {str(entry["name"]) for entry in own_env}
    paths = {clean(str(entry["mountPath"])) for entry in own_mounts}
    return {
        **rule,
        "env": own_env + [entry for name, (entry, _) in env.items() if name not in names],
        "mounts": own_mounts + [entry for path, (entry, _) in mounts.items() if path not in paths],
    }
