"""The driver of tests/mutants.sh: what it does with a mutant that a test notices, and with one that none does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import mutants
import pytest
from mutants import Mutant

from unit.support import ROOT

CODE = "def bigger(a, b):\n    return a > b\n\n\ndef half(a):\n    return a // 2\n"
TEST = "from sizes import bigger, half\n\ndef test_sizes():\n    assert bigger(2, 1) > bigger(1, 1) and half(4) == 2\n"
KILLED = Mutant("sizes.py", 2, "    return a > b", "    return a >= b")
ENDLESS = Mutant("sizes.py", 2, "    return a > b", "    while True:\n        pass")
SURVIVOR = Mutant("sizes.py", 6, "    return a // 2", "    return a / 2")
FATES = {"killed": KILLED, "endless": ENDLESS, "survivor": SURVIVOR}


def run(directory: Path, *planted: Mutant, equivalent: str = "") -> subprocess.CompletedProcess[str]:
    tree = directory / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "sizes.py").write_text(CODE)
    (tree / "tests/test_sizes.py").write_text(TEST)
    (tree / "tests/mutants.toml").write_text(f"equivalent = [{equivalent}]\n")
    (tree / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    rows = directory / "planted.jsonl"
    rows.write_text("".join(json.dumps({**vars(mutant), "fate": "alive"}) + "\n" for mutant in planted))
    command = [sys.executable, ROOT / "tests/mutants.py", "--root", tree, "--scratch", directory, "--again", rows]
    command += ["--tiers", "unit", "--cpu", "2", "--tests", "tests/test_sizes.py"]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_planted_mutant_dies_and_a_planted_survivor_is_listed(tmp_path: Path) -> None:
    done = run(tmp_path, KILLED, SURVIVOR)
    assert done.returncode == 1, done.stderr
    assert "1 of    2 died" in done.stdout
    assert done.stdout.endswith("\nalive: sizes.py:6\n-    return a // 2\n+    return a / 2\n")
    assert "tests/test_sizes.py::test_sizes" in next(line for line in done.stdout.splitlines() if ">= b" in line)


def test_a_mutant_that_never_ends_dies_of_its_cpu_time(tmp_path: Path) -> None:
    done = run(tmp_path, ENDLESS)
    assert done.returncode == 0, done.stderr
    assert "1 of    1 died" in done.stdout
    assert done.stdout.splitlines()[1].split()[-3:] == ["True:", "pass", "long"]


def test_one_that_was_judged_equivalent_is_not_tried(tmp_path: Path) -> None:
    """Where the file and the line have moved to does not matter."""
    row = '{ path = "elsewhere/sizes.py", before = "return a // 2", after = "return a / 2", reason = "an even number" }'
    done = run(tmp_path, SURVIVOR, equivalent=row)
    assert done.returncode == 0, done.stderr
    assert "equivalent sizes.py:6" in done.stdout and "an even number" in done.stdout


def test_a_mutant_of_a_line_that_has_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="no longer"):
        KILLED.applied(CODE.replace("a > b", "b < a"))


def test_a_mutant_is_found_again_where_lines_above_it_were_added() -> None:
    assert KILLED.applied("import os\n" + CODE) == "import os\n" + CODE.replace("a > b", "a >= b")


def test_the_difference_of_two_texts_makes_one_of_the_other() -> None:
    for new in (CODE.replace("//", "/"), CODE.replace("    return a > b\n", ""), "x = 1\n" + CODE, CODE + "x = 1\n"):
        assert mutants.difference("sizes.py", CODE, new).applied(CODE) == new


def test_mutants_of_c_differ_from_it() -> None:
    path = "packaging/front/front.c"
    source = (ROOT / path).read_text()
    made = list(mutants.c_mutants(path, source, random.Random(1)))
    assert len(made) > 150
    assert all(mutant.applied(source) != source for mutant in made)


def test_every_equivalent_mutant_is_of_a_line_that_exists_and_says_why() -> None:
    sources = {Path(path).name: [] for path in mutants.mutated_files(ROOT)}  # type: dict[str, list[str]]
    for path in mutants.mutated_files(ROOT):
        sources[Path(path).name].append(" ".join((ROOT / path).read_text().split()))
    rows = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["equivalent"]
    gone = [
        row for row in rows if not any(" ".join(row["before"].split()) in t for t in sources[Path(row["path"]).name])
    ]
    assert gone == []
    assert all(len(row["reason"]) > 20 for row in rows)
