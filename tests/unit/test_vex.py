"""packaging/release/vex.py, as pack.sh calls it: OpenVEX 0.2.0 with its required fields, or no file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from unit.support import ROOT

SBOM = {
    "metadata": {
        "timestamp": "2026-11-23T00:00:00Z",
        "component": {"name": "reassert", "version": "0.4.0", "purl": "pkg:generic/reassert@0.4.0"},
    },
    "components": [{"name": "openssl", "version": "4.0.3", "purl": "pkg:generic/openssl@4.0.3"}],
}
ENTRY = """\
[[statement]]
vulnerability = "CVE-0000-0001"
component = "openssl"
version = "4.0.3"
status = "not_affected"
justification = "vulnerable_code_not_in_execute_path"
status_notes = "The program makes no TLS connection."
"""


def written(directory: Path, entries: str | None) -> tuple[str, Any]:
    """What vex.py says on standard error, and the document, or None. `entries`: None for those of the release."""
    sbom, output, data = (directory / name for name in ("sbom.json", "vex.json", "vex.toml"))
    output.unlink(missing_ok=True)
    sbom.write_text(json.dumps(SBOM))
    data.write_text(entries or "")
    command = [sys.executable, str(ROOT / "packaging/release/vex.py"), str(sbom), str(output)]
    done = subprocess.run([*command, *([str(data)] if entries else [])], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr, json.loads(output.read_text()) if output.exists() else None


def test_a_document_has_the_required_fields(tmp_path: Path) -> None:
    error, made = written(tmp_path, ENTRY)
    assert not error
    assert written(tmp_path, ENTRY) == (error, made)
    assert made.keys() == {"@context", "@id", "author", "timestamp", "version", "statements"}
    assert made["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert made["@id"].startswith("urn:uuid:")
    assert made["author"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["timestamp"])
    assert made["version"] == 1
    [statement] = made["statements"]
    [product] = statement.pop("products")
    assert product == {"@id": "pkg:generic/reassert@0.4.0", "subcomponents": [{"@id": "pkg:generic/openssl@4.0.3"}]}
    assert statement == {
        "vulnerability": {"name": "CVE-0000-0001"},
        "status": "not_affected",
        "justification": "vulnerable_code_not_in_execute_path",
        "status_notes": "The program makes no TLS connection.",
    }


def test_nothing_is_written_without_statements_and_those_of_the_release_can_be_read(tmp_path: Path) -> None:
    assert written(tmp_path, "statement = []\n") == ("", None)
    assert not written(tmp_path, None)[0]


def test_an_entry_that_is_wrong_fails_the_build(tmp_path: Path) -> None:
    for old, new, says in (
        ('version = "4.0.3"', 'version = "4.0.2"', "openssl 4.0.2, which is not in the SBOM"),
        ('status = "not_affected"', 'status = "safe"', "no status of OpenVEX"),
        ("justification =", "reason =", "justification is missing"),
        ("vulnerable_code_not_in_execute_path", "unlikely", "not one of OpenVEX"),
        ("status_notes =", "impact_statement =", "impact_statement cannot stand beside justification"),
    ):
        error, made = written(tmp_path, ENTRY.replace(old, new))
        assert (says in error, made) == (True, None), error


def test_what_a_justification_may_rest_on() -> None:
    """packaging/release/vex.toml says so of OpenSSL, which cryptography's bindings have inside."""
    imports = {
        (str(path.parent.relative_to(ROOT)), line.strip())
        for path in (ROOT / "hook").rglob("*.py")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(import|from) (cryptography|OpenSSL|ssl|_ssl|_hashlib)\b", line)
    }
    primitives = "from cryptography.hazmat.primitives"
    assert {directory for directory, _ in imports} == {"hook/ops/trust"}
    assert {line for _, line in imports} == {
        "from cryptography import x509",
        "from cryptography.exceptions import UnsupportedAlgorithm",
        "from cryptography.utils import CryptographyDeprecationWarning",
        f"{primitives} import serialization",
        f"{primitives}.asymmetric import dsa, ec, rsa",
        f"{primitives}.serialization import pkcs12",
        f"{primitives}.serialization import NoEncryption, pkcs12",
        f"{primitives}.serialization import pkcs7",
    }
