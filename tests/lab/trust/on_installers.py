"""Real package managers install a package of CA files, by the wrapper and runc (tests/lab/trust/installers.sh)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.conftest import bundle, directory, node
from e2e.trust.conftest import Company, company, image
from e2e.trust.test_aside import privileged_as_docker
from e2e.trust.test_trust import RUNC
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node

from lab.trust.repositories import NEW, build

__all__ = ["bundle", "company", "directory", "image", "node"]

BIN = Path(os.environ.get("REASSERT_INSTALLERS_BIN", "/nonexistent"))
"""Where apk and microdnf are, which Debian does not have."""

_RHEL = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
_REPO = "[test]\\nname=test\\nbaseurl=file:///servers/repositories/{name}\\ngpgcheck=0\\n"
_DNF = f"printf '{_REPO.format(name='rpm')}' > /etc/yum.repos.d/test.repo; "
_MICRODNF = "LD_LIBRARY_PATH=/servers/bin /servers/bin/microdnf"

MANAGERS = {
    "apt-get": (
        "debian",
        "echo 'deb [trusted=yes] file:/servers/repositories/apt ./' > /tmp/test.list; "
        "set -- -o Dir::Etc::sourcelist=/tmp/test.list -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root -qq; "
        'apt-get "$@" update && DEBIAN_FRONTEND=noninteractive apt-get "$@" install -y ca-certificates',
        "/etc/ssl/certs/ca-certificates.crt",
    ),
    "dnf": ("rhel", _DNF + "dnf -q -y install ca-certificates", _RHEL),
    "dnf5": ("rhel", _DNF + "dnf5 -q -y install ca-certificates", _RHEL),
    "zypper": (
        "suse",
        "zypper -nq addrepo --no-gpgcheck dir:///servers/repositories/suse test && zypper -nq install ca-certificates",
        "/var/lib/ca-certificates/ca-bundle.pem",
    ),
    "pacman": (
        "debian",
        "printf '[options]\\nSigLevel = Never\\nArchitecture = auto\\n[test]\\n"
        "Server = file:///servers/repositories/arch\\n' > /tmp/pacman.conf; "
        "pacman --config /tmp/pacman.conf -Sy --noconfirm --overwrite '*' ca-certificates",
        "/etc/ssl/certs/ca-certificates.crt",
    ),
}
if (BIN / "microdnf").exists():
    MANAGERS["microdnf"] = ("rhel", _DNF + f"{_MICRODNF} -y install ca-certificates", _RHEL)
if (BIN / "apk").exists():
    MANAGERS["apk"] = (
        "alpine",
        "/servers/bin/apk --initdb --clean-protected --allow-untrusted --no-network --keys-dir /tmp "
        "--repository /servers/repositories/apk/Packages.adb add ca-certificates",
        "/etc/ssl/certs/ca-certificates.crt",
    )
"""By package manager: a layout of e2e/trust/images.py, the command, and the bundle that the package writes."""


FAILURES = {
    **{(manager, mount): 1 for manager in MANAGERS for mount in ("Directories", "Files")},
    ("apt-get", "Directories"): 100,
    ("apt-get", "Files"): 100,
    ("zypper", "Directories"): 107,
    ("zypper", "Files"): 107,
    ("pacman", "Directories"): 0,
    ("pacman", "Files"): 0,
    ("apk", "Directories"): 2,
}
"""The exit status, where the bundle was not written. pacman only warns."""


@pytest.fixture(scope="module")
def repositories(company: Company) -> Path:
    """Beside the servers' files."""
    directory = company.directory / "repositories"
    directory.mkdir()
    apk = BIN / "apk"
    build(directory, apk if apk.exists() else None)
    if BIN.exists():
        shutil.copytree(BIN, company.directory / "bin")
    return directory


@pytest.mark.parametrize("mount", ["Directories", "Files", "Aside"])
@pytest.mark.parametrize("manager", MANAGERS)
def test_package_manager_installs_ca_files_with_aside_alone(
    manager: str, mount: str, image: Callable[[str], Bundle], company: Company, node: Node, repositories: Path
) -> None:
    layout, command, path = MANAGERS[manager]
    bundle = image(layout)
    (bundle.rootfs / "etc/yum.repos.d").mkdir(exist_ok=True)
    for macros in bundle.rootfs.glob("usr/lib/rpm/macros.d/macros.transaction_unshare"):
        macros.unlink()  # with them, Debian's rpm runs no scriptlet without CAP_SYS_ADMIN
    (bundle.rootfs / "etc/ca-certificates.conf").write_text("")
    privileged_as_docker(bundle)
    script = f"({command}) >/said 2>&1; echo status $?; cat /said; grep -c '{NEW}' {path}; echo done"
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", script]
    bundle.save()
    node.compile(company.policy(trust=f", mount: {mount}"))
    with Running(node.dispatcher(RUNC), bundle) as container:
        for _ in range(1200):
            if "\ndone\n" in container.output():
                break
            time.sleep(0.1)
        said = container.output()
    print(said)  # how each one names the failure
    status, written = (0, 1) if mount == "Aside" else (FAILURES[manager, mount], 0)
    assert said.startswith(f"status {status}\n"), said
    assert said.endswith(f"\n{written}\ndone\n"), said
