"""A pod's text in messages and on terminals: escaped and shortened."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import unicodedata

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.digest import measure
from hook.core.base.errors import describe, named
from hook.core.base.text import (
    MESSAGE_LIMIT,
    REASONS_LISTED,
    WHERE_TO_LOOK,
    head,
    joined,
    message,
    printable,
    printable_lines,
    shortened,
)
from hook.core.base.urls import without_credentials
from unit.support import ROOT

pytestmark = marks.promise("No text of a pod controls a terminal, a browser, a shell or a field of the journal")

ANY_TEXT = st.text(st.characters(), max_size=600)
"""Surrogates too."""

HARMFUL = [
    *map(chr, [*range(0x20), *range(0x7F, 0xA0)]),
    *map(chr, [0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF, 0xD800, 0xDFFF]),
]
"""C0, DEL, C1, line separators, bidi controls, zero-width characters, surrogates."""


@pytest.mark.parametrize("character", HARMFUL, ids=[f"U+{ord(c):04X}" for c in HARMFUL])
def test_no_harmful_character_is_printed(character: str) -> None:
    shown = printable(f"a{character}b")
    assert character not in shown
    assert shown == f"a{ascii(character)[1:-1]}b"
    if character != "\n":
        assert character == "\t" or character not in printable_lines(f"a{character}b")


def test_what_people_write_is_printed_as_it_is() -> None:
    for text in ("", "/etc/ssl", "Zürich 東京 …", "back\\slash \"quoted\" 'too'"):
        assert printable(text) is text
    assert printable_lines("one\n\ttwo") == "one\n\ttwo"


@given(ANY_TEXT)
def test_nothing_but_printable_characters_is_left(text: str) -> None:
    for shown in (printable(text), message(text)):
        assert shown.isprintable()
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert printable_lines(text).count("\n") == text.count("\n")


@given(ANY_TEXT, st.integers(4, 300))
def test_head_is_the_longest_beginning_that_fits(text: str, limit: int) -> None:
    def size(part: str) -> int:
        return len(part.encode("utf-8", "surrogatepass"))

    kept = head(text, limit)
    assert text.startswith(kept)
    assert size(kept) <= limit
    assert kept is text or size(text[: len(kept) + 1]) > limit


@given(ANY_TEXT)
def test_measure_is_of_the_whole(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    assert measure(text) == (len(data), hashlib.sha256(data).hexdigest()[:16])


def test_measure_of_more_than_one_piece() -> None:
    text = "é€\ud800" * 50_000
    data = text.encode("utf-8", "surrogatepass")
    assert measure(text) == (len(data), hashlib.sha256(data).hexdigest()[:16])


def test_what_is_too_long_says_how_long_it_was() -> None:
    assert shortened("a" * 256) == "a" * 256
    assert shortened("a" * 1000) == "a" * 256 + f"… (1000 bytes, sha256 {hashlib.sha256(b'a' * 1000).hexdigest()[:16]})"


def test_refusal_names_some_reasons_and_counts_the_others() -> None:
    assert joined(["one", "two"]) == "one; two"
    assert joined(range(REASONS_LISTED + 3)) == "0; 1; 2; 3; 4; 5; 6; 7; and 3 more"
    assert message(joined(["x" * 100_000] * 100_000)).endswith("; and 99992 more")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@proxy:3128", "http://***@proxy:3128"),
        ("socks5h://user@proxy", "socks5h://***@proxy"),
        ("user:pass@proxy:3128", "***@proxy:3128"),
        ("http://a:b@c/d@e?f@g", "http://***@c/d@e?f@g"),
        ("http://user:p@ss@proxy/", "http://***@proxy/"),
        ('"A=https://u:p@h","B=ftp://v:w@i"', '"A=https://***@h","B=ftp://***@i"'),
        ("http://proxy:3128/@scope", "http://proxy:3128/@scope"),
        ("git@host:path", "git@host:path"),
        ("/path/of/a:file@2", "/path/of/a:file@2"),
        ("", ""),
    ],
)
def test_credentials_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_message_is_one_bounded_line() -> None:
    assert message("two\nlines") == "two\\nlines"
    for character in ("\U00040000", "\x1b", "\u202e", "a", "é"):
        for count in (500, 1000, 1_000_000):
            told = message(character * count)
            assert len(told.encode()) <= MESSAGE_LIMIT
            assert message(told) == told
    told = message("a" * 5000 + WHERE_TO_LOOK)
    assert told.endswith(f"){WHERE_TO_LOOK}"), "a refusal that is cut says where to look too"
    assert (message(told), len(told) <= MESSAGE_LIMIT) == (told, True)
    assert message("a" * 5000).endswith("a… (5000 bytes, sha256 " + hashlib.sha256(b"a" * 5000).hexdigest()[:16] + ")")


def test_standard_error_gets_no_control_character() -> None:
    script = "import sys; from hook.core.base.system import say; say(sys.argv[1] + '\\ud800')"
    done = subprocess.run(
        [sys.executable, "-c", script, "".join(c for c in HARMFUL if c not in "\0\ud800\udfff")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.removesuffix("\n").isprintable()
    assert done.stderr.startswith("reassert: \\x01\\x02")


@given(st.text(), st.integers(1, 80))
def test_name_that_a_message_quotes_is_no_code_and_is_bounded(text: str, limit: int) -> None:
    shown = named(text, limit)
    kept, cut, _ = shown.rpartition("… (")
    assert set("`$&|;<>()").isdisjoint(kept if cut and len(shown.encode("utf-8", "surrogatepass")) > limit else shown)
    assert len(shown.encode("utf-8", "surrogatepass")) <= limit + 60


def test_usual_name_is_quoted_as_it_is() -> None:
    for name in ("/etc/ssl", "REQUESTS_CA_BUNDLE", "nvidia.com/gpu=all", "/a b/{c}'d'\\x", "é"):
        assert named(name) == name
    assert named("/a;b") == "/a\\x3bb"
    assert describe(FileNotFoundError(2, "No such file", "/a$b")) == "/a\\x24b: No such file"
