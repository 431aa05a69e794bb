"""Which certificates a reader refuses that OpenSSL reads, by rules that were found by asking the readers themselves.

Asked were 82 curves of OpenSSL 3.0, and keys and serial numbers of other kinds: Java 17.0.15, Go 1.27.3, GnuTLS 3.7.9
and Node.js 20.20. GnuTLS and Node.js read all of them. Java cannot load a whole store that has one certificate which it
refuses; Go leaves such a certificate out.
"""

from __future__ import annotations

from hook.ops.trust import der
from hook.ops.trust.certificate import Certificate

JAVA, GO = "Java", "Go"
"""The readers that refuse some."""

_EC = bytes.fromhex("06072a8648ce3d0201")
"""id-ecPublicKey, as DER (RFC 5480)."""

_RSA_BITS = 16384
"""The longest RSA key of Java."""

_OF_GO = {"1.3.132.0.33", "1.2.840.10045.3.1.7", "1.3.132.0.34", "1.3.132.0.35"}
"""P-224, P-256, P-384 and P-521."""

_OF_JAVA = {
    *(f"1.2.840.10045.3.0.{number}" for number in (5, 6, 7, 11, 12, 13, 18, 20)),
    *(f"1.2.840.10045.3.1.{number}" for number in range(1, 8)),
    *(f"1.3.132.0.{number}" for number in (*range(1, 11), 15, 16, 17, *range(22, 40))),
    *(f"1.3.36.3.3.2.8.1.1.{number}" for number in range(1, 14, 2)),
}
"""Those of X9.62, SEC 2 and brainpool that Java knows: not brainpool's twisted ones, SM2 and WAP's."""


def refusals(certificate: Certificate) -> dict[str, str]:
    """By reader that refuses a certificate, why."""
    found = {}
    if certificate.parsed.serial_number < 0:
        found[GO] = "its serial number is negative"
    curve = _curve(certificate)
    if curve == "explicit":
        found[JAVA] = found[GO] = "its elliptic curve is given by parameters, not by name"
    elif curve:
        unknown = "it does not know its elliptic curve"
        found |= {reader: unknown for reader, known in ((JAVA, _OF_JAVA), (GO, _OF_GO)) if curve not in known}
    kind, bits = certificate.key()
    if kind == "RSA" and bits > _RSA_BITS:
        found[JAVA] = f"its RSA key has {bits} bits"
    return found


def readable(certificates: list[Certificate], reader: str) -> list[Certificate]:
    """Those that a reader does not refuse."""
    return [certificate for certificate in certificates if reader not in refusals(certificate)]


def _curve(certificate: Certificate) -> str:
    """The object identifier of the key's curve; "explicit" if it is given by parameters, "" for another kind of key."""
    fields = der.parts(certificate.parsed.tbs_certificate_bytes)
    key = fields[6 if fields[0][0] == 0xA0 else 5]  # version 1 has no field for it (RFC 5280, 4.1)
    algorithm = der.parts(der.parts(key)[0])
    if algorithm[0] != _EC:
        return ""
    named = algorithm[1] if len(algorithm) > 1 else b""
    return der.dotted(named) if named[:1] == b"\x06" else "explicit"
