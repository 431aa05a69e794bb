"""Devices that the runtime would make inside a reserved mount: what a mount at a process's links is refused for."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from hook.core.base.errors import Unacceptable
from hook.core.container.spec import Spec
from hook.core.linux.early import astray
from hook.core.reserve import PlaceMount

RESERVED = "/etc/ssl"


def reasons(rootfs: Path, *mounts: dict[str, object]) -> list[str]:
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    text = json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": {"env": []},
            "mounts": [proc, *mounts],
            "linux": {"devices": [{"path": "/srv/disk"}]},
        }
    )
    spec = Spec(text.encode(), "config.json")
    mount = {"destination": RESERVED, "type": "bind", "source": "/etc/company-ca", "options": ["rbind", "ro"]}
    edit = PlaceMount("company-ca", RESERVED, mount, frozenset(), [])
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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 8, hard))
    try:
        with pytest.raises(Unacceptable, match="cannot be followed: Too many open files"):
            reasons(rootfs, bind(f"/{deep.relative_to(rootfs)}/last"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
