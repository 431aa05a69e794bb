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
from unit.core.linux.mountnamespace import MS_BIND, MountNamespace
from unit.support import spec

pytestmark = [pytest.mark.openat2, pytest.mark.users]  # setns(2) ends the root directory of tests/rootless.sh

MS_SHARED = 1 << 20


class Places(MountNamespace):
    """One whose `source` has a certificate. `peer`: where a shared mount is mounted too."""

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
def ns(tmp_path: Path) -> Iterator[Places]:
    ns = Places(tmp_path)
    yield ns
    ns.close()


def test_what_is_missing_on_the_way_is_made_as_a_runtime_makes_it(ns: Places) -> None:
    os.umask(umask := os.umask(0))
    assert ns.place("/opt/ca/certs") == []
    assert ns.seen("/opt/ca/certs/certificate") == "of the node"
    assert ns.place("/srv/ca/certificate", ns.source / "certificate") == []
    assert ns.seen("/srv/ca/certificate") == "of the node"
    assert ns.place("/file", ns.source / "certificate") == []
    assert ns.seen("/file") == "of the node"
    modes = {path: os.stat(ns.rootfs / path).st_mode for path in ("opt", "opt/ca", "opt/ca/certs", "srv/ca", "file")}
    assert stat.S_ISREG(modes.pop("file"))
    assert all(mode == stat.S_IFDIR | (0o755 & ~umask) for mode in modes.values())
    assert not list((ns.rootfs / "opt/ca/certs").iterdir())  # outside the namespace there is no mount


def test_descriptors_are_closed(ns: Places) -> None:
    ns.place("/opt/first")
    before = len(os.listdir("/proc/self/fd"))
    ns.place("/opt/ca/certs")
    (ns.rootfs / "etc/passwd").touch()
    ns.place("/etc/passwd/none")
    ns.place("/opt/ca", below={"/opt/ca/certs": ns.source, "/opt/ca/none": ns.source})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_image_on_the_way_refuses_with_the_path(ns: Places) -> None:
    (ns.rootfs / "etc/file").touch()
    assert ns.place("/etc/file/certs") == ["/etc/file/certs cannot be reached inside the image: Not a directory"]
    (ns.rootfs / "dangling").symlink_to("/none/none")
    assert ns.place("/dangling/certs") == []
    assert ns.seen("/none/none/certs/certificate") == "of the node"


def test_what_may_stay_below_is_on_top_again(ns: Places) -> None:
    ns.mount("/etc/ssl/sub")
    ns.within(lambda: (ns.rootfs / "etc/ssl/sub/own").write_text("of the pod"))
    below = {"/etc/ssl/sub": ns.peer, "/etc/ssl/gone": ns.peer, "/etc/other": ns.peer}
    ns.mount("/etc/other")
    assert ns.place("/etc/ssl", below=below) == []
    assert (ns.seen("/etc/ssl/certificate"), ns.seen("/etc/ssl/sub/own")) == ("of the node", "of the pod")
    assert len(ns.rows("/etc/other")) == 1


def test_what_may_stay_below_needs_a_place_in_the_reserved_mount(ns: Places) -> None:
    """A directory of the node is no place to make another one in."""
    ns.mount("/etc/ssl/new")
    words = (
        "/etc/ssl/new, which allowBelow lets through, has no place in the mount at /etc/ssl: No such file or directory"
    )
    assert ns.place("/etc/ssl", below={"/etc/ssl/new": ns.peer}) == [words]
    assert not (ns.source / "new").exists()


@pytest.mark.parametrize("at", ["/", "/vol"])
def test_a_mount_on_a_shared_one_does_not_appear_in_its_peers(ns: Places, at: str) -> None:
    """mount_namespaces(7): what is mounted on a shared mount is mounted on its peers too."""
    if at != "/":
        ns.mount(at, ns.source, MS_BIND)
    ns.share_with_peer(at)
    before = len(ns.below(ns.peer))
    assert ns.place(at if at != "/" else "/etc") == []
    assert ns.seen("/vol/certificate" if at != "/" else "/etc/certificate") == "of the node"
    assert len(ns.below(ns.peer)) == before == 1


def test_a_mount_inside_a_shared_one_is_refused(ns: Places) -> None:
    """Only all of a mount can stop to be shared."""
    ns.mount("/vol")
    ns.share_with_peer("/vol")
    why = "a mount there would appear on the node (mountPropagation: Bidirectional)"
    assert ns.place("/vol/certs") == [f"/vol/certs cannot be reached inside the image: {why}"]
    assert len(ns.below(ns.peer)) == 1
    assert not any(row.point.endswith("/vol/certs") for row in ns.below(ns.rootfs))


def test_rows_of_mountinfo_say_what_is_mounted_where(ns: Places) -> None:
    """Octal escapes: proc_pid_mountinfo(5)."""
    odd = "/a b\\c\n\td"
    ns.mount(odd, ns.source / "sub", MS_BIND)
    (row,) = ns.rows(odd)
    assert row.root.endswith("/ca/sub")
    assert (row.shared, "rw" in row.options) == (False, True)
    ns.mount(odd, "none", MS_SHARED)
    (row,) = ns.rows(odd)
    assert row.shared
