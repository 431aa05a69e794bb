"""How much CPU `reassert status` takes on a booted node of containerd: it is a readiness probe, each ten seconds.

    sudo build/venv-test/bin/python tests/bench/status.py [--runs 10]

User and system time with all child processes, the least and the median of the runs; the clock's time beside it. Then
the programs of the node that status starts. Needs what `sudo tests/run.sh` has set up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP), str(TOP / "tests")]

from e2e.node.booted import BootedNode, booted  # noqa: E402  # after the path is set
from e2e.node.wired import FILES, PACKAGED, package, usual_config  # noqa: E402  # likewise

COMMANDS = (
    *((PACKAGED, *words) for words in (("--version",), ("status",), ("status", "--record"), ("status", "--all"))),
    *(("containerd", "--version"), ("containerd", "config", "dump"), ("systemctl", "show", "containerd.service")),
)
STARTED = ("containerd", "ctr", "systemctl", "runc", "crun", "journalctl")
_TIMED = "TIMEFORMAT='%U %S %R'; for i in $(seq {runs}); do time {command} > /dev/null 2>&1; done"


def main() -> None:
    """Boots a node, wires it, and prints a line for each of COMMANDS."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    with booted("forky", config=usual_config("forky"), files=FILES) as node:
        package(node)
        node.wait_for_cri()
        node.run(PACKAGED, "install", "--engine", "containerd", "--no-probe", "--except", "handler/*")
        while "config dump" not in node.path("/var/lib/reassert/node.json").read_text():
            node.run(PACKAGED, "status", "--record")  # as its timer does each minute (hook.node.answers)
        for command in COMMANDS:
            print(f"{' '.join(command):60} {measured(node, ' '.join(command), runs)}", flush=True)
        print("\n".join(["status starts:", *started(node)]))


def measured(node: BootedNode, command: str, runs: int) -> str:
    """The CPU time of a command, and the clock's."""
    said = node.run("bash", "-c", _TIMED.format(runs=runs, command=command)).stderr.split()
    times = [float(text) for text in said]
    cpu = [user + system for user, system in zip(times[::3], times[1::3], strict=True)]
    return f"{min(cpu):.3f} s of CPU, median {statistics.median(cpu):.3f}, clock {min(times[2::3]):.3f}"


def started(node: BootedNode) -> list[str]:
    """The command lines of the programs that `status` starts, by scripts before them in PATH."""
    for name in STARTED:
        real = node.run("sh", "-c", f"command -v {name}", check=False).stdout.strip()
        script = node.path(f"/usr/local/sbin/{name}")
        if real and not script.exists():
            script.write_text(f'#!/bin/sh\necho "  {name} $*" >> /root/started\nexec {real} "$@"\n')
            script.chmod(0o755)
    node.run(PACKAGED, "status", check=False)
    return node.path("/root/started").read_text().splitlines()


if __name__ == "__main__":
    main()
