"""Read-only reserved mounts are replaced by idmapped ones in a mount namespace with real mounts, or it is said why."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.tools import need

from hook.core.base.errors import Unacceptable, named
from hook.core.linux.idmap import IDMAP_FILES, protect, remountable
from hook.core.reserve.place_mount import PlaceMount
from unit.core.linux.mountnamespace import MS_BIND, MS_REC, MountNamespace, Stop, libc, stop
from unit.support import spec

pytestmark = pytest.mark.users  # setns(2), as in test_look

MS_REMOUNT, MS_SHARED = 1 << 5, 1 << 20
BY_OWNER = "can be read by its owner alone"
NO_FILE = "is neither a file nor a directory"


@pytest.fixture
def ns(ns: MountNamespace) -> MountNamespace:
    ns.source.parent.chmod(0o755)
    (ns.source / "ca.pem").write_text("of the node")
    return ns


def protected(ns: MountNamespace, *edits: PlaceMount, before: Any = lambda: None) -> list[str]:
    """Why mounts stay as they are."""
    call = partial(protect, ns.pid, str(ns.rootfs), reserved=edits, spec=spec(), before_mounting=before)
    return list(ns._caller.submit(call).result())


def idmapped(ns: MountNamespace, at: str) -> list[bool]:
    """Of each mount at a path, the upper ones first."""
    return ["idmapped" in row.options for row in reversed(ns.rows(at))]


def written(ns: MountNamespace, file: str) -> str:
    """Why a process of the container cannot write a file, once it has made the mount writable. It has all rights."""

    def work() -> str:
        at = f"{ns.rootfs}{os.path.dirname(file)}".encode()
        assert libc.mount(None, at, None, ctypes.c_ulong(MS_REMOUNT | MS_BIND), None) == 0
        try:
            Path(f"{ns.rootfs}{file}").write_text("of the container")
        except OSError as error:
            return os.strerror(error.errno or 0)
        return ""

    return str(ns.within(work))


@pytest.fixture
def edit(ns: MountNamespace) -> PlaceMount:
    edit = ns.edit("/etc/ssl", "ro")
    assert ns.look(edit, before=lambda: None) == []
    need(not protected(ns, edit), "a kernel and a file system that make idmapped mounts", installed=False)
    ns.within(lambda: libc.umount2(f"{ns.rootfs}/etc/ssl".encode(), 2))
    assert ns.look(edit, before=lambda: None) == []
    return edit


def test_mount_is_replaced_once_by_one_that_nobody_can_write_through(ns: MountNamespace, edit: PlaceMount) -> None:
    assert idmapped(ns, "/etc/ssl") == [False]
    with pytest.raises(Stop):
        protected(ns, edit, before=stop)
    assert idmapped(ns, "/etc/ssl") == [False]
    for _ in range(2):
        assert protected(ns, edit) == []
        assert idmapped(ns, "/etc/ssl") == [True]
        assert ns.look(edit) == [], "it is the reserved one"
    assert ns.within((ns.rootfs / "etc/ssl/ca.pem").read_text) == "of the node"
    assert written(ns, "/etc/ssl/ca.pem")
    assert (ns.source / "ca.pem").read_text() == "of the node"


def test_mount_that_is_not_replaced_can_be_written_through(ns: MountNamespace, edit: PlaceMount) -> None:
    assert written(ns, "/etc/ssl/ca.pem") == ""


def test_what_came_with_the_source_is_replaced_and_a_volume_below_is_kept(ns: MountNamespace) -> None:
    (ns.source / "let").mkdir()
    ns.mount(f"{ns.source}/sub")
    ns.within(lambda: (ns.source / "sub/file").write_text("below"))
    edit = ns.edit("/etc/ssl", "ro", companions=frozenset({"/etc/ssl/let"}))
    ns.mount("/etc/ssl", ns.source)
    ns.mount("/etc/ssl/let", ns.share)
    ns.mount("/etc/ssl/let/a", ns.share)  # goes with the one that it is on
    assert ns.look(edit) == []
    assert protected(ns, edit) == []
    found = {at: idmapped(ns, f"/etc/ssl{at}") for at in ("", "/sub", "/let", "/let/a")}
    assert found == {"": [True], "/sub": [True], "/let": [False], "/let/a": [False]}
    assert ns.look(edit) == []
    assert ns.within((ns.rootfs / "etc/ssl/sub/file").read_text) == "below"
    assert set(ns.within(lambda: os.listdir(ns.rootfs / "etc/ssl/let"))) == {"a", "b"}


def test_reserved_mounts_in_each_other_are_replaced(ns: MountNamespace, edit: PlaceMount) -> None:
    inner = ns.edit("/etc/ssl/sub", "ro")
    ns.mount("/etc/ssl/sub", ns.source)
    assert ns.look(edit, inner) == []
    assert protected(ns, edit, inner) == []
    assert [idmapped(ns, at) for at in ("/etc/ssl", "/etc/ssl/sub")] == [[True], [True]]


def test_second_look_finds_directories_that_two_mounts_come_from(ns: MountNamespace, edit: PlaceMount) -> None:
    """The replaced mounts lie on the directories that they come from, where a second adapter sees them."""
    sub = str(ns.source / "sub")
    (ns.source / "sub/ca.pem").write_text("below")
    inner = ns.edit(
        "/etc/ssl/sub",
        "ro",
        mount={"destination": "/etc/ssl/sub", "type": "bind", "source": sub, "options": ["rbind", "ro"]},
    )
    other = ns.edit("/etc/other", "ro")
    ns.mount("/etc/ssl/sub", sub)
    ns.mount("/etc/other", ns.source)
    for _ in range(2):
        assert ns.look(other, edit, inner) == []
        assert protected(ns, other, edit, inner) == []
        assert [idmapped(ns, at) for at in ("/etc/ssl", "/etc/ssl/sub", "/etc/other")] == [[True]] * 3


def test_mount_that_another_one_hides_stays_behind(ns: MountNamespace, edit: PlaceMount) -> None:
    ns.mount("/etc/ssl/sub", ns.share)
    ns.mount("/etc/ssl/sub", ns.source)
    assert protected(ns, ns.edit("/etc/ssl", "ro", companions=frozenset({"/etc/ssl/sub"}))) == []
    assert idmapped(ns, "/etc/ssl/sub") == [False]
    assert ns.within((ns.rootfs / "etc/ssl/sub/ca.pem").exists)


def test_only_read_only_mounts_of_the_policy_are_replaced(ns: MountNamespace, edit: PlaceMount) -> None:
    others = ns.edit(), ns.edit("/etc/ssl", "ro", mount=None), ns.edit("/etc/ssl", "ro", origin="plugin")
    assert protected(ns, *others, before=stop) == []
    assert idmapped(ns, "/etc/ssl") == [False]


def test_one_that_would_appear_on_the_node_stays(ns: MountNamespace, edit: PlaceMount) -> None:
    ns.within(lambda: libc.mount(b"none", str(ns.rootfs).encode(), None, ctypes.c_ulong(MS_SHARED), None))
    assert protected(ns, edit) == ["/etc/ssl: its mount would appear on the node (mountPropagation: Bidirectional)"]
    assert idmapped(ns, "/etc/ssl") == [False]


def test_one_that_holds_the_containers_own_root_stays(ns: MountNamespace) -> None:
    top = ns.source.parent
    mount = {"destination": "/vol", "source": str(top), "options": ["rbind", "ro"]}
    ns.mount("/vol", top, MS_BIND | MS_REC)
    found = protected(ns, ns.edit("/vol", mount=mount))
    assert found == ["/vol: the container's own root is below it on the node"]


def test_file_system_that_cannot_be_idmapped_is_said(ns: MountNamespace, edit: PlaceMount) -> None:
    source = Path("/proc/sys/fs/epoll")
    mount = {"destination": "/vol", "source": str(source), "options": ["rbind", "ro"]}
    ns.mount("/vol", source)
    [found] = protected(ns, ns.edit("/vol", mount=mount), edit)
    assert found == "/vol: it cannot be idmapped: mount_setattr: Invalid argument"
    assert (idmapped(ns, "/vol"), idmapped(ns, "/etc/ssl")) == ([False], [True])
    assert remountable(str(source)) == "it cannot be idmapped: mount_setattr: Invalid argument"


def without(number: int) -> None:
    """From now on, the calling thread is on a kernel that lacks a system call (seccomp(2))."""
    load, equals, returns = 0x20, 0x15, 0x06
    code = [
        (load, 0, 0, 0),
        (equals, 0, 1, number),
        (returns, 0, 0, 0x50000 | errno.ENOSYS),
        (returns, 0, 0, 0x7FFF0000),
    ]
    rows = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(rows))
    assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())


def test_kernel_that_makes_no_idmapped_mounts_is_said(ns: MountNamespace, edit: PlaceMount) -> None:
    ns._caller.submit(without, 442).result()  # mount_setattr(2), the same on every architecture
    why = "it cannot be idmapped: this kernel has no mount_setattr(2); looking at mounts needs Linux 5.12 or later"
    assert protected(ns, edit) == [f"/etc/ssl: {why}"]
    assert ns._caller.submit(remountable, str(ns.source)).result() == why
    assert idmapped(ns, "/etc/ssl") == [False]


def mode(path: str, bits: int) -> Any:
    return lambda source: (source / path).chmod(bits)


@pytest.mark.parametrize(
    ("change", "at", "why"),
    [
        (mode("ca.pem", 0o600), "/ca.pem", BY_OWNER),
        (mode("ca.pem", 0o640), "/ca.pem", BY_OWNER),
        (mode("ca.pem", 0o444), "", ""),
        (mode("ca.pem", 0o755), "", ""),
        (mode("ca.pem", 0o744), "/ca.pem", BY_OWNER),
        (mode("ca.pem", 0o654), "/ca.pem", BY_OWNER),
        (mode("ca.pem", 0o004), "", ""),
        (mode("ca.pem", 0o000), "/ca.pem", BY_OWNER),
        (mode("", 0o700), "", BY_OWNER),
        (mode("", 0o754), "", BY_OWNER),
        (mode("", 0o005), "", ""),
        (mode("sub", 0o000), "/sub", BY_OWNER),
        (lambda source: os.mkfifo(source / "sub/fifo"), "/sub/fifo", NO_FILE),
        (lambda source: (source / "link").symlink_to("/none"), "", ""),
        (lambda source: (source / "ca.pem").rename(source / "sub/ca.pem"), "", ""),
        (lambda source: (source / "ca.pem").unlink(), "", "has no file yet"),
    ],
)
def test_what_would_be_read_otherwise_than_on_the_node_stays(
    ns: MountNamespace, edit: PlaceMount, change: Any, at: str, why: str
) -> None:
    change(ns.source)
    said = f"{named(f'{ns.source}{at}')} {why}"
    assert protected(ns, edit) == ([f"/etc/ssl: {said}"] if why else [])
    assert idmapped(ns, "/etc/ssl") == [not why]
    assert not why or remountable(str(ns.source)) == said


def test_many_files_are_not_all_looked_at(ns: MountNamespace, edit: PlaceMount) -> None:
    for number in range(IDMAP_FILES - 2):  # beside a file and a directory
        (ns.source / f"sub/{number}").touch()
    assert protected(ns, edit) == []
    assert idmapped(ns, "/etc/ssl") == [True]
    (ns.source / "one more").touch()
    assert remountable(str(ns.source)) == f"{named(str(ns.source))} has more than {IDMAP_FILES} files"


def test_what_a_container_could_do_is_known_without_one(ns: MountNamespace, edit: PlaceMount) -> None:
    """Newer kernels have a system call that makes a copy without the mapping."""
    assert remountable(str(ns.source)) in ("", "open_tree_attr(2) of this kernel takes the mapping off")
    assert (ns.source / "ca.pem").read_text() == "of the node"


def test_place_that_was_changed_meanwhile_refuses_the_container(ns: MountNamespace, edit: PlaceMount) -> None:
    ns.within(lambda: (ns.rootfs / "etc/link").symlink_to("/etc/none"))
    gone = ns.edit("/etc/link", "ro")
    with pytest.raises(Unacceptable, match="cannot be replaced by an idmapped mount"):
        protected(ns, gone)
