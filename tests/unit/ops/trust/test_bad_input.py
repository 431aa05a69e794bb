"""Sources that no trust store can be made of: the old generation stays, and the message says file, entry and remedy."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import marks
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PublicFormat, pkcs7, pkcs12

from hook.ops.trust import source
from hook.ops.trust.build import Sources, build
from hook.ops.trust.certificate import certificates
from hook.ops.trust.errors import TrustError
from hook.ops.trust.generation import read_tree
from unit.ops.trust.authority import bundle, ca, key, named, roots
from unit.ops.trust.conftest import TrustStore
from unit.ownmachine import Machine

pytestmark = marks.promise(
    "A source that is broken, too large, missing or a private key, a full disk, and the loss of a root leave "
    "the old generation",
    about="Trust store",
)

GOOD = ca("Good CA", signer=key(1))
OTHER = ca("Other CA", signer=key(2))
REQUEST = x509.CertificateSigningRequestBuilder().subject_name(named("x")).sign(key(), hashes.SHA256())
PUBLIC = key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
LINES, OTHER_LINES = GOOD.pem.count(b"\n"), OTHER.pem.count(b"\n")
PFX = pkcs12.serialize_key_and_certificates(b"x", key(1), GOOD.certificate, None, NoEncryption())
PKCS7 = pkcs7.serialize_certificates([GOOD.certificate], Encoding.DER)
PUT_BACK = "correct that, or name other files with --add or --system"


def refused(trust: TrustStore) -> str:
    """What a build says that is refused; the store stays as it was."""
    before = trust.files()
    with pytest.raises(TrustError) as caught:
        trust.build()
    assert trust.files() == before
    assert [path.name for path in (trust.store / "generations").iterdir()] == ["000001"]
    assert "generation 1 stays in force" in caught.value.outcome
    return str(caught.value)


CUT = "no line -----END CERTIFICATE----- ends it"
SECOND = f"entry 2 (line {OTHER_LINES + 1})"
UNREADABLE = "entry 1: not a certificate that can be read ("
NO_CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nMAUCAQECAQI=\n-----END CERTIFICATE-----\n"
PARAMETERS = b"-----BEGIN DH PARAMETERS-----\nMAA=\n-----END DH PARAMETERS-----\n"
VERSION, NO_VERSION = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x30"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "neither PEM nor DER. Give a file with -----BEGIN CERTIFICATE-----"),
        (b"", "empty. Give a file with"),
        (b"\xff\xfe" + GOOD.pem.decode().encode("utf-16-le"), "UTF-16 text; save it as plain text"),
        (GOOD.key_in(Encoding.PEM), "entry 1 (line 1): this is a private key, not a certificate; remove it"),
        (GOOD.pem + GOOD.key_in(Encoding.PEM), f"entry 2 (line {LINES + 1}): this is a private key"),
        (GOOD.key_in(Encoding.PEM, b"secret"), "entry 1 (line 1): this is a private key"),
        (GOOD.key_in(Encoding.DER), "entry 1: this is a private key"),
        (GOOD.key_in(Encoding.DER, b"secret"), "entry 1: this is a private key"),
        (REQUEST.public_bytes(Encoding.PEM), "this is a certificate request; add the certificate that"),
        (PUBLIC, "this is a public key; add the CA's certificate"),
        (PFX, "a PKCS12 file, which may hold a private key; take the certificates out of it with openssl"),
        (GOOD.der[:-5], UNREADABLE),
        (OTHER.pem + GOOD.pem[:-30], f"{SECOND}: {CUT}; copy"),
        (GOOD.pem[:-26] + OTHER.pem, f"entry 1 (line 1): {CUT}"),
        (OTHER.pem + GOOD.pem.replace(b"MII", b"M*I"), f"{SECOND}: broken base64 ("),
        (NO_CERTIFICATE, "entry 1 (line 1): not a certificate that can be read ("),
        (GOOD.der.replace(VERSION, NO_VERSION), "can be read (48 is not a"),
        (PKCS7.replace(VERSION, NO_VERSION), UNREADABLE),
        (GOOD.pem.replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE"), "this is OpenSSL's own form of a certificate;"),
        (PARAMETERS, "DH PARAMETERS, not a"),
    ],
)
def test_a_source_that_is_no_certificate_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(TrustError, match=f"^/x.pem(: entry|: | is ).*{re.escape(message)}"):
        certificates(content, "/x.pem", added=True, limit=9)


def test_what_openssl_refuses_is_refused() -> None:
    """OpenSSL reads no certificate after such a one. What is taken goes through the real openssl.

    Names of all types, and a key of an unknown algorithm, whose parameter is a string of parts that it does not have.
    """
    before, name, after = GOOD.der.partition(b"\x0c\x07Good CA")
    between, _, after = after.partition(name)
    taken = []
    for tag in range(1, 31):
        other = bytes((tag,)) + name[1:]
        for names in (other + between + name, name + between + other):
            with contextlib.suppress(TrustError):
                taken += [(tag, each) for each in certificates(before + names + after, "ca.der", True, 1)]
    assert {tag for tag, _ in taken} >= {12, 18, 19, 20, 22}
    algorithm = bytes.fromhex("06072a8648ce3d0201")
    for parameter in (b"\x06", b"\x1a", b"\x3a"):
        changed = GOOD.der.replace(algorithm + b"\x06", algorithm[:-1] + b"\x51" + parameter)
        with contextlib.suppress(TrustError):
            taken += [(parameter[0], each) for each in certificates(changed, "ca.der", True, 1)]
    assert taken[-1][0] == 0x1A
    for tag, each in taken:
        read = subprocess.run(["openssl", "x509", "-inform", "der", "-noout"], input=each.content, capture_output=True)
        assert read.returncode == 0, (tag, read.stderr)


def test_bytes_after_a_begin_line_hide_no_entry() -> None:
    """OpenSSL reads both entries."""
    other = OTHER.pem.replace(b"BEGIN CERTIFICATE-----", b"BEGIN CERTIFICATE-----\xc2\xa0")
    assert len(certificates(GOOD.pem + other, "ca.pem", True, 2)) == 2


def test_a_broken_missing_or_empty_source_refuses_all_of_it(built: TrustStore) -> None:
    path = built.sources / "more.pem"
    path.write_bytes(bundle(*roots()) + NO_CERTIFICATE + OTHER.pem)
    assert f"{path}: entry 4 (line " in refused(built)
    path.unlink()
    path.symlink_to(built.directory / "gone")
    assert refused(built) == f"{path}: No such file or directory; {PUT_BACK}"
    path.unlink()
    path.mkdir()
    assert refused(built) == f"{path} is not a regular file; {PUT_BACK}"
    shutil.rmtree(built.sources)
    assert refused(built) == f"{built.sources}: No such file or directory; {PUT_BACK}"
    built.sources.mkdir()
    (built.sources / "README").write_text("not read")
    assert "no certificate in" in refused(built)


def test_100_000_certificates_are_refused_before_they_are_read(built: TrustStore) -> None:
    path = built.sources / "many.pem"
    path.write_bytes(GOOD.pem * 100_000)
    assert f"{path} is larger than the limit of {source.FILE_LIMIT} bytes; give files that hold CA" in refused(built)
    path.write_bytes(GOOD.pem * 20_000)
    used = os.times().user
    limit = f"{path}: entry 2000 (line {1999 * LINES + 1}): more than 1999 certificates"  # company.pem has one
    assert limit in refused(built)
    assert os.times().user - used < 3


DISK = 4096
"""KiB."""


def test_a_full_disk_leaves_the_old_generation(machine: Machine, built: TrustStore) -> None:
    """On a disk with more room at each try, until it has enough."""
    disk = built.directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}k", "tmpfs", disk], check=True)
    built.store, built.live = disk / "store", disk / "store/live"
    built.build()
    built.add("another.pem", OTHER)
    failures = 0
    for free in range(4, os.statvfs(disk).f_bavail * 4, 4):
        with (disk / "other").open("wb") as other:
            room = os.statvfs(disk).f_bavail * 4
            os.posix_fallocate(other.fileno(), 0, (room - free) * 1024)
        try:
            built.build()
            break
        except TrustError as error:
            failures += 1
            assert "No space left on device; free some space, then run" in str(error)
            assert error.details == ["generation 1 stays in force"]
            assert built.files() == read_tree(built.store / "generations/000001")
            assert {path.name for path in built.store.iterdir()} == {"generations", "live", "lock"}
            assert [path.name for path in (built.store / "generations").iterdir()] == ["000001"]
    assert failures > 4
    assert built.files() == read_tree(built.store / "generations/000002")


def test_losing_certificates_is_refused_and_names_them(built: TrustStore) -> None:
    """A root of the system's, and an added CA whose file was removed."""
    built.system.write_bytes(bundle(*roots()[1:]))
    (built.sources / "company.pem").unlink()
    built.add("other.pem", OTHER)
    before = built.files()
    with pytest.raises(TrustError, match="would lose 2 of 4 certificates; if that is meant, say --allow-removal") as no:
        built.build()
    digest = roots()[0].certificate.fingerprint(hashes.SHA256()).hex()[:16]
    assert f"would be lost: System Root 0 (system root, sha256 {digest})" in no.value.outcome
    assert "would be lost: Company CA (added, sha256 " in no.value.outcome
    assert built.files() == before
    assert built.build(allow_removal=True).number == 2
    assert built.build().number == 2


def test_a_broken_manifest_is_named_with_the_remedy(built: TrustStore) -> None:
    path = built.store / "generations/000001/manifest.json"
    path.write_text("{}")
    assert refused(built) == f"{path}: cannot be read; remove {path.parent} and build again"


def test_a_directory_of_something_else_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrustError, match="this directory has other files; name an empty or a new one with --out"):
        build(str(tmp_path), Sources([GOOD.at(tmp_path / "good.pem")], no_system=True))


@pytest.mark.parametrize(
    "data",
    [
        GOOD.pem,
        GOOD.der,
        GOOD.pem.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD.pem,
        b"Issuer: somebody\n" + GOOD.pem + b"\nmore text\n",
        GOOD.pem.replace(b" CERTIFICATE", b" X509 CERTIFICATE"),
        GOOD.pem[:-1],
        PKCS7,
        pkcs7.serialize_certificates([GOOD.certificate], Encoding.PEM),
    ],
)
def test_usual_spellings_of_a_certificate_are_read(data: bytes) -> None:
    assert [one.content for one in certificates(data, "x.pem", added=True, limit=9)] == [GOOD.der]
