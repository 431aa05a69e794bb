"""A root file system of its own for processes of a test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

_HOLDER = """
directory=$1 lower=$2
shift 2
{before}
cd "$directory"
mkdir -p upper work root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" root
cd root
mkdir -p proc sys dev run tmp old
mount --rbind /sys sys
if [ -d sys/fs/cgroup/unified ]; then mount -t tmpfs tmpfs sys/fs/cgroup/unified; fi
if [ "$$" = 1 ]; then mount -t proc proc proc; else mount --rbind /proc proc; fi
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=0755 tmpfs dev
mkdir dev/pts dev/shm
mount --rbind /dev/pts dev/pts
mount -t tmpfs tmpfs dev/shm
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 kmsg:1:11 tty:5:0 console:5:1 ptmx:5:2 \\
  fuse:10:229 loop-control:10:237; do
  name=${{device%%:*}} number=${{device#*:}}
  mknod -m 0666 "dev/$name" c "${{number%:*}}" "${{number#*:}}"
done
ln -s /proc/self/fd dev/fd
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${{number%:*}}" "dev/${{number#*:}}"; done
for path; do
  mkdir -p ".$path"
  mount --rbind "$path" ".$path"
done
{inside}
pivot_root . old
umount -l /old
rmdir /old
{finish}
echo ready
cat > /dev/null
exit  # so the shell stays: as the first process of a pid namespace it reaps orphans
"""


class OverlayRoot:
    """An overlay over `lower`, in a mount namespace, with /proc and /sys, and a /run and a /dev of its own.

    It ends with the last process in it after `close`. `pid`: of a process in it.
    """

    def __init__(
        self,
        directory: Path,
        lower: Path,
        same: Iterable[Path] = (),
        *,
        before: str = "",
        inside: str = "",
        finish: str = "",
        options: Iterable[str] = ("--propagation", "private"),
    ) -> None:
        """`directory`: not on an overlay; it gets `upper`, `work` and `root`. `same`: paths that lead to the machine's.

        `before`, `inside`, `finish`: shell commands in the namespace before all others; in the new root, while the
        machine's paths are still there; and when they are not. `options`: of unshare(1).
        """
        script = _HOLDER.format(before=before, inside=inside, finish=finish)
        command = ["unshare", "--mount", *options, "sh", "-euc", script, "root", str(directory), str(lower)]
        self._holder = subprocess.Popen(
            [*command, *map(str, same)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"ready\n", f"no root over {lower}: is this root, with CAP_SYS_ADMIN?"
        self.pid = self._holder.pid
        self._namespaces = [option for option in ("--mount", "--pid") if option in command]
        if "--fork" in command:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())

    def command(self, *command: str) -> list[str]:
        """The command line, here, of a command there."""
        return ["nsenter", f"--target={self.pid}", *self._namespaces, *command]

    def path(self, path: str) -> Path:
        """A file there as it is seen from here."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def close(self) -> None:
        """End the process that holds it."""
        self._holder.communicate(timeout=600)
