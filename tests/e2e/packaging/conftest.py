"""The Debian package in two versions, and a Debian to install them into."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.paths import REASSERT, TOP
from harness.tools import need, remove_tree, run, scratch

from e2e.packaging.chroot import Chroot

FAST = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
"""xz takes 15 seconds."""

EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}
"""git may refuse to read a clone that belongs to somebody else."""

# As fast as it gets: nobody pulls the plug. Nobody is there to be asked either.
INSTALL = "dpkg --force-unsafe-io --install /debs/1.deb"
UPGRADE = "dpkg --force-unsafe-io --install /debs/2.deb"

POLICY = "/etc/reassert/policy.yaml"
INSTALLED = "/var/lib/reassert/node/installed.json"
BELOW_A_PREFIX = """{"parts": {"containerd": {
"adapters": ["runtime"], "runtimeClass": null, "files": {}, "references": [], "directories": [], "units": [],
"notes": {"program": "/srv/own/reassert/reassert", "prefix": "/srv/own"}}}}"""
"""INSTALLED where containerd calls a program that 0.3's `install.sh --prefix /srv/own` placed."""
PLACED = "/srv/own/reassert/start"
"""A file of that program."""

NEW_POLICY = "# what a later version ships\n"


def build(directory: Path, version: str, umask: int = -1) -> Path:
    """Run packaging/deb/build.sh on the frozen program in a directory; the .deb."""
    environment = os.environ | FAST | EPOCH | {"DIST": str(directory), "VERSION": version}
    done = subprocess.run(
        [str(TOP / "packaging/deb/build.sh")], env=environment, capture_output=True, text=True, umask=umask
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def frozen(directory: Path) -> Path:
    """A directory with packaging/build.sh's output, by reference."""
    directory.mkdir()
    (directory / "reassert").symlink_to(REASSERT.parent)
    return directory


@pytest.fixture(scope="session")
def debs() -> Iterator[Path]:
    """A directory with 1.deb, and 2.deb: a later version with another content and another default policy."""
    need(shutil.which("dpkg-deb") is not None, "dpkg-deb")
    directory = scratch()
    build(frozen(directory / "one"), "0.3.0-1").rename(directory / "1.deb")
    second = directory / "two"
    shutil.copytree(REASSERT.parent, second / "reassert", symlinks=True)
    (second / "reassert/lib/later.txt").write_text("a later version\n")
    package = build(second, "0.3.0-2")
    run("dpkg-deb", "--raw-extract", str(package), str(second / "tree"))
    with (second / "tree/usr/share/reassert/policy.yaml").open("a") as policy:
        policy.write(NEW_POLICY)
    run("dpkg-deb", "--root-owner-group", "--build", "-Zgzip", "-z1", str(second / "tree"), str(directory / "2.deb"))
    yield directory
    remove_tree(directory)


@pytest.fixture(scope="session")
def bare(debs: Path) -> Iterator[Chroot]:
    """A Debian with both packages in /debs."""
    directory = scratch()
    chroot = Chroot(directory)
    (directory / "upper/debs").mkdir()
    for name in ("1.deb", "2.deb"):
        os.link(debs / name, directory / "upper/debs" / name)
    yield chroot
    remove_tree(directory)


@pytest.fixture(scope="session")
def with_first(bare: Chroot) -> Iterator[Chroot]:
    """The same, with the first version installed."""
    directory = scratch()
    chroot = Chroot(directory, bare)
    chroot.run(INSTALL)
    yield chroot
    remove_tree(directory)


@pytest.fixture
def debian(directory: Path, bare: Chroot) -> Chroot:
    """A Debian with both packages in /debs, nothing installed."""
    return Chroot(directory, bare)


@pytest.fixture
def installed(directory: Path, with_first: Chroot) -> Chroot:
    """A Debian with the first version."""
    return Chroot(directory, with_first)
