"""Shared by the tests of configurations: what containerd makes of its files, and what install may change of it."""

from __future__ import annotations

import os
import tomllib
from typing import Any

from e2e.node.engines import CONFIG, FORMATS
from e2e.node.wired import Wirable

CONF_D = "/etc/containerd/conf.d"
DROP_IN = f"{CONF_D}/99-reassert.toml"
SITE = "/etc/containerd/site.toml"

Dump = dict[tuple[str, ...], Any]


def version(node: Wirable) -> int:
    """Of the configuration format."""
    return FORMATS[node.booted.suite]


def two(node: Wirable) -> bool:
    """Whether it is containerd 2."""
    return node.booted.suite == "forky"


def write(node: Wirable, path: str, text: str) -> None:
    """A file that is there before reassert comes."""
    node.booted.path(path).parent.mkdir(exist_ok=True)
    node.booted.path(path).write_text(text)


def dump(node: Wirable) -> Dump:
    """What containerd makes of its configuration, without what is nothing; `imports` is how it got there."""
    config = CONFIG if os.path.lexists(node.booted.path(CONFIG)) else "/dev/null"  # 1.x cannot dump what is not there
    text = node.booted.run("containerd", "--config", config, "config", "dump").stdout
    flat: Dump = {}

    def walk(values: dict[str, Any], key: tuple[str, ...]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                walk(value, (*key, name))
            elif value and (*key, name) != ("imports",):
                flat[*key, name] = value

    walk(tomllib.loads(text), ())
    return flat


def binaries(dumped: Dump) -> dict[str, str]:
    """By handler, the name of its BinaryName, which is taken out."""
    keys = [key for key in dumped if key[-2:] == ("options", "BinaryName")]
    return {key[-3]: os.path.basename(dumped.pop(key)) for key in keys}


BOTH = {"crun": "reassert-crun", "runc": "reassert-runc"}
DEFAULT = {"runc": "reassert-runc"}


def assert_round_trip(node: Wirable, *changed: str, wired: dict[str, str] = BOTH) -> None:
    """Install changes just these files below /etc and, for containerd, only BinaryName; uninstall leaves nothing."""
    node.before = node.booted.snapshot()
    there, was = node.booted.snapshot(("/etc",)), dump(node)
    node.install()
    now = dump(node)
    assert binaries(now) == wired
    binaries(was)
    assert now == was
    after = node.booted.snapshot(("/etc",))
    assert {path for path in there.keys() | after.keys() if there.get(path) != after.get(path)} == set(changed)
    assert "no file was changed" in node.install().stdout
    node.node("uninstall")
    assert node.changes() == [], "\n".join(node.changes())


def main_file(node: Wirable) -> tuple[str, ...]:
    """What changes where nothing is imported yet."""
    return (CONFIG, CONF_D, DROP_IN) if two(node) else (CONFIG,)


def assert_refused(node: Wirable, *words: str, options: tuple[str, ...] = ()) -> None:
    """Install says in a line what is wrong, and changes nothing."""
    node.before = node.booted.snapshot()
    said = node.refuses(*options)
    assert len(said.splitlines()) == 1, said
    assert [word for word in words if word not in said] == [], said
