"""The node pod of the chart, a real privileged pod on a node that systemd has booted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.tools import cleaned
from unit.support import ROOT

from e2e.cri.client import CriError, wait_for
from e2e.cri.images import PLAIN
from e2e.kubernetes.image import NAME, write_image
from e2e.kubernetes.pods import POLICY, NodePod, NriPod, one_rule
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot, boot, module_boot
from e2e.node.engines import FORMATS, RUNC, containerd_config
from e2e.trust.authorities import Authority
from hook import __version__

pytestmark = [
    marks.promise("The chart is valid, refuses invalid values, and its pods wire and unwire a node"),
    marks.promise("A NodeEnforcement says what was seen on its node: what could not be looked at is absent"),
]

__all__ = ["boot", "module_boot"]

BROKEN = POLICY.replace("rules:", "rulez:")
UNIT = "reassert-kubernetes.service"
WIRED = "node.sh: wired\n"
RECORD = "/var/lib/reassert/node/installed.json"
LEFT_FOR_RUNNING_CONTAINERS = {
    "/opt/reassert",
    "/opt/reassert/reassert-runc",
    "/var/lib/reassert",
    "/var/lib/reassert/node",
    RECORD,
    "/var/lib/reassert/node/lock",
}
"""A container's end calls what its start called, and the pod that takes reassert out is such a container itself."""
IN_FORCE = "/etc/reassert/policy.yaml"
COMMAND = "/src/reassert/dist/reassert/reassert"
STATE = ("/etc/reassert", "/var/lib/reassert", "/var/lib/reassert-kubernetes")


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A worker node with the chart's image pulled; of the oldest systemd that there is."""
    return with_image(module_boot, "bookworm")


@pytest.fixture(scope="module")
def later(module_boot: Boot) -> BootedNode:
    """A worker node with containerd 2.1, where NRI is on."""
    return with_image(module_boot, "forky")


def with_image(boot: Boot, suite: str) -> BootedNode:
    """A node with one handler, since `install` and `verify` start containers under each, and with the chart's image."""
    node: BootedNode = boot(suite, config=containerd_config(FORMATS[suite], (RUNC,)))
    image = write_image(node.directory, ROOT / "build/roots/trixie")
    node.ctr("image", "import", str(image))
    image.unlink()
    wait_for(lambda: node.cri.has_image(NAME), "the chart's image")
    return node


@pytest.fixture
def daemon(node: BootedNode) -> Iterator[Any]:
    """Starts node pods; at the end the node is as it was."""
    before = node.snapshot()
    started: list[NodePod] = []

    def start(**more: Any) -> NodePod:
        started.append(NodePod(node, **more))
        return started[-1]

    yield start
    for each in started:
        each.end()
    if node.path(RECORD).exists():
        cleaned("the wiring", lambda: node.run(COMMAND, "uninstall"))
    node.run("rm", "-rf", *STATE)
    assert node.snapshot() == before


OVERRIDE = [("REQUESTS_CA_BUNDLE", "/tmp/evil")]


def hostile(node: BootedNode, handler: str = "runc") -> str:
    """What a pod has for REQUESTS_CA_BUNDLE whose author sets it."""
    pod = node.cri.run_pod(handler)
    try:
        container = pod.run(image=PLAIN, env=OVERRIDE)
        return dict(entry.split("=", 1) for entry in container.environ())["REQUESTS_CA_BUNDLE"]
    finally:
        pod.remove()


