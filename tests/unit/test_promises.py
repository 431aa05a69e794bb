"""docs/promises.md names every file of tests, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from unit.support import ROOT

TESTS = ROOT / "tests"
PAGE = ROOT / "docs/promises.md"


def named() -> dict[str, set[str]]:
    """Files of tests by their paths, with the tests that are named of each."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().partition("## Taken out")[0].splitlines():
        if not line.startswith("| ") or line.startswith("| promise "):
            continue
        for part in line.split(" | ")[1].rstrip(" |").split(";"):
            files, _, tests = part.partition(":")
            for file in re.split(", *", files.strip()):
                found.setdefault(file, set()).update(re.findall(r"\w+", tests))
    return found


def test_every_named_test_exists() -> None:
    for file, tests in named().items():
        assert (TESTS / file).is_file(), file
        there = re.findall(r"^def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
        assert tests <= set(there), (file, tests - set(there))


def test_every_file_of_tests_is_named() -> None:
    there = {str(Path(path).relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    assert there - named().keys() == set()
