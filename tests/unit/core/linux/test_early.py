"""Devices that the runtime would make inside a reserved mount: what a mount at a process's links is refused for."""

from __future__ import annotations

import json
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Unacceptable
from hook.core.base.text import REASONS_LISTED
from hook.core.container.oci import Json, Mount
from hook.core.container.spec import Spec
from hook.core.linux.early import astray
from hook.core.reserve.place_mount import PlaceMount
from unit.shortage import free_descriptors

RESERVED = "/etc/ssl"


def reasons(rootfs: Path, *mounts: dict[str, object], device: str = "/srv/disk", **more: object) -> list[str]:
    """Why devices must not be made. `more`: of the reserved mount."""
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    text = json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": {"env": []},
            "mounts": [proc, *mounts],
            "linux": {"devices": [{"path": device}]},
        }
    )
    spec = Spec(text.encode(), "config.json")
    mount = {"destination": RESERVED, "type": "bind", "source": "/etc/company-ca", "options": ["rbind", "ro"], **more}
    edit = PlaceMount("company-ca", RESERVED, Mount(mount), companions=frozenset(), before=[])
    return [reason.message for reason in astray(str(rootfs), [edit], spec)]


def bind(path: str) -> dict[str, object]:
    return {"destination": path, "type": "bind", "source": "/var/lib/volume", "options": ["rbind"]}


