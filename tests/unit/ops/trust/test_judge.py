"""Which certificates a store takes, and which are named."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import marks
import pytest

from hook.ops.trust.certificate import Certificate, Place
from hook.ops.trust.errors import TrustError
from hook.ops.trust.judge import LEFT_OUT, WARNING, Judged, judge
from unit.ops.trust.authority import DAY, NOW, Made, ca, key, roots, rsa_key
from unit.ops.trust.conftest import TrustStore

pytestmark = marks.promise(
    "A source that is broken, too large, missing or a private key, a full disk, and the loss of a root leave "
    "the old generation"
)

ROOT = ca("Root", signer=key(7))
INTERMEDIATE = ca("Intermediate", by=ROOT, signer=key(8))


def certificate(made: Made, entry: int = 1, added: bool = True) -> Certificate:
    return Certificate(made.der, Place("company.pem", entry, 10 * entry), added)


def judged(*made: Made, system: tuple[Made, ...] = (), now: datetime = NOW) -> Judged:
    given = [certificate(one, number) for number, one in enumerate(made, 1)]
    return judge(given, [certificate(one, number, False) for number, one in enumerate(system, 1)], now)


@pytest.mark.parametrize(
    ("made", "severity", "reason"),
    [
        (ca(begins=NOW - 9 * DAY, ends=NOW - DAY), LEFT_OUT, f"expired on {NOW - DAY:%Y-%m-%d}"),
        (ca(is_ca=False), LEFT_OUT, "not a CA: its basic constraints say CA:FALSE. It looks like a self-signed server"),
        (ca(is_ca=None), LEFT_OUT, "not a CA: it has no basic constraints that say CA:TRUE"),
        (ca(signs=False), LEFT_OUT, "not a CA: its key usage has no keyCertSign"),
        (
            ca(by=ROOT, is_ca=False),
            LEFT_OUT,
            "not a CA: its basic constraints say CA:FALSE. It looks like a server's or user's",
        ),
        (ca(begins=NOW + DAY), WARNING, f"not valid before {NOW + DAY:%Y-%m-%d %H:%M} UTC; kept, programs refuse it"),
        (INTERMEDIATE, WARNING, "not a root, and its issuer Root is not in the store; curl, Python and other programs"),
    ],
    ids=["expired", "self-signed", "no constraints", "no keyCertSign", "of a server", "not yet valid", "intermediate"],
)
def test_a_doubtful_certificate_is_named_with_file_entry_and_reason(made: Made, severity: str, reason: str) -> None:
    result = judged(ROOT if made.key is not INTERMEDIATE.key else roots()[0], made)
    [finding] = result.findings
    name = finding.certificate.subject
    assert str(finding).startswith(f"company.pem: entry 2 (line 20): {severity}: {name}: {reason}")
    assert len(result.kept) == (1 if severity == LEFT_OUT else 2)


@pytest.mark.parametrize("made", [(ROOT,), (ca(signs=True),), (ca(ends=NOW),), (INTERMEDIATE, ROOT)])
def test_a_usual_root_and_an_intermediate_beside_it_are_taken_without_a_word(made: tuple[Made, ...]) -> None:
    result = judged(*made)
    assert (len(result.kept), result.findings) == (len(made), [])


def test_a_short_rsa_key_is_named_and_a_usual_one_is_not() -> None:
    [finding] = judged(ca("Short", signer=rsa_key(1024)), ca("Usual", signer=rsa_key(2048))).findings
    expected = "warning: Short: weak: RSA key of 1024 bits; OpenSSL refuses it at Debian's and RHEL's security level"
    assert str(finding).endswith(expected)


def test_a_duplicate_is_left_out_and_names_the_first() -> None:
    result = judged(ROOT, INTERMEDIATE, ROOT)
    assert [str(finding) for finding in result.findings] == [
        "company.pem: entry 3 (line 30): left out: Root: the same certificate as company.pem: entry 1 (line 10)"
    ]
    assert len(result.kept) == 2


def test_a_ca_that_the_system_has_too_is_the_operators_and_roots_come_first_by_name() -> None:
    result = judged(ROOT, INTERMEDIATE, system=(*roots()[::-1], ROOT))
    assert [one.subject for one in result.added] == ["Intermediate", "Root"]
    names = ["System Root 0", "System Root 1", "System Root 2", "Intermediate", "Root"]
    assert ([one.subject for one in result.kept], result.findings) == (names, [])
    assert judged(system=(*roots(), *roots())).findings == [], "what the system has twice is not named"
    assert judged(INTERMEDIATE, system=(ROOT,)).findings == []


def openssl(directory: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=directory, check=True, capture_output=True)


@pytest.mark.parametrize(("digest", "named"), [("sha1", "SHA1"), ("sha256", "")])
def test_a_weak_signature_counts_only_where_another_ca_made_it(tmp_path: Path, digest: str, named: str) -> None:
    """Made by openssl: cryptography signs with no SHA-1."""
    (tmp_path / "ext").write_text("basicConstraints=critical,CA:TRUE\n")
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    openssl(tmp_path, f"req -x509 {curve} -{digest} -keyout k -out root.der -outform DER -subj /CN=Old")
    openssl(tmp_path, "x509 -inform DER -in root.der -out root.pem")
    openssl(tmp_path, f"req -new {curve} -keyout k2 -out csr -subj /CN=Below")
    signed = "x509 -req -in csr -CA root.pem -CAkey k -extfile ext -outform DER -out below.der -days 9 -CAcreateserial"
    openssl(tmp_path, f"{signed} -{digest}")
    given = [Certificate((tmp_path / name).read_bytes(), Place(name)) for name in ("root.der", "below.der")]
    result = judge(given, [], datetime.now(NOW.tzinfo))
    expected = [f"below.der: entry 1: warning: Below: weak: signed with {named} by Old"] if named else []
    assert [str(finding) for finding in result.findings] == expected


def test_a_breakable_key_is_left_out(tmp_path: Path) -> None:
    """Made by openssl: cryptography makes no key of 512 bits."""
    openssl(tmp_path, "req -x509 -newkey rsa:512 -nodes -keyout k -out c -outform DER -subj /CN=Tiny")
    result = judge([Certificate((tmp_path / "c").read_bytes(), Place("c"))], [], datetime.now(NOW.tzinfo))
    assert [finding.reason for finding in result.findings] == ["its RSA key has only 512 bits and can be broken"]


def test_a_root_of_version_1_is_a_ca(tmp_path: Path) -> None:
    openssl(tmp_path, "req -new -newkey rsa:2048 -nodes -keyout k -out csr -subj /CN=One")
    openssl(tmp_path, "x509 -req -in csr -signkey k -outform DER -out c -days 9")
    given = Certificate((tmp_path / "c").read_bytes(), Place("c"))
    assert given.parsed.version.name == "v1"
    assert judge([given], [], datetime.now(NOW.tzinfo)).findings == []


def test_a_build_goes_on_without_the_certificates_that_are_left_out(trust: TrustStore) -> None:
    trust.add(
        "company.pem", ca("Company CA"), ca("Old CA", begins=NOW - 9 * DAY, ends=NOW - DAY), ca("Server", is_ca=False)
    )
    built = trust.build()
    assert [one["subject"] for one in built.added] == ["Company CA"]
    assert len([line for line in built.warnings if ": left out: " in line]) == 2
    assert b"Old CA" not in (trust.live / "ca-certificates.crt").read_bytes()


def test_no_usable_added_certificate_is_an_error(trust: TrustStore) -> None:
    path = trust.add("server.pem", ca("server.example", is_ca=False))
    with pytest.raises(TrustError, match="no added certificate can be used: ") as caught:
        trust.build()
    assert f"{path}: entry 1 (line 1): left out: server.example: not a CA" in str(caught.value)
    assert caught.value.outcome == "no trust store was made"


def test_a_wrong_clock_does_not_empty_the_store(trust: TrustStore) -> None:
    trust.system.write_bytes(b"".join(ca(f"Root {n}", begins=NOW + DAY, signer=key(n)).pem for n in range(4)))
    trust.add("company.pem", ca("Company CA"))
    with pytest.raises(
        TrustError, match="4 of 5 certificates are expired or not yet valid; is this node's clock right"
    ):
        trust.build()


def test_an_expired_root_is_no_loss(trust: TrustStore) -> None:
    """A certificate that expires between two builds must not stop the second."""
    trust.add("company.pem", ca("Company CA"))
    trust.build()
    manifest = trust.store / "generations/000001/manifest.json"
    text = manifest.read_text()
    end = f"{roots()[0].certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    assert end in text
    manifest.write_text(text.replace(end, f"{NOW - DAY:%Y-%m-%dT%H:%M:%SZ}"))
    trust.system.write_bytes(b"".join(one.pem for one in roots()[1:]))
    assert trust.build().number == 2
