"""Measure a process: wall time, CPU time of it and its children, peak memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""What an engine's shim would pass on, more or less."""


class Failed(Exception):
    """A measured command failed."""


@dataclass(frozen=True)
class Sample:
    """Milliseconds of wall time and of CPU time."""

    wall: float
    cpu: float

    def __add__(self, other: Sample) -> Sample:
        return Sample(self.wall + other.wall, self.cpu + other.cpu)


def spawn(command: Sequence[str], environment: Mapping[str, str], output: str = "/dev/null") -> tuple[int, int]:
    """Start a command with nothing on stdin; (pid, start in ns)."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    begin = time.perf_counter_ns()
    return os.posix_spawn(command[0], list(command), environment, file_actions=actions), begin


def finish(pid: int, begin: int, command: Sequence[str], output: str = "") -> Sample:
    """Wait for a command. Raises Failed with its output."""
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter_ns() - begin
    if status:
        said = ""
        if output:
            with open(output, encoding="utf-8", errors="replace") as file:
                said = file.read()
        raise Failed(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}\n{said}")
    return Sample(wall / 1e6, (usage.ru_utime + usage.ru_stime) * 1e3)


def timed(command: Sequence[str], environment: Mapping[str, str] = ENVIRONMENT, output: str = "/dev/null") -> Sample:
    """Run a command to its end."""
    pid, begin = spawn(command, environment, output)
    return finish(pid, begin, command, output if output != "/dev/null" else "")


def peak(command: Sequence[str], environment: Mapping[str, str] = ENVIRONMENT) -> float:
    """Peak resident set of a command, in MB.

    GNU time stands between: a child's maximum starts with that of the process which forked it, and Python's is large.
    """
    line = ["/usr/bin/time", "-q", "-f", "%M", *command]
    done = subprocess.run(line, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return int(done.stderr.split()[-1]) / 1024


Action = Callable[[], Sample]


def interleaved(actions: Mapping[str, Action], rounds: int, progress: Callable[[int], None]) -> dict[str, list[Sample]]:
    """Each action once per round, in an order that rotates, so that no one always comes after the same other."""
    names = list(actions)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for name in names:
        actions[name]()  # warm caches; not counted
    for number in range(rounds):
        turn = number % len(names)
        order = names[turn:] + names[:turn]
        for name in order if number % 2 else reversed(order):
            samples[name].append(actions[name]())
        progress(number + 1)
    return samples
