"""A missing reserved mount is put at its path, in a mount namespace with real mounts, as hook.core.linux.place puts
it."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.mountinfo import Row, mount_table
from hook.core.linux.mountns import clone_source, own_directories
from hook.core.linux.place import placed
from hook.core.reserve import PlaceMount
from unit.support import spec

pytestmark = [pytest.mark.openat2, pytest.mark.users]  # setns(2) ends the root directory of tests/rootless.sh

CLONE_NEWNS = 1 << 17
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 1 << 12, 1 << 14, 1 << 18, 1 << 20


class Node:
    """Threads of a process. One's mount namespace is a container's, whose root is `rootfs`; the other places mounts."""

    def __init__(self, directory: Path) -> None:
        self.rootfs, self.source, self.peer = directory / "rootfs", directory / "ca", directory / "peer"
        for path in (self.rootfs / "etc", self.source, self.peer):
            path.mkdir(parents=True)
        (self.source / "certificate").write_text("of the node")
        self.container, self.caller = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.pid: int = self.container.submit(self._begin).result()
        self.caller.submit(own_directories).result()

    def _begin(self) -> int:
        own_directories()
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
        self._mount("none", Path("/"), MS_REC | MS_PRIVATE)
        self._mount(self.rootfs, self.rootfs, MS_BIND)
        return threading.get_native_id()

    @staticmethod
    def _mount(source: object, target: Path, flags: int) -> None:
        kind = b"tmpfs" if source == "tmpfs" else b""
        mounted = ctypes.CDLL(None).mount(str(source).encode(), str(target).encode(), kind, ctypes.c_ulong(flags), None)
        assert mounted == 0, target

    def mount(self, source: object, target: Path, flags: int = 0) -> None:
        """mount(2) in the container's namespace."""
        target.mkdir(parents=True, exist_ok=True)
        self.container.submit(self._mount, source, target, flags).result()

    def place(self, at: str, source: Path | None = None, below: dict[str, Path] | None = None) -> list[str]:
        """Why the mount at a path has no place; [] if it was placed. `below`: what allowBelow lets through."""
        mount = {"destination": at, "type": "bind", "source": str(source or self.source), "options": ["rbind"]}
        edit = PlaceMount("ca", at, mount, frozenset(below or ()), [])
        others: list[Any] = [{"destination": path, "source": str(source)} for path, source in (below or {}).items()]

        def work() -> list[str]:
            tree = clone_source(edit.source(), edit.options())
            try:
                denials = placed(self.pid, str(self.rootfs), [(edit, tree)], spec(mounts=others))
            finally:
                os.close(tree)
            assert {(denial.rule, denial.kind) for denial in denials} <= {("ca", "mount")}
            return [denial.message for denial in denials]

        return self.caller.submit(work).result()

    def seen(self, at: str) -> str:
        """The certificate that a process of the container sees."""
        return self.container.submit((self.rootfs / at.lstrip("/")).read_text).result()

    def rows(self, top: Path) -> list[Row]:
        """The mounts in the container's namespace at a path and below it."""
        return [row for row in mount_table(self.pid).values() if Path(row.point).is_relative_to(top)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.container.shutdown()
    node.caller.shutdown()


def test_what_is_missing_on_the_way_is_made_as_a_runtime_makes_it(node: Node) -> None:
    os.umask(umask := os.umask(0))
    assert node.place("/opt/ca/certs") == []
    assert node.seen("/opt/ca/certs/certificate") == "of the node"
    assert node.place("/srv/ca/certificate", node.source / "certificate") == []
    assert node.seen("/srv/ca/certificate") == "of the node"
    assert node.place("/file", node.source / "certificate") == []
    assert node.seen("/file") == "of the node"
    modes = {path: os.stat(node.rootfs / path).st_mode for path in ("opt", "opt/ca", "opt/ca/certs", "srv/ca", "file")}
    assert stat.S_ISREG(modes.pop("file"))
    assert all(mode == stat.S_IFDIR | (0o755 & ~umask) for mode in modes.values())
    assert not list((node.rootfs / "opt/ca/certs").iterdir())  # outside the namespace there is no mount


def test_descriptors_are_closed(node: Node) -> None:
    node.place("/opt/first")
    before = len(os.listdir("/proc/self/fd"))
    node.place("/opt/ca/certs")
    (node.rootfs / "etc/passwd").touch()
    node.place("/etc/passwd/none")
    node.place("/opt/ca", below={"/opt/ca/certs": node.source, "/opt/ca/none": node.source})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_image_on_the_way_refuses_with_the_path(node: Node) -> None:
    (node.rootfs / "etc/ssl").touch()
    assert node.place("/etc/ssl/certs") == ["/etc/ssl/certs cannot be reached inside the image: Not a directory"]
    (node.rootfs / "dangling").symlink_to("/none/none")
    assert node.place("/dangling/certs") == []
    assert node.seen("/none/none/certs/certificate") == "of the node"


def test_what_may_stay_below_is_on_top_again(node: Node) -> None:
    node.mount("tmpfs", node.rootfs / "etc/ssl/sub")
    node.container.submit((node.rootfs / "etc/ssl/sub/own").write_text, "of the pod").result()
    (node.source / "sub").mkdir()
    below = {"/etc/ssl/sub": node.peer, "/etc/ssl/gone": node.peer, "/etc/other": node.peer}
    node.mount("tmpfs", node.rootfs / "etc/other")
    assert node.place("/etc/ssl", below=below) == []
    assert (node.seen("/etc/ssl/certificate"), node.seen("/etc/ssl/sub/own")) == ("of the node", "of the pod")
    assert len(node.rows(node.rootfs / "etc/other")) == 1


def test_what_may_stay_below_needs_a_place_in_the_reserved_mount(node: Node) -> None:
    """A directory of the node is no place to make another one in."""
    node.mount("tmpfs", node.rootfs / "etc/ssl/sub")
    words = (
        "/etc/ssl/sub, which allowBelow lets through, has no place in the mount at /etc/ssl: No such file or directory"
    )
    assert node.place("/etc/ssl", below={"/etc/ssl/sub": node.peer}) == [words]
    assert not (node.source / "sub").exists()


@pytest.mark.parametrize("at", ["/", "/vol"])
def test_a_mount_on_a_shared_one_does_not_appear_in_its_peers(node: Node, at: str) -> None:
    """mount_namespaces(7): what is mounted on a shared mount is mounted on its peers too."""
    shared = node.rootfs / at[1:]
    if at != "/":
        node.mount(node.source, shared, MS_BIND)
    node.mount("none", shared, MS_SHARED)
    node.mount(shared, node.peer, MS_BIND)
    before = len(node.rows(node.peer))
    assert node.place(at if at != "/" else "/etc") == []
    assert node.seen("/vol/certificate" if at != "/" else "/etc/certificate") == "of the node"
    assert len(node.rows(node.peer)) == before == 1


def test_a_mount_inside_a_shared_one_is_refused(node: Node) -> None:
    """Only all of a mount can stop to be shared."""
    node.mount("tmpfs", node.rootfs / "vol", 0)
    node.mount("none", node.rootfs / "vol", MS_SHARED)
    node.mount(node.rootfs / "vol", node.peer, MS_BIND)
    why = "a mount there would appear on the node (mountPropagation: Bidirectional)"
    assert node.place("/vol/certs") == [f"/vol/certs cannot be reached inside the image: {why}"]
    assert len(node.rows(node.peer)) == 1
    assert not any(row.point.endswith("/vol/certs") for row in node.rows(node.rootfs))


def test_rows_of_mountinfo_say_what_is_mounted_where(node: Node) -> None:
    """Octal escapes: proc_pid_mountinfo(5)."""
    odd = node.rootfs / "a b\\c\n\td"
    (node.source / "sub").mkdir()
    node.mount(node.source / "sub", odd, MS_BIND)
    (row,) = node.rows(odd)
    assert Path(row.point) == odd
    assert row.root.endswith("/ca/sub")
    assert (row.shared, "rw" in row.options) == (False, True)
    node.mount("none", odd, MS_SHARED)
    (row,) = node.rows(odd)
    assert row.shared
