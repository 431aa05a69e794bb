"""Mounts inside a container's mount namespace, without ever trusting a path twice.

The new mount API (open_tree(2), mount_setattr(2), move_mount(2)) works on descriptors: the source is opened in the
node's namespace, the target is resolved by openat2(2) inside the container's root, with symbolic links of the image
kept in that root and magic links refused, and what was opened is what is mounted. A path that an image swaps
meanwhile, or a link that points out of its root, gains nothing (CVE-2024-0132 and its kin). Linux 5.12 or later.
"""

import ctypes
import errno
import os
import stat

from hook.base.errors import ReassertError, Undecided
from hook.container.paths import clean, is_below
from hook.edits import PlaceMount

# Numbers are the same on every architecture since Linux 5.0 (include/uapi/asm-generic/unistd.h).
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442

_CLONE_NEWNS = 0x20000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x2, 0x10

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
_ATIME, _ATIME_ANY = 0x70, ("noatime", "strictatime", "relatime")
_MS_PRIVATE, _MS_SLAVE = 1 << 18, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


class Misled(ReassertError):
    """The image has no place for the mount, or leads its path elsewhere: the container must not start."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


def mount_in_container(pid: int, rootfs: str, edits: list[PlaceMount], destinations: list[str]) -> None:
    """Mount what the edits reserve below `rootfs`, in the mount namespace of `pid` (0: this process's own).

    `destinations`: of the container's own mounts; those that an edit lets through below it stay visible.
    Raises Misled, Undecided, OSError.
    """
    sources = [(edit, _source(edit)) for edit in edits]
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if pid:
            _enter(f"/proc/{pid}/ns/mnt", own)
        try:
            root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for edit, tree in sources:
                    _place(root, edit, tree, destinations)
            finally:
                os.close(root)
        finally:
            if pid:
                _setns(own)
    finally:
        os.close(own)
        for _, tree in sources:
            os.close(tree)


def _place(root: int, edit: PlaceMount, tree: int, destinations: list[str]) -> None:
    kept = [(path, _clone_below(root, path)) for path in _kept_below(edit, destinations)]
    try:
        try:
            target = _target(root, edit.name, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        except OSError as error:
            raise Misled(edit.rule, f"{edit.name} cannot be reached inside the image: {error.strerror}") from None
        try:
            _move(tree, target, edit.name)
        finally:
            os.close(target)
        for path, clone in kept:
            try:
                again = open_in_root(root, path)
            except OSError as error:
                what = f"{path}, which allowBelow lets through, has no place in the mount at {edit.name}"
                raise Misled(edit.rule, f"{what}: {error.strerror}") from None
            try:
                _move(clone, again, path)
            finally:
                os.close(again)
    finally:
        for _, clone in kept:
            os.close(clone)
    _verify(root, edit, tree)


def _kept_below(edit: PlaceMount, destinations: list[str]) -> list[str]:
    paths = dict.fromkeys(clean(destination) for destination in destinations)
    return [path for path in paths if path in edit.companions and is_below(path, edit.name)]


def _verify(root: int, edit: PlaceMount, tree: int) -> None:
    """The path, walked as the container will walk it, must end at what was mounted."""
    try:
        fd = open_in_root(root, edit.name)
    except OSError as error:
        raise Misled(
            edit.rule, f"{edit.name} in the image does not lead to the reserved mount: {error.strerror}"
        ) from None
    try:
        if not os.path.samestat(os.fstat(fd), os.fstat(tree)):
            raise Misled(edit.rule, f"{edit.name} in the image does not lead to the reserved mount (a symbolic link?)")
    finally:
        os.close(fd)


def _source(edit: PlaceMount) -> int:
    """A detached copy of the source's mount, with the reservation's options already in force."""
    mount: dict[str, object] = edit.mount  # type: ignore[assignment]  # importing `typing` costs as much as the mount
    options: list[str] = mount["options"]  # type: ignore[assignment]  # a PlaceMount's, made by Mount.as_oci
    recursive = _AT_RECURSIVE if "rbind" in options else 0
    source = str(mount["source"])
    tree = _call("open_tree", source, _OPEN_TREE, _AT_FDCWD, source, _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | recursive)
    wanted = sum(_MOUNT_ATTR.get(option, 0) for option in options)
    clear = _ATIME if any(option in _ATIME_ANY for option in options) else 0
    propagation = _MS_SLAVE if "rslave" in options or "slave" in options else _MS_PRIVATE
    attributes = (ctypes.c_uint64 * 4)(wanted, clear, propagation, 0)  # struct mount_attr
    try:
        _call("mount_setattr", source, _MOUNT_SETATTR, tree, "", _AT_EMPTY_PATH | recursive, attributes, 32)
    except BaseException:
        os.close(tree)
        raise
    return tree


def open_in_root(root: int, path: str) -> int:
    """An O_PATH descriptor of an absolute path inside the container's root."""
    how = (ctypes.c_uint64 * 3)(  # struct open_how
        os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
    )
    return _call("openat2", path, _OPENAT2, root, path.lstrip("/") or ".", how, 24)


def _clone_below(root: int, path: str) -> int:
    fd = open_in_root(root, path)
    try:
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
        return _call("open_tree", path, _OPEN_TREE, fd, "", flags)
    finally:
        os.close(fd)


def _target(root: int, path: str, is_directory: bool) -> int:
    """The place to mount on; made where it is missing, as a runtime would, but relative to an opened parent.

    Raises OSError, which says what is wrong with the image.
    """
    try:
        return open_in_root(root, path)
    except FileNotFoundError:
        pass
    parent_path, _, name = path.rpartition("/")
    parent = _target(root, parent_path, is_directory=True) if parent_path else os.dup(root)
    try:
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=parent))
    except FileExistsError:
        raise OSError(errno.ELOOP, f"{path} is a symbolic link that leads nowhere") from None
    except OSError as error:
        raise OSError(error.errno, f"{path} is missing and cannot be made: {error.strerror}") from None
    finally:
        os.close(parent)
    return open_in_root(root, path)


def _move(tree: int, target: int, path: str) -> None:
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _call("move_mount", path, _MOVE_MOUNT, tree, "", target, "", flags)


def _enter(namespace: str, own: int) -> None:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.sameopenfile(fd, own):
            raise Undecided("the container has no mount namespace of its own, and nothing is mounted in the node's")
        _setns(fd)
    finally:
        os.close(fd)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNS) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot enter the mount namespace: {os.strerror(code)}")


def _call(name: str, path: str, number: int, *arguments: object) -> int:
    """One system call; strings as paths, integers as longs. Raises OSError with the call's name and the path."""
    converted = [
        ctypes.c_long(a)
        if isinstance(a, int)
        else ctypes.c_char_p(a.encode("utf-8", "surrogateescape"))
        if isinstance(a, str)
        else a
        for a in arguments
    ]
    result = int(_libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno()
        if code == errno.ENOSYS:
            raise Undecided(f"this kernel has no {name}(2); mounting from a hook needs Linux 5.12 or later")
        raise OSError(code, f"{name}: {os.strerror(code)}", path)
    return result
