"""A missing reserved mount is put at its path, in a mount namespace with real mounts, as hook.core.linux.place puts
it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core.base.mountinfo import Row, mount_table
from hook.core.container.oci import Json, Mount
from hook.core.linux.mountns import clone_source
from hook.core.linux.place import placed
from hook.core.reserve.place_mount import PlaceMount
from unit.core.linux.node import MS_BIND, Node
from unit.support import spec

pytestmark = [pytest.mark.openat2, pytest.mark.users]  # setns(2) ends the root directory of tests/rootless.sh

MS_SHARED = 1 << 20


class Places(Node):
    """A node on which `source` has a certificate. `peer`: where a shared mount is mounted too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.peer = directory / "peer"
        (self.source / "certificate").write_text("of the node")

    def share_with_peer(self, at: str) -> None:
        """Make the mount at a path of the container shared, and mount it at `peer` too."""
        self.mount(at, "none", MS_SHARED)
        self.within(lambda: self._call(f"{self.rootfs}{at}", self.peer, MS_BIND))

    def place(self, at: str, source: Path | None = None, below: dict[str, Path] | None = None) -> list[str]:
        """Why the mount at a path has no place; [] if it was placed. `below`: what allowBelow lets through."""
        mount: Json = {"destination": at, "type": "bind", "source": str(source or self.source), "options": ["rbind"]}
        edit = PlaceMount("ca", at, Mount(mount), companions=frozenset(below or ()), before=[])
        others: list[Any] = [{"destination": path, "source": str(source)} for path, source in (below or {}).items()]

        def work() -> list[str]:
            tree = clone_source(edit.source(), edit.options())
            try:
                denials = placed(self.pid, str(self.rootfs), [(edit, tree)], spec(mounts=others))
            finally:
                os.close(tree)
            assert {(denial.rule, denial.kind) for denial in denials} <= {("ca", "mount")}
            return [denial.message for denial in denials]

        return self._caller.submit(work).result()

    def seen(self, at: str) -> str:
        """The certificate that a process of the container sees."""
        return str(self.within((self.rootfs / at.lstrip("/")).read_text))

    def below(self, top: Path) -> list[Row]:
        """The mounts in the container's namespace at a path and below it."""
        return [row for row in mount_table(self.pid).values() if Path(row.point).is_relative_to(top)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Places]:
    node = Places(tmp_path)
    yield node
    node.close()


def test_what_is_missing_on_the_way_is_made_as_a_runtime_makes_it(node: Places) -> None:
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


def test_descriptors_are_closed(node: Places) -> None:
    node.place("/opt/first")
    before = len(os.listdir("/proc/self/fd"))
    node.place("/opt/ca/certs")
    (node.rootfs / "etc/passwd").touch()
    node.place("/etc/passwd/none")
    node.place("/opt/ca", below={"/opt/ca/certs": node.source, "/opt/ca/none": node.source})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_image_on_the_way_refuses_with_the_path(node: Places) -> None:
    (node.rootfs / "etc/file").touch()
    assert node.place("/etc/file/certs") == ["/etc/file/certs cannot be reached inside the image: Not a directory"]
    (node.rootfs / "dangling").symlink_to("/none/none")
    assert node.place("/dangling/certs") == []
    assert node.seen("/none/none/certs/certificate") == "of the node"


def test_what_may_stay_below_is_on_top_again(node: Places) -> None:
    node.mount("/etc/ssl/sub")
    node.within(lambda: (node.rootfs / "etc/ssl/sub/own").write_text("of the pod"))
    below = {"/etc/ssl/sub": node.peer, "/etc/ssl/gone": node.peer, "/etc/other": node.peer}
    node.mount("/etc/other")
    assert node.place("/etc/ssl", below=below) == []
    assert (node.seen("/etc/ssl/certificate"), node.seen("/etc/ssl/sub/own")) == ("of the node", "of the pod")
    assert len(node.rows("/etc/other")) == 1


def test_what_may_stay_below_needs_a_place_in_the_reserved_mount(node: Places) -> None:
    """A directory of the node is no place to make another one in."""
    node.mount("/etc/ssl/new")
    words = (
        "/etc/ssl/new, which allowBelow lets through, has no place in the mount at /etc/ssl: No such file or directory"
    )
    assert node.place("/etc/ssl", below={"/etc/ssl/new": node.peer}) == [words]
    assert not (node.source / "new").exists()


@pytest.mark.parametrize("at", ["/", "/vol"])
def test_a_mount_on_a_shared_one_does_not_appear_in_its_peers(node: Places, at: str) -> None:
    """mount_namespaces(7): what is mounted on a shared mount is mounted on its peers too."""
    if at != "/":
        node.mount(at, node.source, MS_BIND)
    node.share_with_peer(at)
    before = len(node.below(node.peer))
    assert node.place(at if at != "/" else "/etc") == []
    assert node.seen("/vol/certificate" if at != "/" else "/etc/certificate") == "of the node"
    assert len(node.below(node.peer)) == before == 1


def test_a_mount_inside_a_shared_one_is_refused(node: Places) -> None:
    """Only all of a mount can stop to be shared."""
    node.mount("/vol")
    node.share_with_peer("/vol")
    why = "a mount there would appear on the node (mountPropagation: Bidirectional)"
    assert node.place("/vol/certs") == [f"/vol/certs cannot be reached inside the image: {why}"]
    assert len(node.below(node.peer)) == 1
    assert not any(row.point.endswith("/vol/certs") for row in node.below(node.rootfs))


def test_rows_of_mountinfo_say_what_is_mounted_where(node: Places) -> None:
    """Octal escapes: proc_pid_mountinfo(5)."""
    odd = "/a b\\c\n\td"
    node.mount(odd, node.source / "sub", MS_BIND)
    (row,) = node.rows(odd)
    assert row.root.endswith("/ca/sub")
    assert (row.shared, "rw" in row.options) == (False, True)
    node.mount(odd, "none", MS_SHARED)
    (row,) = node.rows(odd)
    assert row.shared
