"""The files of a trust store, by their paths in it: one set of certificates in every format that programs read."""

from __future__ import annotations

import hashlib
import hmac
import struct
import uuid
from collections.abc import Iterable
from typing import Any

from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from hook.core.policy import trust_layout as layout
from hook.ops.trust import der
from hook.ops.trust.certificate import Certificate, armored
from hook.ops.trust.judge import Judged

_ROUNDS = 2048
"""Of the derivation of the MAC's key, which a start of a JVM repeats. The password is public."""

_SALT = 20
_SHA1, _NULL = bytes.fromhex("06052b0e03021a"), bytes.fromhex("0500")

_X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
_OWNER = uuid.UUID("dcdd3b50-f405-43fd-96be-bd33b3734776").bytes_le
"""GUIDs of UEFI's signature lists: X.509 certificates, and p11-kit as the writer."""


def files(judged: Judged) -> dict[str, bytes]:
    """Every file of the store but the manifest."""
    kept, added = judged.kept, judged.added
    bundle = b"".join(_titled(certificate) for certificate in kept)
    only_added = b"".join(_titled(certificate) for certificate in added)
    trust = b"".join(armored("TRUSTED CERTIFICATE", der.trusted_certificate(one.content, one.subject)) for one in kept)
    java = java_store(kept)
    hashed = hashed_directory(kept)
    single = {f"{certificate.file_name}.pem": certificate.pem for certificate in kept}
    found = {layout.BUNDLE: bundle, layout.ADDED: only_added, layout.JAVA: java}
    certs = {
        layout.BUNDLE: bundle,
        layout.ADDED: only_added,
        layout.JAVA: java,
        layout.CERTS_BUNDLE: bundle,
        layout.CERTS_TRUST: trust,
        **hashed,
        **single,
    }
    extracted = {
        layout.JAVA: java,
        layout.EXTRACTED_TLS: bundle,
        layout.EXTRACTED_EMAIL: bundle,
        layout.EXTRACTED_CODE: bundle,
        layout.EXTRACTED_TRUST: trust,
        layout.EXTRACTED_EDK2: edk2_store(kept),
        **{f"{layout.EXTRACTED_HASHED}/{name}": content for name, content in hashed.items()},
        **{f"{layout.EXTRACTED_HASHED}/{name}": content for name, content in single.items()},
        **{f"{layout.EXTRACTED_HASHED}/{name}": bundle for name in (layout.BUNDLE, layout.CERTS_BUNDLE)},
    }
    found |= {f"{layout.CERTS}/{name}": content for name, content in certs.items()}
    found |= {f"{layout.EXTRACTED}/{name}": content for name, content in extracted.items()}
    return found


def _titled(certificate: Certificate) -> bytes:
    """In PEM, below a comment with its subject: a bundle is read by people too. ASCII, as some parsers want."""
    return b"# %b\n%b" % (certificate.subject.encode("ascii", "backslashreplace"), certificate.pem)


def hashed_directory(certificates: Iterable[Certificate]) -> dict[str, bytes]:
    """HASH.N for each certificate. OpenSSL tries .0, .1 and so on, until a file is missing."""
    found: dict[str, bytes] = {}
    count: dict[str, int] = {}
    for certificate in certificates:
        number = count.get(certificate.hash, 0)
        count[certificate.hash] = number + 1
        found[f"{certificate.hash}.{number}"] = certificate.pem
    return found


def java_store(certificates: Iterable[Certificate]) -> bytes:
    """A PKCS12 trust store, not encrypted, with a MAC.

    A JVM reads its default store without a password, and finds nothing in one that is encrypted. With the password, it
    checks the MAC. HMAC-SHA-1 is what JDK 8 before update 301 reads too.
    """
    entries = [
        pkcs12.PKCS12Certificate(certificate.parsed, certificate.file_name.lower().encode())
        for certificate in certificates
    ]
    plain = pkcs12.serialize_java_truststore(entries, NoEncryption())
    version, contents = der.parts(plain)[:2]  # and a MAC or not, by the version of cryptography
    _, wrapped = der.parts(contents)
    [octets] = der.parts(wrapped)
    _, start, end = der.value(octets)
    safe = octets[start:end]
    salt = hashlib.sha256(safe).digest()[:_SALT]
    mac = hmac.digest(_mac_key(layout.JAVA_PASSWORD, salt), safe, "sha1")
    digest = der.encoded(der.SEQUENCE, der.encoded(der.SEQUENCE, _SHA1, _NULL), der.encoded(der.OCTETS, mac))
    rounds = der.encoded(der.INTEGER, _ROUNDS.to_bytes(2))
    return der.encoded(
        der.SEQUENCE, version, contents, der.encoded(der.SEQUENCE, digest, der.encoded(der.OCTETS, salt), rounds)
    )


def _mac_key(password: str, salt: bytes) -> bytes:
    """RFC 7292, appendix B.2, for SHA-1, whose blocks have 64 bytes: the diversifier 3 is that of a MAC's key."""
    secret = (password + "\0").encode("utf-16-be")
    key = bytes([3]) * 64 + _repeated(salt) + _repeated(secret)
    for _ in range(_ROUNDS):
        key = hashlib.sha1(key, usedforsecurity=False).digest()
    return key


def _repeated(text: bytes) -> bytes:
    return (text * 64)[: -(-len(text) // 64) * 64]


def edk2_store(certificates: Iterable[Certificate]) -> bytes:
    """UEFI's signature lists, one for each certificate; firmware of virtual machines reads it for HTTPS boot."""
    found = b""
    for certificate in certificates:
        size = len(_OWNER) + len(certificate.content)
        found += _X509 + struct.pack("<III", 28 + size, 0, size) + _OWNER + certificate.content
    return found


def entries(judged: Judged) -> list[dict[str, Any]]:
    """What the manifest says of each certificate."""
    return [
        {
            "sha256": certificate.sha256,
            "subject": certificate.subject,
            "notAfter": f"{certificate.ends:%Y-%m-%dT%H:%M:%SZ}",
            "added": certificate.added,
            "file": certificate.place.file,
            "entry": certificate.place.entry,
        }
        for certificate in judged.kept
    ]
