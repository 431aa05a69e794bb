"""Java's trust store in PKCS12: certificates that are not encrypted, with a MAC by the password `changeit`.

A JVM opens its default store, `lib/security/cacerts`, without a password. It then skips the MAC, and it skips every
encrypted part too: a store whose certificates are encrypted is an empty one, and all TLS of the JVM fails ("the
trustAnchors parameter must be non-empty"). With a password, as keytool and `javax.net.ssl.trustStorePassword` have it,
a JVM refuses a store whose MAC is missing or wrong. So the store has a MAC and no encryption. `cryptography` writes no
such file: the MAC is made here (RFC 7292, appendix B). SHA-1, since JDK 8 before update 301 reads nothing newer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from hook.trust import der, layout
from hook.trust.certificate import Certificate

_ROUNDS = 2
"""Of the key derivation. The password is public, so more would protect nothing; DER leaves out a 1."""

_INTEGER, _OCTETS = 0x02, 0x04
_SHA1 = bytes.fromhex("300906052b0e03021a0500")
_BLOCK = 64
_FOR_MACS = b"\x03"


def java_store(certificates: Iterable[Certificate]) -> bytes:
    """The store. The same certificates make the same bytes."""
    entries = [
        pkcs12.PKCS12Certificate(certificate.parsed, certificate.file_name.lower().encode())
        for certificate in certificates
    ]
    return with_mac(pkcs12.serialize_java_truststore(entries, NoEncryption()), layout.JAVA_PASSWORD)


def with_mac(store: bytes, password: str) -> bytes:
    """A PKCS12 file with the MAC of a password instead of the one that it has."""
    _, start, _ = der.value(store)
    version = der.first(store[start:])
    content = der.first(store[start + len(version) :])
    salt = hashlib.sha1(content, usedforsecurity=False).digest()
    mac = hmac.new(_key(password, salt), _authenticated(content), hashlib.sha1).digest()
    digest = der.encoded(der.SEQUENCE, _SHA1, der.encoded(_OCTETS, mac))
    rounds = der.encoded(_INTEGER, bytes([_ROUNDS]))
    return der.encoded(
        der.SEQUENCE, version, content, der.encoded(der.SEQUENCE, digest, der.encoded(_OCTETS, salt), rounds)
    )


def _authenticated(content: bytes) -> bytes:
    """What the MAC is of: the octets in a ContentInfo of type data."""
    _, start, _ = der.value(content)
    kind = der.first(content[start:])
    _, explicit, _ = der.value(content, start + len(kind))
    _, first, end = der.value(content, explicit)
    return content[first:end]


def _key(password: str, salt: bytes) -> bytes:
    text = password.encode("utf-16-be") + b"\0\0"
    key = _FOR_MACS * _BLOCK + _repeated(salt) + _repeated(text)
    for _ in range(_ROUNDS):
        key = hashlib.sha1(key, usedforsecurity=False).digest()
    return key


def _repeated(text: bytes) -> bytes:
    size = -(-len(text) // _BLOCK) * _BLOCK
    return (text * (size // len(text) + 1))[:size]
