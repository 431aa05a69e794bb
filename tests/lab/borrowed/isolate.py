"""Runs a command so that nothing of it stays: no process, mount, network device or cgroup."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ENTER = r"""
set -eu
# The cgroup file systems are mounted anew, so that their root is the cgroup that the outside made for this run.
for spec; do
  shift
  [ "$spec" != -- ] || break
  directory=${spec#*:}
  umount -l "$directory"
  case $spec in
  hide:*) ;;
  v2:*)
    mount -t cgroup2 cgroup2 "$directory"
    mkdir -p "$directory/tests" # controllers are only handed down by a cgroup that has no processes
    echo $$ > "$directory/tests/cgroup.procs" ;;
  *) mount -t cgroup -o "${spec%%:*}" cgroup "$directory" ;;
  esac
done
exec unshare --pid --fork --kill-child --mount-proc --ipc --uts --net sh -c '
  ip link set lo up
  echo 20000 > /proc/sys/kernel/ns_last_pid # suites expect process ids of five digits
  "$@"
  # What is frozen cannot be killed, and this namespace ends when all of its processes have.
  for file in $(find /sys/fs/cgroup -mindepth 2 -name freezer.state -o -mindepth 2 -name cgroup.freeze); do
    case $file in
    *.state) echo THAWED > "$file" ;;
    *) echo 0 > "$file" ;;
    esac
  done 2> /dev/null' sh "$@"
"""


class Cgroups:
    """One cgroup of our own in every hierarchy; below our own place in version 1, at the top in version 2."""

    def __init__(self, name: str, hybrid: bool) -> None:
        own = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own[controllers] = path
        self.directories: list[Path] = []
        self.mounts: list[str] = []
        """What `_ENTER` mounts again: OPTIONS:DIRECTORY, with v2 as the option of version 2. hide: it stays away."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            root, directory = left.split()[3:5]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                self.mounts.append(f"v2:{directory}")
                self.directories.append(Path(directory) / name)
            elif kind == "cgroup":
                given = set(options.split(","))
                names = next((names for names in own if names and set(names.split(",")) <= given), None)
                if names is not None:
                    self.mounts.append(f"{names}:{directory}")
                    self.directories.append(Path(directory) / os.path.relpath(own[names], root) / name)

        if not hybrid and any(not mount.startswith("v2:") for mount in self.mounts):
            self.mounts = [mount.replace("v2:", "hide:", 1) for mount in self.mounts]

    def make(self) -> None:
        """Make them."""
        for directory in self.directories:
            directory.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset of version 1 has none, so takes no process
                if (directory / file).exists() and (directory / "cpuset.cpu_exclusive").exists():
                    (directory / file).write_text((directory.parent / file).read_text())

    def enter(self) -> None:
        """Move this process there."""
        for directory in self.directories:
            (directory / "cgroup.procs").write_text("0")

    def thaw(self) -> None:
        """What is frozen cannot be killed."""
        for directory in self.directories:
            for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                for file in sorted(directory.rglob(name)):
                    file.write_text(value)

    def remove(self) -> None:
        """Remove them with all that was made below, when the processes are gone."""
        for directory in self.directories:
            deadline = time.monotonic() + 10
            while directory.exists():
                for path, _, _ in os.walk(directory, topdown=False):
                    try:
                        os.rmdir(path)
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                time.sleep(0.05)


def run(command: list[str], name: str, limit: float, hybrid: bool = True, **options: Any) -> bool:
    """Run a command in namespaces, cgroups and on a terminal of its own. False: it was killed after `limit` seconds.

    `name`: of the cgroups; none of that name may exist. `hybrid`: whether it may see a version 2 tree beside version 1,
    which crun refuses. `options`: as subprocess.Popen takes them.
    """
    cgroups = Cgroups(name, hybrid)
    with _terminal() as terminal:

        def enter() -> None:
            cgroups.enter()
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        try:
            cgroups.make()
            return _run(command, cgroups, limit, preexec_fn=enter, stdin=terminal, **options)
        finally:
            cgroups.remove()


def _run(command: list[str], cgroups: Cgroups, limit: float, **options: Any) -> bool:
    unshared = ["unshare", "--cgroup", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh"]
    with subprocess.Popen([*unshared, *cgroups.mounts, "--", *command], **options) as process:
        try:
            process.wait(limit)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)  # --kill-child ends the rest with it
                cgroups.thaw()


@contextmanager
def _terminal() -> Iterator[int]:
    """A terminal; what is written to it is thrown away."""
    ours, theirs = os.openpty()

    def drain() -> None:
        try:
            while os.read(ours, 65536):
                pass
        except OSError:  # the last process that had it open is gone
            pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
