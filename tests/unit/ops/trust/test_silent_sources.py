"""A source that has a certificate is read, or refused by file and line: never skipped without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.ops.trust.build import Sources, build
from hook.ops.trust.certificate import certificates
from hook.ops.trust.errors import TrustError
from unit.ops.trust.authority import bundle, ca, key
from unit.ops.trust.conftest import TrustStore

ONE, TWO = ca("One", signer=key(1)), ca("Two", signer=key(2))


def read(data: bytes) -> list[str]:
    return [found.subject for found in certificates(data, "x.pem", added=True, limit=9)]


JOINED = ONE.pem.rstrip(b"\n") + TWO.pem
"""As `cat` makes of files without a last newline."""


@pytest.mark.parametrize(
    "data",
    [
        JOINED,
        JOINED.replace(b"\n", b"\r\n"),
        bundle(ONE, TWO).replace(b"\n", b"\r"),
        b"# -----BEGIN CERTIFICATE----- of One\n" + bundle(ONE, TWO),
        bundle(ONE, TWO) + b"\x00\xff",
    ],
    ids=["joined", "joined, CRLF", "CR alone", "comment", "binary rest"],
)
def test_entries_that_can_be_told_apart_are_read(data: bytes) -> None:
    assert read(data) == ["One", "Two"]


def test_three_joined_entries_and_their_lines() -> None:
    data = ONE.pem.rstrip(b"\n") + TWO.pem.rstrip(b"\n") + ONE.pem
    found = certificates(data, "x.pem", added=True, limit=9)
    assert [each.subject for each in found] == ["One", "Two", "One"]
    lines = ONE.pem.count(b"\n")
    assert [each.place.line for each in found] == [1, lines, 2 * lines - 1]


BEHIND = ONE.pem.count(b"\n") + 1
"""The first line behind the entry."""


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (TWO.pem.replace(b"\n", b"\\n"), "x.pem: line 1: text stands before or behind -----BEGIN on its line"),
        (TWO.pem.replace(b"\n", b" "), "x.pem: line 1: text stands before or behind -----BEGIN on its line"),
        (b'"' + TWO.pem + b'"', "x.pem: line 1: text stands before or behind -----BEGIN on its line"),
        (b"\xe2\x80\x8b" + TWO.pem, "x.pem: line 1: text stands before or behind -----BEGIN on its line"),
        (ONE.pem + b"ca: " + TWO.pem, f"x.pem: line {BEHIND}: text stands before or behind"),
        (b"#-----BEGIN CERTIFICATE-----\n", "x.pem: no entry: each -----BEGIN stands in a comment"),
        (TWO.der + ONE.pem, "x.pem: binary data (DER) before the entries in PEM; give each its own file"),
        (TWO.der + b"\n" + ONE.pem, "x.pem: binary data (DER) before the entries in PEM; give each its own file"),
        (ONE.pem + TWO.der, "x.pem: binary data (DER) behind the entries in PEM; give each its own file"),
    ],
    ids=["escaped", "spaces", "quotes", "invisible", "key", "comments", "DER first", "DER, newline", "DER last"],
)
def test_others_are_refused_by_file_and_line(data: bytes, complaint: str) -> None:
    with pytest.raises(TrustError) as error:
        read(data)
    assert str(error.value).startswith(complaint)


def test_one_such_file_beside_a_good_one_refuses_the_build(trust: TrustStore) -> None:
    trust.add("a.pem", ONE)
    (trust.sources / "b.pem").write_bytes(TWO.pem.replace(b"\n", b"\\n"))
    with pytest.raises(TrustError, match=r"b\.pem: line 1: "):
        trust.build()


def test_file_that_its_ending_leaves_out_is_named_if_it_has_a_certificate(trust: TrustStore) -> None:
    trust.add("a.pem", ONE)
    (trust.sources / "issuing.cert").write_bytes(TWO.pem)
    (trust.sources / "binary").write_bytes(TWO.der)
    (trust.sources / "README").write_text("Put CAs here.\n")
    (trust.sources / "ca.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    (trust.sources / ".hidden").write_bytes(TWO.pem)
    (trust.sources / "old").mkdir()
    warnings = [line for line in trust.build().warnings if "not read" in line]
    assert [Path(line.split(": ")[1]).name for line in warnings] == ["binary", "issuing.cert"]
    assert all("a file's name must end in .pem, .crt, " in line for line in warnings)
    built = build(
        str(trust.store), Sources(add=[str(trust.sources / "issuing.cert")], no_system=True, allow_removal=True)
    )
    assert [one["subject"] for one in built.added] == ["Two"], "a file that is named itself is read"
