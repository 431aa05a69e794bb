"""A container's mounts as hook.core.linux.look finds them, in a mount namespace with real mounts."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import marks
import pytest
from e2e.stalled import stalling
from harness.tools import need

from hook.core.base.errors import Unacceptable
from hook.core.facts import Container
from hook.core.linux.idmap import protect
from hook.core.linux.look import look_at_processes
from hook.core.linux.look_node_paths import look_at_node_paths, places_of
from hook.core.linux.mountns import mount_id, status_at_once
from hook.core.plan import plan
from unit.core.linux.mountnamespace import MS_BIND, MS_UNBINDABLE, MountNamespace, Stop, libc, stop
from unit.ownmachine import Machine
from unit.support import POD, bind, container, policy, spec

pytestmark = pytest.mark.users  # setns(2) ends a chroot, which rootless.sh makes


def test_mount_in_place_is_found_and_what_is_missing_is_placed_unless_the_caller_objects(ns: MountNamespace) -> None:
    edit = ns.edit("/etc/ssl", "ro")
    with pytest.raises(Stop):
        ns.look(edit)
    assert not ns.rows("/etc/ssl")
    assert ns.look(edit, before=lambda: None) == []
    assert ["ro" in row.options for row in ns.rows("/etc/ssl")] == [True]
    assert ns.look(edit) == []
    with pytest.raises(Stop):
        call = partial(protect, ns.pid, str(ns.rootfs), reserved=[edit], spec=spec(), before_mounting=stop)
        ns._caller.submit(call).result()
    ns.mount("/etc/ssl", ns.share)
    with pytest.raises(Stop):
        ns.look(edit)  # another directory


@marks.hole(
    "A container with a volume of kubelet's pods exchanged a rule's `emptyDir` and a link while another one "
    "started: any directory of the node became its writable reserved mount"
)
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_directory_of_the_node_that_a_link_led_to_is_no_emptydir(ns: MountNamespace, is_asked_for: bool) -> None:
    """A container with a volume of kubelet's pods exchanges the emptyDir and a link; the runtime mounts."""
    pods = ns.source / "pods"
    own, kept = pods / "uid/reassert/hash", pods / "uid/reassert/kept"
    own.mkdir(parents=True)
    edit = ns.edit("/etc/ssl", mount={"destination": "/etc/ssl", "source": str(own), "options": ["rbind"]})
    edit.volume = (str(pods), "hash", -1)
    ns.mount("/etc/ssl", own)
    assert ns.look(edit) == []
    own.rename(kept)
    own.symlink_to(ns.source / "sub")
    with pytest.raises(Unacceptable, match="symbolic links"):
        ns.look(edit)
    ns.mount("/etc/other", own)
    mount = {"destination": "/etc/other", "source": str(own), "options": ["rbind"]}
    other = ns.edit("/etc/other", mount=mount)
    other.volume = edit.volume
    own.unlink()
    kept.rename(own)
    assert ns.look(edit) == []
    of = spec(mounts=[mount] if is_asked_for else [])
    why = ns.look(other, of=of, before=lambda: None)
    link = "a link was there when the runtime mounted it"
    above = "mount /etc/other is a volume above the reserved mount /etc/other"
    assert [(link if is_asked_for else above) in message for message in why] == [True]


def test_read_only_is_made_so_below_too(ns: MountNamespace) -> None:
    ns.mount(f"{ns.source}/sub")
    ns.mount("/etc/ssl", ns.source)
    ns.mount("/etc/other", ns.source)
    assert ns.look(ns.edit("/etc/ssl", "ro"), ns.edit("/etc/other")) == []
    for at, wanted in (("/etc/ssl", True), ("/etc/ssl/sub", True), ("/etc/other", False), ("/etc/other/sub", False)):
        assert ["ro" in row.options for row in ns.rows(at)] == [wanted], at


def test_read_only_is_not_what_allow_below_lets_through(ns: MountNamespace) -> None:
    ns.mount("/etc/ssl", ns.source)
    ns.mount("/etc/ssl/sub")
    assert ns.look(ns.edit("/etc/ssl", "ro", companions=frozenset({"/etc/ssl/sub"}))) == []
    assert ["ro" in row.options for at in ("/etc/ssl", "/etc/ssl/sub") for row in ns.rows(at)] == [True, False]


def test_mount_that_came_meanwhile_is_not_trusted(ns: MountNamespace) -> None:
    ns.mount("/etc/ssl", ns.source)
    assert ns.problems(ns.edit()) == []
    assert ns.problems(ns.edit(), forget="/etc/ssl") == [
        "/etc/ssl in the image leads through a mount that was made since"
    ]


