"""Many paths of a container are walked to together, and lead where each leads alone."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from hook.linux.walk import Misled, Walks, walk

PATHS = [
    *("/", "/a", "/a/b", "/a/b/c", "/a/b/none", "/a/none/none", "/a/file", "/a/file/below", "/a/b/", "//a//b", "a/b/c"),
    *("/a/./b", "/a/b/.", "/a/b/..", "/a/b/../file", "/to-a/b/c", "/to-a/file", "/to-file", "/a/up", "/a/up/a/b/c"),
    *("/dangling", "/dangling/x", "/out/etc", "/loop", "/loop/x", "/a/loop/x", "", "/none"),
]


def alone(root: int, path: str) -> object:
    try:
        place = walk(root, path, everywhere=True)
        place.close()
    except (OSError, Misled) as error:
        return type(error)
    return place.path, place.crossed, place.links


def together(walks: Walks, path: str) -> object:
    try:
        return walks.to(path)
    except (OSError, Misled) as error:
        return type(error)


def test_paths_lead_where_each_leads_alone(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    links = {"to-a": "a", "to-file": "/a/file", "a/up": "..", "dangling": "a/gone", "out": "../../..", "loop": "loop"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "a/loop").symlink_to("/loop")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    try:
        for order in (PATHS, PATHS[::-1]):
            walks = Walks(root)
            assert {path: together(walks, path) for path in order} == {path: alone(root, path) for path in order}
            walks.close()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(root)


def test_devices_in_many_directories_need_few_descriptors(tmp_path: Path) -> None:
    """The agent's other threads need them too, and a path that cannot be looked at is refused."""
    paths = [f"/{number}/null" for number in range(200)]
    for path in paths:
        (tmp_path / path[1:]).parent.mkdir()
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (root + 64, hard))
    walks = Walks(root)
    try:
        assert [walks.to(path)[0] for path in paths] == paths
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        walks.close()
        os.close(root)
