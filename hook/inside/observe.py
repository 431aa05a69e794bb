"""What a running container has: its mounts as OCI mounts, so that `plan` can compare them, and the devices it can use.

A mount counts as the policy's if its path, resolved inside the container, leads to that mount and to the same file or
directory that the policy names. The text of paths alone does not count. Mounts that other mounts hide are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hook.core.base.compare import is_below
from hook.core.base.errors import ReassertError
from hook.core.base.mountinfo import Row, mount_table_at
from hook.core.container.nodes import words as device_name
from hook.core.linux.lookdevices import devices_below
from hook.core.linux.walk import open_walked
from hook.core.policy.entries import Mount
from hook.core.reserve.exclusive import Closed
from hook.inside import workers
from hook.inside.process import ContainerGone
from hook.inside.rights import DAC_OVERRIDE, ENTER
from hook.inside.running import Taken

_FLAGS = ("ro", "nosuid", "nodev", "noexec")
"""The options of mount(8) that are compared. The others do not change what a container can do with the mount."""

CONTENT = 1 << 20
"""How many bytes of a file are read in a container: an engine may limit the output of what it executes."""

_CGROUPS = Path("/sys/fs/cgroup")


def mounts(pid: int, reserved: list[Mount]) -> list[dict[str, object]]:
    """Returns the mounts at and below reserved paths in the mount namespace of a process.

    Other mounts come first. Mounts that are as reserved come last, in the policy's form. A process without rights reads
    them (hook.inside.workers). Raises ContainerGone, ReassertError, OSError.
    """

    def take() -> tuple[int, int] | None:
        try:
            table = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            return table, os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None

    found = workers.apart(take, lambda taken: _look(*taken, reserved) if taken else False)
    if found is False:
        raise ContainerGone("the container's process ended before its mounts could be read")
    if not isinstance(found, list):
        raise ReassertError(f"the mounts of process {pid} could not be looked at")
    return found


def mounts_in_gvisor(content: Callable[[str], bytes], reserved: list[Mount]) -> list[dict[str, object]]:
    """As `mounts`, for a container of gVisor, whose kernel alone knows them.

    `content`: the first CONTENT bytes of a file in the container.

    A mount counts as the policy's if /proc/mounts has it on top of its path, and if a file in it is the node's: its
    devices and inode numbers are gVisor's own. Raises ReassertError, OSError.
    """
    rows = [line.split() for line in os.fsdecode(content("/proc/mounts")).splitlines()]
    there = {row[1]: row[3].split(",") for row in rows}  # if two mounts are at one path, the last is on top
    ours: list[dict[str, object]] = []
    foreign: list[dict[str, object]] = []
    for mount in sorted(reserved, key=lambda mount: mount.destination.count("/")):
        options = there.pop(mount.destination, None)
        if options is None:
            continue
        is_restricted = "ro" in options or "ro" not in mount.options
        if is_restricted and _reads_the_nodes(content, mount):
            ours.append(mount.as_oci(os.path.isdir(mount.source)))
        else:
            foreign.append({"destination": mount.destination, "type": "bind", "source": "", "options": options})
    below = [path for path in there if any(is_below(path, mount.destination) for mount in reserved)]
    foreign += [{"destination": path, "type": "bind", "source": "", "options": there[path]} for path in below]
    return foreign + ours


def _reads_the_nodes(content: Callable[[str], bytes], mount: Mount) -> bool:
    """Whether the first file of a mount has the node's content: `hostile.mounts` lack it, or have none in it."""
    source = mount.source.rstrip("/")
    paths = sorted(Path(source).rglob("*")) if os.path.isdir(source) else [Path(source)]
    file = next((path for path in paths if path.is_file() and not path.is_symlink()), None)
    try:
        return file is None or content(mount.destination + str(file)[len(source) :]) == _first(file)
    except ReassertError:  # it is not there
        return False


