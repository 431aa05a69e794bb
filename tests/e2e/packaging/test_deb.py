"""The Debian package in a debootstrapped Debian: it installs, upgrades under way, and goes without a trace."""

from __future__ import annotations

import os
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import marks
from harness.paths import REASSERT, TOP
from harness.tools import need, run

from e2e.packaging.chroot import Chroot
from e2e.packaging.conftest import BELOW_A_PREFIX, INSTALL, INSTALLED, PLACED, POLICY, UPGRADE, build, frozen
from hook.core.policy.store import STORE_FORMAT

pytestmark = marks.promise(
    "The Debian package upgrades while containers start, leaves a policy that was there first, containers "
    "that start after any removal, and no file after a purge; a package and install.sh leave each other's "
    "wiring alone",
    about="Packages and cluster",
)

PROGRAM = "/usr/lib/reassert/reassert"

EXTRAS = (
    "/usr/share/man/man8/reassert.8.gz",
    "/usr/share/man/man8/reassert-policy-check.8.gz",
    "/usr/share/bash-completion/completions/reassert",
    "/usr/share/zsh/vendor-completions/_reassert",
    "/usr/share/fish/vendor_completions.d/reassert.fish",
    "/usr/share/reassert/policy.schema.json",
)


def state(debian: Chroot) -> str:
    """dpkg's view of the package, and its version."""
    return debian.run("dpkg-query --show --showformat '${db:Status-Status} ${Version}' reassert").stdout


def test_installs_what_only_root_can_write(debian: Chroot) -> None:
    before = debian.files()
    debian.run(INSTALL)
    after = debian.files()
    assert not before.keys() - after.keys()
    assert {path for path in before if before[path] != after[path]} == set()
    new = {path: after[path] for path in after.keys() - before.keys()}
    assert {PROGRAM, POLICY, *EXTRAS} <= new.keys()
    for path, described in new.items():
        kind, mode, owner, _ = described.split(" ", 3)
        assert owner == "root:root", (path, described)
        assert kind == "l" or mode in ("644", "755"), (path, described)
    executable = debian.run(f"readlink -f {PROGRAM}").stdout.strip()
    executables = sorted(path for path, described in new.items() if described.startswith("f 755"))
    assert executables == [f"{os.path.dirname(executable)}/front", executable]
    assert not [path for path in new if "logrotate" in path], "the event log rotates by itself"
    assert not [path for path in new if path.startswith(("/usr/local", "/etc/systemd", "/opt"))], "something is wired"
    assert debian.run("dpkg --verify reassert").stdout == ""
    assert debian.run("reassert --version").stdout == run(str(REASSERT), "--version").stdout
    assert "valid" in debian.run("reassert policy check").stdout
    for name in ("nri", "agent"):
        unit = debian.read(f"/usr/lib/systemd/system/reassert-{name}.service")
        assert f"\nExecStart=/usr/bin/reassert {name}" in unit
    assert debian.run("readlink -f /usr/bin/reassert").stdout.strip() == executable


def test_an_edited_policy_survives_an_upgrade(installed: Chroot) -> None:
    edited = installed.read(POLICY).replace("mode: Audit", "mode: Enforce")
    installed.put(POLICY, edited)
    installed.run(UPGRADE)
    assert state(installed) == "installed 0.3.0-2"
    assert installed.read(POLICY) == edited
    assert "mode: Enforce" in installed.run("reassert policy show").stdout


CONFIG = '{"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "r"}}'
DISPATCHER = (
    "reassert dispatcher --real /bin/true > /usr/local/sbin/reassert-true; chmod 755 /usr/local/sbin/reassert-true"
)

STARTS = """
start_for_ever() {
  exec >> /starts.$1 2>&1
  while [ ! -e /stop ]; do
    reassert-true create --bundle /bundle c && echo started || echo failed
  done
}
start_for_ever 1 &
start_for_ever 2 &
"""


