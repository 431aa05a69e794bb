"""Resolves a path inside a container component by component, on descriptors, as the container's processes will do it.

openat2(2) with RESOLVE_IN_ROOT ends at the same place, but does not report which mounts it went through.
"""

from __future__ import annotations

import errno
import posix
from collections.abc import Callable

from hook.core.base.compare import clean
from hook.core.base.errors import Unacceptable, named
from hook.core.base.mountinfo import Row
from hook.core.base.system import SYMLINK_LIMIT
from hook.core.container.spec import Spec
from hook.core.linux.mountns import mount_id
from hook.core.policy.entries import BUILT_BY_THE_RUNTIME

_S_IFMT, _S_IFLNK = 0o170000, 0o120000

_PATH_MAX = 4096
"""The kernel takes no longer path (path_resolution(7)), so no runtime can make anything at one."""

WALK_STEPS = 320_000
"""What all walks of one look may cost together: a step costs 1, and one that asks the kernel costs _ASKED. An author of
an image can make each path 80,000 steps long, by 40 links with 2,000 names each. An honest container with 1,000 mounts
costs less than 100,000."""

_ASKED = 16
_OFTEN = 4096
"""After so many of these, which take some milliseconds, the caller is asked whether it still waits."""

_DEFAULT_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""Devices that a runtime makes in /dev of every container (runtime-spec, config-linux.md, "Default Devices")."""

_KEPT = 16
"""Directories that `Walks` keeps open. A container can have mounts and devices in very many."""


class PathEscapes(Exception):
    """A symbolic link of the image leads the path into a tree in which nothing may be reserved."""


class MountMismatch(Exception):
    """A reserved mount is not what the policy wants."""

    def __init__(self, message: str, can_place: bool = False, row: Row | None = None) -> None:
        super().__init__(message)
        self.can_place = can_place
        """Whether mounting it on top would correct that."""
        self.row = row
        """The only mount at its path, if there is one."""


class Node:
    """A path in a container without symbolic links, but for the last name of it. Each path has one node."""

    __slots__ = ("above", "below", "missing", "name", "number", "seen_as", "target")

    def __init__(self, above: Node | None, name: str, missing: bool = False, target: str | None = None) -> None:
        self.above = above
        """The directory, None for the container's root."""
        self.name = name
        self.missing = missing
        """Whether nothing is at the path."""
        self.target = target
        """The target of a symbolic link, None for another file."""
        self.number = -1
        """The id of the mount, -1 until something is looked up in it (`Walks.fd`)."""
        self.seen_as: tuple[int, int] | None = above.seen_as if above else None
        """Below what `Walks.put` put somewhere: the id of the mount that it is in, and the one that counts for it."""
        self.below: dict[str, Node] = {}

    def upwards(self) -> list[Node]:
        """The node and those above it, up to the root."""
        nodes = [self]
        while nodes[-1].above is not None:
            nodes.append(nodes[-1].above)
        return nodes

    def __str__(self) -> str:
        """The path from the container's root."""
        return "/" + "/".join([node.name for node in self.upwards()[-2::-1]])


class Place:
    """The place that a path leads to."""

    __slots__ = ("crossed", "links", "node")

    def __init__(self, node: Node, crossed: dict[Node, None], links: list[Node]) -> None:
        self.node = node
        """The node at the end, with symbolic links resolved; missing names are taken as they are written."""
        self.crossed = crossed
        """The directories in which a name was looked up, and the symbolic links, in order."""
        self.links = links
        """The symbolic links among them."""

    @property
    def path(self) -> str:
        """The path from the container's root."""
        return str(self.node)

    @property
    def exists(self) -> bool:
        """Whether nothing of the path is missing."""
        return not self.node.missing


class Steps:
    """The budget of one look."""

    __slots__ = ("_ask", "_asked_at", "_left")

    def __init__(self, ask: Callable[[], None] = lambda: None) -> None:
        """`ask`: called now and then; raises if the caller waits no more."""
        self._ask = ask
        self._left = self._asked_at = WALK_STEPS

    def take(self, cost: int) -> None:
        """Raises Unacceptable if too little is left."""
        self._left -= cost
        if self._left < 0:
            raise Unacceptable(f"it takes more than {WALK_STEPS} steps to follow the container's paths and their links")
        if self._asked_at - self._left > _OFTEN:
            self._asked_at = self._left
            self._ask()


