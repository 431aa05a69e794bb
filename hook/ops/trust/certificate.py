"""One certificate of a source, and the entries of a PEM or DER file."""

from __future__ import annotations

import binascii
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.utils import CryptographyDeprecationWarning

from hook.core.base.text import printable
from hook.ops.trust import der
from hook.ops.trust.errors import TrustError

warnings.filterwarnings("ignore", category=CryptographyDeprecationWarning)  # such as a root's serial number of 0
warnings.filterwarnings("ignore", "Attribute's length", UserWarning)  # such as a country of three letters in a name

_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?[ \t]*-----BEGIN ([^-\r\n]*)-----[\x01-\x20\x80-\xff]*$")
"""OpenSSL drops such bytes at a line's end, also those of 128 and more: its `char` has a sign."""
BEGIN = b"-----BEGIN "
"""What a file in PEM has."""

_JOINED = b"-----" + BEGIN
"""The end of an entry and the beginning of the next one, of files that were put together without a newline."""

_CERTIFICATE = ("CERTIFICATE", "X509 CERTIFICATE")
_PKCS12 = b"\x02\x01\x03\x30"
"""Its version and the beginning of its first part; a certificate begins with a part."""

_UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
"""Exceptions of `cryptography` for a broken certificate. TypeError: of a name with a value of another type."""

_INSTEAD = {
    "CERTIFICATE REQUEST": "a certificate request; add the certificate that the CA issued for itself",
    "NEW CERTIFICATE REQUEST": "a certificate request; add the certificate that the CA issued for itself",
    "TRUSTED CERTIFICATE": "OpenSSL's own form of a certificate; write it with openssl x509 -in FILE -out ca.pem",
    "X509 CRL": "a list of revoked certificates; add the CA's certificate",
    "PUBLIC KEY": "a public key; add the CA's certificate",
}
_TEXT = tuple(
    getattr(x509.name._ASN1Type, f"{kind}String")
    for kind in ("UTF8", "Printable", "T61", "IA5", "Visible", "Universal", "BMP")
)
"""Types of strings that OpenSSL compares as text."""

_KEY = "a private key, not a certificate; remove it from the file, and keep it where only its owner can read it"


@dataclass(frozen=True)
class Place:
    """Where a certificate stands: a file, and its number among the file's entries, from 1. `line`: 0 in DER."""

    file: str
    entry: int = 1
    line: int = 0

    def __str__(self) -> str:
        """As messages name it."""
        return printable(f"{self.file}: entry {self.entry}" + (f" (line {self.line})" if self.line else ""))


