"""systemctl(1) and other programs of this node, their processes, and waiting for them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hook.node import answers
from hook.node.errors import NodeError
from hook.resident import oplog

_T = TypeVar("_T")

SECONDS = 90
"""The longest wait for a unit in seconds: systemd's default."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""systemd's default PATH for services. Engines and their shims find runtimes by it, reassert the node's programs."""


SELINUX = "/sys/fs/selinux/enforce"


def wait_until(condition: Callable[[], _T], seconds: float, pause: float = 0.1) -> _T:
    """Calls a function until its result is true or the time is over. Returns the last result."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def which(program: str) -> str | None:
    """Returns the absolute path of a program, found as an engine finds it; None if there is none."""
    return shutil.which(program, path=PATH)


def available() -> bool:
    """Whether systemd is this node's init (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def selinux_is_on() -> bool:
    """Whether the kernel has a policy of SELinux, permissive or enforcing."""
    return os.path.exists(SELINUX)


_SHOWN = ("ActiveState", "MainPID", "LoadState")

_remembered: dict[str, dict[str, str]] = {}
"""The states of units that `remembering` keeps."""


@contextmanager
def remembering(units: Sequence[str]) -> Iterator[bool]:
    """Asks systemd about these units at once. The block uses these states, and must not change them.

    Yields whether systemd answered about each: on a busy node it may not do so in time. True where there is no systemd.
    """
    _remembered.update(_show(units) if available() else {})
    try:
        yield not available() or all(_remembered.get(unit) for unit in units)
    finally:
        _remembered.clear()


def _show(units: Sequence[str]) -> dict[str, dict[str, str]]:
    shown = _systemctl("show", f"--property={','.join(_SHOWN)}", *units).stdout.split("\n\n")
    return {
        unit: dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for unit, block in zip(units, shown, strict=False)
    }


def _property(unit: str, name: str) -> str:
    if not available():
        return ""
    return (_remembered.get(unit) or _show([unit])[unit]).get(name, "")


def is_active(unit: str) -> bool:
    """Whether a unit runs (systemctl(1), is-active)."""
    return state(unit) in ("active", "reloading", "refreshing")


def state(unit: str) -> str:
    """What systemctl(1) shows of a unit: active, inactive, failed, activating and so on."""
    return _property(unit, "ActiveState") or "inactive"


def main_pid(unit: str) -> int:
    """Returns the pid of the unit's main process, 0 if there is none."""
    text = _property(unit, "MainPID")
    return int(text) if text.isdigit() else 0


def run(verb: str, *units: str) -> None:
    """Runs `systemctl VERB UNIT…`. Raises NodeError with the last lines of the unit's journal if that fails."""
    done = _systemctl(verb, *units)
    oplog.info("systemd.ran", verb=verb, units=units or None, status=done.returncode)
    if done.returncode == 0:
        return
    said = " ".join(done.stderr.split())
    lines = last_lines(units[-1]) if units else ""
    raise NodeError(f"systemctl {verb} {' '.join(units)} failed: {said}{lines}")


def stop_what_runs(unit: str) -> None:
    """Stops a unit that may not run, or not be known to systemd. Raises NodeError if it runs afterwards."""
    try:
        run("stop", unit)
    except NodeError:
        if state(unit) not in ("inactive", "failed"):
            raise


def load_state(unit: str) -> str:
    """What systemctl(1) shows of a unit's file: loaded, masked, not-found and so on; "" without systemd."""
    return _property(unit, "LoadState")


def restart(unit: str, wait: bool = True) -> None:
    """Restarts a unit, even one that has reached its start limit. Raises NodeError. `wait`: until it is ready."""
    _systemctl("reset-failed", unit)
    run("restart", *([] if wait else ["--no-block"]), unit)


def wait_active(unit: str, seconds: float = SECONDS) -> None:
    """Waits until a unit is active. Raises NodeError."""
    if not wait_until(lambda: is_active(unit), seconds):
        raise NodeError(f"{unit} is not active{last_lines(unit)}")


def _systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command(["systemctl", *arguments])


def last_lines(unit: str) -> str:
    """Returns the end of a unit's journal, to be appended to a message; "" if there is none."""
    command(["journalctl", "--sync"])  # journald may not have read the unit's last lines from its pipe yet
    lines = command(["journalctl", "--unit", unit, "--lines", "5", "--output", "cat", "--no-pager"]).stdout.splitlines()
    return "".join(f"\n  {line}" for line in lines)


def command(arguments: list[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Runs a program of the node. Raises NodeError if it cannot be run or does not end in time.

    The environment is PATH and LC_ALL only: the library path of the frozen program must not reach the other program.
    """
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(  # noqa: S603  # a list of fixed words and paths of the node
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise NodeError(f"{arguments[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise NodeError(f"`{' '.join(arguments)}` did not end within {seconds:.0f} s") from None
    oplog.debug("program.ran", arguments=shlex.join(arguments), status=done.returncode)
    return done


def output(arguments: list[str], failed: str) -> str:
    """Returns the standard output of a program of the node. Raises NodeError, with `failed` and what it says."""
    done = command(arguments)
    if done.returncode:
        raise NodeError(f"{failed}: {' '.join(done.stderr.split())}")
    return done.stdout


_VERSION = re.compile(r"\bv?(\d+)\.(\d+)\.(\d+)")


def version_of(program: str, oldest: tuple[int, int]) -> tuple[int, int, int]:
    """Returns the version that an engine's program prints. Raises NodeError if it prints none, or an older one."""
    asked, name = [which(program) or program, "--version"], os.path.basename(program)

    def run() -> str:
        done = command(asked)
        if done.returncode or not _VERSION.search(done.stdout):
            said = " ".join((done.stdout + done.stderr).split())
            raise NodeError(f"`{name} --version` prints no version: {said!r}")
        return done.stdout

    ((major, minor, patch),) = _VERSION.findall(answers.ask(asked, run, lambda _: ()))[:1]
    major, minor, patch = int(major), int(minor), int(patch)
    if (major, minor) < oldest:
        raise NodeError(f"{name} {major}.{minor} is too old; {oldest[0]}.{oldest[1]} or later is supported")
    return major, minor, patch


def is_the_nodes(process: str) -> bool:
    """Whether a process is in this process's pid namespace, and so in no container without hostPID. Raises OSError.

    A container's process can give itself a command line without an end, or in a file that does not answer (prctl(2),
    PR_SET_MM). `process`: its directory in /proc.
    """
    return os.readlink(f"{process}/ns/pid") == os.readlink("/proc/self/ns/pid")


def strings_of(pid: int, name: str) -> list[str]:
    """Returns the arguments of a process ("cmdline") or its environment ("environ"); [] if it does not run (pid 0)."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes()).rstrip("\0").split("\0") if pid else []
    except OSError:
        return []


def option(arguments: list[str], *names: str) -> list[str]:
    """Returns the values of an option (`--name value` and `--name=value`), in order."""
    found = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            found.append(value if equals else "".join(arguments[position + 1 : position + 2]))
    return found