def _first(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(CONTENT)


def _look(mountinfo: int, root: int, reserved: list[Mount]) -> list[dict[str, object]]:
    table = mount_table_at(mountinfo).values()
    ours: dict[str, dict[str, object]] = {}
    foreign: list[dict[str, object]] = []
    for row in table:
        above = [
            mount for mount in reserved if row.point == mount.destination or is_below(row.point, mount.destination)
        ]
        if not above or not _visible(root, row):
            continue
        exact = next((mount for mount in above if mount.destination == row.point), None)
        flags = [flag for flag in _FLAGS if exact and flag in exact.options]
        if exact and exact.source and _same(root, row.point, exact.source) and {*flags} <= {*row.options}:
            ours[row.point] = exact.as_oci(os.path.isdir(exact.source))
        elif exact or not any(_part_of(root, row.point, mount) for mount in above):
            foreign.append({"destination": row.point, "type": "bind", "source": row.root, "options": row.options})
    return foreign + [ours[path] for path in sorted(ours, key=lambda path: (path.count("/"), path))]


def _visible(root: int, row: Row) -> bool:
    """Whether the path of a mount leads to this mount, so that no other mount hides it."""
    try:
        fd = open_walked(root, row.point)
    except OSError:
        return False
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii")
    finally:
        os.close(fd)
    return f"\nmnt_id:\t{row.id}\n" in text


def _same(root: int, path: str, source: str) -> bool:
    """Whether a path in the container and a path of the node are the same file."""
    try:
        fd = open_walked(root, path)
        try:
            return os.path.samestat(os.fstat(fd), os.stat(source))
        finally:
            os.close(fd)
    except OSError:
        return False


def _part_of(root: int, path: str, mount: Mount) -> bool:
    """Whether a mount below a reserved mount is part of its source on the node."""
    return bool(mount.source) and _same(root, path, mount.source.rstrip("/") + path[len(mount.destination) :])


def reached(pid: int, closed: Closed) -> list[str]:
    """The closed devices that a container has in its file system, or that its cgroup lets a process use.

    A child process does it: it enters the container's cgroup, and takes its mounts. Raises ReassertError, OSError.
    """
    cgroups = _cgroups(pid)
    # access(2) of root is denied by the device cgroup alone, if root may override the owner and mode of a device.
    rights = (*ENTER, DAC_OVERRIDE)
    answer = workers.apart(lambda: _take_devices(pid, closed, cgroups), lambda taken: _reached(closed, taken), rights)
    if not isinstance(answer, list):
        raise ReassertError(
            f"the container's devices cannot be looked at: {answer or 'the look at its devices failed'}"
        )
    return answer


def _take_devices(pid: int, closed: Closed, cgroups: list[Path]) -> tuple[Taken, list[str]] | str:
    """The container's root and mounts, and the devices that its cgroup gives; or what went wrong."""
    try:
        for cgroup in cgroups:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        found = []
        for number, (_, path) in sorted(closed.nodes.items()):
            # access(2) asks the device cgroup without opening the device.
            may = "".join(letter for letter, mode in (("r", os.R_OK), ("w", os.W_OK)) if os.access(path, mode))
            if may:
                found.append(f"its cgroup gives {may} access to {path} ({device_name(number)})")
        return Taken(pid, lambda: None), found
    except Exception as error:  # an error of any type is reported to the parent
        return str(error) or type(error).__name__


def _reached(closed: Closed, taken: tuple[Taken, list[str]] | str) -> list[str] | str:
    if isinstance(taken, str):
        return taken
    try:
        reasons = devices_below(taken[0].root, "", taken[0].table(), exclusive=closed, opened=open_walked)
    except Exception as error:
        return str(error) or type(error).__name__
    return [reason.message.removeprefix("not allocated: ") for reason in reasons] + taken[1]


def _cgroups(pid: int) -> list[Path]:
    """The cgroups of a process whose rules for devices apply: cgroup v1's, or the unified one. Raises ReassertError."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if "devices" in names.split(","):
            return [_CGROUPS / "devices" / path.lstrip("/")]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        if line.startswith("0::") and (_CGROUPS / "cgroup.controllers").exists():
            return [_CGROUPS / line[3:].lstrip("/")]
    raise ReassertError("the container's device cgroup was not found")
