"""System calls for mounts: descriptors instead of paths. Linux 5.12 or later.

The new mount API (open_tree(2), mount_setattr(2), move_mount(2)) works on descriptors. The file that was opened is the
one that is mounted, so a container that swaps a path in between gains nothing (CVE-2024-0132 and similar).

No code of ours runs in a container's mount namespace: `/` there is the container's, and a module that is loaded by its
path would be the image's. A thread enters it for one system call, and everything else is done from outside, on
descriptors: a path below one is resolved in the mounts of the namespace that it is of.
"""

from __future__ import annotations

import errno
import posix
import sys
from _thread import get_ident
from collections.abc import Callable
from typing import NoReturn

from hook.core.base.errors import Unacceptable, Undecided
from hook.core.base.mountinfo import Row, reach
from hook.core.linux import libc

# Numbers are the same on every architecture since Linux 5.0 (include/uapi/asm-generic/unistd.h).
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR, _OPEN_TREE_ATTR = 428, 429, 437, 442, 467

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_FS = 0x20000, 0x10000000, 0x200
_AT_FDCWD, _AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _AT_RECURSIVE = -100, 0x1000, 0x4000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, posix.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_IN_ROOT, _RESOLVE_CACHED = 0x2, 0x4, 0x10, 0x20
_STATX_TYPE, _STATX_INO, _STATX_MNT_ID = 0x1, 0x100, 0x1000  # statx(2)
_STATX_MASK, _STATX_INODE_AT, _STATX_DEVICE_AT, _STATX_MNT_ID_AT = 0, 32, 136, 144

_MOUNT_ATTR = {  # include/uapi/linux/mount.h
    "ro": 0x1,
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "noatime": 0x10,
    "strictatime": 0x20,
    "nodiratime": 0x80,
    "nosymfollow": 0x200000,
}
_ATTR_IDMAP = 0x100000
_ATIME, _ATIME_ANY = 0x70, ("noatime", "strictatime", "relatime")
PRIVATE, _MS_SLAVE = 1 << 18, 1 << 19
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 1 << 5, 1 << 12
_MS_NOSUID_NODEV, _MNT_DETACH, _UMOUNT_NOFOLLOW = 2 | 4, 2, 8

_TRIES = 100
"""openat2(2) fails with EAGAIN if another process mounts or renames something while it resolves a `..`."""

_M_ARENA_MAX = -8

_DIRECTORY = posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC

_AT_ONCE = libc.words(posix.O_PATH | posix.O_CLOEXEC, 0, _RESOLVE_CACHED)  # struct open_how
_NO_LINKS = libc.words(posix.O_PATH | posix.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS)


class _NothingIsLoaded:
    """The first finder of modules: no import finds one in a thread that is in a container's mount namespace."""

    inside: set[int] = set()  # noqa: RUF012  # there is one

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raises RuntimeError inside."""
        if get_ident() in _NothingIsLoaded.inside:
            raise RuntimeError(f"module {name} would be loaded in a container's mount namespace")


sys.meta_path.insert(0, _NothingIsLoaded)


class OldKernel(Undecided):
    """The kernel lacks a system call by which mounts are looked at."""


class Namespace:
    """The mount namespace of a process, entered for single system calls; 0: this process's own, which is not entered.

    The calling thread must share its working directory with no other (`own_directories`): setns(2) sets it, and comes
    back to `/`. Raises Undecided, OSError.
    """

    __slots__ = ("_other", "_own", "_rootfs", "container", "pid", "root")

    def __init__(self, pid: int, rootfs: str = "") -> None:
        self.pid = pid
        self._rootfs = rootfs
        self._own = self._other = -1
        self.root = -1
        """An O_PATH descriptor of the root directory of the namespace."""
        self.container = -1
        """An O_PATH descriptor of `rootfs`, a container's root in the namespace; -1 without one."""
        try:
            if pid:
                self._own = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)
                self._other = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)
                if same_file(posix.fstat(self._other), posix.fstat(self._own)):
                    raise Undecided(
                        "the container has no mount namespace of its own, and nothing is mounted in the node's"
                    )
            self.root = self.call(posix.open, "/", _DIRECTORY)
            if rootfs:
                self.container = self.directory(rootfs)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in {self._own, self._other, self.root, self.container} - {-1}:
            posix.close(fd)

    def call(self, function: Callable[..., int], *arguments: object, **named: object) -> int:
        """Call a function of C inside, which makes one system call: "/" is its only path without a descriptor.

        Raises OSError.
        """
        if self._other < 0:
            return function(*arguments, **named)
        thread = get_ident()
        _setns(self._other)
        _NothingIsLoaded.inside.add(thread)
        try:
            return function(*arguments, **named)
        finally:
            _NothingIsLoaded.inside.discard(thread)
            _setns(self._own)

    def directory(self, path: str) -> int:
        """An O_PATH descriptor of a directory there, by its absolute path. Raises OSError."""
        if path == "/":
            return posix.dup(self.root)
        return _openat2(
            self.root, path.lstrip("/"), posix.O_PATH | posix.O_DIRECTORY, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
        )

    def mount_of_container(self, table: dict[int, Row]) -> tuple[Row | None, str]:
        """The mount that holds the container's root, None if it was made since, and the root's path, "" for `/`."""
        own = table.get(mount_id(self.container))
        return own, (own.point if own else self._rootfs).rstrip("/")

    def mountinfo(self) -> int:
        """A descriptor of the namespace's own table of mounts, whatever root its processes have. Raises OSError."""
        this = posix.open("/proc/thread-self", _DIRECTORY)
        try:
            return self.call(posix.open, "mountinfo", posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=this)
        finally:
            posix.close(this)

    def clone_tree(self, fd: int, path: str) -> int:
        """A detached copy of the mount at a descriptor and of the mounts below it. `path`: for messages.

        Raises OSError.
        """
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
        return _call("open_tree", path, _OPEN_TREE, fd, "", flags, namespace=self)

    def set_attributes(self, fd: int, options: list[str], path: str, propagation: int = 0) -> None:
        """Set mount(8) options and propagation of the mount whose root a descriptor is. Raises OSError."""
        set_attributes(fd, options, recursive=False, path=path, clear=0, propagation=propagation, namespace=self)

    def move_mount(self, tree: int, target: int, path: str) -> None:
        """Attach a detached mount at the place of a descriptor. `path`: for messages. Raises OSError."""
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _call("move_mount", path, _MOVE_MOUNT, tree, "", target, "", flags, namespace=self)