def test_the_node_is_wired_verified_and_put_back_to_the_byte(daemon: Any, node: BootedNode) -> None:
    """In between, facts.sh says what its NodeEnforcement says."""
    before = node.snapshot()
    assert hostile(node) == "/tmp/evil"
    old = node.cri.run_pod("runc")  # before the install, so that it differs from the policy
    old.run(image=PLAIN, env=OVERRIDE)
    first = daemon(fleet=True)
    first.wait(True)
    assert hostile(node) == "/etc/ca.pem"
    assert "every handler is protected" in first.said()
    new = node.cri.run_pod("runc")
    new.run(image=PLAIN, env=OVERRIDE)
    facts = first.facts(lambda seen: seen["state"] == "Enforcing" and seen["containers"]["inPolicy"] >= 2)
    wanted = hashlib.sha256(POLICY.encode()).hexdigest()
    assert (facts["state"], facts["reassert"]) == ("Enforcing", __version__)
    assert facts["policy"]["wanted"] == {"sha256": wanted, "hash": wanted[:12]}
    assert facts["policy"]["inForce"].items() >= {"sha256": wanted, "mode": "Enforce", "enforcedRules": 1}.items()
    assert (facts["handlers"]["notWired"], facts["handlers"]["notKnown"]) == (0, 0)
    assert facts["engine"].startswith("containerd 1.6")
    assert facts["verify"]["result"] == "Protected"
    assert facts["containers"]["drifted"] == 2  # the old container and its sandbox
    assert facts["containers"]["exempt"] >= 1  # the node pod itself
    assert facts["lastDay"]["overrides"] >= 1  # the log has those of earlier tests too
    old.remove()
    new.remove()
    first.end()
    wired, engine = node.snapshot(), node.property("containerd.service", "MainPID")
    second = daemon()  # as after an update of the DaemonSet
    second.wait(True)
    assert node.snapshot() == wired
    assert node.property("containerd.service", "MainPID") == engine
    second.end()
    last = daemon(state="absent")
    last.wait(True)
    assert hostile(node) == "/tmp/evil"
    assert "it stays and only calls /usr/sbin/runc" in last.said()
    assert set(node.snapshot()) - set(before) == LEFT_FOR_RUNNING_CONTAINERS
    assert not node.path(STATE[-1]).exists()


def test_a_first_policy_that_is_broken_wires_nothing_and_the_default_one_only_logs(
    daemon: Any, node: BootedNode
) -> None:
    """A state that lasts is told once, or each node in Audit mode would write its condition at each probe."""
    before = node.snapshot()
    pod = daemon(policy=BROKEN, fleet=True)
    pod.wait(False, "the node has no other policy, so nothing is wired")
    after = {path: entry for path, entry in node.snapshot().items() if not path.startswith("/etc/reassert")}
    assert after == before
    pod.policy.write({"policy.yaml": (ROOT / "config/policy.yaml").read_text()})
    pod.wait(True)
    assert hostile(node) == "/tmp/evil"
    first = pod.facts(lambda seen: seen["state"] == "NothingToVerify")
    assert pod.state() == "NothingToVerify NOT ENFORCED: the mode is Audit\n"
    last = pod.facts(lambda seen: seen["lookedAt"] > first["lookedAt"])
    assert pod.state() == "NothingToVerify NOT ENFORCED: the mode is Audit\n"
    assert (last["policy"]["inForce"]["mode"], last["message"]) == ("Audit", "NOT ENFORCED: the mode is Audit")
    pod.policy.write({"policy.yaml": BROKEN})
    refused = pod.facts(lambda seen: seen["state"] == "NotReady")
    assert refused["policy"]["wanted"]["sha256"] == hashlib.sha256(BROKEN.encode()).hexdigest()
    assert refused["policy"]["inForce"] == last["policy"]["inForce"]
    assert pod.said().count("the ConfigMap's policy has errors") == 2  # at first and now, not at each look


