"""install.sh on a node that has never heard of reassert."""

from __future__ import annotations

import marks
import pytest
from harness.paths import TOP

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.wired import POLICY_FILE, Wirable

pytestmark = marks.promise(
    "Install wires every handler, tests it, and restarts no container; uninstall restores every byte"
)

INSTALL = "/src/reassert/install.sh"

EXTRAS = (
    "/usr/share/reassert/policy.schema.json",
    "/usr/local/share/bash-completion/completions/reassert",
    "/usr/local/share/fish/vendor_completions.d/reassert.fish",
    "/usr/local/share/zsh/site-functions/_reassert",
    "/usr/local/share/man/man8/reassert-policy-test.8.gz",
)


@pytest.fixture(scope="module")
def booted(module_boot: Boot) -> BootedNode:
    return module_boot("bookworm")


def test_in_and_out_again(booted: BootedNode) -> None:
    node = Wirable(booted, booted.snapshot())
    installed = booted.run("sh", INSTALL)
    assert "is wired (runtime)." in installed.stdout
    assert "no hostile container was tried" in installed.stdout  # the first policy only looks on
    assert booted.path(POLICY_FILE).read_text() == (TOP / "config/policy.yaml").read_text()
    assert booted.run("/usr/local/bin/reassert", "status", check=False).returncode == 4  # Audit
    for extra in EXTRAS:
        assert booted.path(extra).stat().st_size > 100, extra
    assert "policy.schema.json" in booted.path(POLICY_FILE).read_text()
    others = "! -user root -o ! -group root -o ! -type l -perm /022 -o ! -perm -444"
    assert booted.run("find", "/opt/reassert", *others.split()).stdout == ""
    assert booted.run("stat", "--format=%a", "/opt/reassert", "/opt/reassert/start").stdout == "755\n644\n"
    again = booted.run("sh", INSTALL, "--engine", "containerd")
    assert "no engine restarted" in again.stdout
    booted.path(POLICY_FILE).write_text(edited := "# mine\n" + booted.path(POLICY_FILE).read_text())
    booted.run("sh", INSTALL)
    assert booted.path(POLICY_FILE).read_text() == edited
    said = booted.run("sh", INSTALL, "--uninstall").stdout
    assert f"Left on this node:\n  {POLICY_FILE}: the node policy\n" in said
    assert [line.split(":")[0] for line in node.changes()] == ["/etc/reassert", POLICY_FILE]  # an edited policy stays
    assert "nothing was changed" in booted.run("sh", INSTALL, "--uninstall").stdout
    said = booted.run("sh", INSTALL, "--uninstall", "--purge").stdout
    assert f"removing {POLICY_FILE}\n" in said
    assert "Left on this node" not in said
    assert node.changes() == []
    assert not booted.path("/var/log/reassert").exists()
    assert not booted.path("/run/reassert").exists()


def test_a_preset_is_the_first_policy_in_audit_mode(booted: BootedNode) -> None:
    node = Wirable(booted, booted.snapshot())
    booted.run("sh", INSTALL, "--preset", "gpu")
    printed = booted.run("/usr/local/bin/reassert", "policy", "preset", "gpu").stdout
    assert booted.path(POLICY_FILE).read_text() == printed
    assert "name: gpu-lockdown\nspec:\n  mode: Audit" in printed
    booted.run("sh", INSTALL, "--preset", "gpu")
    other = booted.run("sh", INSTALL, "--preset", "ca", check=False)
    assert (other.returncode, "--preset writes a first policy only" in other.stderr) == (1, True), other.stderr
    booted.run("sh", INSTALL, "--uninstall", "--purge")
    assert node.changes() == []


def test_with_a_read_only_usr_local(booted: BootedNode) -> None:
    """As on Flatcar."""
    node = Wirable(booted, booted.snapshot())
    booted.run("sh", "-c", "mount --bind /usr/local /usr/local && mount -o remount,bind,ro /usr/local")
    try:
        installed = booted.run("sh", INSTALL).stdout
        assert "/usr/local/bin/reassert cannot be written: the command is /opt/reassert/reassert\n" in installed
        assert "/opt/reassert/reassert-runc" in node.config()
        assert booted.run("/opt/reassert/reassert", "status", check=False).returncode == 4  # Audit
        assert "no engine restarted" in booted.run("/opt/reassert/reassert", "install").stdout
        booted.run("sh", INSTALL, "--uninstall", "--purge")
    finally:
        booted.run("umount", "/usr/local")
    assert node.changes() == []


def test_wrong_usage(booted: BootedNode) -> None:
    for wrong, said in (
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--demo", "x"], "sudo ./install.sh"),
        (["x"], "sudo ./install.sh"),
    ):
        refused = booted.run("sh", INSTALL, *wrong, check=False)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    refused = booted.run("sh", INSTALL, "--engine", "rkt", check=False)
    assert refused.returncode == 2
    assert "invalid choice: 'rkt'" in refused.stderr