@pytest.fixture
def rootfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("etc/ssl", "dev", "proc", "srv"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir("/")  # as the agent: a path like `proc/self` leads into the node's own /proc
    return tmp_path


@pytest.mark.parametrize("path", ["/proc/self/root/etc/ssl/certs", "/proc/thread-self/cwd", "/proc/1/root/dev"])
@pytest.mark.parametrize("directory", ["/", None])
def test_a_mount_at_the_links_of_a_process_is_named_as_one(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch, path: str, directory: str | None
) -> None:
    """The same in the agent and in a cold start, whose working directory is another."""
    monkeypatch.chdir(directory or rootfs)
    [found] = reasons(rootfs, bind(path))
    assert found.startswith(
        f"mount {path} goes through the links of a process, which can lead devices of the container"
    )


def test_files_of_proc_itself_may_be_mounted_over(rootfs: Path) -> None:
    """As lxcfs does. Only a directory outside /dev may lie in such a volume."""
    [found] = reasons(rootfs, bind("/proc/cpuinfo"))
    assert found.startswith("/srv, in which devices are made, may be in the volume /proc/cpuinfo")


@marks.hole("Under runc with `readOnly: false`, a device behind more than 40 links was made on the node")
def test_a_path_that_cannot_be_followed_is_no_path_that_leads_nowhere(rootfs: Path) -> None:
    """runc follows more links than the kernel, and a runtime needs no descriptor for each directory of a path."""
    (rootfs / "last").symlink_to("/etc/ssl")
    for number in range(60):
        (rootfs / f"link{number}").symlink_to(f"/link{number + 1}" if number < 59 else "/last")
    with pytest.raises(Unacceptable, match="/link0 of the container cannot be followed: Too many levels"):
        reasons(rootfs, bind("/link0"))
    deep = rootfs / "deep" / "/".join("a" * 100)
    deep.mkdir(parents=True)
    (deep / "last").symlink_to("/etc/ssl")
    with free_descriptors(8), pytest.raises(Unacceptable, match="cannot be followed: Too many open files"):
        reasons(rootfs, bind(f"/{deep.relative_to(rootfs)}/last"))


WRITABLE = {"options": ["rbind"]}
LEADS = "/srv, in which devices are made, leads into /etc/ssl"
IN_VOLUME = "in which a link can lead it to a reserved mount"


def of(volume: str, what: str = "/srv, in which devices are made,") -> str:
    return f"{what} may be in the volume {volume}, {IN_VOLUME}"


@pytest.mark.parametrize(
    ("links", "device", "more", "found"),
    [
        ({}, "/srv/disk", {}, []),
        ({}, "/dev/disk", WRITABLE, []),
        ({"srv/x": "/etc/ssl"}, "/srv/disk", {}, []),
        # where the image leads the directory
        ({"srv": "/etc/ssl"}, "/srv/disk", {}, [LEADS]),
        ({"srv": "/etc/ssl/certs"}, "/srv/disk", {}, [LEADS]),
        ({"srv": "/etc/ssl"}, "/srv/disk", {"source": None}, [LEADS]),
        ({"srv": "/etc"}, "/srv/disk", {}, []),
        ({}, "/etc/ssl/disk", {}, ["/etc/ssl, in which devices are made, leads into /etc/ssl"]),
        ({"opt": "/srv", "srv": "/etc/ssl"}, "/opt/disk", {}, ["/opt, in which devices are made, leads into /etc/ssl"]),
        ({"dev": "/etc/ssl"}, "/dev/disk", {}, ["/dev, in which devices are made, leads into /etc/ssl"]),
        ({"srv/a": "/etc/ssl"}, "/srv/a/../disk", {}, []),  # crun: to /etc, whose own mount is nobody's
        # and where it leads the device itself, which counts for a mount that can be written
        ({"srv/disk": "/etc/ssl/x"}, "/srv/disk", {}, []),
        ({"srv/disk": "/etc/ssl/x"}, "/srv/disk", WRITABLE, ["device /srv/disk leads into /etc/ssl"]),
        ({"dev/null": "/etc/ssl/x"}, "/dev/disk", WRITABLE, ["device /dev/null leads into /etc/ssl"]),
    ],
)
def test_where_links_of_the_image_lead_devices(
    rootfs: Path, links: dict[str, str], device: str, more: dict[str, object], found: list[str]
) -> None:
    for name, target in links.items():
        if (rootfs / name).is_dir():
            (rootfs / name).rmdir()
        (rootfs / name).symlink_to(target)
    assert reasons(rootfs, device=device, **more) == found


IN_SRV = of("/srv", "/srv/a, in which devices are made,")


@pytest.mark.parametrize(
    ("mounts", "device", "found"),
    [
        ([bind("/srv")], "/srv/disk", []),  # its root is no link
        ([bind("/srv")], "/srv/a/disk", [IN_SRV]),
        ([bind("/srv/data")], "/srv/disk", []),
        ([bind("/srv/data")], "/srv/data/disk", []),
        ([bind("/srv/new")], "/srv/new/a/disk", [of("/srv/new", "/srv/new/a, in which devices are made,")]),
        ([{**bind("/srv"), "source": "/dev"}], "/srv/a/disk", []),  # the node's own
        ([{**bind("/srv"), "type": "tmpfs", "options": ["nosuid"]}], "/srv/a/disk", []),
        ([{**bind("/srv"), "type": "tmpfs", "options": None}], "/srv/a/disk", []),
        ([{**bind("/srv"), "type": "tmpfs"}], "/srv/a/disk", [IN_SRV]),  # runtimes bind it whatever its type is
        ([{**bind("/srv"), "type": "tmpfs", "options": ["bind"]}], "/srv/a/disk", [IN_SRV]),
        ([{**bind("/srv"), "type": "ext4", "options": []}], "/srv/a/disk", [IN_SRV]),
        ([bind(RESERVED)], "/srv/disk", []),
        ([bind("/opt")], "/srv/disk", []),
        ([bind("/opt"), bind("/opt/a")], "/srv/disk", [of("/opt/a")]),  # a volume in another one
        ([bind("/opt/a"), bind("/opt")], "/srv/disk", []),
        ([bind("/opt"), bind("/opt/a")], "/dev/disk", []),  # is usual there
        ([bind("/opt"), bind("/opt/a")], "/dev/sub/disk", []),
    ],
)
def test_volumes_in_which_links_can_lead_devices(
    rootfs: Path, mounts: list[dict[str, object]], device: str, found: list[str]
) -> None:
    assert reasons(rootfs, *mounts, device=device) == found


@pytest.mark.parametrize(
    ("link", "at", "led"),
    [
        ("", "/opt/a/b", False),
        ("a", "/opt/a/b", True),
        ("a/b", "/opt/a/b", True),
        ("x", "/opt/a/b", False),
        ("a", "/opt/x", False),
    ],
)
def test_link_in_a_volume_on_the_way_to_another_can_lead_that_over_dev(
    rootfs: Path, tmp_path_factory: pytest.TempPathFactory, link: str, at: str, led: bool
) -> None:
    (rootfs / "opt").mkdir()
    volume = tmp_path_factory.mktemp("volume")
    (volume / "a").mkdir()
    if link:
        if link == "a":
            (volume / "a").rmdir()
        (volume / link).symlink_to("/")
    first = {**bind("/opt"), "source": str(volume)}
    found = reasons(rootfs, first, bind(at), device="/dev/disk")
    assert found == ([of(at, "/dev, in which devices are made,")] if led else [])
    gone = {**bind("/opt"), "source": f"{volume}/none"}
    assert reasons(rootfs, gone, bind(at), device="/dev/disk") == []


def test_reasons_are_few_and_none_is_told_twice(rootfs: Path) -> None:
    paths = [f"/srv/{number}/disk" for number in range(40)]
    text = json.dumps({"process": {"env": []}, "linux": {"devices": [{"path": path} for path in [*paths, *paths]]}})
    (rootfs / "srv").rmdir()
    (rootfs / "srv").symlink_to("/etc/ssl")
    mount: Json = {"destination": RESERVED, "source": "/ca", "options": ["rbind", "ro"]}
    edits = [
        PlaceMount("none", "/srv", None, companions=frozenset(), before=[]),
        PlaceMount("ca", RESERVED, Mount(mount), companions=frozenset(), before=[]),
    ]
    asked: list[None] = []
    found = astray(str(rootfs), edits, Spec(text.encode(), "config.json"), lambda: asked.append(None))
    assert (len(found), len({reason.message for reason in found})) == (REASONS_LISTED, REASONS_LISTED)
    assert {reason.rule for reason in found} == {"ca"}
