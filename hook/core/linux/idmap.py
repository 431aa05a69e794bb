"""Makes reserved mounts unwritable below their options, for a container that could take `ro` off them.

`ro` of a bind mount is an option of the mount: a process with CAP_SYS_ADMIN removes it (mount(2), MS_REMOUNT), and what
is below is the file of the node that other containers read. In an idmapped mount whose user namespace maps one unused
id, every file has an owner that the kernel cannot name. So it refuses each change of it, whatever the capabilities of
the process are, and decides reads by the permissions of others (mount_setattr(2), "ID-mapped mounts").

From Linux 6.15 on, open_tree_attr(2) lets a process with CAP_SYS_ADMIN make a copy of the mount without the mapping.
"""

from __future__ import annotations

import errno
import posix
from collections.abc import Callable, Iterator, Sequence

from hook.core.base.compare import is_below
from hook.core.base.errors import Unacceptable, Undecided, named
from hook.core.base.mountinfo import Row, descendants, mount_table
from hook.core.base.system import is_shortage, read_file
from hook.core.container.spec import Spec
from hook.core.linux.look import View
from hook.core.linux.mountns import Namespace, clone_idmapped, mount_id, open_in_root, own_users, remounted
from hook.core.linux.walk import PathEscapes
from hook.core.reserve.place_mount import PlaceMount

IDMAP_FILES = 2000
"""How many files of a reserved directory are looked at. Each costs some microseconds of a container's start."""

_UNUSED = 0xFFFF_FFFE
"""A user and group id that no file has. The highest one, 0xFFFFFFFF, stands for "no id"."""

_S_IFMT, _S_IFDIR, _S_IFREG, _S_IFLNK = 0o170000, 0o040000, 0o100000, 0o120000


_NO_USERS = (errno.EPERM, errno.EINVAL, errno.ENOSYS)
"""Errors of unshare(2) on a node that makes no user namespaces. Others can be caused by another container."""


class _Stays(Exception):
    """Why the node's kernel or file system makes no idmapped mount."""


def protect(
    pid: int,
    rootfs: str,
    *,
    reserved: Sequence[PlaceMount],
    spec: Spec,
    before_mounting: Callable[[], None],
    still_waits: Callable[[], None] = lambda: None,
) -> list[str]:
    """Replace the read-only mounts of the policy by idmapped ones; returns why others stay as they are.

    Called after hook.core.linux.look found them correct, with the same arguments. Mounts of a device plugin and those
    that `_unlike` names stay; so do those that the node's kernel or file system cannot idmap. No mount stays because of
    something that a pod or another container causes. A user namespace of the container changes nothing: it may have the
    ids that own the files, and what everybody may write needs none. Raises Unacceptable, Undecided, OSError.
    """
    wanted = [edit for edit in reserved if edit.mount and not edit.origin and "ro" in edit.options()]
    if not wanted:
        return []
    before_mounting()
    stay = {edit.name: _unlike(edit.source()) for edit in wanted}
    try:
        users = _one_unused_id() if "" in stay.values() else -1
    except OSError as error:
        if error.errno not in _NO_USERS and not (error.errno == errno.ENOSPC and _none_allowed()):
            raise
        return [f"{named(edit.name)}: no user namespace can be made: {error.strerror}" for edit in wanted]
    try:
        sources = {edit.name: posix.stat(edit.source()) for edit in wanted}
        with Namespace(pid) as namespace:
            root = namespace.directory(rootfs)
            try:
                table = mount_table(pid, still_waits)
                for edit in wanted:
                    if stay[edit.name]:
                        continue
                    try:
                        stay[edit.name] = _replace(
                            namespace, View(namespace, root, table=table, spec=spec, sources=sources), edit, users
                        )
                    except PathEscapes:  # a new mount is not in the table, if one reserved path is in another
                        table = mount_table(pid, still_waits)
                        stay[edit.name] = _replace(
                            namespace, View(namespace, root, table=table, spec=spec, sources=sources), edit, users
                        )
            except PathEscapes as error:
                raise Unacceptable(f"a reserved mount cannot be replaced by an idmapped mount: it {error}") from None
            finally:
                posix.close(root)
    finally:
        if users >= 0:
            posix.close(users)
    return [f"{named(name)}: {why}" for name, why in stay.items() if why]


