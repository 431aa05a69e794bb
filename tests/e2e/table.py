"""Rows of the table of tests/hostile-pod (cases.json) as bundles: what a row makes is told there, for both to run."""

from __future__ import annotations

import json
from typing import Any

from base import make_files  # of tests/hostile-pod
from by_oci import merged
from harness.bundle import Bundle
from harness.paths import TOP

from e2e.hostile_mounts import DIRECTORY, FILE, RESERVED

ROWS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((TOP / "tests/hostile-pod/cases.json").read_text())
}
"""By name."""

POLICIES = {"directory": DIRECTORY, "file": FILE}
WORDS = {
    "directory": {"path": "/etc/ssl", "base": "ssl", "above": "/etc", "below": "/etc/ssl/certs"},
    "file": {"path": RESERVED, "base": "company.crt", "above": "/etc/ssl/certs", "below": "/etc/ssl/certs"},
}
"""What a row's placeholders stand for where POLICIES reserve a directory or a file. A file has nothing below."""


def place(row_name: str, bundle: Bundle, reserved: str = "directory", /, **words: str) -> dict[str, Any]:
    """Make a bundle what a row says, and return the row. `words`: of placeholders that WORDS has not."""
    volumes = bundle.directory.parent / "volumes"
    text = json.dumps(ROWS[row_name])
    for word, value in {**WORDS[reserved], "volumes": str(volumes), **words}.items():
        text = text.replace(f"{{{word}}}", json.dumps(value)[1:-1])
    row: dict[str, Any] = json.loads(text)
    make_files(bundle.rootfs, row.get("image", {}))
    for volume, files in row.get("volumes", {}).items():
        (volumes / volume).mkdir(parents=True)
        make_files(volumes / volume, files)
    for mount in row.get("mounts", []):
        bundle.bind(volumes / mount["volume"], mount["at"])
    bundle.spec["process"]["env"] += row.get("env", [])
    if "annotations" in row:
        bundle.spec["annotations"] = row["annotations"]
    bundle.spec = merged(bundle.spec, row.get("spec", {}))
    return row
