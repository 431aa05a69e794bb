"""Makes the emptyDirs of pods, and removes those in memory.

kubelet removes its directory of a pod once the pod is gone and its containers have ended, also after a reboot, and an
emptyDir on disk in it. One in memory is unmounted by the agent, and before another one is mounted.
"""

from __future__ import annotations

import posix
import time
from collections.abc import Callable

from hook.core.base.errors import Unacceptable, Undecided
from hook.core.base.system import exists, is_shortage, make_directory
from hook.core.linux.mountns import mount_tmpfs, unmount
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.volumes import in_memory

_DIRECTORY = posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC


def make(volumes: list[PlaceMount], before_mounting: Callable[[], None], is_probe: bool) -> None:
    """Make the emptyDirs of a plan that the pod does not have yet. `before_mounting`: may raise.

    `is_probe`: the pod is one of `verify`, which kubelet does not know: it has no directory yet.

    Two containers of a pod may start at once, and each process may be killed between any two calls: one call makes
    each directory as all containers are to have it. Raises Undecided without kubelet's directory of the pod;
    Unacceptable for a link in the place of one; OSError.
    """
    for edit in volumes:
        path, (pods, _, size) = edit.source(), edit.volume
        above = path.rpartition("/")[0]
        uid = path.split("/")[-2 if size >= 0 else -3]
        if is_probe:
            make_directory(f"{pods}/{uid}", 0o750)
        try:
            posix.stat(f"{pods}/{uid}")
        except FileNotFoundError:
            root = pods.rpartition("/")[0]
            raise Undecided(
                f"{pods}/{uid} does not exist, where kubelet has its directory of the pod (spec.kubelet.root: {root})"
            ) from None
        if size < 0:
            _make_on_disk(pods, path[len(pods) :].strip("/").split("/"))
            continue
        if not exists(path):
            before_mounting()
            sweep(pods)
            make_directory(above, 0o700)
            _mount(path, size)
        if posix.stat(path).st_dev == posix.stat(above).st_dev:
            raise Undecided(f"{path} of the pod is not mounted in this mount namespace")


def _make_on_disk(pods: str, names: list[str]) -> None:
    """Make the directories of an emptyDir in kubelet's directory of pods. `names`: the pod's UID, OWN, the emptyDir's.

    A container with a volume of the pods may put a link in the place of each. So every name is opened without links,
    and made below the descriptor of the one above. Raises Unacceptable, OSError.
    """
    mode, path = 0, pods  # kubelet makes the first one
    directory = posix.open(pods, _DIRECTORY)
    try:
        for name in names:
            path = f"{path}/{name}"
            if mode:
                _make_below(directory, name, mode)
            mode = 0o777 if mode else 0o700
            try:
                below = posix.open(name, _DIRECTORY | posix.O_NOFOLLOW, dir_fd=directory)
            except NotADirectoryError:
                raise Unacceptable(f"{path} is not a directory") from None
            posix.close(directory)
            directory = below
    finally:
        posix.close(directory)


def _make_below(directory: int, name: str, mode: int) -> None:
    """Make a directory with exactly this mode: every user may write in kubelet's emptyDirs (pkg/volume/emptydir)."""
    mask = posix.umask(0)  # chmod(2) would come later, and again after a process of the pod has changed the mode
    try:
        posix.mkdir(name, mode, dir_fd=directory)
    except FileExistsError:
        pass
    finally:
        posix.umask(mask)


def _mount(path: str, size: int) -> None:
    """Mount a tmpfs in a directory of its own, to which the path is a link: of two processes, one makes the link."""
    own = f"{path}.{posix.getpid()}-{time.monotonic_ns()}"
    posix.mkdir(own, 0o700)
    try:
        mount_tmpfs(own, f"mode=0777,size={size}" if size else "mode=0777")
        posix.symlink(own, path)
    except BaseException as error:
        _remove(own)
        if not isinstance(error, FileExistsError):
            raise


def sweep(pods: str) -> None:
    """Unmount the emptyDirs in memory of pods that are gone. `pods`: kubelet's directory of pods. Raises a shortage."""
    try:
        own = in_memory(pods)
        gone = [uid for uid in posix.listdir(own) if not exists(f"{pods}/{uid}")]
        for directory in [f"{own}/{uid}" for uid in gone]:
            for name in posix.listdir(directory):
                _remove(f"{directory}/{name}")
            posix.rmdir(directory)
    except OSError as error:  # another process removes it too, or there usually is none
        if is_shortage(error):
            raise


def _remove(path: str) -> None:
    """Remove a directory with the tmpfs on it, or a link to one. Raises OSError."""
    try:
        posix.unlink(path)
        return
    except IsADirectoryError:
        pass
    try:
        unmount(path)
    except OSError:  # nothing is mounted there: its process was killed
        pass
    posix.rmdir(path)
