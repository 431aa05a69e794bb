"""Texts for operators and contributors use the words of the field (CONTRIBUTING.md, "Before a commit")."""

from __future__ import annotations

import re

from unit.support import ROOT

WORDS = {
    r"anew": "again",
    r"by and by": "later",
    r"comes? up|came up": "start",
    r"for people": "as text",
    r"goes past|go past": "bypass",
    r"in so many words": "explicitly",
    r"in whatever": "in any",
    r"is had|are had|be had|was had": "exists, is used",
    r"lies aside|lie aside|put aside": "the staging directory",
    r"mends?|mended|mending": "fix, correct",
    r"nobody|somebody": "the user, process or program that is meant",
    r"that are no|that is no": "that is not a",
    r"unasked": "by default",
    r"whoever|whomever": "a user who, a process that",
    r"without a word": "silently",
}
"""Words that hide who acts or that nobody would search for, and a better word for each."""

ANY = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)

TEXTS = [
    *(ROOT / "hook").rglob("*.py"),
    *(ROOT / "hook").rglob("*.proto"),
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "config").rglob("*.yaml"),
    *(
        path
        for path in (ROOT / "packaging").rglob("*")
        if path.is_file() and path.suffix not in (".json", ".txt", ".pyc")
    ),
    *(ROOT / "tests").rglob("README.md"),
    ROOT / "install.sh",
    ROOT / "tests/run.sh",
]

GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)


def _without_generated(text: str) -> str:
    return GENERATED.sub(lambda part: "\n" * part[0].count("\n"), text)


def test_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: better: {better}"
        for path in TEXTS
        for number, line in enumerate(_without_generated(path.read_text()).splitlines(), 1)
        if ANY.search(line)
        for word, better in WORDS.items()
        for match in re.finditer(rf"\b({word})\b", line, re.IGNORECASE)
    ]
    assert found == []