def remountable(source: str) -> str:
    """Why a container with CAP_SYS_ADMIN can write through its read-only mount of a path, or "". Writes nothing.

    It does with a detached mount of its own what such a container can do with its reserved mount.
    """
    fds: list[int] = []
    try:
        why = _unlike(source)
        if why:
            return why
        fds.append(_one_unused_id())
        fds.append(posix.open(source, posix.O_PATH | posix.O_CLOEXEC))
        fds.append(clone_idmapped(fds[1], fds[0], source))
        bare = remounted(fds[2], source)
        if _is_writable(fds[2]):
            return "this kernel lets root write through an idmapped mount"
        if bare >= 0:
            fds.append(bare)
            if _is_writable(bare):
                return "open_tree_attr(2) of this kernel takes the mapping off"
    except (OSError, Undecided) as error:
        return f"it cannot be idmapped: {getattr(error, 'strerror', '') or error}"
    finally:
        for fd in fds:
            posix.close(fd)
    return ""


def _is_writable(fd: int) -> bool:
    return posix.access(f"/proc/self/fd/{fd}", posix.W_OK, effective_ids=True)


def _unlike(source: str) -> str:
    """Why an idmapped mount of a path would not be read as the node's file or directory is, or "".

    Root reads it like any other user. Writing to a socket, a FIFO or a device needs no writable mount.
    """
    todo, left, files = [source], IDMAP_FILES, 0
    while todo:
        path = todo.pop()
        mode = posix.stat(path).st_mode
        kind, owners = mode & _S_IFMT, (mode >> 6 | mode >> 3) & 5
        needed = owners | (5 if kind == _S_IFDIR else 4)
        if kind not in (_S_IFDIR, _S_IFREG):
            return f"{named(path)} is neither a file nor a directory"
        if mode & needed != needed:
            return f"{named(path)} can be read by its owner alone"
        if kind == _S_IFREG:
            files += 1
            continue
        with posix.scandir(path) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return f"{named(source)} has more than {IDMAP_FILES} files"
                if not entry.is_symlink():
                    todo.append(entry.path)
    return "" if files else f"{named(source)} has no file yet"


def _none_allowed() -> bool:
    """Whether the node's root allows no user namespaces at all. Raises OSError."""
    return read_file("/proc/sys/user/max_user_namespaces", 32).strip() == b"0"


def _one_unused_id() -> int:
    """A descriptor of a user namespace that maps one id. Raises OSError.

    A child process makes it, as this one could not come back. A hook of the stage createContainer does not see itself
    in /proc under its pid; so the child says how it is called there.
    """
    from_child, to_parent = posix.pipe()
    from_parent, to_child = posix.pipe()
    child = posix.fork()
    if not child:
        try:
            posix.close(to_child)  # else it would wait for itself if the parent died
            own_users()
            posix.write(to_parent, posix.readlink("/proc/self").encode())
            posix.read(from_parent, 1)
        except OSError as error:
            posix.write(to_parent, f"-{error.errno}".encode())
        finally:
            posix._exit(0)
    posix.close(to_parent)
    posix.close(from_parent)
    try:
        answer = int(posix.read(from_child, 32) or f"-{errno.ENOMEM}")  # it was killed
        if answer < 0:
            raise OSError(-answer, posix.strerror(-answer))
        for which in ("uid_map", "gid_map"):
            file = posix.open(f"/proc/{answer}/{which}", posix.O_WRONLY | posix.O_CLOEXEC)
            try:
                posix.write(file, f"{_UNUSED} {_UNUSED} 1\n".encode())
            finally:
                posix.close(file)
        return posix.open(f"/proc/{answer}/ns/user", posix.O_RDONLY | posix.O_CLOEXEC)
    finally:
        posix.close(from_child)
        posix.close(to_child)
        posix.waitpid(child, 0)


