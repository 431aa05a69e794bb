"""CAs and server certificates for tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@cache
def key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(1000 + number, ec.SECP256R1())


@cache
def rsa_key(bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


@dataclass
class Made:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def key_in(self, encoding: Encoding, secret: bytes = b"") -> bytes:
        encryption: KeySerializationEncryption = BestAvailableEncryption(secret) if secret else NoEncryption()
        return self.key.private_bytes(encoding, PrivateFormat.PKCS8, encryption)

    def at(self, path: Path) -> str:
        """Write it in PEM. Returns the path."""
        path.write_bytes(self.pem)
        return str(path)


def ca(
    name: str | x509.Name = "Example CA",
    *,
    by: Made | None = None,
    signer: Key | None = None,
    begins: datetime = NOW - DAY,
    ends: datetime = NOW + 365 * DAY,
    is_ca: bool | None = True,
    signs: bool | None = None,
    algorithm: hashes.HashAlgorithm | None = None,
    serial: int | None = None,
    host: str = "",
) -> Made:
    """A certificate that its own key signed, or the key of `by`. `is_ca`: None for no basic constraints.

    `host`: of a server, which is at 127.0.0.1.
    """
    own = signer or key()
    subject = named(name) if isinstance(name, str) else name
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(own.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    signing = by.key if by else own
    for extension in (  # by these OpenSSL tells two CAs of one name apart
        x509.SubjectKeyIdentifier.from_public_key(own.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
    ):
        builder = builder.add_extension(extension, critical=False)
    if is_ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
    if host:
        names = x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(IPv4Address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    if signs is not None:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
        )
        builder = builder.add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=signs, encipher_only=False, decipher_only=False, **usage
            ),
            critical=True,
        )
    return Made(builder.sign(signing, algorithm or hashes.SHA256()), own)


@cache
def roots(count: int = 3) -> tuple[Made, ...]:
    """What stands for the system's roots."""
    return tuple(ca(f"System Root {number}", signer=key(100 + number), serial=number + 1) for number in range(count))


def bundle(*made: Made) -> bytes:
    return b"".join(one.pem for one in made)