def test_place_of_the_nodes_path_in_a_mount_that_came_meanwhile_is_not_known() -> None:
    decided = plan(policy(), Container(POD, container().start))
    with pytest.raises(OSError, match="is in a mount that was made since"):
        places_of(decided, {})


def test_mount_over_the_containers_root_is_refused(ns: MountNamespace) -> None:
    ns.mount("/etc/ssl", ns.source)
    assert ns.look(ns.edit(str(ns.share), mount=None)) == [], "it is a mount of the node"
    ns.mount("/", ns.share)
    assert ns.problems(ns.edit()) == ["/etc/ssl: another mount lies over the container's root"]
    for _ in range(2):
        assert ns.look(ns.edit()) == ["/etc/ssl: another mount lies over the container's root"]
        ns.within(lambda: libc.umount2(str(ns.rootfs).encode(), 2))  # MNT_DETACH
        ns.within(lambda: libc.umount2(str(ns.rootfs).encode(), 2))
        ns.mount("/", ns.share)  # in its place


@pytest.mark.parametrize(
    ("mounts", "more", "why"),
    [
        ([("/etc", "tmpfs"), ("/etc/ssl", "ca")], {}, "mount /etc is a volume above the reserved mount /etc/ssl"),
        ([("/etc", "tmpfs"), ("/etc/ssl", "ca")], {"volumes_above": True}, ""),
        ([("/etc/ssl", "ca"), ("/etc/ssl", "ca")], {}, ""),  # an earlier copy
        ([("/etc/ssl", "tmpfs"), ("/etc/ssl", "ca")], {}, "mount /etc/ssl is a volume above"),
        ([("/etc/ssl", "share/a"), ("/etc/ssl", "ca")], {"volumes_above": True}, ""),
        ([("/etc/ssl", "ca"), ("/etc/ssl/sub", "tmpfs")], {}, "place"),
        ([("/etc/ssl", "ca"), ("/etc/ssl/sub", "tmpfs")], {"companions": frozenset({"/etc/ssl/sub"})}, ""),
        ([("/etc/ssl", "ca"), ("/etc/ssl/sub/x", "tmpfs")], {"companions": frozenset({"/etc/ssl/sub"})}, ""),
        ([("/etc/ssl", "ca"), ("/etc/ssl/sub", "tmpfs")], {"companions": frozenset({"/etc/ssl/x"})}, "mounted below"),
        ([("/etc/ssl", "ca"), ("/etc/ssl/sub", "tmpfs")], {"companions": frozenset({"/opt"})}, "place"),
        ([], {"at": "/etc/none"}, "place"),
        ([("/vol", "/proc")], {"at": "/vol/sys"}, "/vol/sys in the image leads through /vol, a proc file system"),
        # a mount of the node below the source: it came along, it did not, another one is there
        ([("ca/sub", "share/a"), ("/etc/ssl", "ca")], {}, ""),
        ([("/etc/ssl", "ca"), ("ca/sub", "share/a")], {}, "place"),
        ([("ca/sub", "share/a"), ("/etc/ssl", "ca"), ("/etc/ssl/sub", "share/b")], {}, "place"),
        ([("ca/sub", "tmpfs"), ("/etc/ssl", "ca"), ("/etc/ssl/sub", "tmpfs")], {}, "place"),
        ([("ca/sub", "share/a"), ("/etc/ssl", "ca"), ("/etc/other", "share/a")], {}, ""),
        # nothing may be mounted
        ([], {"mount": None}, ""),
        ([("/etc/other", "tmpfs")], {"mount": None}, ""),
        ([("/vol", "tmpfs")], {"at": "/vol/x", "mount": None}, ""),
        ([("/etc/ssl", "tmpfs")], {"mount": None}, "/etc/ssl is mounted, and nothing may be mounted at /etc/ssl"),
        ([("/etc/ssl/sub", "tmpfs")], {"mount": None}, "/etc/ssl/sub is mounted, and nothing may be mounted"),
        ([("/etc/ssl/sub", "tmpfs")], {"mount": None, "companions": frozenset({"/etc/ssl/sub"})}, ""),
        ([("/etc/ssl/sub/x", "tmpfs")], {"mount": None, "companions": frozenset({"/etc/ssl/sub"})}, ""),
    ],
)
def test_mounts_around_a_reserved_one(ns: MountNamespace, mounts: list[Any], more: dict[str, Any], why: str) -> None:
    """`place`: placing the reserved mount once more corrects it."""
    top = ns.source.parent
    for at, source in mounts:
        ns.mount(at if at.startswith("/") else f"{top}/{at}", source if source == "tmpfs" else top / source)
    if why == "place":
        with pytest.raises(Stop):
            ns.look(ns.edit(**more))
    else:
        found = ns.look(ns.edit(**more))
        assert len(found) == bool(why)
        assert why in "".join(found)


