"""The parts of a certificate's DER that `cryptography` does not give as they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

INTEGER, OCTETS, UTF8, SEQUENCE, SET = 0x02, 0x04, 0x0C, 0x30, 0x31
_VERSION = 0xA0
_DECODED = {
    UTF8: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1A: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Types of strings that OpenSSL compares as text: UTF8, Printable, T61, IA5, Visible, Universal, BMP."""


def value(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """The tag of the value at an offset, and where its content begins and ends. Raises ValueError."""
    try:
        tag, length, start = data[at], data[at + 1], at + 2
        if length >= 0x80:
            count = length & 0x7F
            if not 0 < count <= 4:
                raise ValueError("a length that DER does not have")
            start += count
            length = int.from_bytes(data[at + 2 : start])
    except IndexError:
        raise ValueError("it ends too early") from None
    if start + length > len(data):
        raise ValueError("it ends too early")
    return tag, start, start + length


def _values(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Each value in a sequence's content: its tag, its content, and all of it."""
    at = 0
    while at < len(data):
        tag, start, end = value(data, at)
        yield tag, data[start:end], data[at:end]
        at = end


def parts(data: bytes) -> list[bytes]:
    """The values in a sequence. Raises ValueError."""
    _, start, end = value(data)
    return [whole for _, _, whole in _values(data[start:end])]


def encoded(tag: int, *content: bytes) -> bytes:
    """One value in DER."""
    body = b"".join(content)
    size = len(body)
    if size < 0x80:
        return bytes((tag, size)) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + body


def first(data: bytes) -> bytes:
    """The first value of several: the certificate of OpenSSL's TRUSTED CERTIFICATE. Raises ValueError."""
    return data[: value(data)[2]]


def names(certificate: bytes) -> tuple[bytes, bytes]:
    """A certificate's issuer and subject, as they stand. Raises ValueError."""
    _, start, end = value(certificate)
    _, start, end = value(certificate, start)
    parts = [whole for tag, _, whole in _values(certificate[start:end]) if tag != _VERSION]
    if len(parts) < 5:
        raise ValueError("it has no subject")
    return parts[2], parts[4]


def subject_hash(subject: bytes) -> str:
    """The name of a subject's files in a hashed directory, without its number; as `openssl x509 -subject_hash`."""
    _, start, end = value(subject)
    sets = []
    for _, content, _ in _values(subject[start:end]):
        sets.append(encoded(SET, *sorted(_canonical(pair) for _, pair, _ in _values(content))))
    digest = hashlib.sha1(b"".join(sets), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _canonical(pair: bytes) -> bytes:
    """One attribute of a name, as OpenSSL compares it: UTF-8, lower case, single spaces. ASCII only, both of these."""
    (_, _, kind), (tag, content, whole) = _values(pair)
    if tag in _DECODED:
        text = content.decode(_DECODED[tag], "surrogateescape" if tag == UTF8 else "replace")
        folded = b" ".join(text.encode("utf-8", "surrogateescape").split())
        whole = encoded(UTF8, folded.lower())
    return encoded(SEQUENCE, kind, whole)


_TRUSTED_FOR = tuple(bytes.fromhex(f"06082b060105050703{purpose:02x}") for purpose in (1, 2, 3, 4))
"""serverAuth, clientAuth, codeSigning and emailProtection."""


def trusted_certificate(certificate: bytes, alias: str) -> bytes:
    """The content of OpenSSL's TRUSTED CERTIFICATE: the certificate, what it is trusted for, and a readable name."""
    return certificate + encoded(SEQUENCE, encoded(SEQUENCE, *_TRUSTED_FOR), encoded(UTF8, alias.encode()))
