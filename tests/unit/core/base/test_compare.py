"""Paths inside a container are compared in normalised form."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase

import marks
from hypothesis import example, given
from hypothesis import strategies as st

from hook.core.base.compare import clean, cleaned, glob_match, is_below
from unit.support import examples

pytestmark = marks.promise("Paths and JSON are read as runtimes read them", about="Decision")

paths = st.text("ab./", max_size=10)


@given(paths)
def test_cleaned_path_is_what_posix_would_normalise(path: str) -> None:
    assert clean(path) == posixpath.normpath("/" + path.lstrip("/"))


@given(paths)
def test_cleaning_twice_changes_nothing(path: str) -> None:
    assert clean(clean(path)) == clean(path)


@given(st.lists(st.text("ab./\0", max_size=5), max_size=3))
@example(["a", "/b\0/c"])
def test_many_are_cleaned_as_each_is(many: list[str]) -> None:
    assert cleaned(many) == [clean(path) for path in many]
    assert cleaned(["/" + path for path in many]) == [clean("/" + path) for path in many]


@given(paths.map(clean), paths.map(clean))
def test_path_is_below_another_where_its_parts_begin_with_it(path: str, parent: str) -> None:
    mine, theirs = [part for part in path.split("/") if part], [part for part in parent.split("/") if part]
    assert is_below(path, parent) == (len(mine) > len(theirs) and mine[: len(theirs)] == theirs)


@examples(500)
@given(st.text("ab?*\1é😀", max_size=8), st.text("ab\1é😀\udcff", max_size=8))
@example("*a?b*", "aabb")
@example("*?a*", "aa")
@example("*é?*", "é")
def test_a_glob_matches_what_fnmatch_matches(pattern: str, text: str) -> None:
    assert glob_match(pattern, text) == fnmatchcase(text, pattern)
