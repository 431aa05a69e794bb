"""The files of a trust store, by their paths in it: one set of certificates in every format that programs read."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable, Mapping

from hook.trust import der, layout
from hook.trust.certificate import Certificate, armored
from hook.trust.java import java_store
from hook.trust.judge import Judged

FORMAT = 1
"""Changes when the same certificates would make other files; a store of another format is built again."""

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


def edk2_store(certificates: Iterable[Certificate]) -> bytes:
    """UEFI's signature lists, one for each certificate; firmware of virtual machines reads it for HTTPS boot."""
    found = b""
    for certificate in certificates:
        size = len(_OWNER) + len(certificate.content)
        found += _X509 + struct.pack("<III", 28 + size, 0, size) + _OWNER + certificate.content
    return found


def manifest(judged: Judged, number: int, built: str, digests: Mapping[str, str]) -> bytes:
    """What is in the store, as JSON. `digests`: the sha256 of each other file."""
    entries = [
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
    content = {"format": FORMAT, "generation": number, "built": built, "certificates": entries, "files": digests}
    return json.dumps(content, indent=1, ensure_ascii=True).encode() + b"\n"
