"""Each format of a trust store, read by its own programs where this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import marks
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from hook.ops.trust.build import Sources, build
from hook.ops.trust.certificate import Certificate, Place
from hook.ops.trust.source import SYSTEM
from unit.ops.trust.authority import bundle, ca, key, roots
from unit.ops.trust.conftest import TrustStore

pytestmark = marks.promise(
    "Each format is read by the programs that it is for, and `trust check` says what images of each "
    "distribution would trust",
    about="Trust store",
)

COMPANY = ca("Company CA")
SERVER = ca("server.example", by=COMPANY, signer=key(4), is_ca=False)
FOREIGN = ca("server.example", by=ca("Somebody else", signer=key(5)), signer=key(4), is_ca=False)

TRUSTED_KEY_USAGE = "2.16.840.1.113894.746875.1.1"
"""The attribute without which Java takes a certificate of a PKCS12 file for a client's, not a trusted one."""


def openssl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrustStore:
    trust = TrustStore(tmp_path_factory.mktemp("store"))
    trust.add("company.pem", COMPANY)
    trust.build()
    return trust


BUNDLES = (
    "ca-certificates.crt", "added.pem", "certs/ca-certificates.crt", "certs/ca-bundle.crt", "certs/added.pem",
    "certs/ca-bundle.trust.crt", "extracted/pem/tls-ca-bundle.pem", "extracted/pem/email-ca-bundle.pem",
    "extracted/pem/objsign-ca-bundle.pem", "extracted/openssl/ca-bundle.trust.crt",
)  # fmt: skip
HASHED = ("certs", "extracted/pem/directory-hash")


@pytest.mark.parametrize("name", [*BUNDLES, *HASHED])
def test_openssl_verifies_with_each_bundle_and_hashed_directory(store: TrustStore, name: str, tmp_path: Path) -> None:
    way, other = ("-CApath", "-no-CAfile") if name in HASHED else ("-CAfile", "-no-CApath")
    for server, status in ((SERVER, 0), (FOREIGN, 2)):
        options = ("-no-CAstore", other, way, store.live / name, "-purpose", "sslserver")
        done = openssl("verify", *options, server.at(tmp_path / "server.pem"))
        assert done.returncode == status, done.stderr


def test_only_the_added_file_lacks_the_systems_roots(store: TrustStore) -> None:
    for name in BUNDLES:
        found = (store.live / name).read_bytes().count(b"-----BEGIN ")
        assert found == (1 if "added.pem" in name else 4), name
    assert roots()[0].pem in (store.live / "ca-certificates.crt").read_bytes()
    assert (store.live / "ca-certificates.crt").read_text().startswith("# System Root 0\n-----BEGIN CERTIFICATE-----\n")


def test_java_reads_a_trust_store_of_trusted_certificates(store: TrustStore) -> None:
    for name in ("java/cacerts", "certs/java/cacerts", "extracted/java/cacerts"):
        content = (store.live / name).read_bytes()
        assert all(made.der in content for made in (*roots(), COMPANY)), "a JVM reads it without a password"
        stored = pkcs12.load_pkcs12(content, b"changeit")
        assert (stored.cert, stored.key) == (None, None)
        assert {one.certificate for one in stored.additional_certs} == {
            made.certificate for made in (*roots(), COMPANY)
        }
        aliases = [one.friendly_name for one in stored.additional_certs]
        assert len(set(aliases)) == 4
        assert all(alias and alias == alias.lower() for alias in aliases)
    shown = openssl("pkcs12", "-in", store.live / "java/cacerts", "-passin", "pass:changeit", "-nokeys", "-info")
    assert (shown.returncode, shown.stdout.count(TRUSTED_KEY_USAGE)) == (0, 4)
    assert "MAC is absent" in shown.stderr


def test_every_file_is_a_real_one_that_anybody_can_read(trust: TrustStore) -> None:
    trust.add("company.pem", COMPANY)
    old = os.umask(0o077)
    try:
        trust.build()
    finally:
        os.umask(old)
    paths = list(trust.store.rglob("*"))
    assert not [path for path in paths if path.is_symlink()]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file() and path.name != "lock"} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o755}


ODD = [
    x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text, kind)])
    for text, kind in (
        ("  Two   Spaces\tand a tab ", None),
        ("Ünïcödé ÄÖÜ", None),
        ("Lätin-1 Ä", x509.name._ASN1Type.T61String),
        ("BMP Äpfel", x509.name._ASN1Type.BMPString),
        ("ia5@example", x509.name._ASN1Type.IA5String),
        ("Printable", x509.name._ASN1Type.PrintableString),
    )
]
PARTS = (("ORGANIZATION_NAME", "Ex AMPLE"), ("COMMON_NAME", "A"), ("COUNTRY_NAME", "DE"))
SEVERAL = x509.RelativeDistinguishedName(
    [x509.NameAttribute(getattr(x509.NameOID, kind), text) for kind, text in PARTS]
)
DOMAIN = x509.RelativeDistinguishedName([x509.NameAttribute(x509.NameOID.DOMAIN_COMPONENT, "Example")])
ODD += [x509.Name([SEVERAL, DOMAIN]), x509.Name([])]