def test_containers_start_while_it_is_upgraded(installed: Chroot) -> None:
    """dpkg replaces file by file; each start is wholly the old program's or wholly the new one's."""
    installed.put("/bundle/config.json", CONFIG)
    installed.run(DISPATCHER)
    old = installed.run(f"readlink -f {PROGRAM}").stdout
    loop = "until grep -q started /starts.1 && grep -q started /starts.2; do sleep 0.05; done"
    upgrade = UPGRADE.replace(" --force-unsafe-io", "")
    installed.run(f"{STARTS}{loop}; {upgrade}; touch /stop; wait")
    lines = installed.run("cat /starts.*").stdout.splitlines()
    assert set(lines) == {"started"}
    new = installed.run(f"readlink -f {PROGRAM}").stdout
    assert new != old
    names = {new.split("/")[4], "current", "front", "next", "reassert", "start"}
    assert set(installed.run("ls /usr/lib/reassert").stdout.split()) == names


@marks.promise(
    "An upgrade from each release, and a downgrade, keep the last good policy in force where the program "
    "refuses the policy file, and a package that refuses it does not become the program"
)
def test_a_version_that_does_not_take_the_policy_does_not_become_the_program(installed: Chroot) -> None:
    """Starts go on through the version before, with the last good policy, until the policy is corrected."""
    installed.put("/bundle/config.json", CONFIG)
    installed.run(f"{DISPATCHER}; reassert policy compile > /dev/null")
    good = installed.read(POLICY)
    installed.put(POLICY, good.replace("rules:", "rulez:"))
    upgrade = UPGRADE.replace(" --force-unsafe-io", "")
    loop = "until grep -q started /starts.1 && grep -q started /starts.2; do sleep 0.05; done"
    said = installed.run(f"{STARTS}{loop}; {upgrade} && exit 1; touch /stop; wait").stdout
    assert f"{POLICY}:" in said
    assert "stays the program" in said
    assert "dpkg --configure reassert" in said
    assert set(installed.run("cat /starts.*").stdout.splitlines()) == {"started"}
    program = installed.run(f"readlink -f {PROGRAM}").stdout.strip()
    assert "later.txt" not in installed.run(f"ls {os.path.dirname(program)}/lib").stdout
    assert state(installed) == "half-configured 0.3.0-2"
    assert installed.run("reassert-true create --bundle /bundle c", check=False).returncode == 0
    installed.put(POLICY, good)
    installed.run("dpkg --configure reassert")
    assert state(installed) == "installed 0.3.0-2"
    program = installed.run(f"readlink -f {PROGRAM}").stdout.strip()
    assert "later.txt" in installed.run(f"ls {os.path.dirname(program)}/lib").stdout
    assert "before" not in installed.run("ls /usr/lib/reassert").stdout


def test_a_dispatcher_needs_no_restart_of_the_bootloader(installed: Chroot) -> None:
    """It names no version, and sets what the version that is installed needs (docs/project/performance.md)."""
    real, wrapped = "/usr/local/sbin/real", "/usr/local/sbin/reassert-real"
    installed.put(real, "#!/bin/sh\nprintenv\n", 0o755)
    installed.put("/bundle/config.json", CONFIG)
    script = f"reassert dispatcher --real {real} > {wrapped}; chmod 755 {wrapped}; reassert policy compile > /dev/null"
    installed.run(script)
    content = installed.run(f"readlink -f {PROGRAM}").stdout.split("/")[4]
    assert content not in installed.read(wrapped)
    trace = installed.directory / "trace"
    strace = ("strace", "--follow-forks", "--trace=execve", f"--output={trace}")
    command = f"LD_LIBRARY_PATH=/theirs {wrapped} create --bundle /bundle c"
    seen = installed.run(command, under=strace).stdout.splitlines()
    assert trace.read_text().count('"runtime", "--real"') == 1
    assert "LD_LIBRARY_PATH=/theirs" in seen
    assert not [line for line in seen if line.startswith("_PYI")]


