"""When the certificates of a PEM bundle expire: the one field of X.509 that the metrics need."""

from __future__ import annotations

import binascii
import calendar
import re
import time

from hook.ops.trust.der import parts, value

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----\s(.*?)-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL)

_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def expiries(bundle: bytes) -> list[float]:
    """Seconds since the epoch at which each certificate expires. What is no certificate is left out."""
    found = []
    for match in _PEM.finditer(bundle):
        try:
            found.append(_not_after(binascii.a2b_base64(match[1])))
        except (ValueError, IndexError):
            continue
    return found


def _not_after(data: bytes) -> float:
    """tbsCertificate, validity, notAfter (RFC 5280, 4.1). Raises ValueError, IndexError."""
    signed = parts(parts(data)[0])
    validity = signed[4 if signed[0][0] == _VERSION else 3]  # after serialNumber, signature, issuer
    last = parts(validity)[1]
    kind, start, end = value(last)
    text = last[start:end].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("it has no time of validity")
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))
