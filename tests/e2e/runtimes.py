"""Every real OCI runtime of the tests, and each adapter in front of one, for what must hold on all of them."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT, ROOTS, RUNTIMES, TOP
from harness.tools import need, run

EXHAUSTIVE = os.environ.get("REASSERT_EXHAUSTIVE") == "1"
"""Whether every case is tried with every runtime and adapter; CONTRIBUTING.md says what the usual run has of them."""

NEWER = {
    f"{name}-{suite}": (suite, path)
    for suite in ("trixie", "forky")
    for name, path in (("runc", "usr/sbin/runc"), ("crun", "usr/bin/crun"))
}
"""runc 1.1.15 and crun 1.21 (trixie), runc 1.3.6 and crun 1.28 (forky), of build/roots."""

EACH = [*RUNTIMES, *NEWER]

WAYS = [(name, "wrapper") for name in EACH] + [
    (name, adapter) for name in RUNTIMES for adapter in ("createRuntime", "createContainer")
]
"""A real runtime, and an adapter in front of it."""


TURNS = ["runc", "runc-forky", "crun", "crun-forky", "crun-trixie", "runc-trixie"]
"""In this order each parameter of two or three values meets both runc and crun."""

BOTH = ("test_finds.py", "test_ways_in.py")
"""What once got past us with one of the two."""


def usual(items: list[Any]) -> list[Any]:
    """The tests without the combinations of a case with a runtime that REASSERT_EXHAUSTIVE=1 adds.

    A case is one of a test's other parameters. Each case runs once behind the wrapper, on one of the six runtimes by
    turns; where a test has fewer than four cases or is in BOTH, on a runc and on a crun. Each second case, and one that
    is alone, runs with the hook too, in the node's mount namespace or in the container's. With NRI, containerd 1.7 has
    runc only.
    """
    kept: set[int] = set()
    of_file: dict[Path, int] = {}
    of_test: dict[Hashable, dict[Hashable, dict[tuple[str, str], Any]]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        chosen = next((name for name in ("way", "pair", "each", "real") if name in parameters), "")
        given = parameters.get(chosen)
        way = given if isinstance(given, tuple) else (str(given), "wrapper")
        if way[0] not in EACH:
            if (parameters.get("containerd"), parameters.get("runtime")) != ("1.7", "crun"):
                kept.add(id(item))
            continue
        case = tuple((name, repr(value)) for name, value in sorted(parameters.items()) if name != chosen)
        of_test.setdefault((item.path, item.originalname), {}).setdefault(case, {})[way] = item
    for (path, _), cases in of_test.items():
        for ways in cases.values():
            turn = of_file[path] = of_file.get(path, -1) + 1
            both = len(cases) < 4 or path.name in BOTH
            kept.update(id(ways[way]) for way in _in_turn(list(ways), turn, both, len(cases) == 1))
    return [item for item in items if id(item) in kept]


def _in_turn(ways: list[tuple[str, str]], turn: int, both: bool, alone: bool) -> list[tuple[str, str]]:
    """Those of a case's ways that it has in its turn. `both`: of runc and crun. `alone`: its test has no other case."""
    wrapped = [(name, "wrapper") for name in TURNS if (name, "wrapper") in ways]
    hooks = [way for way in ways if way[1].startswith("create")]
    found = []
    if both:
        for kind in ("runc", "crun"):
            of_kind = [way for way in wrapped if kind in way[0]]
            found += of_kind[turn % len(of_kind) :][:1] if of_kind else []
    elif wrapped:
        found.append(wrapped[turn % len(wrapped)])
    if hooks and (alone or not wrapped or turn % 2 == 0):
        found.append(hooks[turn // 2 % len(hooks)])
    return found


def real_runtime(name: str, directory: Path) -> str:
    """Path of a runtime. A newer Debian's runs with that Debian's libraries, in a mount namespace of its own."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    suite, path = NEWER[name]
    root = ROOTS / suite
    need((root / ".complete").exists(), f"{root} (tests/roots.sh {suite})")
    libraries = "usr/lib/x86_64-linux-gnu"
    script = directory / name
    body = f'mount --bind {root}/{libraries} /{libraries} && exec {root}/{path} "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c '{body}' {name} \"$@\"\n")
    script.chmod(0o755)
    return str(script)


def exchanging(real: str, node: Node, path: Path, target: str) -> str:
    """A runtime before whose start a directory becomes a link: after the decision of who calls it.

    containerd resolves a hostPath before, so an attacker exchanges it later.
    """
    script = node.directory / f"exchanging-{Path(real).name}"
    script.write_text(f'#!/bin/sh\n[ -L {path} ] || {{ rmdir {path} && ln -s {target} {path}; }}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return str(script)


def criu(directory: Path) -> Path:
    """The criu of build/roots/forky, with that Debian's libraries, in the mount namespace of who calls it."""
    root = TOP / "build/roots/forky"
    need((root / "usr/sbin/criu").exists(), f"{root} with criu (tests/roots.sh forky)")
    script = directory / "bin/criu"
    script.parent.mkdir()
    loader = f"{root}/lib64/ld-linux-x86-64.so.2 --library-path {root}/usr/lib/x86_64-linux-gnu"
    script.write_text(f'#!/bin/sh\nexec {loader} {root}/usr/sbin/criu "$@"\n')
    script.chmod(0o755)
    checked = run(str(script), "check", check=False)
    need(checked.returncode == 0, f"what criu asks of a kernel: {checked.stderr}", installed=False)
    return script


def hook_entry(node: Node, stage: str, *flags: str) -> dict[str, object]:
    """An entry as reassert writes it: absolute path, non-empty env, timeout."""
    return {
        "path": str(REASSERT),
        "args": ["reassert", "hook", *flags, *node.options(), stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 30,
    }


def guarded(adapter: str, real: str, node: Node, bundle: Bundle) -> Running:
    """A container of a saved bundle, with an adapter in front of it: `wrapper` or a stage of the hook."""
    bundle.save()
    if adapter == "wrapper":
        return Running(node.dispatcher(real), bundle)
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
