"""`reassert node` that a signal meets before a chosen one of its system calls, and everything as it was before that."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode
from e2e.support import need, run

CALLS = ("rename", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir")
"""By which the program changes what is where. What it writes goes into files that are not in their places yet."""

MANY = ("unlinkat", "rmdir", "mkdir")

KEPT = "/run/kept"
PLACES = ("/etc/containerd", "/etc/containers", "/etc/crio", "/etc/docker", "/etc/reassert")
PLACES += ("/etc/systemd/system", "/opt", "/usr/local", "/var/lib/reassert")
"""Where the program changes anything."""

_LINE = re.compile(r"^(\w+)\((.*)\) += (-?\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """The n-th system call of its name that a command makes."""

    name: str
    number: int
    arguments: str

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


def inside(process: subprocess.Popen[str]) -> int:
    """The process of a started `BootedNode.command`; its parent is nsenter, which only waits for it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    comm = Path(f"/proc/{process.pid}/comm")
    wait_for(lambda: comm.read_text() == "nsenter\n" and bool(children.read_text()), "the command's process")
    return int(children.read_text())


def traced(node: BootedNode, tracing: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    """A command on the node under strace: its own process, and none that it starts."""
    need(run("strace", "-V", check=False).returncode == 0, "strace")
    waiting = node.command("sh", "-c", 'read -r _; exec "$@"', "-", *command)
    with subprocess.Popen(
        waiting, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        strace = ["strace", *tracing, "-p", str(inside(process))]
        with subprocess.Popen(strace, text=True, stderr=subprocess.PIPE) as tracer:
            assert tracer.stderr
            said = tracer.stderr.readline()
            assert said.endswith(" attached\n"), said
            out, error = process.communicate("\n", timeout=90)
            tracer.communicate(timeout=90)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def steps(node: BootedNode, *command: str) -> list[Step]:
    """Run a command, and tell what it changes, in order.

    Of directories that come or go one after the other, and of a program's files, which go beside its place, the last
    one stands.
    """
    log = node.directory / "strace"
    done = traced(node, ["-o", str(log), "-e", f"trace={','.join(CALLS)}"], *command)
    assert done.returncode == 0, done.stderr
    numbers: Counter[str] = Counter()
    found: list[Step] = []
    for name, arguments, result in _LINE.findall(log.read_text()):
        numbers[name] += 1
        if int(result) == 0:
            found.append(Step(name, numbers[name], arguments))
    names = [step.name if step.name in MANY else "" for step in found]
    return [step for step, name, later in zip(found, names, [*names[1:], ""], strict=True) if not name or name != later]


def signalled(
    node: BootedNode, number: signal.Signals, call: str, when: int, *command: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, with a signal before its n-th system call of this name."""
    inject = f"inject={call}:signal={number.name}:when={when}"
    return traced(node, ["-o", "/dev/null", "-e", f"trace={call}", "-e", inject], *command)


def kill(node: BootedNode, step: Step, *command: str) -> None:
    """Run a command until it is about to make this step."""
    done = signalled(node, signal.SIGKILL, step.name, step.number, *command)
    assert done.returncode == -signal.SIGKILL, f"{step}: {done}"


def keep(node: BootedNode, name: str) -> None:
    """Remember everything that the program may change."""
    script = f"rm -rf {KEPT}/{name}; mkdir -p {KEPT}/{name}; for path in {' '.join(PLACES)}; do"
    node.run("sh", "-ec", f"{script} [ ! -e $path ] || cp -a --parents $path {KEPT}/{name}; done")


def bring_back(node: BootedNode, name: str) -> None:
    """Have all that as it was when it was kept."""
    if node.path("/etc/systemd/system/sockets.target.wants/reassert-agent.socket").is_symlink():
        node.run("systemctl", "stop", "reassert-agent.socket", "reassert-agent.service", check=False)
    node.run("sh", "-ec", f"rm -rf {' '.join(PLACES)}; cp -a {KEPT}/{name}/. /")
    node.run("systemctl", "daemon-reload")