def same_file(one: posix.stat_result, other: posix.stat_result) -> bool:
    """Whether both are of one inode of one device."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def mount_id(fd: int) -> int:
    """The id of the mount that holds a descriptor's file, as in /proc/PID/mountinfo. Raises Undecided, OSError."""
    return int.from_bytes(_statx(fd, b"", _AT_EMPTY_PATH)[_STATX_MNT_ID_AT : _STATX_MNT_ID_AT + 8], sys.byteorder)


def mount_without_links(root: int, path: str) -> int:
    """The id of the mount that holds an absolute path below a root; -1 where a link is on the way, or nothing is there.

    The usual case in two system calls (`tree_of` has all of them). `root`: -1 for this process's. Raises Undecided,
    OSError.
    """
    if root < 0:
        return -1
    name = path.lstrip("/").encode("utf-8", "surrogateescape") or b"."
    fd = libc.syscall(_OPENAT2, root, name, _NO_LINKS, 24, 0, 0)
    if fd < 0:
        if libc.get_errno() == errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, "openat2", path)
        return -1
    try:
        return mount_id(fd)
    finally:
        posix.close(fd)


def own_root() -> str:
    """`root_of` this thread. Raises Undecided, OSError."""
    return root_of(_AT_FDCWD, b"/")


def root_of(proc: int, path: bytes = b"root") -> str:
    """What tells a process's root directory and its mount from all others: inode, device and mount id, in hex.

    One directory can be seen through two mounts that have different mounts below it, and a mount is of one mount
    namespace. `proc`: a descriptor of /proc/PID. Raises Undecided, OSError.
    """
    status = _statx(proc, path, 0)
    return (status[_STATX_INODE_AT : _STATX_INODE_AT + 8] + status[_STATX_DEVICE_AT : _STATX_MNT_ID_AT + 8]).hex()


def status_at_once(path: str) -> posix.stat_result:
    """Type, inode and device numbers of what a path leads to, without a wait for a file system that may never answer.

    The kernel answers at once for what it has in memory (openat2(2), RESOLVE_CACHED), also on such a file system.
    Otherwise, and before Linux 5.12, no file system is entered that may wait. Raises OSError, Undecided.
    """
    fd = libc.syscall(_OPENAT2, _AT_FDCWD, path.encode("utf-8", "surrogateescape"), _AT_ONCE, 24, 0, 0)
    if fd < 0:
        fd = reach(path, is_ours=False)
    try:
        return status_without_wait(fd)
    finally:
        posix.close(fd)


def status_without_wait(fd: int) -> posix.stat_result:
    """The same of what a descriptor is of. Raises OSError."""
    data = _asked(fd, b"", _AT_EMPTY_PATH, _STATX_TYPE | _STATX_INO)  # offsets below: struct statx
    number, order = int.from_bytes, sys.byteorder
    mode, inode = number(data[28:30], order), number(data[32:40], order)
    rdev = posix.makedev(number(data[128:132], order), number(data[132:136], order))
    device = posix.makedev(number(data[136:140], order), number(data[140:144], order))
    return posix.stat_result((mode, inode, device, 0, 0, 0, 0, 0, 0, 0), {"st_rdev": rdev})