@pytest.mark.parametrize("name", ODD, ids=str)
def test_the_hash_of_a_name_is_openssls(tmp_path: Path, name: x509.Name) -> None:
    made = ca(name)
    expected = openssl("x509", "-in", made.at(tmp_path / "c.pem"), "-noout", "-subject_hash").stdout.strip()
    assert Certificate(made.der, Place("c")).hash == expected


@pytest.mark.parametrize(
    ("name", "readable", "file"),
    [
        (
            {"ORGANIZATION_NAME": "O", "ORGANIZATIONAL_UNIT_NAME": "U", "COMMON_NAME": "My CA (1)"},
            "My CA (1)",
            "My_CA_1",
        ),
        ({"ORGANIZATION_NAME": "O", "ORGANIZATIONAL_UNIT_NAME": "U"}, "U", "U"),
        ({"COUNTRY_NAME": "DE", "ORGANIZATION_NAME": "O"}, "O", "O"),
        ({"COUNTRY_NAME": "DE"}, "C=DE", "C_DE"),
        ({"COMMON_NAME": "é"}, "é", "certificate"),
        ({"COMMON_NAME": "x" * 60}, "x" * 60, "x" * 48),
        ({}, "(no subject)", "no_subject"),
    ],
)
def test_readable_name_and_file_of_a_certificate(name: dict[str, str], readable: str, file: str) -> None:
    made = ca(x509.Name([x509.NameAttribute(getattr(x509.NameOID, kind), text) for kind, text in name.items()]))
    found = Certificate(made.der, Place("c"))
    assert (found.subject, found.issuer, found.self_issued) == (readable, readable, True)
    assert found.file_name == f"{file}_{found.sha256[:8]}"


def test_a_subject_cannot_write_lines_of_a_bundle(trust: TrustStore) -> None:
    """The comment above each certificate has its subject."""
    text = "x\n-----BEGIN CERTIFICATE-----\nAAAA\n\x1b[2J"
    trust.add("company.pem", COMPANY, ca(text, signer=key(1)), ca("-----BEGIN CERTIFICATE-----", signer=key(2)))
    built = trust.build()
    lines = (trust.live / "ca-certificates.crt").read_text().splitlines()
    assert len(built.certificates) == lines.count("-----BEGIN CERTIFICATE-----") == 6
    assert all(line.isascii() and line.isprintable() for line in lines)
    again = build(str(trust.directory / "again"), Sources([str(trust.live / "ca-certificates.crt")], no_system=True))
    assert len(again.certificates) == 6


def test_two_cas_of_one_name_are_both_found(trust: TrustStore) -> None:
    """A CA that got a new key: both its old and its new servers are accepted."""
    renewed = ca("Company CA", signer=key(6))
    trust.add("company.pem", COMPANY, renewed)
    trust.build()
    for number, authority in enumerate((COMPANY, renewed)):
        server = ca("x", by=authority, signer=key(4), is_ca=False).at(trust.directory / f"{number}.pem")
        for way in (["-CApath", trust.live / "certs"], ["-CAfile", trust.live / "ca-certificates.crt"]):
            assert openssl("verify", "-no-CAstore", *way, server).returncode == 0


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_the_hashes_of_this_machines_roots_are_openssls(tmp_path: Path) -> None:
    """And with 20 CAs more a build takes less than 2 seconds of CPU time."""
    system = tmp_path / "system.pem"
    found = next((path for path in SYSTEM if os.path.isfile(path)), None)
    system.write_bytes(Path(found).read_bytes() if found else bundle(*roots(140)))
    (tmp_path / "20.pem").write_bytes(bundle(*(ca(f"Company {number}", signer=key(number)) for number in range(20))))
    before = os.times()
    built = build(str(tmp_path / "store"), Sources([str(tmp_path / "20.pem")], str(system)))
    after = os.times()
    assert after.user + after.system - before.user - before.system < 2
    assert (len(built.added), len(built.certificates) > 100) == (20, True)
    rehashed, certs = tmp_path / "rehashed", tmp_path / "store/live/certs"
    shutil.copytree(certs, rehashed, ignore=shutil.ignore_patterns("added.pem", "*.[0-9]", "*.crt", "java"))
    subprocess.run(["openssl", "rehash", str(rehashed)], check=True, capture_output=True)
    ours = {path.name for path in certs.iterdir() if path.suffix[1:].isdigit()}
    assert ours == {path.name for path in rehashed.iterdir() if path.is_symlink()}
