"""Write what vex.toml says about known vulnerabilities of bundled libraries, as OpenVEX 0.2.0. Standard library only.

    packaging/release/vex.py SBOM OUTPUT [vex.toml]

SBOM: the output of packaging/release/sbom.py. No file is written without statements, since OpenVEX requires one. Its
schema refuses an `impact_statement` beside a `justification`, and unknown members.
Fields: https://github.com/openvex/spec/blob/main/OPENVEX-SPEC.md.
"""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

NEEDS = {
    "not_affected": "justification",
    "affected": "action_statement",
    "fixed": "status",
    "under_investigation": "status",
}
"""The member that a statement with this status must have. It may have `status_notes` too."""

JUSTIFICATIONS = {
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
}


def document(sbom: dict[str, Any], entries: list[dict[str, str]]) -> dict[str, Any] | None:
    """The document about the SBOM's program; None without entries. The same for the same SBOM and entries.

    Raises ValueError for an entry that is not about the SBOM's version of a component, or lacks a field.
    """
    if not entries:
        return None
    about = sbom["metadata"]
    found = [_statement(entry, about["component"]["purl"], sbom["components"]) for entry in entries]
    text = json.dumps([about, found], sort_keys=True)
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
        "author": "the maintainers of reassert",
        "timestamp": about["timestamp"],
        "version": 1,
        "statements": found,
    }


def _statement(entry: dict[str, str], product: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    """One statement of the document; raises ValueError."""
    entry = dict(entry)
    try:
        name, component, version = (entry.pop(key) for key in ("vulnerability", "component", "version"))
        needs = NEEDS[entry["status"]]
    except KeyError as error:
        raise ValueError(f"vex.toml: {error} is missing, or is no status of OpenVEX") from None
    parts = [part["purl"] for part in components if (part["name"], part["version"]) == (component, version)]
    if not parts:
        raise ValueError(f"vex.toml: {name} is about {component} {version}, which is not in the SBOM")
    if needs not in entry or entry.get("justification", "component_not_present") not in JUSTIFICATIONS:
        raise ValueError(f"vex.toml: {name}: {needs} is missing, or the justification is not one of OpenVEX")
    if more := {*entry} - {"status", needs, "status_notes"}:
        raise ValueError(f"vex.toml: {name}: {', '.join(sorted(more))} cannot stand beside {needs}")
    products = [{"@id": product, "subcomponents": [{"@id": part} for part in parts]}]
    return {"vulnerability": {"name": name}, "products": products, **entry}


if __name__ == "__main__":
    DATA = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).with_name("vex.toml")
    MADE = document(json.loads(Path(sys.argv[1]).read_text()), tomllib.loads(DATA.read_text())["statement"])
    if MADE:
        Path(sys.argv[2]).write_text(json.dumps(MADE, indent=2) + "\n")