def test_no_file_of_the_package_is_the_switch(debs: Path) -> None:
    """dpkg replaces files before postinst asks the new version. What engines call leads through `current`."""
    lines = run("dpkg-deb", "--contents", str(debs / "1.deb")).stdout.splitlines()
    links = dict(line.split(" ./", 1)[1].split(" -> ") for line in lines if " -> " in line and "/lib/reassert/" in line)
    called = {f"usr/lib/reassert/{name}": f"current/{name}" for name in ("start", "front", "reassert")}
    assert called.items() <= links.items()
    assert not [line for line in lines if line.endswith("/current") or "/current ->" in line]


COMPILED = f"/var/lib/reassert/etc-reassert-policy.yaml.{STORE_FORMAT}.json"


def test_an_upgrade_compiles_the_policy_of_a_node_in_use(installed: Chroot) -> None:
    shipped = installed.read(POLICY)
    installed.run("reassert policy compile > /dev/null")
    installed.put(COMPILED, "another version's")
    installed.run(UPGRADE)
    assert installed.read(POLICY) == shipped  # an upgrade changes no policy
    assert '"source":"/etc/reassert/policy.yaml"' in installed.read(COMPILED)


def test_goes_without_a_trace_and_comes_back(debian: Chroot) -> None:
    before = debian.files()
    debian.run(INSTALL)
    debian.run("reassert policy compile > /dev/null; mkdir -p /var/log/reassert; touch /var/log/reassert/events.jsonl")
    debian.put(POLICY, debian.read(POLICY) + "# mine\n")
    debian.run("dpkg --remove reassert")
    assert state(debian) == "config-files 0.3.0-1"
    left = debian.files()
    assert {POLICY, "/var/log/reassert/events.jsonl", "/var/lib/reassert"} <= left.keys()
    assert not [path for path in left if path.startswith("/usr") and path not in before]
    debian.run(INSTALL)
    assert debian.read(POLICY).endswith("# mine\n")
    debian.run("dpkg --purge reassert")
    assert debian.files() == before