def _asked(fd: int, path: bytes, flags: int, mask: int) -> bytes:
    """The kernel's struct statx, without a question to the server of a network or FUSE file system. Raises OSError."""
    buffer = libc.Statx()
    if libc.statx(fd, path, flags | _AT_STATX_DONT_SYNC, mask, buffer) < 0:
        code = libc.get_errno()
        raise OSError(code, f"statx: {posix.strerror(code)}")
    data: bytes = buffer.raw
    return data


def _statx(fd: int, path: bytes, flags: int) -> bytes:
    data = _asked(fd, path, flags, _STATX_MNT_ID | _STATX_INO)
    if not int.from_bytes(data[_STATX_MASK : _STATX_MASK + 4], sys.byteorder) & _STATX_MNT_ID:
        raise OldKernel("this kernel tells no mount ids (statx(2)); looking at mounts needs Linux 5.12 or later")
    return data


def clone_source(source: str, options: list[str], fd: int = -1) -> int:
    """A detached bind mount of a path, with these mount(8) options already set. Raises OSError, Undecided.

    `fd`: a descriptor of what the path must lead to; then the path is for messages.
    """
    recursive = _AT_RECURSIVE if "rbind" in options else 0
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | recursive
    if fd < 0:
        tree = _call("open_tree", source, _OPEN_TREE, _AT_FDCWD, source, flags)
    else:
        tree = _call("open_tree", source, _OPEN_TREE, fd, "", flags | _AT_EMPTY_PATH)
    try:
        propagation = _MS_SLAVE if "rslave" in options or "slave" in options else PRIVATE
        clear = _ATIME if any(option in _ATIME_ANY for option in options) else 0
        set_attributes(tree, options, recursive=bool(recursive), path=source, clear=clear, propagation=propagation)
    except BaseException:
        posix.close(tree)
        raise
    return tree


def clone_idmapped(fd: int, users: int, path: str, namespace: Namespace | None = None) -> int:
    """A detached, read-only copy of the mount at a descriptor, idmapped by a user namespace. Raises OSError, Undecided.

    Without the mounts below it. `users`: a descriptor of the user namespace. `path`: for messages. `namespace`: that of
    the mount, None: this process's.
    """
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH
    tree = _call("open_tree", path, _OPEN_TREE, fd, "", flags, namespace=namespace)
    try:
        attributes = libc.words(_ATTR_IDMAP | _MOUNT_ATTR["ro"], 0, 0, users)
        _call("mount_setattr", path, _MOUNT_SETATTR, tree, "", _AT_EMPTY_PATH, attributes, 32)
    except BaseException:
        posix.close(tree)
        raise
    return tree


def remounted(tree: int, path: str) -> int:
    """A copy of a detached mount without `ro` and without its idmapping, -1 where the kernel makes none (before 6.15).

    Takes `ro` off the detached mount itself too. Raises OSError.
    """
    flags, attributes = _AT_EMPTY_PATH, libc.words(0, _MOUNT_ATTR["ro"], 0, 0)
    _call("mount_setattr", path, _MOUNT_SETATTR, tree, "", flags, attributes, 32)
    flags, attributes = flags | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC, libc.words(0, _ATTR_IDMAP, 0, 0)
    result: int = libc.syscall(_OPEN_TREE_ATTR, tree, b"", flags, attributes, 32, 0)
    return result


