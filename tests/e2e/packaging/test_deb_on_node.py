"""The Debian package on a node that runs: systemd, containerd, pods."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from unit.ops.trust.authority import bundle, ca, key, roots

from e2e.cri.client import wait_for
from e2e.node.booted import BootedNode, booted
from e2e.node.engines import CONFIG
from e2e.packaging.conftest import INSTALL, UPGRADE
from e2e.packaging.test_deb import POLICY, PROGRAM
from hook import __version__

pytestmark = [
    marks.promise(
        "Install, upgrade and uninstall, also of the package, and each command of break-glass.md leave an event",
        about="Events and metrics",
    ),
    marks.promise(
        "The Debian package upgrades while containers start, leaves a policy that was there first, containers "
        "that start after any removal, and no file after a purge; a package and install.sh leave each other's "
        "wiring alone"
    ),
]

UNIT = "reassert-nri.service"
AGENT = ("reassert-agent.socket", "reassert-agent.service")
TRUST = ("reassert-trust.path", "reassert-trust.service")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

POLICY_TEXT = f"""\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {{name: test}}
spec:
  rules:
  - {{name: gpu, env: [{{name: {VISIBLE}, value: void}}]}}
"""


def visible(node: BootedNode) -> set[str]:
    """What a hostile container gets, in its process and in exec."""
    pod = node.cri.run_pod("")
    container = pod.run(env=[(VISIBLE, "all")])
    found = {line for line in container.environ() + container.exec_environ() if line.startswith(VISIBLE)}
    pod.remove()
    return found


def sh(node: BootedNode, script: str) -> str:
    """Standard output of a script on the node."""
    return node.run("sh", "-euc", script).stdout


def told(events: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """Of each change of the wiring among these events, its kind and the version before."""
    return [(each["event"], each.get("before")) for each in events if each["event"].startswith("node.")]


def logged(node: BootedNode) -> list[tuple[str, str | None]]:
    """What the event log tells, if there is one."""
    log = node.path("/var/log/reassert/events.jsonl")
    return told([json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [])


def in_journal(node: BootedNode) -> list[tuple[str, str | None]]:
    """What the journal tells: also of what has deleted the log."""
    text = sh(node, "journalctl --sync; journalctl --quiet --output json REASSERT_ADAPTER=node")
    return told([json.loads(json.loads(line)["REASSERT_JSON"]) for line in text.splitlines()])


@pytest.fixture(scope="module")
def trixie(debs: Path) -> Iterator[BootedNode]:
    """A node with containerd 1.7, with both packages in its directory."""
    with booted("trixie") as started:
        (started.directory / "debs").mkdir()
        for name in ("1.deb", "2.deb"):
            os.link(debs / name, started.directory / "debs" / name)
        yield started


@pytest.fixture
def node(trixie: BootedNode) -> Iterator[BootedNode]:
    """That node, without the package and its files."""
    yield trixie
    sh(trixie, "systemctl stop holder.service || :; rm -rf /etc/reassert /var/lib/reassert /var/log/reassert")


def scripts(node: BootedNode) -> tuple[str, str]:
    """INSTALL and UPGRADE with the packages of the node."""
    install, upgrade = (script.replace("/debs/", f"{node.directory}/debs/") for script in (INSTALL, UPGRADE))
    return install, upgrade


def trust_store_follows_its_sources(node: BootedNode) -> None:
    """The path unit builds again after each change, even during a build; a bad source changes nothing."""
    system, sources = node.path("/etc/ssl/certs/ca-certificates.crt"), node.path("/etc/reassert/trust.d")
    added, all_of_it = (
        node.path(f"/var/lib/reassert/trust/company/live/{name}") for name in ("added.pem", system.name)
    )
    system.parent.mkdir(parents=True, exist_ok=True)
    system.write_bytes(bundle(*roots()))
    first, second = ca("Company CA"), ca("Proxy CA", signer=key(1))
    checked = node.run("systemd-analyze", "verify", *(f"/usr/lib/systemd/system/{unit}" for unit in TRUST))
    assert checked.stdout + checked.stderr == ""
    first.at(sources / "company.pem")
    sh(node, f"systemctl enable --now {' '.join(TRUST)}")
    wait_for(lambda: added.exists() and first.pem in added.read_bytes(), "the first CA", node.trouble)
    assert sh(node, "reassert trust check").startswith("/var/lib/reassert/trust/company: generation 1 of ")

    (sources / "sandboxes").mkdir()
    second.at(sources / "sandboxes/proxy.pem")
    templates = [unit.replace("trust.", "trust@.") for unit in TRUST]
    checked = node.run("systemd-analyze", "verify", *(f"/usr/lib/systemd/system/{unit}" for unit in templates))
    assert checked.stdout + checked.stderr == ""
    sh(node, f"systemctl enable --now {' '.join(unit.replace('@', '@sandboxes') for unit in templates)}")
    alone = node.path("/var/lib/reassert/trust/sandboxes/live/alone/ca-certificates.crt")
    wait_for(lambda: alone.exists() and second.pem in alone.read_bytes(), "the other store", node.trouble)
    third = ca("Third CA", signer=key(3))
    third.at(sources / "sandboxes/third.pem")
    wait_for(lambda: third.pem in alone.read_bytes(), "its new CA", node.trouble)
    assert first.pem not in alone.read_bytes()

    second.at(sources / "proxy.pem")
    wait_for(lambda: second.pem in added.read_bytes(), "the second CA", node.trouble)
    new = ca("New root", signer=key(2))
    (system.parent / "new").write_bytes(bundle(*roots(), new))
    (system.parent / "new").rename(system)
    wait_for(lambda: new.pem in all_of_it.read_bytes(), "the new root", node.trouble)
    (sources / "proxy.pem").write_text("no certificate")
    wait_for(lambda: node.property(TRUST[1], "ActiveState") == "failed", "the refusal", node.trouble)
    assert f"{sources.relative_to(node.path('/'))}/proxy.pem" in sh(node, f"journalctl -u {TRUST[1]}")
    assert second.pem in added.read_bytes()


def test_from_installation_to_purge(node: BootedNode) -> None:
    install, upgrade = scripts(node)
    containerd = node.path(CONFIG).read_bytes()

    sh(node, install)
    state = {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert node.properties(UNIT, *state) == state
    checked = node.run("systemd-analyze", "verify", f"/usr/lib/systemd/system/{UNIT}")
    assert checked.stdout + checked.stderr == ""
    assert node.path(CONFIG).read_bytes() == containerd
    assert visible(node) == {f"{VISIBLE}=all"}

    node.path(POLICY).write_text(POLICY_TEXT)
    sh(node, "reassert install --adapter runtime,nri --no-probe")
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=void"}
    agent = {"ActiveState": "active", "UnitFileState": "enabled"}
    assert [node.properties(unit, *agent) for unit in AGENT] == [agent, agent]
    assert not node.path(f"/etc/systemd/system/{AGENT[1]}").exists()
    assert node.properties(UNIT, *state) == state  # the plugin is in the agent
    answering = node.property(AGENT[1], "MainPID")

    assert logged(node) == [("node.install", None)]
    wired = sh(node, "cat /opt/reassert/reassert-runc")
    engine = node.property("containerd.service", "MainPID")
    sh(node, upgrade)
    wait_for(lambda: node.property(AGENT[1], "MainPID") not in ("0", answering), "the new agent", node.trouble)
    assert sh(node, "cat /opt/reassert/reassert-runc") == wired
    assert node.property("containerd.service", "MainPID") == engine
    wait_for(lambda: node.property(AGENT[1], "ActiveState") == "active", "its connection", node.trouble)
    assert node.property(AGENT[0], "ActiveState") == "active"
    process = node.property(AGENT[1], "MainPID")
    assert sh(node, f"readlink /proc/{process}/exe") == sh(node, f"readlink -f {PROGRAM}")
    assert visible(node) == {f"{VISIBLE}=void"}
    sh(node, "reassert status")
    wait_for(lambda: logged(node)[1:] == [("node.upgrade", __version__)], "the event of the upgrade", node.trouble)

    trust_store_follows_its_sources(node)
    certs = "/var/lib/reassert/trust/company/live/certs"
    sh(node, f"systemd-run --unit=holder --property=BindReadOnlyPaths={certs}:/mnt sleep 600")
    wait_for(lambda: node.property("holder.service", "ActiveState") == "active", "a mount of the store", node.trouble)

    assert "/var/lib/reassert/trust stays" in sh(node, "dpkg --purge reassert 2>&1")
    assert in_journal(node)[-2:] == [("node.uninstall", __version__), ("node.purge", None)]
    assert not node.path("/var/log/reassert").exists()
    assert [path.name for path in node.path("/var/lib/reassert").iterdir()] == ["trust"]
    assert node.path(f"{certs}/added.pem").exists()
    assert node.path(CONFIG).read_bytes() == containerd
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=all"}
    assert [node.property(unit, "LoadState") for unit in (UNIT, *AGENT, *TRUST)] == ["not-found"] * 5


def test_a_package_that_goes_unconfigured_leaves_containers_that_start(node: BootedNode) -> None:
    """The policy comes first; an upgrade is unpacked, not configured, and then removed: dpkg runs no prerm.

    Running containers and new ones go on, without the policy; the package unwires the node when it comes back.
    """
    install, upgrade = scripts(node)
    containerd = node.path(CONFIG).read_bytes()
    node.path(POLICY).parent.mkdir()
    node.path(POLICY).write_text(POLICY_TEXT)
    sh(node, f"{install} < /dev/null")
    assert node.path(POLICY).read_text() == POLICY_TEXT
    sh(node, "reassert install --adapter runtime,nri --no-probe")
    node.wait_for_cri()
    pod = node.cri.run_pod("")
    container = pod.run(env=[(VISIBLE, "all")])
    assert f"{VISIBLE}=void" in container.environ()

    sh(node, upgrade.replace("--install", "--unpack"))
    removed = sh(node, "dpkg --remove reassert 2>&1")
    assert "containers start, WITHOUT the policy" in removed
    assert "install the package again" in removed
    assert logged(node)[-1] == in_journal(node)[-1] == ("node.uninstall", None)
    assert container.exec_environ()
    assert visible(node) == {f"{VISIBLE}=all"}
    sh(node, "systemctl restart containerd")
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=all"}
    assert container.exec_environ()
    pod.remove()
    assert [node.property(unit, "ActiveState") for unit in AGENT] == ["inactive"] * 2
    assert "install the package again" in sh(node, "/usr/lib/reassert/reassert status 2>&1 || :")
    purged = sh(node, "dpkg --purge reassert 2>&1")
    assert "install the package again, then run '/usr/lib/reassert/reassert node uninstall --purge'" in purged
    assert node.path(POLICY).read_text() == POLICY_TEXT

    sh(node, f"{install}; reassert install --adapter runtime,nri --no-probe")
    node.wait_for_cri()
    assert visible(node) == {f"{VISIBLE}=void"}
    sh(node, upgrade.replace("--install", "--unpack"))
    sh(node, f"dpkg --remove reassert; {upgrade}; reassert uninstall --purge; dpkg --purge reassert")
    node.wait_for_cri()
    assert in_journal(node)[-3:] == [("node.uninstall", __version__), ("node.purge", None), ("node.purge", None)]
    assert node.path(CONFIG).read_bytes() == containerd
    assert visible(node) == {f"{VISIBLE}=all"}
    for path in ("/opt/reassert/reassert-runc", "/usr/lib/reassert", "/etc/reassert", "/var/lib/reassert"):
        assert not node.path(path).exists()


def test_a_node_has_one_installation(node: BootedNode) -> None:
    """Each refuses beside the other, and says how to move."""
    install, _ = scripts(node)
    copied = "/src/reassert/dist/reassert/reassert install --no-probe"
    assert "is wired (runtime)" in sh(node, copied)
    refused = node.run("sh", "-c", f"{install} 2>&1", check=False)
    assert refused.returncode == 1
    assert "run '/opt/reassert/reassert node uninstall', install the package" in refused.stdout
    assert not node.path(PROGRAM).exists()
    sh(node, f"/opt/reassert/reassert uninstall; dpkg --purge reassert; {install}")
    for command in (copied, "/src/reassert/install.sh"):
        refused = node.run("sh", "-c", f"{command} 2>&1", check=False)
        assert refused.returncode == 1
        assert "the package of reassert is installed on this node" in refused.stdout
    assert not node.path("/opt/reassert").exists()
    sh(node, "reassert install --no-probe")
    assert "/usr/lib/reassert/" in sh(node, "cat /opt/reassert/reassert-runc")
    refused = node.run("sh", "-c", f"{copied.replace('install --no-probe', 'uninstall')} 2>&1", check=False)
    assert "run `/usr/lib/reassert/reassert node uninstall` first" in refused.stdout
    sh(node, "dpkg --purge reassert")
    assert not node.path("/opt/reassert/reassert-runc").exists()
