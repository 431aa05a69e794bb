"""Makes the emptyDirs of pods, and removes those in memory. Loaded only for such rules; builtins only.

kubelet removes its directory of a pod once the pod is gone and its containers have ended, also after a reboot, and an
emptyDir on disk in it. One in memory is unmounted by the agent, and before another one is mounted.
"""

import posix
import time

from hook.core.base.errors import Undecided
from hook.core.base.system import exists, is_directory, is_shortage, make_directory
from hook.core.linux.mountns import mount_tmpfs, unmount
from hook.core.reserve.volumes import in_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.core.reserve import PlaceMount


def make(volumes: "list[PlaceMount]", before_mounting: "Callable[[], None]", is_probe: bool) -> None:
    """Make the emptyDirs of a plan that the pod does not have yet. `before_mounting`: may raise.

    `is_probe`: the pod is one of `node verify`, which kubelet does not know: it has no directory yet.

    Two containers of a pod may start at once, and each process may be killed between any two calls: one call makes
    each directory as all containers are to have it. Raises Undecided without kubelet's directory of the pod; OSError.
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
            make_directory(above, 0o700)
            _make_for_all(path)
            for each in (f"{pods}/{uid}", above, path):  # a container with a hostPath of the pods may replace one
                if not is_directory(posix.lstat(each)):
                    raise Undecided(f"{each} is not a directory")
            continue
        if not exists(path):
            before_mounting()
            sweep(pods)
            make_directory(above, 0o700)
            _mount(path, size)
        if posix.stat(path).st_dev == posix.stat(above).st_dev:
            raise Undecided(f"{path} of the pod is not mounted in this mount namespace")


def _make_for_all(path: str) -> None:
    """Make a directory in which every user may write, as kubelet's emptyDirs (pkg/volume/emptydir)."""
    mask = posix.umask(0)  # chmod(2) would come later, and again after a process of the pod has changed the mode
    try:
        posix.mkdir(path, 0o777)
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