def test_what_placing_did_not_correct_is_refused(ns: MountNamespace) -> None:
    ns.within((ns.rootfs / "etc/file").touch)
    ns.within(lambda: (ns.rootfs / "etc/link").symlink_to("/proc/self"))
    missing, astray, file = ns.edit("/etc/other"), ns.edit("/etc/link"), ns.edit("/etc/file")
    assert len(ns.look(missing, astray)) == 1, "and nothing is placed"
    assert "leads to /proc/self" in ns.look(missing, astray)[0]
    assert len(found := ns.look(file, before=lambda: None)) == 1
    assert "/etc/file" in found[0]
    assert "is not" not in found[0], "why it could not be placed"
    ns.mount("/etc/ssl")
    assert "mount /etc/ssl is a volume above" in "".join(ns.look(ns.edit(), before=lambda: None))
    shadowed = [ns.edit("/vol/sub", volumes_above=True), ns.edit("/vol")]  # the second one hides the first
    why = "/vol/sub in the image does not lead to the reserved mount (a symbolic link?)"
    assert ns.look(*shadowed, before=lambda: None) == [why]


def test_what_rbind_leaves_out_is_not_missed(ns: MountNamespace) -> None:
    """What is unbindable, with all below it; and the container's own tree, which came later."""
    ns.mount(f"{ns.source}/sub")
    ns.mount(f"{ns.source}/sub/below")
    ns.mount(f"{ns.source}/sub", "none", MS_UNBINDABLE)
    ns.mount("/etc/ssl", ns.source)
    assert ns.look(ns.edit()) == []
    ns.mount(f"{ns.source}/later")
    plain = {"destination": "/etc/ssl", "source": str(ns.source), "options": ["bind"]}
    assert ns.look(ns.edit(mount=plain)) == []
    for companion, is_missed in (("/etc/ssl/later", False), ("/etc/ssl/lat", True)):
        edit = ns.edit(companions=frozenset({companion}))
        with pytest.raises(Stop) if is_missed else nullcontext():
            assert ns.look(edit) == []
    top = ns.source.parent
    whole = {"destination": "/vol", "source": str(top), "options": ["rbind"]}
    ns.mount("/vol", top)
    assert ns.look(ns.edit("/vol", mount=whole)) == []


def test_link_in_a_volume_leads_to_no_reserved_mount(ns: MountNamespace) -> None:
    ns.mount("/etc/ssl", ns.source)
    ns.mount("/vol")
    ns.within(lambda: (ns.rootfs / "vol/link").symlink_to("/etc/ssl"))
    assert "mount /vol is a volume above the reserved mount /vol/link" in "".join(ns.look(ns.edit("/vol/link")))
    assert ns.look(ns.edit("/vol/link", volumes_above=True)) == []


def test_directory_that_another_mount_brought_is_not_the_reserved_one(ns: MountNamespace) -> None:
    ns.mount("/vol", ns.source)
    source = {"destination": "/vol/sub", "source": f"{ns.source}/sub", "options": ["rbind"]}
    with pytest.raises(Stop):
        ns.look(ns.edit("/vol/sub", mount=source, volumes_above=True))


def test_reserved_mount_below_another_one_is_no_stranger_there(ns: MountNamespace) -> None:
    ns.mount("/etc/ssl", ns.source)
    ns.mount("/etc/ssl/sub", ns.source)
    assert ns.look(ns.edit(), ns.edit("/etc/ssl/sub")) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/", "/etc/link in the image leads to the container's root"),
        ("/proc/self", "/etc/link in the image leads to /proc/self, in a tree that the runtime builds"),
        ("/etc/ssl", ""),
        ("link", "/etc/link in the image cannot be reached: Too many levels of symbolic links"),
    ],
)
def test_link_of_the_image_at_the_reserved_path(ns: MountNamespace, target: str, why: str) -> None:
    ns.within(lambda: (ns.rootfs / "etc/link").symlink_to(target))
    ns.mount("/etc/ssl", ns.source)
    assert ns.look(ns.edit("/etc/link")) == ([why] if why else [])


