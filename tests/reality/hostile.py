"""What a container's processes do themselves: open devices, remount, set traps, call the agent's socket."""

from __future__ import annotations

import ctypes
import importlib.util
import marshal
import os
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from reality.node import LIBC, WatchedNode
from reality.reading import clean

NAMESPACES = {
    "mnt": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip

APART = ("mnt", "user", "pid", "chroot")
"""What a caller of the agent's socket has for itself so that it can be no engine."""

_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_CAPSET, _CAPSET_VERSION = 126, 0x20080522  # x86_64
_PATIENCE = 20

RAN = "reassert-ran"
"""A file that a trap makes in the root directory of whoever ran into it."""

_TRAP = f"import posix\nposix.close(posix.open('/{RAN}', posix.O_CREAT | posix.O_WRONLY))\n"


def limit_to(capabilities: int) -> None:
    """Keep only these capabilities (capset(2)). Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    if LIBC.syscall(_CAPSET, header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)):
        raise OSError(ctypes.get_errno(), "capset")


def capabilities_of(pid: int) -> int:
    """The effective capabilities of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def remount_writable(points: list[str]) -> None:
    """Take `ro` from mounts of a copy of this mount namespace, as a process with CAP_SYS_ADMIN can."""
    if LIBC.unshare(NAMESPACES["mnt"]):
        raise OSError(ctypes.get_errno(), "unshare")
    for point in points:
        LIBC.mount(None, point.encode(), None, _MS_REMOUNT | _MS_BIND, None)


def opened(pid: int, devices: list[Path]) -> list[str]:
    """Names of the device nodes that the device cgroup of a process (version 1) lets it open."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    group = next((path for _, names, path in groups if "devices" in names.split(",")), "")
    procs = Path(f"/sys/fs/cgroup/devices{group}/cgroup.procs")
    child = os.fork()
    if child == 0:
        answer = 255
        try:
            procs.write_text(str(os.getpid()))
            answer = sum(1 << at for at, path in enumerate(devices) if _opens(path))
        finally:
            os._exit(answer)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if answer == 255:
        raise OSError(f"no device cgroup of {pid}: {procs}")
    return [path.name for at, path in enumerate(devices) if answer >> at & 1]


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except PermissionError:
        return False
    except OSError:  # no driver has this number: the cgroup let it through
        return True
    return True


def set_traps(image: Path, program: Path) -> None:
    """Put into an image, at the paths of the program under test, modules that leave RAN where they are run.

    Raises RuntimeError where this Python cannot compile for the program's.
    """
    magic = importlib.util.MAGIC_NUMBER
    trap = image / "trap.pyc"
    trap.write_bytes(magic + bytes(12) + marshal.dumps(compile(_TRAP, "trap", "exec")))
    for path in (program / "lib").rglob("*.pyc"):
        with path.open("rb") as module:
            if module.read(4) != magic:
                raise RuntimeError(f"{path} is of another Python than the one that runs the cases")
        copy = image / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.link(trap, copy)


def call(node: WatchedNode, runtime: str, feature: dict[str, Any], rootfs: Path) -> None:
    """A process of a container calls the agent's socket, with the right words about its root directory."""
    assert node.agents
    agent = node.agents.socket(runtime.split("/", maxsplit=1)[0])
    root = os.open(f"/proc/{node.root(runtime).pid}/ns/mnt", os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_PATIENCE)
            _call(root, agent, _frame(node, runtime, feature), feature, rootfs)
        finally:
            os._exit(0)
    os.close(root)
    os.waitpid(child, 0)


def _frame(node: WatchedNode, runtime: str, feature: dict[str, Any]) -> list[str]:
    bundle, log = node.placed(feature["bundle"]), node.placed(feature["log"])
    options = node.options()
    return [
        "reassert-front/1", node.version(), "runtime", node.real(runtime), options[1], options[3], options[5], "", "",
        "022", "ROOT", "--log", log, "--log-format", "json", "create", "--bundle", bundle, "outsider",
    ]  # fmt: skip


def _call(namespace: int, agent: str, frame: list[str], feature: dict[str, Any], rootfs: Path) -> None:
    if LIBC.setns(namespace, NAMESPACES["mnt"]):
        return
    buffer = ctypes.create_string_buffer(256)
    LIBC.syscall(332, -100, b"/", 0, 0x1100, buffer)  # statx(2): inode and mount id, as front says them
    frame[10] = (buffer.raw[32:40] + buffer.raw[136:152]).hex()
    given = os.open("/", os.O_PATH | os.O_DIRECTORY)
    os.chdir(os.path.dirname(agent))
    wanted = feature["namespaces"]
    if "chroot" in wanted:
        os.chroot(rootfs)
    if LIBC.unshare(sum(NAMESPACES.get(name, 0) for name in wanted)):
        return
    if "user" in wanted:
        Path("/proc/self/uid_map").write_text("0 0 1")
    if "pid" in wanted and os.fork():
        os.wait()
        return
    if not feature["capabilities"]:
        limit_to(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, suppress(OSError):
        connection.settimeout(_PATIENCE)
        connection.connect(os.path.basename(agent))
        text = "".join(f"{part}\0" for part in frame).encode()
        socket.send_fds(connection, [text], [given])
        connection.recv(1 << 16)


def is_apart(feature: dict[str, Any]) -> bool:
    """Whether a caller can be no engine of the node."""
    return not feature["capabilities"] or any(name in APART for name in feature["namespaces"])


def make_nodes(pid: int, names: list[str]) -> None:
    """Device nodes that a process of a container makes in its /dev."""
    top = Path(f"/proc/{pid}/root/dev")
    if os.path.islink(top) or os.stat(top).st_dev == os.stat(f"/proc/{pid}/root").st_dev:
        return  # a link would lead elsewhere here
    for name in names:
        with suppress(OSError):
            os.mknod(top / name, stat.S_IFCHR | 0o666, os.makedev(240, 99))


def marks(*tops: Path) -> list[str]:
    """The RAN files in these root directories, which are removed."""
    found = [str(top / RAN) for top in tops if os.path.lexists(top / RAN)]
    for path in found:
        os.unlink(path)
    return found


def many(feature: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """The mounts of a `many` feature."""
    top = feature["at"].rstrip("/") + ("/" + "d" * feature.get("length", 1)) * feature.get("depth", 0)
    names = [f"{top}/m{number}" for number in range(feature["count"])]
    return [{"destination": name, "type": "bind", "source": source, "options": ["rbind"]} for name in names]


def chain(feature: dict[str, Any]) -> list[dict[str, Any]]:
    """The links of a `chain` feature: each names the next by a long way, the last one `to`."""
    links = []
    path = clean(feature["path"])
    for number in range(feature["count"]):
        after = feature["to"] if number == feature["count"] - 1 else f"/chain{number}"
        links.append({"op": "link", "path": path, "to": "/" + "tmp/../" * (feature["length"] // 7) + after.lstrip("/")})
        path = after
    return links
