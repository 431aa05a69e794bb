"""systemctl(1), for engines that are services."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from hook.node.errors import NodeError

SECONDS = 90
"""How long a unit may take, systemd's own default."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""systemd's default for services: where engines and their shims look for runtimes, and we for programs of the node."""


def which(program: str) -> str | None:
    """The absolute path of a program, as an engine finds it; None where it is not there."""
    return shutil.which(program, path=PATH)


def available() -> bool:
    """Whether systemd is this node's init (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def is_active(unit: str) -> bool:
    """Whether a unit runs."""
    return available() and _systemctl("is-active", "--quiet", unit).returncode == 0


def state(unit: str) -> str:
    """What systemctl(1) shows of a unit: active, inactive, failed, activating and so on."""
    shown = _systemctl("show", "--property=ActiveState", "--value", unit).stdout.strip() if available() else ""
    return shown or "inactive"


def main_pid(unit: str) -> int:
    """The unit's main process, 0 where there is none."""
    text = _systemctl("show", "--property=MainPID", "--value", unit).stdout.strip() if available() else ""
    return int(text) if text.isdigit() else 0


def is_masked(unit: str) -> bool:
    """Whether an administrator has forbidden every start of a unit."""
    return available() and "masked" in _systemctl("show", "--property=LoadState", "--value", unit).stdout


def run(verb: str, *units: str) -> None:
    """A verb that must succeed: restart, enable, … Raises NodeError with the last lines of the unit's journal."""
    done = _systemctl(verb, *units)
    if done.returncode == 0:
        return
    said = " ".join(done.stderr.split())
    lines = last_lines(units[-1]) if units else ""
    raise NodeError(f"systemctl {verb} {' '.join(units)} failed: {said}{lines}")


def restart(unit: str) -> None:
    """Restart a unit, whatever its start limit. Raises NodeError."""
    _systemctl("reset-failed", unit)
    run("restart", unit)


def wait_active(unit: str, seconds: float = SECONDS) -> None:
    """Wait until a unit runs. Raises NodeError."""
    deadline = time.monotonic() + seconds
    while not is_active(unit):
        if time.monotonic() > deadline:
            raise NodeError(f"{unit} is not active{last_lines(unit)}")
        time.sleep(0.1)


def _systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command(["systemctl", *arguments])


def last_lines(unit: str) -> str:
    """The end of a unit's journal, to be appended to a message; "" where there is none."""
    command(["journalctl", "--sync"])  # what the unit printed last may not have been read from its pipe yet
    lines = command(["journalctl", "--unit", unit, "--lines", "5", "--output", "cat", "--no-pager"]).stdout.splitlines()
    return "".join(f"\n  {line}" for line in lines)


def command(arguments: list[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a program of the node, with the node's PATH and no other environment. Raises NodeError if it cannot run.

    The frozen program's own library path must not reach it.
    """
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(  # noqa: S603  # a list, of our own words and the node's paths
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
