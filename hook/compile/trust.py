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
from hook.core.policy.trust_layout import ALONE, ASIDE_PATH, CERTS, LIVE, live

DEFAULTS = "defaults"
"""The name that stands for all stacks without a trade-off, in `stacks`."""

DIRECTORIES, FILES, ASIDE = "Directories", "Files", "Aside"
"""The values of `mount`: over the image's directories, over its single files, or at a path that no image has."""

TRADE_OFFS = {
    DIRECTORIES: (
        "every program that reads the files of its distribution",
        "the image's directories are read-only, and its own files in them are hidden: update-ca-certificates, "
        "update-ca-trust, and apt, apk, dnf, microdnf or zypper where they install ca-certificates, fail (EROFS)",
    ),
    FILES: (
        "every program that reads a bundle of its distribution",
        "what renames a file over a bundle fails (EBUSY): update-ca-certificates, update-ca-trust, and the same "
        "package managers; a running container keeps the old bundle",
    ),
    ASIDE: (
        "programs that read a variable",
        "programs that read none do not get the CAs; the image's own CAs stay trusted",
    ),
}
"""By value of `mount`: which programs get the CAs, and what it costs."""

IMAGES_CERTS = "/etc/ssl/certs"
"""The directory in which the env of stacks.toml names files. With ASIDE they are in ASIDE_PATH."""


@dataclass(frozen=True)
class Layout:
    """Where the images of some distributions have their CA files."""

    id: str
    name: str
    source: str
    directories: dict[str, str]
    """By path in the container, the path below the store's live directory. Not used with ASIDE."""
    files: dict[str, str]
    """The same for files."""


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
    aside: str = ""


Entries = dict[str, tuple[dict[str, Any], str]]
"""Entries of a rule, each with the ids of the stacks, or of the layout, that it is for."""


@cache
def table() -> tuple[dict[str, Layout], dict[str, Stack]]:
    """The layouts and the stacks of stacks.toml, by id."""
    text = resources.files("hook.compile").joinpath("stacks.toml").read_text("utf-8")
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


def trade_off(mount: str) -> str:
    """What a value of `mount` costs, as one sentence."""
    cost = TRADE_OFFS[mount][1]
    if mount == ASIDE:
        without = [stack.id for stack in table()[1].values() if not stack.env]
        parts = [f"{stack.id} ({stack.aside})" for stack in table()[1].values() if stack.aside]
        cost += f". Not reached: {', '.join([*without, *parts])}"
    return f"mount: {mount}: {cost}"


def aside(value: str) -> str:
    """The value of a variable whose files are in ASIDE_PATH instead of the image's directory."""
    return value.replace(IMAGES_CERTS, ASIDE_PATH)


def entries(trust: dict[str, Any]) -> tuple[Entries, Entries]:
    """The entries of `env` by name and of `mounts` by mountPath that `trust` stands for."""
    env: Entries = {}
    mount = trust.get("mount", DIRECTORIES)
    for stack in chosen(trust):
        values = {name: aside(value) if mount == ASIDE else value for name, value in stack.env.items()}
        wanted: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
        wanted += [{"name": name, "absent": True} for name in stack.absent]
        for entry in wanted:
            name = str(entry["name"])
            env[name] = (entry, f"{env[name][1]}, {stack.id}" if name in env else stack.id)
    store = directory(str(trust["bundle"])) + ("" if trust.get("publicRoots", True) else f"/{ALONE}")
    above = {"volumesAbove": "Allow"} if trust.get("volumesAbove") == "Allow" else {}
    if mount == ASIDE:
        return env, {ASIDE_PATH: ({"hostPath": f"{store}/{CERTS}", "mountPath": ASIDE_PATH}, "aside")}
    mounts: Entries = {}
    for layout in table()[0].values():
        places = layout.files if mount == FILES else layout.directories
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