TO_IT = "of the container leads to the reserved mount /etc/ssl"
IN_VOLUME = "of the container is in the volume /vol, in which others can lead it to a reserved mount"


@pytest.mark.parametrize(
    ("more", "link", "why"),
    [
        ({"linux": {"maskedPaths": ["/masked"]}}, ("masked/x", "/etc/ssl"), ""),
        ({"linux": {"maskedPaths": ["/masked/x"]}}, ("masked/x", "/etc/other"), ""),
        ({"linux": {"maskedPaths": ["/masked/x"]}}, ("masked/x", "/etc/ssl"), f"masked path /masked/x {TO_IT}"),
        ({"linux": {"maskedPaths": ["/masked/x"]}}, ("masked/x", "/etc/ssl/sub"), f"masked path /masked/x {TO_IT}"),
        ({"linux": {"readonlyPaths": ["/masked/x"]}}, ("masked/x", "/etc"), f"read-only path /masked/x {TO_IT}"),
        ({"linux": {"readonlyPaths": ["/vol/x"]}}, ("masked/x", "/etc"), f"read-only path /vol/x {IN_VOLUME}"),
        ({"linux": {"devices": [{"path": "/masked/x/d"}]}}, ("masked/x", "/etc/ssl"), "a device's directory /masked/x"),
        ({"linux": {"devices": [{"path": "/masked/x/d"}]}}, ("masked/x", "/etc"), ""),
        ({"linux": {"devices": [{"path": "/vol/d"}]}}, ("masked/x", "/etc"), f"device /vol/d {IN_VOLUME}"),
        ({"linux": {"devices": [{"path": "/vol/x/d"}]}}, ("masked/x", "/"), f"a device's directory /vol/x {IN_VOLUME}"),
        (
            {"linux": {"maskedPaths": ["/masked/x"]}},
            ("masked/x", "x"),
            "masked path /masked/x of the container cannot be",
        ),
        ({"linux": {"devices": [{"path": f"/{n}/d"} for n in range(1000)]}}, ("masked/x", "/"), ""),
        ({"linux": {}}, ("dev", "/etc/ssl"), f"a device's directory /dev {TO_IT}"),
        ({"process": {"terminal": True, "args": ["x"]}}, ("dev", "/etc"), f"the console /dev/console {TO_IT}"),
        ({"process": {"args": ["x"]}}, ("dev", "/etc/other"), ""),
    ],
)
def test_what_the_runtime_still_makes_leads_to_no_reserved_mount(
    ns: MountNamespace, more: dict[str, Any], link: tuple[str, str], why: str
) -> None:
    ns.within(lambda: (ns.rootfs / link[0]).symlink_to(link[1]))
    if "console" in why:
        ns.within(lambda: (ns.rootfs / "etc/console").symlink_to("/etc/ssl/console"))
    ns.mount("/vol", f"{ns.share}/a")
    ns.mount("/etc/ssl", ns.source)
    found = ns.look(ns.edit(), of=spec(**more))
    assert found == [] if not why else found[0].startswith(why), "the first one; a device's directory comes before it"


@pytest.mark.parametrize(
    ("source", "path", "why"),
    [
        ("tmpfs", "/vol/x", ""),
        ("share", "/vol/x", f"masked path /vol/x {IN_VOLUME}"),
        ("the node's /dev", "/vol/x", f"masked path /vol/x {IN_VOLUME}"),
        ("the node's /dev", "/dev/x", ""),
        ("/proc", "/vol/sys", ""),
        ("/proc", "/vol/self/x", "masked path /vol/self/x of the container leads through a process's link in a proc"),
    ],
)
def test_path_in_a_volume_counts_where_others_can_change_it(
    ns: MountNamespace, source: str, path: str, why: str
) -> None:
    if source == "the node's /dev":
        ns.within(lambda: ns._call(ns.share, Path("/dev"), MS_BIND))
    ns.mount(path[:4], source if source in ("tmpfs", "/proc") else ns.share)
    ns.mount("/etc/ssl", ns.source)
    masked = spec(linux={"maskedPaths": [path]})
    found = ns.look(ns.edit(), of=masked)
    assert (found[0].startswith(why), len(found)) == (True, 1) if why else found == []
    assert bool(ns.look(ns.edit(volumes_above=True), of=masked)) == bool(why), "it is not above"
    assert ns.look(ns.edit("/etc/other", mount=None), of=spec(linux={"maskedPaths": ["/etc/other"]})) == []


