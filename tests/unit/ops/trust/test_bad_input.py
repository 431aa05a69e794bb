"""Sources that no trust store can be made of: the old generation stays, and the message says file, entry and remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PublicFormat, pkcs7, pkcs12

from hook.ops.trust import source
from hook.ops.trust.build import Sources, build
from hook.ops.trust.certificate import TrustError, certificates
from unit.ops.trust.authority import bundle, ca, key, named, roots
from unit.ops.trust.conftest import Node

GOOD = ca("Good CA", signer=key(1))
OTHER = ca("Other CA", signer=key(2))
REQUEST = x509.CertificateSigningRequestBuilder().subject_name(named("x")).sign(key(), hashes.SHA256())
PUBLIC = key().public_key()
LINES, OTHER_LINES = GOOD.pem.count(b"\n"), OTHER.pem.count(b"\n")
PFX = pkcs12.serialize_key_and_certificates(b"x", key(1), GOOD.certificate, None, NoEncryption())
PKCS7 = pkcs7.serialize_certificates([GOOD.certificate], Encoding.DER)
PUT_BACK = "correct that, or name other files with --add or --system"
FULL_DISK = str(Path(__file__).with_name("full_disk.py"))


def refused(node: Node) -> str:
    """What a build says that is refused; the store stays as it was."""
    before = node.files()
    with pytest.raises(TrustError) as caught:
        node.build()
    assert node.files() == before
    assert [path.name for path in (node.store / "generations").iterdir()] == ["000001"]
    assert "generation 1 stays in force" in caught.value.outcome
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.pem", b"hello\n", "neither PEM nor DER. Give a file with -----BEGIN CERTIFICATE-----"),
        ("empty.pem", b"", "empty. Give a file with"),
        ("utf16.pem", b"\xff\xfe" + GOOD.pem.decode().encode("utf-16-le"), "UTF-16 text; save it as plain text"),
        ("key.pem", GOOD.key_in(Encoding.PEM), "entry 1 (line 1): this is a private key, not a certificate; remove it"),
        ("both.pem", GOOD.pem + GOOD.key_in(Encoding.PEM), f"entry 2 (line {LINES + 1}): this is a private key"),
        ("secret.pem", GOOD.key_in(Encoding.PEM, b"secret"), "entry 1 (line 1): this is a private key"),
        ("key.der", GOOD.key_in(Encoding.DER), "entry 1: this is a private key"),
        ("secret.der", GOOD.key_in(Encoding.DER, b"secret"), "entry 1: this is a private key"),
        ("request.pem", REQUEST.public_bytes(Encoding.PEM), "this is a certificate request; add the certificate that"),
        (
            "public.pem",
            PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "this is a public key; add the CA's certificate",
        ),
        (
            "ca.pfx.der",
            PFX,
            "a PKCS12 file, which may hold a private key; take the certificates out of it with openssl",
        ),
        ("cut.der", GOOD.der[:-5], "entry 1: not a certificate that can be read ("),
        (
            "cut.pem",
            OTHER.pem + GOOD.pem[:-30],
            f"entry 2 (line {OTHER_LINES + 1}): no line -----END CERTIFICATE----- ends it; copy",
        ),
        ("joined.pem", GOOD.pem[:-26] + OTHER.pem, "entry 1 (line 1): no line -----END CERTIFICATE----- ends it"),
        (
            "base64.pem",
            OTHER.pem + GOOD.pem.replace(b"MII", b"M*I"),
            f"entry 2 (line {OTHER_LINES + 1}): broken base64 (",
        ),
        (
            "der.pem",
            b"-----BEGIN CERTIFICATE-----\nMAUCAQECAQI=\n-----END CERTIFICATE-----\n",
            "entry 1 (line 1): not a certificate that can be read (",
        ),
        ("version.der", GOOD.der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x30"), "can be read (48 is not a"),
        (
            "version.p7b",
            PKCS7.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x30"),
            "entry 1: not a certificate that can be read (",
        ),
        ("name.der", GOOD.der.replace(b"\x06\x03\x55\x04\x03\x0c", b"\x06\x03\x55\x04\x03\x03"), "that can be read ("),
        (
            "trusted.pem",
            GOOD.pem.replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE"),
            "entry 1 (line 1): this is OpenSSL's own form of a certificate; write it with openssl x509 -in FILE",
        ),
        ("params.pem", b"-----BEGIN DH PARAMETERS-----\nMAA=\n-----END DH PARAMETERS-----\n", "DH PARAMETERS, not a"),
    ],
)
def test_a_source_that_is_no_certificate_is_refused(built: Node, name: str, content: bytes, message: str) -> None:
    (built.sources / name).write_bytes(content)
    text = refused(built)
    assert text.startswith(str(built.sources / name))
    assert message in text


@pytest.mark.parametrize("whose", ["issuer", "subject"])
@pytest.mark.parametrize("tag", range(1, 31))
def test_a_name_of_a_type_that_openssl_refuses_is_refused(whose: str, tag: int) -> None:
    """OpenSSL reads no certificate after such a one. What is taken goes through the real openssl."""
    before, name, after = GOOD.der.partition(b"\x0c\x07Good CA")
    between, _, after = after.partition(name)
    other = bytes((tag,)) + name[1:]
    der = before + (other + between + name if whose == "issuer" else name + between + other) + after
    try:
        certificates(der, "ca.der", True, 1)
    except TrustError as error:
        assert tag not in (12, 18, 19, 20, 22), error
        return
    read = subprocess.run(["openssl", "x509", "-inform", "der", "-noout"], input=der, capture_output=True)
    assert read.returncode == 0, read.stderr


def test_bytes_after_a_begin_line_hide_no_entry() -> None:
    """OpenSSL reads both entries."""
    other = OTHER.pem.replace(b"BEGIN CERTIFICATE-----", b"BEGIN CERTIFICATE-----\xc2\xa0")
    assert len(certificates(GOOD.pem + other, "ca.pem", True, 2)) == 2


def test_one_broken_entry_of_a_bundle_refuses_all_of_it(built: Node) -> None:
    broken = bytearray(GOOD.der)
    broken[20:60] = b"\xff" * 40
    middle = b"-----BEGIN CERTIFICATE-----\n" + b"QUJD\n" + b"-----END CERTIFICATE-----\n"
    (built.sources / "many.pem").write_bytes(bundle(*roots()) + middle + OTHER.pem)
    assert f"{built.sources}/many.pem: entry 4 (line " in refused(built)
    (built.sources / "many.pem").write_bytes(bytes(broken))
    assert "entry 1: not a certificate that can be read" in refused(built)


def test_a_source_that_vanishes_is_named(built: Node) -> None:
    (built.sources / "gone.pem").symlink_to(built.directory / "gone")
    assert refused(built) == f"{built.sources}/gone.pem: No such file or directory; {PUT_BACK}"
    (built.sources / "gone.pem").unlink()
    (built.sources / "gone.pem").mkdir()
    assert refused(built) == f"{built.sources}/gone.pem is not a regular file; {PUT_BACK}"


def test_a_named_file_or_directory_without_certificates_is_refused(built: Node) -> None:
    shutil.rmtree(built.sources)
    assert refused(built) == f"{built.sources}: No such file or directory; {PUT_BACK}"
    built.sources.mkdir()
    (built.sources / "README").write_text("not read")
    assert "no certificate in" in refused(built)


def test_100_000_certificates_are_refused_before_they_are_read(built: Node) -> None:
    path = built.sources / "many.pem"
    path.write_bytes(GOOD.pem * 100_000)
    assert f"{path} is larger than the limit of {source.FILE_LIMIT} bytes; give files that hold CA" in refused(built)
    path.write_bytes(GOOD.pem * 20_000)
    used = os.times().user
    limit = f"{path}: entry 2000 (line {1999 * LINES + 1}): more than 1999 certificates"  # company.pem has one
    assert limit in refused(built)
    assert os.times().user - used < 3


@pytest.mark.root
def test_a_full_disk_leaves_the_old_generation(node: Node) -> None:
    """On file systems of growing size, until one is large enough."""
    node.add("company.pem", ca("Company CA"))
    result = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, FULL_DISK, str(node.directory)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "full" in result.stdout


def test_losing_certificates_is_refused_and_names_them(built: Node) -> None:
    built.system.write_bytes(bundle(*roots()[1:]))
    before = built.files()
    with pytest.raises(
        TrustError, match="would lose 1 of 4 certificates; if that is meant, say --allow-removal"
    ) as caught:
        built.build()
    digest = roots()[0].certificate.fingerprint(hashes.SHA256()).hex()[:16]
    assert f"would be lost: System Root 0 (system root, sha256 {digest})" in caught.value.outcome
    assert built.files() == before
    assert built.build(allow_removal=True).number == 2
    assert built.build().number == 2


def test_an_added_ca_whose_file_was_removed_is_a_loss(built: Node) -> None:
    (built.sources / "company.pem").unlink()
    built.add("other.pem", OTHER)
    with pytest.raises(TrustError) as caught:
        built.build()
    assert "would be lost: Company CA (added, sha256 " in caught.value.outcome


def test_a_broken_manifest_is_named_with_the_remedy(built: Node) -> None:
    path = built.store / "generations/000001/manifest.json"
    path.write_text("{}")
    assert refused(built) == f"{path}: cannot be read; remove {path.parent} and build again"


def test_a_directory_of_something_else_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrustError, match="this directory has other files; name an empty or a new one with --out"):
        build(str(tmp_path), Sources([GOOD.at(tmp_path / "good.pem")], no_system=True))


@pytest.mark.parametrize(
    "ways",
    [
        lambda: GOOD.pem,
        lambda: GOOD.der,
        lambda: GOOD.pem.replace(b"\n", b"\r\n"),
        lambda: b"\xef\xbb\xbf" + GOOD.pem,
        lambda: b"Issuer: somebody\n" + GOOD.pem + b"\nmore text\n",
        lambda: GOOD.pem.replace(b" CERTIFICATE", b" X509 CERTIFICATE"),
        lambda: GOOD.pem[:-1],
    ],
)
def test_usual_spellings_of_a_certificate_are_read(ways: Callable[[], bytes]) -> None:
    assert [one.content for one in certificates(ways(), "x.pem", added=True, limit=9)] == [GOOD.der]


def test_what_openssl_and_windows_export_is_read(tmp_path: Path) -> None:
    GOOD.at(tmp_path / "good.pem")
    for command in (
        ["crl2pkcs7", "-nocrl", "-certfile", "good.pem", "-out", "pem.p7b"],
        ["crl2pkcs7", "-nocrl", "-certfile", "good.pem", "-outform", "DER", "-out", "der.p7b"],
    ):
        subprocess.run(["openssl", *command], cwd=tmp_path, check=True)
    for name in ("pem.p7b", "der.p7b"):
        found = certificates((tmp_path / name).read_bytes(), name, added=True, limit=9)
        assert [one.content for one in found] == [GOOD.der], name
