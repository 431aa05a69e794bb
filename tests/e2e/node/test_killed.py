"""`reassert node install` and `uninstall`, killed before each single step: the next of either finishes the job.

Engines are stopped: that makes no difference to the files, and restarts take their time. CRI-O is a script that knows
its files; no Debian has the real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from e2e.node import killed
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG
from e2e.node.files import Snapshot, differences
from e2e.node.wired import FILES, PACKAGED, PROGRAM, package
from e2e.support import TOP

DAEMON_JSON = "/etc/docker/daemon.json"
ADMINISTRATORS = {
    "runtimes": {"crun": {"path": "/usr/bin/crun"}},
    "bridge": "none",
    "iptables": False,
    "ip-forward": False,
    "storage-driver": "vfs",
}
CRIO = """\
#!/bin/sh
case $* in
*--version*) echo crio version 1.31.0 ;;
*--default*) cat /src/reassert/tests/fixtures/crio/default.toml ;;
*config*) cat /etc/crio/crio.conf.d/99-reassert.conf || true ;;
esac
"""


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with every engine, and no policy yet."""
    files = {path: text for path, text in FILES.items() if not path.startswith("/etc/reassert/")}
    files[DAEMON_JSON] = json.dumps(ADMINISTRATORS)
    files["/usr/local/bin/crio"] = CRIO
    files["/etc/crio/crio.conf.d/10-crio.conf"] = (TOP / "tests/fixtures/crio/10-crio.conf").read_text()
    node = module_boot("bookworm", files=files, docker=True, images=False)
    node.path("/usr/local/bin/crio").chmod(0o755)
    node.run("systemctl", "stop", "docker.socket", "docker", "containerd")
    package(node)
    node.run("podman", "info")  # which makes files when it is first called
    killed.keep(node, "bare")
    return node


def commands(engine: str, program: str) -> dict[str, list[str]]:
    """The command line for each operation."""
    return {
        "install": [program, "node", "install", "--engine", engine, "--no-probe", *WITHOUT.get(engine, [])],
        "uninstall": [program, "node", "uninstall", "--engine", engine],
    }


def there(node: BootedNode) -> tuple[Snapshot, list[int]]:
    """Everything, with the times of the files that are edited in place."""
    return node.snapshot(), [node.path(path).stat().st_mtime_ns for path in (CONFIG, DAEMON_JSON)]


def part(step: killed.Step) -> str:
    """What a step is a part of."""
    if step.name == "unlinkat" or any(path in step.arguments for path in ("/opt/", "/usr/local/bin/")):
        return "program"
    own = any(path in step.arguments for path in ("/journal.json", "/node/lock"))
    return "journal" if own or step.name in ("mkdir", "rmdir") else "files"


WITHOUT = {engine: ["--no-agent"] for engine in ("containerd", "crio", "docker")}
"""One engine with an agent's files is enough, and the agent takes its time to start."""


def around(steps: list[killed.Step]) -> list[killed.Step]:
    """Before and after each change of an engine's own files: all that differs from engine to engine."""
    own = [step.arguments.startswith('"/etc/') and "/etc/reassert" not in step.arguments for step in steps]
    return [step for step, *either in zip(steps, own, [False, *own[:-1]], strict=True) if any(either)]


def some(wanted: str, distance: int) -> Callable[[list[killed.Step]], list[killed.Step]]:
    """Each step of a part at this distance, and its last one. unit/node/test_rollback.py stops before every one."""

    def chosen(steps: list[killed.Step]) -> list[killed.Step]:
        found = [step for step in steps if part(step) == wanted]
        return [*found[:-1:distance], found[-1]]

    return chosen


CASES: dict[str, tuple[str, str, Callable[[list[killed.Step]], list[killed.Step]]]] = {
    "containerd": ("containerd", PACKAGED, around),
    "crio": ("crio", PACKAGED, around),
    "podman": ("podman", PACKAGED, lambda steps: around(steps)[::3]),
    "docker": ("docker", PACKAGED, some("files", 3)),
    "journal": ("docker", PACKAGED, some("journal", 3)),
    "program": ("docker", PROGRAM, some("program", 5)),
}
"""Engine, program, and which of the steps."""


@pytest.mark.parametrize("operation", ["install", "uninstall"])
@pytest.mark.parametrize("case", CASES)
def test_killed_before_each_step(node: BootedNode, case: str, operation: str) -> None:
    """Then one of the two ways to finish, in turn; tests/unit/node/test_rollback.py tries both after each step."""
    engine, program, chosen = CASES[case]
    command = commands(engine, program)
    killed.bring_back(node, "bare")
    bare = there(node)
    if operation == "uninstall":
        node.run(*command["install"])
    before = there(node)
    killed.keep(node, "before")
    steps = killed.steps(node, *command[operation])
    after = there(node)
    wanted = {operation: after, "uninstall" if operation == "install" else "install": before}
    assert wanted["uninstall"] == bare
    seen = []
    for step in chosen(steps):
        killed.bring_back(node, "before")
        killed.kill(node, step, *command[operation])
        found = node.snapshot()
        if found in seen:
            continue
        seen.append(found)
        finishing = sorted(wanted)[len(seen) % 2]
        node.run(*command[finishing])
        now = there(node)
        left = differences(wanted[finishing][0], now[0])
        assert left == [], f"killed before {step}, then {finishing}: {left}"
        assert finishing == "install" or now == bare, f"times: killed before {step}, then {finishing}"
    assert len(seen) >= 2
