"""The PKCS12 trust store for Java is read without a password and with `changeit`. tests/trust/run.sh has the JVMs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from hook.trust.java import with_mac


@pytest.fixture(scope="module")
def store() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Company Root")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    certificate = built.sign(key, hashes.SHA256())
    entry = pkcs12.PKCS12Certificate(certificate, b"company")
    return with_mac(pkcs12.serialize_java_truststore([entry], NoEncryption()), "changeit")


def test_password_opens_the_store_and_another_does_not(store: bytes) -> None:
    assert len(pkcs12.load_pkcs12(store, b"changeit").additional_certs) == 1
    with pytest.raises(ValueError, match="password"):
        pkcs12.load_pkcs12(store, b"other")