@marks.promise(
    "A policy that names a file which the node lacks stops the chart's roll-out there, and the node keeps its policy",
    about="Packages and cluster",
)
def test_a_policy_follows_the_configmap_unless_it_is_broken_or_names_a_file_that_the_node_lacks(
    daemon: Any, node: BootedNode
) -> None:
    """A typo in a hostPath stops the roll-out here; the node's containers start as before."""
    pod = daemon(runtimeClass="crun")  # which is not verified: that takes its time, and the policy is what counts
    pod.wait(True)
    source = "/etc/ca-certificate.crt"
    missing = f"hostPath {source}: No such file or directory"
    naming = POLICY + f"  - {{name: m, mounts: [{{hostPath: {source}, mountPath: /ca.crt}}]}}\n"
    for text, why in ((BROKEN, "the ConfigMap's policy has errors"), (naming, missing)):
        pod.policy.write({"policy.yaml": text})
        pod.wait(False, why)
        assert node.path(IN_FORCE).read_text() == POLICY
    assert "/etc/reassert/policy.yaml.candidate:5:3: error" in pod.said()
    assert hostile(node, "crun") == "/etc/ca.pem"
    wired = pod.said().count(WIRED)
    node.path(source).write_text("x")
    pod.wait(True)
    assert "/ca.crt" in node.path(IN_FORCE).read_text()
    assert pod.said().count(WIRED) == wired + 1
    assert pod.said().count(missing) == 1
    node.path(source).unlink()
    pod.wait(False, missing)  # a file that goes away later
    pod.policy.write({"policy.yaml": POLICY.replace("ca.pem", "other.pem")})
    pod.wait(True)
    assert hostile(node, "crun") == "/etc/other.pem"
    assert [path.name for path in node.path("/etc/reassert").iterdir()] == ["policy.yaml"]
    node.path(IN_FORCE).write_text(POLICY)  # somebody on the node
    wait_for(lambda: "other.pem" in node.path(IN_FORCE).read_text(), "the ConfigMap's policy", pod.said)
    pod.end()
    audited = naming.replace("spec:", "spec:\n  mode: Audit")  # the brake of docs/break-glass.md
    daemon(policy=audited, audit=True, runtimeClass="crun").wait(True)
    assert hostile(node, "crun") == "/tmp/evil"


def test_a_pod_waits_for_its_turn_for_a_hold_and_for_what_an_earlier_pod_began(daemon: Any, node: BootedNode) -> None:
    """That is the node's own service, which the end of a pod does not interrupt."""
    before = node.snapshot()
    waiting = daemon(state="", runtimeClass="crun")
    waiting.wait(True)
    assert node.snapshot() == before
    waiting.end()
    hold = node.path("/etc/reassert/hold")
    hold.parent.mkdir()
    hold.touch()
    first = daemon(runtimeClass="crun")
    first.wait(False, "the node has /etc/reassert/hold")
    assert hostile(node) == "/tmp/evil"
    hold.unlink()
    wait_for(lambda: node.property(UNIT, "ActiveState") == "active", UNIT, first.said)
    first.container.remove()
    pod = daemon(state="", runtimeClass="crun")  # a node that is wired has had its turn
    pod.wait(True)
    assert "waiting for" in pod.said() or "is wired already" in pod.said()
    assert WIRED in pod.said()
    hold.touch()
    pod.wait(False, "the node has /etc/reassert/hold")
    node.path(IN_FORCE).write_text(POLICY.replace("spec:", "spec:\n  mode: Audit"))  # docs/break-glass.md
    assert hostile(node, "crun") == "/tmp/evil"
    hold.unlink()
    pod.wait(True)
    assert hostile(node, "crun") == "/etc/ca.pem"


ROOTS = Path("/etc/ssl/certs/ca-certificates.crt")
TRUST = one_rule("{name: company, trust: {bundle: company}}")


