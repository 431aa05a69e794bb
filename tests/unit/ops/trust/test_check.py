"""What `trust check` says about images of each distribution, and about a policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.ops.trust.check import assumed_mounts, check
from hook.ops.trust.images import IMAGES, Image, source_of
from unit.ops.trust.authority import DAY, NOW, ca, key, roots
from unit.ops.trust.conftest import TrustStore
from unit.support import document

pytestmark = marks.promise(
    "Each format is read by the programs that it is for, and `trust check` says what images of each "
    "distribution would trust"
)

RHEL = next(image for image in IMAGES if image.name.startswith("RHEL 8"))
FEDORA = next(image for image in IMAGES if image.name.startswith("Fedora"))
SUSE = next(image for image in IMAGES if image.name == "SUSE")
OTHER = Image("other", ())


def test_the_mounts_of_a_store_reach_what_each_distribution_reads(
    built: TrustStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(str(built.store), None) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{built.store}: generation 1 of ")
    assert "3 system roots and 1 added\n" in text
    rows = [line for line in text.splitlines() if line.endswith((" added", "own"))][1:]
    assert len(rows) == sum(len(image.reads) for image in IMAGES)
    assert all(line.endswith(("3 system roots, 1 added", "the image's own")) for line in rows)
    own = [line for line in rows if line.endswith("the image's own")]
    assert [line.split()[0] for line in own] == ["SUSE", "SUSE"]


def test_a_store_aside_reaches_what_reads_a_variable(
    built: TrustStore, root_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = root_dir / "aside.yaml"
    source.write_text(document({"name": "r", "trust": {"bundle": str(built.store), "mount": "Aside"}}))
    assert check(str(built.store), str(source)) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "system roots, " in line or line.endswith("own")]
    read = {re.split("  +", line)[-2] for line in rows if not line.endswith("own")}
    assert read == {f"/.reassert-trust/{name}" for name in ("ca-certificates.crt", "added.pem", "java/cacerts")}
    assert len([line for line in rows if line.endswith("own")]) == sum(len(image.reads) for image in IMAGES)


LIVE = "/live"


@pytest.mark.parametrize(
    ("image", "path", "source"),
    [
        (OTHER, "/etc/ssl/certs/ca-certificates.crt", "/live/certs/ca-certificates.crt"),
        (OTHER, "/etc/ssl/cert.pem", None),
        (RHEL, "/etc/pki/tls/certs/ca-bundle.crt", "/live/certs/ca-bundle.crt"),
        (RHEL, "/etc/ssl/certs/x", "/live/certs/x"),
        (RHEL, "/etc/pki/tls/cert.pem", "/live/extracted/pem/tls-ca-bundle.pem"),
        (RHEL, "/etc/pki/java/cacerts", "/live/extracted/java/cacerts"),
        (FEDORA, "/etc/ssl/certs/ca-bundle.crt", "/live/extracted/pem/directory-hash/ca-bundle.crt"),
        (SUSE, "/etc/ssl/certs", "/live/certs"),
        (SUSE, "/etc/ssl/ca-bundle.pem", None),
    ],
)
def test_the_links_of_an_image_are_followed_and_mounts_hide_them(image: Image, path: str, source: str | None) -> None:
    assert source_of(path, image, assumed_mounts(LIVE)) == source


def test_a_later_mount_hides_an_earlier_one_below_it() -> None:
    mounts = [("/etc/ssl/certs/a.crt", "/first"), ("/etc/ssl", "/second"), ("/etc/ssl/certs/b.crt", "/third")]
    assert source_of("/etc/ssl/certs/a.crt", OTHER, mounts) == "/second/certs/a.crt"
    assert source_of("/etc/ssl/certs/b.crt", OTHER, mounts) == "/third"
    assert source_of("/etc/sslx", OTHER, mounts) is None


def policy(trust: TrustStore, *rules: dict[str, Any]) -> str:
    path = trust.directory / "policy.yaml"
    path.write_text(document(*rules))
    return str(path)


def mount(source: Path | str, path: str) -> dict[str, str]:
    return {"hostPath": str(source), "mountPath": path}


CERTS = "/etc/ssl/certs"


def test_a_policy_is_checked_by_its_own_mounts(built: TrustStore, capsys: pytest.CaptureFixture[str]) -> None:
    rule = {"name": "ca", "mounts": [mount(built.live / "certs", CERTS)]}
    assert check(str(built.store), policy(built, rule)) == 0
    text = capsys.readouterr().out
    debian = [line for line in text.splitlines() if line.startswith("Debian")]
    assert len(debian) == 3
    assert all(line.endswith("3 system roots, 1 added") for line in debian)
    rhel = [line for line in text.splitlines() if line.startswith("RHEL 8")]
    assert [line.endswith("the image's own") for line in rhel] == [False, True, True]  # its /etc/ssl/certs is a link


def test_a_lone_private_ca_for_a_variable_that_replaces_the_roots_is_a_warning(
    built: TrustStore, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {
        "name": "lone",
        "env": [
            {"name": "REQUESTS_CA_BUNDLE", "value": f"{CERTS}/added.pem"},
            {"name": "NODE_EXTRA_CA_CERTS", "value": f"{CERTS}/added.pem"},  # adds to the roots: right
            {"name": "CURL_CA_BUNDLE", "value": f"{CERTS}/ca-certificates.crt"},
            {"name": "GIT_SSL_CAINFO", "value": "/image/own.pem"},
            {"name": "AWS_CA_BUNDLE", "value": f"{CERTS}/missing.pem"},
        ],
        "mounts": [mount(built.live / "certs", CERTS)],
    }
    assert check(str(built.store), policy(built, rule)) == 4
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    source = built.live / "certs"
    assert lines == [
        f"warning: rule lone: REQUESTS_CA_BUNDLE={CERTS}/added.pem is {source}/added.pem, which holds 1 certificate "
        f"and no system roots. This variable replaces the roots of a program: it would accept no public server. Use a "
        f"file with the system's roots, such as ca-certificates.crt of the trust store",
        f"warning: rule lone: AWS_CA_BUNDLE={CERTS}/missing.pem: {source}/missing.pem: No such file or directory",
    ]


def test_a_mounted_file_without_the_added_cas_is_an_error(
    built: TrustStore, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"name": "old", "mounts": [mount(built.system, f"{CERTS}/ca-certificates.crt")]}
    assert check(str(built.store), policy(built, rule)) == 1
    problem = f"{CERTS}/ca-certificates.crt: 3 certificates of {built.system}, none of the added CAs"
    assert f"error: Debian, Ubuntu: {problem}" in capsys.readouterr().out


def test_live_files_of_another_generation_are_an_error(built: TrustStore, capsys: pytest.CaptureFixture[str]) -> None:
    (built.live / "ca-certificates.crt").write_bytes(roots()[0].pem)
    assert check(str(built.store), None) == 1
    text = capsys.readouterr().out
    assert f"error: {built.live}: " in text
    assert ", is not that of the newest generation; run reassert trust build" in text


def test_an_added_ca_that_expires_soon_is_a_warning(trust: TrustStore, capsys: pytest.CaptureFixture[str]) -> None:
    trust.add("company.pem", ca("Soon", ends=NOW + 20 * DAY), ca("Late", ends=NOW + 40 * DAY, signer=key(1)))
    trust.build()
    assert check(str(trust.store), None) == 4
    text = capsys.readouterr().out
    assert f"warning: the added CA Soon expires on {NOW + 20 * DAY:%Y-%m-%d}\n" in text
    assert "Late" not in text


def test_no_store_is_said_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(str(tmp_path / "none"), None) == 1
    assert capsys.readouterr().out == f"{tmp_path}/none: no trust store; make one with reassert trust build\n"
