#!/usr/bin/env python3
"""Print trust-stacks.json, a file of a release: hook/compile/stacks.toml as data for others (docs/trust-stacks.md)."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "hook/compile/stacks.toml"

sys.path.insert(0, str(ROOT))
from hook.compile.trust import IMAGES_CERTS, Layout, Stack, table  # noqa: E402  # the checkout need not be installed
from hook.core.policy.trust_layout import ADDED, BUNDLE, CERTS, EXTRACTED, JAVA  # noqa: E402  # likewise

CONTENTS = {
    BUNDLE: "PEM: the roots of the system and the added CAs",
    ADDED: "PEM: the added CAs alone",
    JAVA: "PKCS12, password changeit: the roots of the system and the added CAs",
    CERTS: "a directory with the three files above, and each CA by OpenSSL's hash of its subject (openssl rehash)",
    EXTRACTED: "a directory with what update-ca-trust extracts: pem, openssl and java",
}
"""What the files and directories of a trust store hold, by the names that the table uses."""

REPLACES, ADDS = "replaces", "adds"
"""What a variable does to the roots that a program has."""


def data() -> dict[str, Any]:
    """The whole file."""
    layouts, stacks = table()
    return {
        "name": "trust-stacks",
        "version": tomllib.loads(TABLE.read_text())["version"],
        "contents": CONTENTS,
        "layouts": [_layout(layout) for layout in layouts.values()],
        "stacks": [_stack(stack) for stack in stacks.values()],
    }


def _layout(layout: Layout) -> dict[str, Any]:
    def places(paths: dict[str, str]) -> list[dict[str, str]]:
        return [{"path": path, "contents": contents} for path, contents in paths.items()]

    return {
        "id": layout.id,
        "distributions": layout.name,
        "directories": places(layout.directories),
        "files": places(layout.files),
        "source": layout.source,
    }


def _stack(stack: Stack) -> dict[str, Any]:
    return {
        "id": stack.id,
        "programs": stack.name,
        "variables": [_variable(name, value) for name, value in stack.env.items()],
        "unset": stack.absent,
        "default": stack.default,
        "tradeoff": stack.tradeoff,
        "worksByLayout": stack.alone,
        "needsVariable": stack.needs,
        "cannot": stack.cannot,
        "proof": "container" if stack.tested else "documentation",
        "source": stack.source,
    }


def _variable(name: str, value: str) -> dict[str, str]:
    """A variable: what it takes, whose place that has, and which of CONTENTS belongs there."""
    if value == IMAGES_CERTS:
        return {"name": name, "value": value, "takes": "directory", "effect": REPLACES, "contents": CERTS}
    [contents] = [each for each in (BUNDLE, ADDED, JAVA) if f"{IMAGES_CERTS}/{each}" in value] or [""]
    takes = "option" if value.startswith("-") else "file"
    effect = ADDS if contents == ADDED else REPLACES
    return {"name": name, "value": value, "takes": takes, "effect": effect, "contents": contents}


if __name__ == "__main__":
    json.dump(data(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
