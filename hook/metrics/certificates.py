"""When the certificates of a PEM bundle expire: the one field of X.509 that the metrics need."""

from __future__ import annotations

import binascii
import calendar
import re
import time

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----\s(.*?)-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL)

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class _NoCertificate(Exception):
    """The bytes are not an X.509 certificate."""


def expiries(bundle: bytes) -> list[float]:
    """Seconds since the epoch at which each certificate expires. What is no certificate is left out."""
    found = []
    for match in _PEM.finditer(bundle):
        try:
            found.append(_not_after(binascii.a2b_base64(match[1])))
        except (_NoCertificate, ValueError, IndexError):
            continue
    return found


def _not_after(data: bytes) -> float:
    """tbsCertificate, validity, notAfter (RFC 5280, 4.1). Raises _NoCertificate, ValueError, IndexError."""
    certificate, _ = _content(data, _SEQUENCE)
    signed, _ = _content(certificate, _SEQUENCE)
    if signed[0] == _VERSION:
        _, signed = _content(signed, _VERSION)
    for _ in range(3):  # serialNumber, signature, issuer
        _, signed = _content(signed)
    validity, _ = _content(signed, _SEQUENCE)
    _, last = _content(validity)
    kind = last[0]
    text = _content(last)[0].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise _NoCertificate
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _content(data: bytes, wanted: int | None = None) -> tuple[bytes, bytes]:
    """The content of the first element (DER), and what follows it. Raises _NoCertificate, IndexError."""
    if wanted is not None and data[0] != wanted:
        raise _NoCertificate
    size, start = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if start + size > len(data):
        raise _NoCertificate
    return data[start : start + size], data[start + size :]
