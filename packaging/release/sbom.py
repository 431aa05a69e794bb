"""Print the software bill of materials of the frozen program, CycloneDX 1.5 in JSON. Standard library only.

    packaging/release/sbom.py TREE

Its parts are found, not listed by hand: Python packages by their metadata in the build's virtual environment, what is
linked into these by the SBOMs that their wheels carry (PEP 770), Debian's packages by the libraries in the tree
(dpkg-query), CPython by the interpreter that runs this script.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.base_prefix) / "version"
"""packaging/release/python.sh writes the version of Debian's source package here."""


def component(name: str, version: str, purl: str, licence: str = "", kind: str = "library") -> dict[str, Any]:
    """One component; `purl`: its package URL (https://github.com/package-url/purl-spec)."""
    found = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return found | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def python_packages(requirements: Path) -> list[dict[str, Any]]:
    """The pinned packages that are installed here. One for another platform is not."""
    found = []
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", requirements.read_text("utf-8"), re.MULTILINE):
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        licence = about.get("License-Expression") or about.get("License") or ""
        found.append(component(name, version, f"pkg:pypi/{name}@{version}", licence.partition("\n")[0][:80]))
    return found


def linked_in(requirements: Path) -> list[dict[str, Any]]:
    """The C and Rust libraries inside these packages' extension modules, for example OpenSSL in cryptography's."""
    found = {}
    for name in re.findall(r"^([\w.-]+)==", requirements.read_text("utf-8"), re.MULTILINE):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.parent.name != "sboms" or file.suffix != ".json":
                continue
            for part in json.loads(file.read_text("utf-8"))["components"]:
                if part.get("scope") != "excluded":  # of the build alone
                    licences = [entry.get("expression", "") for entry in part.get("licenses", [])]
                    found[part["purl"]] = component(part["name"], part["version"], part["purl"], " AND ".join(licences))
    return list(found.values())


def debian_packages(tree: Path) -> list[dict[str, Any]]:
    """The packages that the tree's shared libraries come from, and the C library that front is linked with."""
    found = {}
    for path in [*sorted((tree / "lib").glob("*.so.*")), Path("/usr/bin/musl-gcc")]:
        name = path.name
        package = _dpkg_query("--search", f"*/{name}").partition(":")[0]
        if not package or name.startswith("libpython"):
            continue
        form = "${source:Package} ${Version} ${Architecture}\n"
        source, version, architecture = _dpkg_query("--show", f"--showformat={form}", package).splitlines()[0].split()
        purl = f"pkg:deb/debian/{package}@{version}?arch={architecture}&upstream={source}"
        found[package] = component(package, version, purl)
    return list(found.values())


def _dpkg_query(*arguments: str) -> str:
    """Its output; empty where dpkg knows no such file."""
    command = ["/usr/bin/dpkg-query", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # names of files of the tree
    return done.stdout


def cpython() -> dict[str, Any]:
    """The interpreter; Debian's version of its source where the release's own build is used."""
    short = sysconfig.get_python_version()
    version = PYTHON.read_text().strip() if PYTHON.exists() else sys.version.partition(" ")[0]
    purl = f"pkg:deb/debian/python{short}@{version}" if PYTHON.exists() else f"pkg:generic/cpython@{version}"
    return component("cpython", version, purl, "PSF-2.0")


def bom(tree: Path) -> dict[str, Any]:
    """The document. It is the same for the same tree, with the same SOURCE_DATE_EPOCH."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            digest.update(f"{path.relative_to(tree)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    version = re.findall(r'^__version__ = "(.*)"$', (ROOT / "hook/__init__.py").read_text(), re.MULTILINE)[0]
    program = component("reassert", version, f"pkg:generic/reassert@{version}", "Apache-2.0", "application")
    parts = [
        cpython(),
        *python_packages(ROOT / "packaging" / "requirements.txt"),
        *[
            part
            for part in python_packages(ROOT / "packaging" / "requirements-build.txt")
            if part["name"] == "pyinstaller"
        ],
        *linked_in(ROOT / "packaging" / "requirements.txt"),
        *debian_packages(tree),
    ]
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest.hexdigest())}",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), "component": program},
        "components": parts,
        "dependencies": [{"ref": program["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


if __name__ == "__main__":
    json.dump(bom(Path(sys.argv[1])), sys.stdout, indent=2)
    print()
