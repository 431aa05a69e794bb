"""Which device nodes of the node a glob names: the same ones as a glob over all paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.compare import glob_match, is_pattern
from hook.core.base.errors import Unacceptable, Undecided
from hook.core.container import nodes
from hook.core.container.cdi import spec_files
from hook.core.container.nodes import directories_above, inode, matching, within
from unit.shortage import free_descriptors
from unit.support import examples

pytestmark = pytest.mark.users  # mknod(2)

TREE = ["gpu0", "gpu1", "gpuctl", "gpu-caps/cap1", "gpu-caps/deep/cap2", "dri/card0", "dri/by-path/pci", "other", "g"]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of device nodes, files and links. The minor number is the place in TREE."""
    top = tmp_path_factory.mktemp("dev")
    for number, name in enumerate(TREE):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        if name != "dri/by-path/pci":
            os.mknod(top / name, stat.S_IFCHR | 0o600, os.makedev(240, number))
    (top / "dri/by-path/pci").symlink_to("../card0")
    (top / "gpu-text").write_text("")
    os.mkfifo(top / "gpu-fifo")
    (top / "gpu-gone").symlink_to("nowhere")
    (top / "gpu-link").symlink_to("other")
    (top / "gpu-loop").symlink_to(".")
    return top


def names(found: dict[nodes.Number, str], top: Path) -> set[str]:
    assert all(number[:2] == ("c", 240) for number in found)
    assert all(os.stat(path).st_rdev == os.makedev(number[1], number[2]) for number, path in found.items())
    return {path.removeprefix(f"{top}/") for path in found.values()}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("gpu0", {"gpu0"}),
        ("gpu?", {"gpu0", "gpu1"}),
        ("gpu*", {"gpu0", "gpu1", "gpuctl", "gpu-caps/cap1", "gpu-caps/deep/cap2", "gpu-link"}),
        ("gpu-caps/*", {"gpu-caps/cap1", "gpu-caps/deep/cap2"}),
        ("dri/*", {"dri/card0"}),  # by-path/pci is the same device
        ("dri/by-path/*", {"dri/by-path/pci"}),
        ("*/card0", {"dri/card0"}),
        ("g*l", {"gpuctl"}),
        ("nowhere/*", set()),
        ("nowhere", set()),
        ("gpu0/*", set()),
        ("gpu-text", set()),
        ("gpu-gone", set()),
    ],
)
def test_pattern(dev: Path, pattern: str, wanted: set[str]) -> None:
    assert names(matching(f"{dev}/{pattern}"), dev) == wanted


@examples(200)
@given(st.text("gpu01*?-/cadri", max_size=8))
def test_every_node_that_matches_is_found_and_no_other(dev: Path, pattern: str) -> None:
    full = f"{dev}/{pattern}"
    wanted = {n for n in TREE if glob_match(full, f"{dev}/{n}") and not (dev / n).is_symlink()}
    linked = {os.readlink(dev / n) for n in ("gpu-link",) if glob_match(full, f"{dev}/{n}")}
    linked |= {"dri/card0"} if glob_match(full, f"{dev}/dri/by-path/pci") else set()
    exact = full.rstrip("/")  # a `/` behind a device counts for nothing, and `//` in a path is `/`
    if not is_pattern(full) and os.path.exists(exact):
        wanted, linked = {n for n in TREE if os.path.samefile(exact, dev / n)}, set()
    found = {TREE[minor] for _, _, minor in matching(full)}
    assert found == wanted | linked


@marks.hole(
    "With `exclusive` and `failurePolicy: Ignore`, 100,000 files in /dev let containers start unchecked",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
def test_another_file_system_is_not_entered_and_too_many_files_refuse(dev: Path) -> None:
    assert not any(path.startswith("/dev/pts/") for path in matching("/dev/p*").values())
    with pytest.raises(Unacceptable, match=r"exclusive .*\*: more than 5 files are in .*; write a narrower pattern"):
        matching(f"{dev}/*", 5)
    assert names(matching(f"{dev}/gpu-caps/*"), dev)


def test_what_a_plugin_named_is_a_node_or_a_directory_of_them(dev: Path) -> None:
    assert names(within(f"{dev}/gpu0"), dev) == {"gpu0"}
    assert names(within(f"{dev}/gpu-link"), dev) == {"gpu-link"}
    assert names(within(f"{dev}/gpu-caps/"), dev) == {"gpu-caps//cap1", "gpu-caps//deep/cap2"} or names(
        within(f"{dev}/gpu-caps/"), dev
    ) == {"gpu-caps/cap1", "gpu-caps/deep/cap2"}
    assert within(f"{dev}/nowhere") == within(f"{dev}/gpu-text") == {}


def test_directories_above_are_known_by_what_they_are(dev: Path) -> None:
    above = directories_above(f"{dev}/dri/card0")
    assert above[:2] == [inode(os.stat(dev / "dri")), inode(os.stat(dev))]
    assert above[-1] == inode(os.stat("/"))
    assert directories_above(f"{dev}/nowhere/x") == []


@marks.hole(
    "With `exclusive`, a directory or CDI specs that no descriptor was free for counted as empty",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
@pytest.mark.parametrize("look", [directories_above, within, matching, lambda path: spec_files(os.path.dirname(path))])
def test_what_no_descriptor_is_free_for_is_not_taken_for_missing(dev: Path, look: Callable[[str], object]) -> None:
    """It would not be closed to a container."""
    path = f"{dev}/dri" if look is within else f"{dev}/dri/*"
    with free_descriptors(0), pytest.raises((OSError, Undecided), match="Too many open files"):
        look(path)
