"""Another Debian to install into: a debootstrapped root that stays as it is below an overlay."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.paths import TOP
from harness.tools import need

ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
"""What a command mounts or leaves running goes when it ends."""

_ENTER = """
set -e
cd "$1"
mount -t overlay overlay -o "lowerdir=$2,upperdir=upper,workdir=work" root
mount -t proc proc root/proc
shift 2
exec "$@"
"""
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INSIDE = ("chroot", "root", "/usr/bin/env", "-i", _PATH, "sh", "-euc")

ROOT = TOP / "build/roots/trixie"


@dataclass(frozen=True)
class Chroot:
    """A Debian 13 in a scratch directory. `below`: another one to begin with, which is then left alone."""

    directory: Path
    below: Chroot | None = None

    def __post_init__(self) -> None:
        need((ROOT / ".complete").exists(), "build/roots/trixie (tests/roots.sh trixie)")
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir()

    def layers(self) -> list[str]:
        """The directories below its own, topmost first."""
        return [str(self.below.directory / "upper"), *self.below.layers()] if self.below else [str(ROOT.resolve())]

    def run(
        self, script: str, check: bool = True, under: tuple[str, ...] = (), inside: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a sh script in it; standard error joins standard output. Fails the test with the output.

        `under`: a command of this machine that runs all of it, a tracer say. Not `inside`: the script is this
        machine's, and sees the Debian at `root`.
        """
        shell = _INSIDE if inside else ("sh", "-euc")
        arguments = [str(self.directory), ":".join(self.layers()), *shell, script]
        done = subprocess.run(
            [*under, *ALONE, "sh", "-c", _ENTER, "enter", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert not check or done.returncode == 0, f"{script}: {done.returncode}\n{done.stdout}"
        return done

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file, as an administrator does. Not while something runs in it."""
        file = self.directory / "upper" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def read(self, path: str) -> str:
        """A file's text."""
        return self.run(f"cat {path}").stdout

    def files(self) -> dict[str, str]:
        """Type, mode, owner, size and target of everything but what dpkg keeps for itself, by path."""
        own = "-path /proc -o -path /var/lib/dpkg -o -path /var/log/dpkg.log -o -path /var/cache/debconf -o -path /debs"
        lines = self.run(f"find / \\( {own} \\) -prune -o -printf '%p|%y %m %u:%g %l\\n'").stdout.splitlines()
        return dict(line.split("|", 1) for line in lines)