@marks.promise(
    "The cluster's CA bundle is in the node's trust store before a policy needs it, and one that is empty or "
    "broken changes nothing",
    about="Packages and cluster",
)
def test_the_clusters_cas_are_on_the_node_before_its_policy(daemon: Any, node: BootedNode, tmp_path: Path) -> None:
    """A rotation reaches a running container; a bundle that is empty or broken changes nothing."""
    old, new = (Authority(tmp_path, name).pem.read_text() for name in ("old", "new"))
    roots = node.path(str(ROOTS))
    node.run("mkdir", "-p", str(ROOTS.parent))
    roots.write_text(Authority(tmp_path, "public").pem.read_text())
    pod = daemon(policy=TRUST, bundle={"ca.crt": old, "trust.jks": "\x01"}, runtimeClass="crun")
    pod.wait(True)
    sandbox = node.cri.run_pod("crun")
    container = sandbox.run(image=PLAIN)

    def seen() -> str:
        return container.exec("/bin/cat", "/etc/ssl/certs/added.pem")

    assert old in seen()
    for bad, why in (({}, "empty. Give a file"), ({"ca.crt": old[:300]}, "no line -----END CERTIFICATE-----")):
        pod.bundle.write(bad)
        pod.wait(False, why)
        assert "the node keeps its trust store" in pod.ready()[1]
        assert old in seen()
    pod.bundle.write({"ca.crt": old, "next.crt": new})
    wait_for(lambda: new in seen() and old in seen(), "both", pod.said)
    pod.bundle.write({"ca.crt": new})
    wait_for(lambda: new in seen() and old not in seen(), "the new one", pod.said)
    pod.wait(True)
    assert node.property("reassert-trust.path", "ActiveState") == "active"
    assert node.property("reassert-trust.timer", "ActiveState") == "active"
    assert node.property("reassert-trust.service", "Result") == "success", node.journal("reassert-trust")
    sandbox.remove()
    pod.end()
    daemon(policy=TRUST, bundle={"ca.crt": new}, state="absent", runtimeClass="crun").wait(True)
    assert node.property("reassert-trust.path", "LoadState") == "not-found"
    assert node.property("reassert-trust.timer", "ActiveState") == "inactive"
    assert not node.path("/etc/reassert").exists()
    node.run("rm", "-r", "/etc/ssl")  # which the test's root does not have


def test_a_failure_is_said_and_not_tried_again(daemon: Any, node: BootedNode) -> None:
    """Each try may restart the engine, for the same failure."""
    config = node.path("/etc/containerd/config.toml")
    good = config.read_text()
    config.write_text(good + "\n[broken\n")
    try:
        pod = daemon()
        pod.wait(False, "reassert install failed")
        assert pod.said().count("reassert install failed") == 1
        assert "config.toml" in pod.said()
    finally:
        config.write_text(good)
    assert hostile(node) == "/tmp/evil"


def test_nri_in_a_pod_has_its_second_line(later: BootedNode) -> None:
    """The plugin while its pod is there, the wrapper while it is not."""
    node = later
    pod = NodePod(node, runtimeClass="runc")  # wires the only handler, and verifies nothing
    pod.wait(True)
    plugin = NriPod(node.cri, node.path)
    plugin.wait()
    assert hostile(node) == "/etc/ca.pem"
    plugin.end()
    assert hostile(node) == "/etc/ca.pem"
    events = map(json.loads, node.path("/var/log/reassert/events.jsonl").read_text().splitlines())
    of_ours = [event for event in events if event.get("container", {}).get("container") == "c"]
    assert [event["adapter"] for event in of_ours] == ["nri", "runtime"]
    # The same without the wrapper. Its values are in base_runtime_spec, which the engine reads when it starts, so new
    # ones need a new pod.
    pod.end()
    pod = NodePod(node, adapters=["nri"])
    pod.wait(True)
    assert hostile(node) == "/etc/ca.pem"
    other = POLICY.replace("ca.pem", "other.pem")
    pod.policy.write({"policy.yaml": other})
    pod.wait(False, " out of date; the install restarts containerd")
    plugin = NriPod(node.cri, node.path)
    assert not plugin.probe("readinessProbe")  # the node's own service goes, and only then the pod's plugin starts
    pod.end()
    NodePod(node, policy=other, nri=True, adapters=["nri"]).wait(True)
    assert node.property("reassert-nri", "LoadState") == "not-found"
    plugin.wait()
    assert hostile(node) == "/etc/other.pem"
    plugin.end()
    with pytest.raises(CriError, match="reassert: refused"):
        hostile(node)