def _replace(namespace: Namespace, view: View, edit: PlaceMount, users: int) -> str:
    """Replace one mount, in its namespace; why it stays, or "". Raises PathEscapes, Unacceptable, OSError.

    It cannot be unmounted: crun sets options of the mounts that it made after its hooks. So it is moved to where its
    source is in the node's tree, which pivot_root(2) takes away from the container. The mounts that came with the
    source go with it; others on it, such as volumes that `allowBelow` lets through, are moved to the new one.
    """
    fds: list[int] = []
    try:
        try:
            fds.append(posix.dup(view.walks.fd(view.walks.to(edit.name).node)))
            mounted = fds[-1]
            row = view.row(mount_id(mounted))
            if "idmapped" in row.options and view.was_replaced(edit):
                return ""
            if is_below(view.prefix, view.tree(edit)[1] or "/"):
                return "the container's own root is below it on the node"  # it would be below what is moved there
            fds.append(open_in_root(namespace.root, edit.source()))
            parked = fds[-1]
            if view.row(mount_id(parked)).shared or view.row(row.parent).shared:
                return "its mount would appear on the node (mountPropagation: Bidirectional)"
            fds.append(_idmapped(mounted, users, edit.name, namespace))
            trees = [(row, fds[-1]), *_below(namespace, view, edit, mount=row, users=users, fds=fds)]
        except _Stays as why:
            return str(why)
        except OSError as error:  # a path, which another process can change in a volume
            if is_shortage(error):
                raise
            raise _not_replaced(edit, error) from None
        try:
            namespace.move_mount(mounted, parked, edit.name)
            for old, tree in trees:
                _attach(namespace, view, old, tree)
        except OSError as error:  # else failurePolicy: Ignore would start the container without the mount
            raise _not_replaced(edit, error) from None
    finally:
        view.walks.close()
        for fd in fds:
            posix.close(fd)
    return ""


def _not_replaced(edit: PlaceMount, error: OSError) -> Unacceptable:
    return Unacceptable(f"{named(edit.name)} cannot be replaced by an idmapped mount: {error.strerror}")


def _idmapped(fd: int, users: int, path: str, namespace: Namespace) -> int:
    """As clone_idmapped. Raises _Stays; OSError for a shortage."""
    try:
        return clone_idmapped(fd, users, path, namespace)
    except (OSError, Undecided) as error:
        if is_shortage(error):
            raise
        raise _Stays(f"it cannot be idmapped: {getattr(error, 'strerror', '') or error}") from None


def _below(
    namespace: Namespace, view: View, edit: PlaceMount, *, mount: Row, users: int, fds: list[int]
) -> Iterator[tuple[Row, int]]:
    """What is to be mounted on the new mount, upper ones first. Adds what it opens to `fds`.

    A mount that another one hides stays behind: no process would see it. Raises _Stays, PathEscapes, OSError.
    """
    along: set[int] = set()  # a mount is moved together with the mounts on it
    for row in descendants(mount.id, mount.point, view.inside):
        if row.parent in along:
            along.add(row.id)
            continue
        try:
            fd = open_in_root(view.root, view.path_of(row))
        except (FileNotFoundError, NotADirectoryError):  # another mount hides a directory above it
            continue
        fds.append(fd)
        if view.row(mount_id(fd)) is not row:
            continue
        if view.came_with(edit, row.point[len(mount.point) :], row):
            fds.append(_idmapped(fd, users, view.path_of(row), namespace))
        else:
            along.add(row.id)
        yield row, fds[-1]


def _attach(namespace: Namespace, view: View, old: Row, tree: int) -> None:
    """Mount a tree where another mount was. Raises Unacceptable, OSError."""
    path = view.path_of(old)
    target = open_in_root(view.root, path)
    try:
        namespace.move_mount(tree, target, path)
    finally:
        posix.close(target)
    fd = open_in_root(view.root, path)
    try:
        if mount_id(fd) != mount_id(tree):
            raise Unacceptable(f"{named(path)} was changed while its mount was replaced")
    finally:
        posix.close(fd)
