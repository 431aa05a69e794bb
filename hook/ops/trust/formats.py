"""The files of a trust store, by their paths in it: its certificates in every format that programs read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from hook.core.policy import trust_layout as layout
from hook.ops.trust import der
from hook.ops.trust.certificate import Certificate
from hook.ops.trust.judge import Judged
from hook.ops.trust.readers import JAVA, readable


def files(judged: Judged) -> dict[str, bytes]:
    """Every file of the store but the manifest."""
    found = _set(judged.kept, judged.added)
    return found | _below(layout.ALONE, _set(judged.added, judged.added) if judged.added else {})


def _set(kept: list[Certificate], added: list[Certificate]) -> dict[str, bytes]:
    """One set of certificates in every format, with the added ones in a file of their own."""
    bundle = b"".join(_titled(certificate) for certificate in kept)
    only_added = b"".join(_titled(certificate) for certificate in added)
    java = java_store(readable(kept, JAVA))
    named = {layout.BUNDLE: bundle, layout.ADDED: only_added, layout.JAVA: java}
    directory = {f"{certificate.file_name}.pem": certificate.pem for certificate in kept} | hashed_directory(kept)
    directory |= {layout.BUNDLE: bundle, layout.CERTS_BUNDLE: bundle}
    extracted = dict.fromkeys(layout.EXTRACTED_BUNDLES, bundle) | _below(layout.EXTRACTED_HASHED, directory)
    return (
        named
        | _below(layout.CERTS, directory | named | {layout.CERTS_TRUST: bundle})
        | _below(layout.EXTRACTED, extracted | {layout.JAVA: java})
    )


def _below(directory: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{directory}/{name}": content for name, content in files.items()}


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


_EMPTY = bytes.fromhex("3016 020103 3011 06092a864886f70d010701 a004 0402 3000")
"""A PKCS12 store with nothing in it (RFC 7292)."""


def java_store(certificates: Iterable[Certificate]) -> bytes:
    """A PKCS12 trust store, neither encrypted nor with a MAC.

    A JVM reads its default store without a password, and finds nothing in one that is encrypted. With the password, it
    would verify a MAC. cryptography makes one for the empty password: the last of the three parts (RFC 7292, 4).
    """
    certificates = list(certificates)
    if not certificates:
        return _EMPTY
    entries = [
        pkcs12.PKCS12Certificate(certificate.parsed, certificate.file_name.lower().encode())
        for certificate in certificates
    ]
    return der.sequence(*der.parts(pkcs12.serialize_java_truststore(entries, NoEncryption()))[:2])


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
