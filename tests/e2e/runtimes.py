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

    A case is one of a test's other parameters. Behind the wrapper, each case runs on the oldest or the newest runc, and
    on the oldest or the newest crun, by turns; trixie's, which lie between them, have each eighth. The hook has each
    case once: in the node's mount namespace or in the container's, with runc or crun, by turns. precreate, which no
    runtime calls, has each fourth. A test of one case has all. With NRI, containerd 1.7 has runc only.
    """
    of_file: dict[Path, dict[Hashable, int]] = {}
    of_test: dict[Hashable, set[Hashable]] = {}
    found: list[tuple[Any, tuple[str, str] | None, Hashable]] = []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if (parameters.get("containerd"), parameters.get("runtime")) == ("1.7", "crun"):
            continue
        chosen = [name for name in ("way", "pair", "each") if name in parameters]
        given = parameters[chosen[0]] if chosen else ""
        way = given if isinstance(given, tuple) else (given, "wrapper")
        if way[0] not in EACH:
            found.append((item, None, None))
            continue
        indices = item.callspec.indices.items()
        test = item.path, item.originalname
        case = (test, *((name, index) for name, index in sorted(indices) if name not in chosen))
        of_test.setdefault(test, set()).add(case)
        turns = of_file.setdefault(item.path, {})
        turns.setdefault(case, len(turns))
        found.append((item, way, case))
    return [
        item
        for item, way, case in found
        if way is None or len(of_test[item.path, item.originalname]) == 1 or _in_turn(*way, of_file[item.path][case])
    ]


HOOKS = [("runc", "createRuntime"), ("crun", "createContainer"), ("runc", "createContainer"), ("crun", "createRuntime")]


def _in_turn(name: str, adapter: str, turn: int) -> bool:
    if "trixie" in name:
        return turn % 8 == 0
    if adapter == "precreate":
        return (name, turn % 8) in (("runc", 1), ("crun", 5))
    if adapter == "wrapper":
        return (turn if "runc" in name else turn // 2) % 2 == ("-" in name)
    return (name, adapter) == HOOKS[turn % 4] or (adapter == "createRuntime" and "-" in name and turn % 8 == 5)


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