@dataclass(frozen=True)
class Certificate:
    """A certificate. `added`: it is of the operator's sources, not of the system's roots."""

    content: bytes = field(repr=False)
    place: Place
    added: bool = True

    @cached_property
    def parsed(self) -> x509.Certificate:
        """As `cryptography` has it."""
        return x509.load_der_x509_certificate(self.content)

    @cached_property
    def sha256(self) -> str:
        """The fingerprint."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def self_issued(self) -> bool:
        """Whether issuer and subject are the same: a root."""
        return self.parsed.issuer == self.parsed.subject

    @cached_property
    def hash(self) -> str:
        """The name in a hashed directory, without its number; as `openssl x509 -subject_hash`."""
        rdns = [x509.RelativeDistinguishedName(map(_canonical, rdn)) for rdn in self.parsed.subject.rdns]
        content = b"".join(der.parts(x509.Name(rdns).public_bytes()))
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        return f"{int.from_bytes(digest[:4], 'little'):08x}"

    @cached_property
    def subject(self) -> str:
        """The readable subject: its common name, else its organizational unit or organization, else all of it."""
        return _readable(self.parsed.subject)

    @cached_property
    def issuer(self) -> str:
        """The readable issuer."""
        return _readable(self.parsed.issuer)

    @property
    def begins(self) -> datetime:
        """The time from which it is valid."""
        return self.parsed.not_valid_before_utc

    @property
    def ends(self) -> datetime:
        """The time until which it is valid."""
        return self.parsed.not_valid_after_utc

    @cached_property
    def file_name(self) -> str:
        """A file name, unique by the fingerprint; without an ending."""
        words = re.sub(r"[^A-Za-z0-9]+", "_", self.subject).strip("_")
        return f"{words[:48] or 'certificate'}_{self.sha256[:8]}"

    @cached_property
    def pem(self) -> bytes:
        """In PEM."""
        return self.parsed.public_bytes(serialization.Encoding.PEM)

    def require_openssl(self) -> None:
        """Raises ValueError if OpenSSL cannot read it: of a file, it reads nothing after such a certificate."""
        # `cryptography` reads certificates itself, and PKCS#7 with OpenSSL.
        wrapped = pkcs7.serialize_certificates([self.parsed], serialization.Encoding.DER)
        try:
            pkcs7.load_der_pkcs7_certificates(wrapped)
        except ValueError:
            raise ValueError("OpenSSL refuses it") from None

    def not_a_ca(self) -> str:
        """Why it cannot sign other certificates, or ""."""
        if self.parsed.version is x509.Version.v1:  # has no extensions; programs take a root of v1 for a CA
            return "" if self.self_issued else "it is of X.509 version 1 and not self-signed"
        try:
            if not self.parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return "its basic constraints say CA:FALSE"
        except x509.ExtensionNotFound:
            return "it has no basic constraints that say CA:TRUE"
        try:
            usage = self.parsed.extensions.get_extension_for_class(x509.KeyUsage).value
        except x509.ExtensionNotFound:
            return ""
        return "" if usage.key_cert_sign else "its key usage has no keyCertSign"

    def key(self) -> tuple[str, int]:
        """Its key's type and size in bits."""
        try:
            key = self.parsed.public_key()
        except (UnsupportedAlgorithm, ValueError):
            return "unknown", 0
        if isinstance(key, rsa.RSAPublicKey):
            return "RSA", key.key_size
        if isinstance(key, ec.EllipticCurvePublicKey):
            return "EC", key.key_size
        return ("DSA", key.key_size) if isinstance(key, dsa.DSAPublicKey) else ("other", 0)

    def signature(self) -> str:
        """The hash that its issuer signed: `sha1`; empty where the signature has none, or an unknown one."""
        try:
            algorithm = self.parsed.signature_hash_algorithm
        except (UnsupportedAlgorithm, ValueError):
            return ""
        return algorithm.name if algorithm else ""


def _readable(name: x509.Name) -> str:
    for kind in (x509.NameOID.COMMON_NAME, x509.NameOID.ORGANIZATIONAL_UNIT_NAME, x509.NameOID.ORGANIZATION_NAME):
        if found := name.get_attributes_for_oid(kind):
            return printable(str(found[-1].value))
    return printable(name.rfc4514_string()) or "(no subject)"


def _canonical(attribute: x509.NameAttribute[str | bytes]) -> x509.NameAttribute[str | bytes]:
    """One attribute of a name, as OpenSSL compares it: UTF-8, lower case, single spaces. ASCII only, both of these."""
    if attribute._type not in _TEXT:
        return attribute
    text = str(attribute.value)
    if attribute._type is x509.name._ASN1Type.T61String:  # `cryptography` reads it as UTF-8, OpenSSL as Latin-1
        text = text.encode().decode("latin-1")
    folded = b" ".join(text.encode().split()).lower().decode()
    return x509.NameAttribute(attribute.oid, folded, x509.name._ASN1Type.UTF8String, _validate=False)


def certificates(data: bytes, file: str, added: bool, limit: int) -> list[Certificate]:
    """All certificates of a file's content: PEM, DER, or PKCS#7 in either. Raises TrustError for a bad entry."""
    if BEGIN not in data:
        return _of_der(data, Place(file), added)
    _refuse_der_beside(data, file)
    found: list[Certificate] = []
    for number, (line, label, body) in enumerate(_blocks(data, file), 1):
        place = Place(file, number, line)
        if number > limit:
            raise TrustError(
                f"{place}: more than {limit} certificates; a trust store has about 150. Give files that hold CA "
                f"certificates only"
            )
        if label == "PKCS7":
            found += _of_pkcs7(_decoded(body, place), place, added)
        elif label in _CERTIFICATE:
            found.append(_checked(_decoded(body, place), place, added))
        else:
            instead = _KEY if "PRIVATE KEY" in label else _INSTEAD.get(label, f"{label}, not a certificate; remove it")
            raise TrustError(f"{place}: this is {printable(instead)}")
    return found