def set_attributes(
    fd: int,
    options: list[str],
    *,
    recursive: bool,
    path: str,
    clear: int = 0,
    propagation: int = 0,
    namespace: Namespace | None = None,
) -> None:
    """Set mount(8) options of the mount at a descriptor; `recursive`: and of the mounts below it. Raises OSError."""
    wanted = sum(_MOUNT_ATTR.get(option, 0) for option in options)
    attributes = libc.words(wanted, clear, propagation, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _call("mount_setattr", path, _MOUNT_SETATTR, fd, "", flags, attributes, 32, namespace=namespace)


def open_in_root(root: int, path: str) -> int:
    """An O_PATH descriptor of an absolute path, resolved inside a container's root. Raises OSError."""
    return _openat2(root, path.lstrip("/") or ".", posix.O_PATH, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)


def open_without_links(directory: int, path: str) -> int:
    """An O_PATH descriptor of a path below a directory, in which no name is a symbolic link. Raises OSError."""
    return _openat2(directory, path, posix.O_PATH, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)


def open_plain(path: str, flags: int = posix.O_PATH) -> int:
    """A descriptor of a path that no magic link of /proc is part of (symlink(7)). Raises OSError."""
    return _openat2(_AT_FDCWD, path, flags, _RESOLVE_NO_MAGICLINKS)


def _openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    how = libc.words(flags | posix.O_CLOEXEC, 0, resolve)
    name = path.encode("utf-8", "surrogateescape")
    for _ in range(_TRIES):
        result: int = libc.syscall(_OPENAT2, directory, name, how, 24, 0, 0)
        if result >= 0:
            return result
        if libc.get_errno() != errno.EAGAIN:
            break
    return _failed("openat2", path)


def own_users() -> None:
    """Move this process, which has one thread, into a new user namespace (unshare(2)). Raises OSError."""
    if libc.unshare(_CLONE_NEWUSER) < 0:
        code = libc.get_errno()
        raise OSError(code, f"unshare: {posix.strerror(code)}")


def mount_tmpfs(path: str, options: str) -> None:
    """Mount a tmpfs in this process's mount namespace, without devices and set-user-ID programs. Raises OSError.

    It lies on a private mount of the directory, so that no container gets it by the propagation of a volume above, and
    that one is read-only: a container that gets both with a volume above cannot write below the tmpfs either.
    """
    name = path.encode()
    for source, kind, flags, data in (
        (name, None, _MS_BIND, None),
        (None, None, PRIVATE, None),
        (None, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None),
        (b"tmpfs", b"tmpfs", _MS_NOSUID_NODEV, options.encode()),
    ):
        if libc.mount(source, name, kind, flags, data) < 0:
            _failed("mount", path)


def unmount(path: str) -> None:
    """Detach all mounts from a path, also where they are in use (umount2(2)). Raises OSError where there is none."""
    if libc.umount2(path.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW) < 0:
        _failed("umount2", path)
    while libc.umount2(path.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass


def own_mounts(read_only: list[str], has_devices: bool) -> None:
    """Move this process, which has one thread, into a mount namespace of its own, in which these paths are read-only.

    So is each bind mount that it or a child makes of one, whatever its options are (mount(2) ignores MS_RDONLY with
    MS_BIND). What is mounted here appears nowhere else, and unmounts of the node come here.

    `has_devices`: whether device nodes outside /dev can be opened. Raises Undecided, Unacceptable, OSError.
    """
    if libc.unshare(_CLONE_NEWNS) < 0:
        _failed("unshare", "/")
    with Namespace(0) as here:
        dev = clone_source("/dev", ["rbind", "rslave"])
        set_attributes(
            here.root, [] if has_devices else ["nodev"], recursive=True, path="/", clear=0, propagation=_MS_SLAVE
        )
        for path, tree in [("/dev", dev), *[(path, clone_source(path, ["rbind", "ro"])) for path in read_only]]:
            target = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)  # open until execve(2), like `tree`
            if not same_file(posix.fstat(target), posix.fstat(tree)):
                raise Unacceptable(f"{path} was exchanged while it was made read-only for the real runtime")
            here.move_mount(tree, target, path)


def own_directories() -> None:
    """Give this thread a root, a working directory and a umask of its own (unshare(2), CLONE_FS). Raises OSError."""
    if libc.unshare(_CLONE_FS) < 0:
        code = libc.get_errno()
        raise OSError(code, f"unshare: {posix.strerror(code)}")


def few_arenas() -> None:
    """Keep malloc(3) from giving each thread a heap of its own, which would never shrink (mallopt(3))."""
    try:
        libc.function("mallopt", 2)(_M_ARENA_MAX, 1)
    except OSError:  # another library than glibc
        pass


def trim_memory() -> None:
    """Give free pages of malloc(3) back to the kernel (malloc_trim(3))."""
    try:
        libc.function("malloc_trim", 1)(0)
    except OSError:  # another library than glibc
        pass


def _setns(fd: int) -> None:
    if libc.setns(fd, _CLONE_NEWNS) < 0:
        code = libc.get_errno()
        raise OSError(code, f"cannot enter the mount namespace: {posix.strerror(code)}")


def _call(name: str, path: str, number: int, *arguments: object, namespace: Namespace | None = None) -> int:
    """Make a system call: strings are paths, integers are longs. Raises OSError with its name and `path`.

    `namespace`: the mount namespace in which it is made, None: this process's. A later successful setns(2) leaves errno
    as it is (errno(3)).
    """
    converted = [a.encode("utf-8", "surrogateescape") if isinstance(a, str) else a for a in arguments]
    every = (number, *converted, *[0] * (6 - len(converted)))
    result: int = namespace.call(libc.syscall, *every) if namespace else libc.syscall(*every)
    return result if result >= 0 else _failed(name, path)


def _failed(name: str, path: str) -> NoReturn:
    code = libc.get_errno()
    if code == errno.ENOSYS:
        raise OldKernel(f"this kernel has no {name}(2); looking at mounts needs Linux 5.12 or later")
    raise OSError(code, f"{name}: {posix.strerror(code)}", path)
