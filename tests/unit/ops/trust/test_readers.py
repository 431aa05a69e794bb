"""What Java and Go refuse, as they answered; the store for Java has no such certificate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

from hook.ops.trust.certificate import Certificate, Place
from hook.ops.trust.check import check
from hook.ops.trust.formats import java_store
from hook.ops.trust.readers import GO, JAVA, refusals
from unit.ops.trust.authority import Made, ca, key, rsa_key
from unit.ops.trust.conftest import TrustStore

JAVA_REFUSES = {
    "SM2",
    *(f"brainpoolP{bits}t1" for bits in (160, 192, 224, 256, 320, 384, 512)),
    *("c2pnb163v1", "c2pnb163v2", "c2pnb163v3", "c2pnb176v1", "c2pnb208w1", "c2pnb272w1", "c2pnb304w1", "c2pnb368w1"),
    *(f"wap-wsg-idm-ecid-wtls{number}" for number in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
}
"""Of the 82 curves that OpenSSL 3.0.17 makes a certificate with: Java 17.0.15's answers to KeyStore.load."""

GO_READS = {"secp224r1", "prime256v1", "secp384r1", "secp521r1"}
"""Go 1.27.3's answers to CertPool.AppendCertsFromPEM; it refuses all others."""


def made_by_openssl(directory: Path, *options: str) -> Certificate:
    command = ["openssl", "req", "-x509", "-nodes", "-keyout", "/dev/null", "-outform", "DER", "-out", "c.der"]
    subprocess.run([*command, "-subj", "/CN=Odd", *options], cwd=directory, check=True, capture_output=True)
    return Certificate((directory / "c.der").read_bytes(), Place("odd.pem"))


def curves() -> list[str]:
    listed = subprocess.run(["openssl", "ecparam", "-list_curves"], capture_output=True, text=True, check=True).stdout
    names = [line.partition(":")[0].strip() for line in listed.splitlines() if ":" in line]
    return [name for name in names if not name.startswith("Oakley")]  # they have no object identifier


def test_curves_are_refused_as_java_and_go_answered(tmp_path: Path) -> None:
    found = {name: refusals(made_by_openssl(tmp_path, *_ec(name))) for name in curves()}
    assert len(found) > 40
    assert {name for name, refused in found.items() if JAVA in refused} == JAVA_REFUSES & found.keys()
    assert {name for name, refused in found.items() if GO not in refused} == GO_READS


def _ec(name: str) -> tuple[str, ...]:
    return "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{name}"


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize(
    ("options", "readers"),
    [
        ((*_ec("prime256v1"), "-pkeyopt", "ec_param_enc:explicit"), {JAVA, GO}),
        (("-newkey", "rsa:2048", "-set_serial", "-5"), {GO}),
        (("-newkey", "rsa:2048", "-set_serial", "0"), set()),
        (("-newkey", "ed25519"), set()),
        (("-newkey", "ed448"), set()),
        (("-newkey", "rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"), set()),
    ],
)
def test_other_keys_and_serial_numbers(options: tuple[str, ...], readers: set[str], tmp_path: Path) -> None:
    assert refusals(made_by_openssl(tmp_path, *options)).keys() == readers


@pytest.mark.parametrize(("bits", "readers"), [(16384, set()), (16392, {JAVA})])
def test_long_rsa_keys(bits: int, readers: set[str]) -> None:
    """The modulus is any odd number: nobody verifies with it."""
    public = rsa.RSAPublicNumbers(65537, (1 << bits) - 1).public_key()
    root = ca("Long", signer=rsa_key(2048)).certificate
    builder = x509.CertificateBuilder(
        root.issuer, root.subject, public, 7, root.not_valid_before_utc, root.not_valid_after_utc
    )
    der = builder.sign(rsa_key(2048), root.signature_hash_algorithm).public_bytes(Encoding.DER)  # type: ignore[arg-type]
    assert refusals(Certificate(der, Place("long.pem"))).keys() == readers


def odd(tmp_path: Path, *options: str) -> Made:
    return Made(made_by_openssl(tmp_path, *options).parsed, key())


def test_certificate_that_java_refuses_is_in_every_file_but_javas_and_named(
    trust: TrustStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trust.add("company.pem", ca("Company"))
    trust.add("odd.pem", odd(tmp_path, *_ec("SM2")))
    warnings = [line for line in trust.build().warnings if "cannot read it" in line]
    assert [line.partition(": warning: ")[2].partition("(")[0] for line in warnings] == [
        "Odd: Java cannot read it: it does not know its elliptic curve. It is left out of java/cacerts, which could "
        "not be loaded with it",
        "Odd: Go cannot read it: it does not know its elliptic curve. Programs in Go do not trust it",
    ]
    assert (trust.live / "added.pem").read_text().count("-----BEGIN") == 2
    for name in ("java/cacerts", "certs/java/cacerts", "extracted/java/cacerts", "alone/java/cacerts"):
        stored = pkcs12.load_pkcs12((trust.live / name).read_bytes(), b"changeit").additional_certs
        subjects = {one.certificate.subject.rfc4514_string() for one in stored}
        assert "CN=Company" in subjects and "CN=Odd" not in subjects, name
    check(str(trust.store), None)
    rows = capsys.readouterr().out.splitlines()
    of_java = next(line for line in rows if line.startswith("Debian") and "  Java  " in line)
    of_go = next(line for line in rows if line.startswith("Debian") and " Go, " in line)
    assert of_java.endswith("3 system roots, 1 added; Java cannot read Odd")
    assert of_go.endswith("3 system roots, 2 added; Go cannot read Odd")


def test_store_of_nothing_that_java_reads_can_be_loaded(trust: TrustStore, tmp_path: Path) -> None:
    trust.add("odd.pem", odd(tmp_path, *_ec("SM2")))
    trust.build()
    assert (trust.live / "alone/java/cacerts").read_bytes() == java_store([])
    shown = subprocess.run(
        ["openssl", "pkcs12", "-in", trust.live / "alone/java/cacerts", "-passin", "pass:", "-nokeys"],
        capture_output=True,
    )
    assert (shown.returncode, shown.stdout) == (0, b"")