def test_masked_path_in_a_volume_that_may_be_above_starts(ns: MountNamespace) -> None:
    """Who can write to that volume can take the reserved mount away too."""
    ns.mount("/etc", ns.share)
    ns.within(lambda: [(ns.rootfs / "etc" / name).mkdir() for name in ("ssl", "masked")])
    ns.mount("/etc/ssl", ns.source)
    edit, masked = ns.edit(volumes_above=True), spec(linux={"maskedPaths": ["/etc/masked/x"]})
    assert ns.look(edit, of=masked) == []
    ns.mount("/vol", ns.share)
    [reason] = ns.look(edit, of=spec(linux={"maskedPaths": ["/etc/masked/x", "/vol/x"]}))
    assert reason.startswith(f"masked path /vol/x {IN_VOLUME}")


@pytest.mark.parametrize(
    ("below", "shows"), [("", True), ("/PID", True), ("/PID/task", True), ("/PID/fd", True), ("/PID/net", False)]
)
def test_procfs_of_the_node_shows_its_processes(ns: MountNamespace, below: str, shows: bool) -> None:
    def said(root: Path) -> list[tuple[str, str]]:
        found = ns._caller.submit(look_at_processes, ns.pid, str(root), "alone").result()
        assert {reason.kind for reason in found} <= {"sharedProcesses"}
        return [(reason.rule, reason.message) for reason in found]

    assert said(ns.rootfs) == []
    (ns.rootfs / "vol/etc").mkdir()
    for at in ("/vol/etc", "/vol"):
        ns.mount(at, "/proc" + below.replace("PID", str(os.getpid())))
        why = "the container has the node's processes in the volume /vol/etc, and sharedProcesses is Refuse"
        assert said(ns.rootfs) == ([("alone", why)] if shows else []), "the first of them"


@pytest.mark.parametrize(
    ("source", "own", "engines"),
    [
        ("/run", "/run/reassert", "/run/containerd/containerd.sock"),
        ("/var/lib", "/var/lib/reassert", "/var/lib/rancher/k3s/agent/etc"),
        ("/usr/local/lib/beside", "", ""),
        ("/usr/local/lib", "/usr/local/lib/a/b/policy.yaml", ""),
    ],
)
def test_volume_reaches_a_file_of_reassert_that_it_can_make_and_one_of_an_engine_that_is_there(
    machine: Machine, ns: MountNamespace, source: str, own: str, engines: str
) -> None:
    machine.file("/usr/local/lib/beside/file")
    rules = policy({"name": "r", "env": [{"name": "A", "absent": True}]})
    rules.path = "/usr/local/lib/a/b/policy.yaml"
    start = spec(mounts=[bind("/vol", source)])
    decided = plan(rules, Container(POD, start))
    ns.mount("/vol", source)

    def look() -> tuple[list[str], list[str]]:
        arguments = ns.pid, str(ns.rootfs), decided, start
        found = ns._caller.submit(look_at_node_paths, *arguments).result()
        return [reason.message.partition(": ")[0] for reason in found.denials], found.node_paths

    why = [f"the volume /vol can be written and reaches {own} of reassert, and nodePaths.reassert is Refuse"]
    assert look() == (why if own else [], [])
    if engines:
        machine.file(engines)
        assert look() == (why, [f"/vol: {engines}"])


@pytest.mark.parametrize("path", ["/dev/null", "/", "/proc/self/stat", __file__])
def test_what_a_path_leads_to_is_known_at_once(path: str) -> None:
    found, wanted = status_at_once(path), os.stat(path)
    kept = [(stat.S_IFMT(each.st_mode), each.st_ino, each.st_dev, each.st_rdev) for each in (found, wanted)]
    assert kept[0] == kept[1]
    with pytest.raises(FileNotFoundError):
        status_at_once(f"{path}/none" if path == "/" else "/none")


def test_what_the_kernel_has_in_memory_is_known_of_a_volume_that_does_not_answer(root_dir: Path) -> None:
    """Linux 5.12 and later; what it does not have in memory is not waited for."""
    need(os.path.exists("/dev/fuse"), "/dev/fuse")
    with stalling(root_dir) as volume:
        wanted = os.stat(volume.path)
        volume.stall()
        found = status_at_once(str(volume.path))
        assert (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
        with pytest.raises(OSError, match="may not answer"):
            status_at_once(f"{volume.path}/x")


def test_descriptor_that_is_not_open_is_said_with_its_error() -> None:
    with pytest.raises(OSError, match="statx: Bad file descriptor") as caught:
        mount_id(1 << 20)
    assert caught.value.errno == errno.EBADF