MINE = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: from-configuration-management}
spec: {rules: []}
"""

WITH_CONFFILE = """
dpkg-deb --raw-extract /debs/1.deb /old
cp /old/usr/share/reassert/policy.yaml /old/etc/reassert/
echo /etc/reassert/policy.yaml > /old/DEBIAN/conffiles
sed -i 's/^Version: .*/Version: 0.2.0-1/' /old/DEBIAN/control
rm /old/DEBIAN/postinst /old/usr/share/reassert/policy.yaml
dpkg-deb --build -Znone /old /old.deb
rm -r /old
"""
"""Makes /old.deb, as versions before 0.4 were: their policy was a conffile."""


def test_a_policy_that_is_there_before_the_package_stays(debian: Chroot) -> None:
    """Nobody is asked, in any order of file, installation, upgrade, removal and purge."""
    debian.put(POLICY, MINE)
    for command in (INSTALL, UPGRADE, "dpkg --remove reassert", INSTALL, "dpkg --remove reassert"):
        debian.run(command)
        assert debian.read(POLICY) == MINE, command
    debian.run("dpkg --purge reassert; test ! -e /etc/reassert")
    debian.run(f"mkdir /etc/reassert; ln -s /srv/policy.yaml {POLICY}; {INSTALL}")  # the file comes later
    assert debian.run(f"readlink {POLICY}").stdout == "/srv/policy.yaml\n"
    debian.run(f"rm {POLICY}; {UPGRADE}; test ! -e {POLICY}")  # an administrator has deleted it


def test_a_policy_that_was_a_conffile_stays(debian: Chroot) -> None:
    debian.run(WITH_CONFFILE)
    debian.put(POLICY, MINE)
    asked = debian.run("dpkg --install /old.deb", check=False)
    assert asked.returncode == 1
    assert "conffile" in asked.stdout
    debian.run(UPGRADE)
    assert state(debian) == "installed 0.3.0-2"
    assert debian.read(POLICY) == MINE
    debian.run("dpkg --purge reassert; dpkg --install /old.deb")
    shipped = debian.read(POLICY)
    debian.run(UPGRADE)
    assert debian.read(POLICY) == shipped


def test_an_administrators_own_files_survive_a_purge(installed: Chroot) -> None:
    installed.put("/etc/reassert/company-ca.pem", "ours")
    installed.run("dpkg --purge reassert")
    assert installed.run("ls /etc/reassert").stdout == "company-ca.pem\n"


def test_a_package_is_refused_on_a_node_with_another_installation(debian: Chroot) -> None:
    before = debian.files()
    debian.put(INSTALLED, BELOW_A_PREFIX)
    debian.put(PLACED, "")
    done = debian.run(INSTALL, check=False)
    assert done.returncode == 1
    assert "this node is wired with /srv/own/reassert/reassert, and a node has one installation" in done.stdout
    debian.run(f"dpkg --purge reassert; rm -r /srv/own {os.path.dirname(os.path.dirname(INSTALLED))}")
    assert debian.files() == before
    debian.put(INSTALLED, BELOW_A_PREFIX)
    debian.run(INSTALL)  # the other program is gone
    debian.put(PLACED, "")
    for refused in (UPGRADE, "dpkg --remove reassert"):
        assert "/srv/own/reassert/reassert node uninstall" in debian.run(refused, check=False).stdout
    assert state(debian) == "installed 0.3.0-1"
    # Removed before the other installation came.
    debian.run(f"rm {INSTALLED}; dpkg --remove reassert")
    debian.put(INSTALLED, BELOW_A_PREFIX)
    assert "run '/srv/own/reassert/reassert node uninstall --purge'" in debian.run("dpkg --purge reassert").stdout
    assert debian.run(f"ls {INSTALLED} {POLICY}").returncode == 0


def test_a_node_that_cannot_be_unwired_keeps_the_package(installed: Chroot) -> None:
    installed.put(INSTALLED, "nobody can read this")
    before = installed.files()
    done = installed.run("dpkg --remove reassert", check=False)
    assert done.returncode == 1
    assert "reassert: 'reassert uninstall' failed, see above" in done.stdout
    assert state(installed) == "installed 0.3.0-1"
    assert before.items() <= installed.files().items()
    installed.run("reassert --version")
    installed.run(UPGRADE)  # which asks nobody


def test_a_dispatcher_written_by_hand_keeps_the_package(installed: Chroot) -> None:
    installed.run(DISPATCHER)
    done = installed.run("dpkg --remove reassert", check=False)
    assert done.returncode == 1
    assert "reassert: /usr/local/sbin/reassert-true still calls this program" in done.stdout
    assert state(installed) == "installed 0.3.0-1"
    installed.run("rm /usr/local/sbin/reassert-true; dpkg --remove reassert")


def test_the_same_tree_gives_the_same_bytes(debs: Path, directory: Path) -> None:
    again = build(frozen(directory / "again"), "0.3.0-1", umask=0o077)
    assert again.read_bytes() == (debs / "1.deb").read_bytes()


def test_what_is_frozen_in_stands_in_the_copyright_file() -> None:
    text = (TOP / "packaging/deb/copyright").read_text()
    prefix = "usr/lib/reassert/*/lib/"
    patterns = [word.removeprefix(prefix) for word in text.split() if word.startswith(prefix)]
    named = [pattern for pattern in patterns if pattern != "*"]
    ours = {"base_library.zip", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
    for path in sorted((REASSERT.parent / "lib").iterdir()):
        if path.name in ours or path.stem in sys.stdlib_module_names or path.name.startswith("libpython"):
            continue
        name = f"{path.name}/x" if path.is_dir() else path.name
        assert any(fnmatch(name, pattern) for pattern in named), f"{path.name} is not in packaging/deb/copyright"


def test_openssl_is_frozen_in_only_with_cryptography() -> None:
    """packaging/release/vex.toml says so."""
    names = {path.name.partition(".")[0] for path in REASSERT.parent.rglob("*")}
    assert not names & {"_ssl", "_hashlib", "libssl", "libcrypto"}
    assert "_rust" in names, "it is named otherwise"


def test_the_man_page_is_well_formed() -> None:
    need(shutil.which("mandoc") is not None, "mandoc")
    assert run("mandoc", "-T", "lint", "-W", "warning", str(TOP / "packaging/deb/reassert.8")).stdout == ""
