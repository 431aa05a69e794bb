"""Every real OCI runtime of the tests, and each adapter in front of one, for what must hold on all of them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from e2e.support import REASSERT, RUNTIMES, TOP, Bundle, Node, Running, need, run

NEWER = {
    f"{name}-{suite}": (suite, path)
    for suite in ("trixie", "forky")
    for name, path in (("runc", "usr/sbin/runc"), ("crun", "usr/bin/crun"))
}
"""runc 1.1.15 and crun 1.21 (trixie), runc 1.3.6 and crun 1.28 (forky), of build/roots."""

EACH = [*RUNTIMES, *NEWER]

WAYS = [(name, "wrapper") for name in EACH] + [
    (name, adapter) for name in RUNTIMES for adapter in ("createRuntime", "createContainer", "precreate")
]
"""A real runtime, and an adapter in front of it."""


def usual(items: list[Any]) -> list[Any]:
    """The tests without the combinations of a case with a runtime that REASSERT_EXHAUSTIVE=1 adds.

    A case is one of a test's other parameters. All cases run on the oldest and on the newest runc and crun; trixie's,
    which lie between them, have each fourth. The hook has each case once in the node's mount namespace and once in the
    container's, with runc and crun by turns, and precreate, which no runtime calls, has it once.
    """
    cases: dict[str, dict[Hashable, int]] = {}
    found: list[tuple[Any, tuple[str, str] | None, Hashable]] = []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        name = next((name for name in ("way", "each") if name in parameters), "")
        if not name or (name == "way") != isinstance(parameters[name], tuple):
            found.append((item, None, None))
            continue
        way = parameters[name] if name == "way" else (parameters[name], "wrapper")
        indices = item.callspec.indices.items()
        case = tuple((other, index) for other, index in sorted(indices) if other != name)
        seen = cases.setdefault(f"{item.path}::{item.originalname}", {})
        seen.setdefault(case, len(seen))
        found.append((item, way, case))
    kept = []
    for item, way, case in found:
        turns = cases.get(f"{item.path}::{item.originalname}", {}) if way else {}
        if way is None or len(turns) == 1 or _in_turn(*way, turns[case]):
            kept.append(item)
    return kept


def _in_turn(name: str, adapter: str, turn: int) -> bool:
    if "trixie" in name:
        return turn % 4 == 0
    if adapter == "wrapper":
        return True
    return (name == "runc") == (turn % 2 == (adapter == "createContainer"))


def real_runtime(name: str, directory: Path) -> str:
    """Path of a runtime. A newer Debian's runs with that Debian's libraries, in a mount namespace of its own."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    suite, path = NEWER[name]
    root = TOP / "build/roots" / suite
    need((root / ".complete").exists(), f"{root} (tests/roots.sh {suite})")
    libraries = "usr/lib/x86_64-linux-gnu"
    script = directory / name
    body = f'mount --bind {root}/{libraries} /{libraries} && exec {root}/{path} "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c '{body}' {name} \"$@\"\n")
    script.chmod(0o755)
    return str(script)


def hook_entry(node: Node, stage: str, *flags: str) -> dict[str, object]:
    """An entry as reassert writes it: absolute path, non-empty env, timeout."""
    return {
        "path": str(REASSERT),
        "args": ["reassert", "hook", *flags, *node.options(), stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 30,
    }


def guarded(adapter: str, real: str, node: Node, bundle: Bundle) -> Running:
    """A container of a saved bundle, with an adapter in front of it: `wrapper`, `precreate` or a stage of the hook."""
    bundle.save()
    if adapter == "wrapper":
        return Running(node.dispatcher(real), bundle)
    if adapter == "precreate":
        command = [str(REASSERT), "hook", *node.options(), "precreate"]
        done = run(*command, input=bundle.config.read_text(), cwd=bundle.directory, check=False)
        bundle.config.write_text(done.stdout or "refused by precreate")
        return Running(real, bundle)
    config = bundle.saved()
    config.setdefault("hooks", {}).setdefault(adapter, []).append(hook_entry(node, adapter))
    bundle.config.write_text(json.dumps(config))
    return Running(real, bundle)


class Console:
    """An engine's end of `--console-socket`, which a container with a terminal needs. It keeps what it is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptors: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        connection, _ = self._socket.accept()
        self.descriptors += socket.recv_fds(connection, 4096, 4)[1]
