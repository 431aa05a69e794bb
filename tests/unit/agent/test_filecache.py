"""What the agent keeps is never older than the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import marks
import pytest

from hook.agent import filecache
from hook.agent.filecache import FileCache, is_settled

pytestmark = marks.promise("No cached value of the agent is older than its file", about="Agent")


def read(path: Path, cache: FileCache[str], calls: list[int]) -> str:
    def make() -> str:
        calls.append(1)
        return path.read_text()

    return cache.get(str(path), make)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path, cache, calls = tmp_path / "f", FileCache[str](2), []  # type: ignore[var-annotated]  # a list of anything
    path.write_text("one")
    time.sleep(filecache.SETTLED_NS / 1e9 + 0.05)
    assert [read(path, cache, calls) for _ in range(3)] == ["one"] * 3
    assert len(calls) == 1
    new = tmp_path / "new"
    new.write_text("two")
    os.rename(new, path)
    assert read(path, cache, calls) == "two"


def test_a_file_that_has_just_changed_is_not_kept(tmp_path: Path) -> None:
    """Within one tick of the clock another change of the same length would have the same key."""
    path, cache, calls = tmp_path / "f", FileCache[str](2), []  # type: ignore[var-annotated]  # a list of anything
    for number in range(300):
        text = f"{number:03}"
        with path.open("r+" if number else "w") as file:
            file.write(text)
        assert read(path, cache, calls) == text
    assert len(calls) == 300


@pytest.mark.parametrize(("ago", "settled"), [(9 * 10**7, False), (2 * 10**8, True)])
def test_a_change_a_moment_ago_may_not_be_the_last(ago: int, settled: bool) -> None:
    """Times in whole seconds are of ext4 with inodes of 128 bytes: there another one may come in that second."""
    now = time.time_ns()
    second = now // 10**9 * 10**9
    found = is_settled((now - ago) | 1), is_settled(second - 10**9), is_settled(second - 3 * 10**9)
    late = time.time_ns()  # this process may have waited for the processor
    assert found[0] == settled or late - now + ago > filecache.SETTLED_NS
    assert not found[1] or late - second > 10**9
    assert found[2]


def test_what_is_missing_or_no_file_is_asked_for_again(tmp_path: Path) -> None:
    cache = FileCache[str](2)
    answers = iter(["a", "b"])
    assert [cache.get(str(tmp_path / "gone"), lambda: next(answers)) for _ in range(2)] == ["a", "b"]
    answers = iter(["a", "b"])
    assert [cache.get(str(tmp_path), lambda: next(answers)) for _ in range(2)] == ["a", "b"]


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    cache = FileCache[str](2)
    for name in "abc":
        (tmp_path / name).write_text(name)
    time.sleep(filecache.SETTLED_NS / 1e9 + 0.05)
    for name in "abc":
        cache.get(str(tmp_path / name), lambda: "x")
    assert [cache.get(str(tmp_path / name), lambda: "y") for name in "cba"] == ["x", "x", "y"]
