"""Paths of a container lead where the kernel says, many of them together as each alone, and at a bounded cost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Unacceptable
from hook.core.linux.mountns import open_in_root
from hook.core.linux.walk import WALK_STEPS, PathEscapes, Steps, Walks
from unit.shortage import free_descriptors

pytestmark = marks.promise("A container's time and memory grow linearly with each of its lists")

PATHS = [
    *("/", "/a", "/a/b", "/a/b/c", "/a/b/none", "/a/none/none", "/a/file", "/a/file/below", "/a/b/", "//a//b", "a/b/c"),
    *("/a/./b", "/a/b/.", "/a/b/..", "/a/b/../file", "/to-a/b/c", "/to-a/file", "/to-file", "/a/up", "/a/up/a/b/c"),
    *("/dangling", "/dangling/x", "/out/etc", "/loop", "/loop/x", "/a/loop/x", "", "/none", "/../../a/b", "/a/none/.."),
    *("/" + "x" * 256, "/a/" * 2000),
]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    links = {"to-a": "a", "to-file": "/a/file", "a/up": "..", "dangling": "a/gone", "out": "../../..", "loop": "loop"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "a/loop").symlink_to("/loop")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def led(walks: Walks, path: str) -> object:
    """Where a path leads: its inode, None if it is missing, or the number of an error."""
    try:
        place = walks.to(path)
        return os.fstat(walks.fd(place.node)).st_ino if place.exists else None
    except OSError as error:
        return None if error.errno == errno.ENOENT else error.errno


def by_the_kernel(root: int, path: str) -> object:
    try:
        fd = open_in_root(root, path)
    except OSError as error:
        return None if error.errno == errno.ENOENT else error.errno
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


@pytest.mark.openat2
def test_paths_lead_where_the_kernel_says(root: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    expected = {path: by_the_kernel(root, path) for path in PATHS}
    for order in (PATHS, PATHS[::-1], [*PATHS, *PATHS]):
        walks = Walks(root, Steps())
        assert {path: led(walks, path) for path in order} == expected
        walks.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_place_is_written_without_links_and_says_what_was_passed(root: int) -> None:
    walks = Walks(root, Steps())
    place = walks.to("/to-a/up/a/b/none/more")
    assert place.path == "/a/b/none/more"
    assert [str(node) for node in place.crossed] == ["/", "/to-a", "/a", "/a/up", "/a/b"]
    assert [str(node) for node in place.links] == ["/to-a", "/a/up"]
    assert not place.exists
    with pytest.raises(PathEscapes, match="leads to /dev/null, in a tree"):
        walks.to("/dev/null")
    assert walks.to("/dev/none/../null", everywhere=True).path == "/dev/null"
    walks.close()


@marks.hole(
    "A path with very many directories hid where a device is made", since="0.2.0", fixed="0.3.0", severity="medium"
)
def test_paths_in_many_directories_need_few_descriptors(tmp_path: Path) -> None:
    """The agent's other threads need them too, and a path that cannot be looked at is refused."""
    paths = [f"/{number}/null" for number in range(200)]
    for path in paths:
        (tmp_path / path[1:]).parent.mkdir()
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    with free_descriptors(64):
        walks = Walks(root, Steps())
        assert [walks.to(path).path for path in paths * 2] == paths * 2
    walks.close()
    os.close(root)


def long_links(directory: Path, number: int) -> str:
    """A path by 39 links with 2,000 names each, which no other path has in common with it."""
    for at in range(39):
        onward = f"/{number}-{at + 1}" if at < 38 else "/end"
        (directory / f"{number}-{at}").symlink_to("/" + "d/../" * 800 + onward.lstrip("/"))
    return f"/{number}-0"


def test_long_links_to_many_places_end_at_the_budget(tmp_path: Path) -> None:
    """They took 6 seconds and 160 MiB for 30 mounts."""
    (tmp_path / "d").mkdir()
    paths = [long_links(tmp_path, number) for number in range(30)]
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1

    walks = Walks(root, Steps(ask))
    try:
        assert walks.to(paths[0]).path == "/end"
        with pytest.raises(Unacceptable, match=f"more than {WALK_STEPS} steps"):
            for path in paths:
                walks.to(path)
    finally:
        walks.close()
        os.close(root)
    assert asked > 50


def test_nobody_waits_any_more(tmp_path: Path) -> None:
    class Gone(BaseException):
        pass

    def ask() -> None:
        raise Gone

    (tmp_path / "d").mkdir()
    path = long_links(tmp_path, 0)
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    walks = Walks(root, Steps(ask))
    try:
        with pytest.raises(Gone):
            walks.to(path)
    finally:
        walks.close()
        os.close(root)