def _refuse_der_beside(data: bytes, file: str) -> None:
    """Raises TrustError for a file in PEM that begins or ends with a certificate in DER, which would be skipped."""
    ends = data.rfind(b"-----") + 5
    for part, where in ((data, "before"), (data[ends:].lstrip(b"\r\n"), "behind")):
        if part[:2] in (b"\x30\x82", b"\x30\x83"):  # a certificate's length takes two bytes or more; no text begins so
            raise TrustError(f"{file}: binary data (DER) {where} the entries in PEM; give each its own file")


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a PEM file, by number. Two entries on one line are two; a file of CR alone has lines too."""
    for number, line in enumerate(data.split(b"\n" if b"\n" in data else b"\r"), 1):
        first, joined, second = line.partition(_JOINED)
        if not joined:
            yield number, line
        else:
            yield number, first + b"-----"
            yield number, BEGIN + second


def _blocks(data: bytes, file: str) -> Iterator[tuple[int, str, bytes]]:
    """The entries of a PEM file: the line of BEGIN, the label, and the text up to END. Other text is a comment."""
    start, label, body = 0, b"", bytearray()
    count = 0
    for number, line in _lines(data):
        if b"-----" not in line:
            if start:
                body += line
        elif begin := _BEGIN.match(line):
            if start:
                break
            start, label = number, begin[1]
            body.clear()
            count += 1
        elif start and line.strip() == b"-----END " + label + b"-----":
            yield start, label.decode("ascii", "backslashreplace"), bytes(body)
            start = 0
        elif start:
            break
        elif BEGIN in line and not line.lstrip().startswith(b"#"):
            raise TrustError(
                f"{file}: line {number}: text stands before or behind -----BEGIN on its line, so that no program reads "
                "the entry; give BEGIN, END and each 64 characters between them a line of their own"
            )
    if start:
        place = Place(file, count, start)
        end = f"-----END {label.decode('ascii', 'backslashreplace')}-----"
        raise TrustError(f"{place}: no line {end} ends it; copy the whole entry again")
    if not count:
        raise TrustError(f"{file}: no entry: each -----BEGIN stands in a comment")


def _decoded(body: bytes, place: Place) -> bytes:
    try:
        return binascii.a2b_base64(b"".join(body.split()), strict_mode=True)
    except binascii.Error as error:
        raise TrustError(f"{place}: broken base64 ({error}); copy the whole entry again, or remove it") from None


def _checked(content: bytes, place: Place, added: bool) -> Certificate:
    """The certificate, read as far as the program will need it. Raises TrustError."""
    certificate = Certificate(content, place, added)
    try:
        certificate.not_a_ca()
        _ = certificate.hash, certificate.subject, certificate.issuer, certificate.begins, certificate.ends
        certificate.require_openssl()
    except _UNREADABLE as error:
        raise _broken(place, error) from None
    return certificate


def _broken(place: Place, error: Exception) -> TrustError:
    reason = printable(str(error).partition("\n")[0])
    return TrustError(f"{place}: not a certificate that can be read ({reason}); copy it again, or remove it")


def _of_der(data: bytes, place: Place, added: bool) -> list[Certificate]:
    if data[:1] != b"\x30":
        what = "UTF-16 text; save it as plain text" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "neither PEM nor DER"
        if not data.strip():
            what = "empty"
        raise TrustError(f"{place.file}: {what}. Give a file with -----BEGIN CERTIFICATE----- or a certificate in DER")
    if _PKCS12 in data[:16]:
        raise TrustError(
            f"{place.file}: a PKCS12 file, which may hold a private key; take the certificates out of it with "
            f"openssl pkcs12 -in FILE -nokeys -out ca.pem"
        )
    try:
        return [_checked(data, place, added)]
    except TrustError:
        if _is_private_key(data):
            raise TrustError(f"{place}: this is {_KEY}") from None
        try:
            return _of_pkcs7(data, place, added)
        except TrustError:
            pass
        raise


def _is_private_key(data: bytes) -> bool:
    try:
        serialization.load_der_private_key(data, None)
    except TypeError:  # it is encrypted
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _of_pkcs7(content: bytes, place: Place, added: bool) -> list[Certificate]:
    try:
        found = pkcs7.load_der_pkcs7_certificates(content)
    except (*_UNREADABLE, UnsupportedAlgorithm) as error:
        raise _broken(place, error) from None
    return [_checked(certificate.public_bytes(serialization.Encoding.DER), place, added) for certificate in found]