class Walks:
    """All walks of one look into a container. No walk looks up what another one has looked up already.

    Every lookup is relative to an opened directory, so the answer is about the place that the node stands for, even
    where others rename what is above it.
    """

    def __init__(self, root: int, steps: Steps) -> None:
        self.root = Node(None, "")
        self.root.number = mount_id(root)
        self.steps = steps
        self._open: dict[Node, int] = {self.root: root}
        self._lasting = {self.root}

    def put(self, node: Node, fd: int, number: int) -> None:
        """From now on what is at a node is that of a descriptor, as if it were mounted there with the id `number`.

        The caller closes the descriptor, after `close`.
        """
        before = self._open.pop(node, -1)
        if before >= 0 and node not in self._lasting:
            posix.close(before)
        node.missing, node.number, node.seen_as, node.below = False, number, (mount_id(fd), number), {}
        self._open[node] = fd
        self._lasting.add(node)

    def to(self, path: str, everywhere: bool = False) -> Place:
        """Walk an absolute path.

        Raises OSError; PathEscapes for a path into /proc, /sys or /dev; Unacceptable beyond WALK_STEPS.

        `everywhere`: walk into these trees too, and as runc does, for which `..` takes a missing name back.
        """
        if len(path) > _PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, posix.strerror(errno.ENAMETOOLONG), path)
        node = self.root
        crossed: dict[Node, None] = {}
        links: list[Node] = []
        pending = self._names(path)
        while pending:
            part = pending.pop()
            if not node.missing:
                if node.number < 0:
                    self.fd(node)
                crossed[node] = None
            if part == "..":
                if node.missing and not everywhere:
                    raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), path)
                node = node.above or node
                continue
            if node is self.root and not everywhere and "/" + part in BUILT_BY_THE_RUNTIME:
                written = clean("/".join(["", part, *reversed(pending)]))
                raise PathEscapes(f"leads to {named(written)}, in a tree that the runtime builds")
            below = node.below.get(part) or self._looked_up(node, part)
            if below.target is None:
                node = below
                continue
            crossed[below] = None
            links.append(below)
            if len(links) > SYMLINK_LIMIT:
                raise OSError(errno.ELOOP, posix.strerror(errno.ELOOP), path)
            if below.target.startswith("/"):
                node = self.root
            pending += self._names(below.target)
        return Place(node, crossed, links)

    def _looked_up(self, node: Node, name: str) -> Node:
        """The node of a name in a directory. Raises OSError, Unacceptable."""
        below = Node(node, name, missing=True)
        if not node.missing:
            directory = self.fd(node)
            self.steps.take(_ASKED)
            try:
                mode = posix.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                below.missing = False
                if mode & _S_IFMT == _S_IFLNK:
                    below.target = posix.readlink(name, dir_fd=directory)
                    below.number = node.number  # nothing is mounted on a link
            except FileNotFoundError:
                pass
        node.below[name] = below
        return below

    def fd(self, node: Node) -> int:
        """A descriptor of what is at a node, which is closed by a later call. Raises OSError, Unacceptable.

        What was put in its place since is not followed: for a symbolic link, it is a descriptor of the link itself.
        """
        opened = self._open
        names = []
        while node not in opened:
            names.append(node)
            node = node.above or self.root
        fd = opened[node]
        for node in reversed(names):
            self.steps.take(_ASKED)
            fd = posix.open(node.name, posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=fd)
            opened[node] = fd
            node.number = mount_id(fd)
            if node.seen_as and node.seen_as[0] == node.number:
                node.number = node.seen_as[1]
            if len(opened) > _KEPT + len(self._lasting):
                posix.close(opened.pop(next(one for one in opened if one not in self._lasting)))
        return fd

    def _names(self, path: str) -> list[str]:
        """The names of a path, the last one first. Raises Unacceptable."""
        names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
        self.steps.take(len(names))
        return names

    def close(self) -> None:
        """Close the descriptors, but for the root's and for what was `put`."""
        for node in self._open.keys() - self._lasting:
            posix.close(self._open.pop(node))


def open_walked(root: int, path: str) -> int:
    """As open_in_root, without openat2(2), whose flags no filter of system calls can see (hook.inside.rights)."""
    walks = Walks(root, Steps())
    try:
        place = walks.to(path, everywhere=True)
        if not place.exists:
            raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), path)
        return posix.dup(walks.fd(place.node))
    finally:
        walks.close()


def made_at(spec: Spec) -> list[str]:
    """Where a runtime makes devices, and where it could if a link of the container leads on from there.

    runc takes `..` out of the text of a path, and follows a link at its end too. crun follows links before `..`, and
    none at the end.
    """
    paths = [device.written for device in spec.devices]
    paths += [f"/dev/{name}" for name in _DEFAULT_DEVICES]
    return sorted({spelling for path in paths for spelling in (path, clean(path))})
