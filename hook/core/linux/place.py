"""Puts a missing reserved mount into a container's mount namespace."""

from __future__ import annotations

import errno
import posix

from hook.core.base.compare import is_below
from hook.core.base.errors import named
from hook.core.base.mountinfo import mount_table
from hook.core.base.system import is_shortage
from hook.core.container.spec import Spec
from hook.core.linux.mountns import PRIVATE, Namespace, mount_id, open_in_root
from hook.core.linux.walk import MountMismatch, PathEscapes, Steps, Walks
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND
from hook.core.reserve.place_mount import PlaceMount

_S_IFMT, _S_IFDIR = 0o170000, 0o040000


def placed(pid: int, rootfs: str, trees: list[tuple[PlaceMount, int]], spec: Spec) -> list[Reason]:
    """Mount detached trees at their paths; reasons where the image has no place for one."""
    denials: list[Reason] = []
    with Namespace(pid, rootfs) as namespace:
        shared = {row.id for row in mount_table(pid).values() if row.shared}
        if mount_id(namespace.container) in shared:
            namespace.set_attributes(namespace.container, [], rootfs, PRIVATE)
        for edit, tree in trees:
            try:
                _place(namespace, edit, tree, spec=spec, shared=shared)
            except MountMismatch as problem:
                denials.append(Reason(edit.rule, KIND, str(problem)))
    return denials


def _place(namespace: Namespace, edit: PlaceMount, tree: int, *, spec: Spec, shared: set[int]) -> None:
    """Mount a tree, with what `allowBelow` lets through on top of it again. Raises MountMismatch.

    `shared`: ids of mounts that propagate what is mounted on them to the node (mount_namespaces(7)).
    """
    kept: list[tuple[str, int]] = []
    try:
        for path in dict.fromkeys(mount.path for mount in spec.mounts):
            if path in edit.companions and is_below(path, edit.name):
                clone = _clone(namespace, path)
                if clone >= 0:
                    kept.append((path, clone))
        _mount(
            namespace,
            edit.name,
            tree,
            complaint=f"{named(edit.name)} cannot be reached inside the image",
            shared=shared,
        )
        for path, clone in kept:
            complaint = f"{named(path)}, which allowBelow lets through, has no place in the mount at {named(edit.name)}"
            _mount(namespace, path, clone, complaint=complaint, shared=shared, make=False)
    finally:
        for _, clone in kept:
            posix.close(clone)


def _clone(namespace: Namespace, path: str) -> int:
    """A copy of the mount at a path, -1 if nothing is there. Raises MountMismatch for what image or pod chose."""
    try:
        fd = open_in_root(namespace.container, path)
        try:
            return namespace.clone_tree(fd, path)
        finally:
            posix.close(fd)
    except FileNotFoundError:
        return -1
    except OSError as error:
        if is_shortage(error):
            raise
        complaint = f"{named(path)}, which allowBelow lets through, cannot be reached"
        raise MountMismatch(f"{complaint}: {posix.strerror(error.errno or 0)}") from None


def _mount(namespace: Namespace, path: str, tree: int, *, complaint: str, shared: set[int], make: bool = True) -> None:
    try:
        target = _target(namespace.container, path, posix.fstat(tree).st_mode & _S_IFMT == _S_IFDIR, make)
        try:
            number = mount_id(target)
            if number in shared and number != mount_id(namespace.container):
                _hide(namespace, target, path)
            namespace.move_mount(tree, target, path)
        finally:
            posix.close(target)
    except (PathEscapes, OSError) as error:
        raise MountMismatch(f"{complaint}: {error.strerror if isinstance(error, OSError) else error}") from None


def _hide(namespace: Namespace, target: int, path: str) -> None:
    """Stop the propagation of a mount that the reserved one will cover. Raises PathEscapes if it covers only a part."""
    try:
        namespace.set_attributes(target, [], path, PRIVATE)
    except OSError as error:
        if error.errno == errno.EINVAL:  # the descriptor is not the root of its mount (mount_setattr(2))
            raise PathEscapes("a mount there would appear on the node (mountPropagation: Bidirectional)") from None
        raise


def _target(root: int, path: str, is_directory: bool, make: bool) -> int:
    """The place to mount on. A missing one is made as a runtime would do it, relative to an opened parent.

    Raises PathEscapes, OSError, which says what is wrong with the image.
    """
    walks = Walks(root, Steps())
    try:
        place = walks.to(path)
        missing = [node for node in place.node.upwards()[::-1] if node.missing]
        if not missing:
            return posix.dup(walks.fd(place.node))
        if not make:
            raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), path)
        above = posix.dup(walks.fd(missing[0].above or walks.root))
        for node in missing:
            parent, above = above, -1
            try:
                if node is not place.node or is_directory:
                    posix.mkdir(node.name, 0o755, dir_fd=parent)
                else:
                    flags = posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | posix.O_CLOEXEC
                    posix.close(posix.open(node.name, flags, 0o644, dir_fd=parent))
                above = posix.open(node.name, posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=parent)
            except OSError as error:
                raise OSError(error.errno, f"{named(path)} is missing and cannot be made: {error.strerror}") from None
            finally:
                posix.close(parent)
        return above
    finally:
        walks.close()
