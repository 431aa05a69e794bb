"""A rule in Audit mode beside an enforced one, on real runtimes: enforced edits are there, tried ones are told."""

from __future__ import annotations

import marks
import pytest
from harness.bundle import Bundle
from harness.node import POLICY, Node
from harness.paths import REASSERT
from harness.tools import run

from e2e.runtimes import guarded
from e2e.stalled import stalling

pytestmark = marks.promise(
    "A rule in Audit mode beside enforced rules changes nothing that these decide, and its hostPath that "
    "hangs delays no container"
)

TRIED = """\
  - name: tried
    mode: Audit
    onConflict: Deny
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /evil}
    - {name: PROXY, value: company}
    - {name: "N_*", absent: true}
    mounts:
    - {hostPath: /usr, mountPath: /etc/ssl, readOnly: false, allowBelow: [/etc/ssl/certs]}
    - {hostPath: /usr, mountPath: /etc/pki}
"""
"""It contradicts company-ca about an env name and a mount."""


@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
def test_tried_rule_is_told_and_the_enforced_one_holds(real: str, node: Node, bundle: Bundle, adapter: str) -> None:
    node.compile(POLICY + TRIED)
    ca = "/etc/ssl/certs/ca-certificates.crt"
    mine = ca if adapter == "createRuntime" else "/mine"  # which cannot correct env
    bundle.spec["process"]["env"] += [f"REQUESTS_CA_BUNDLE={mine}", "PROXY=mine", "N_A=1"]
    if adapter != "createRuntime":  # which cannot remove a mount
        bundle.bind("/usr/share", "/etc/ssl/certs")
    with guarded(adapter, real, node, bundle) as container:
        environ = set(container.environ())
        assert {f"REQUESTS_CA_BUNDLE={ca}", "PROXY=mine", "N_A=1"} <= environ
        [mount] = container.mounts()
        assert (mount.point, mount.options[0]) == ("/etc/ssl", "ro")
        assert mount.root.endswith(str(node.ca).rpartition("/")[2])
        if adapter == "wrapper":
            executed = container.exec("/bin/env").splitlines()
            assert {f"REQUESTS_CA_BUNDLE={ca}", "PROXY=mine", "N_A=1"} <= set(executed)
    [event] = node.logged()
    assert (event["event"], event["applied"], event["tried"]) == ("container.would-deny", True, True)
    done = {(edit["rule"], edit["name"], edit["applied"]) for edit in event["edits"]}
    expected = {("company-ca", "/etc/ssl", True), ("tried", "PROXY", False), ("tried", "/etc/pki", False)}
    assert expected <= done
    assert {rule for rule, _, applied in done if applied} == {"company-ca"}
    told = " ".join(denial["message"] for denial in event["denials"])
    assert "wants another value for env REQUESTS_CA_BUNDLE than rule company-ca" in told
    assert "env PROXY is reserved and was set to something else" in told
    assert {denial["mode"] for denial in event["denials"]} == {"Audit"}
    printed = run(str(REASSERT), "events", "-o", "wide", "--events", str(node.events)).stdout
    assert "set mount /etc/ssl to" in printed
    assert "; set env PROXY" not in printed
    assert "would set env PROXY" in printed


@marks.hole(
    "A subPath with a carriage return blinded all rules in Audit mode", since="0.3.0", fixed="0.3.0", severity="low"
)
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
@pytest.mark.parametrize("mode", ["rule", "policy"])
def test_a_hostpath_that_hangs_delays_no_container_while_its_rule_is_tried(
    node: Node, bundle: Bundle, adapter: str, mode: str
) -> None:
    """A FUSE file system whose server does not answer, as a dead NFS server does not; here behind a symbolic link.

    Another pod has a subPath with a carriage return in its name, which kubelet has mounted on the node.
    """
    ca = "/etc/ssl/certs/ca-certificates.crt"
    bundle.spec["process"]["env"] += [f"REQUESTS_CA_BUNDLE={ca}"]
    volume, mounted = node.directory / "a\rb", node.directory / "subpath"
    volume.mkdir()
    mounted.mkdir()
    run("mount", "--bind", str(volume), str(mounted))
    with stalling(node.directory) as stuck:
        stuck.stall()
        link = node.directory / "link"
        link.symlink_to(stuck.path)
        tried = f"  - name: tried\n    mode: Audit\n    mounts:\n    - {{hostPath: {link}/x, mountPath: /opt}}\n"
        base = POLICY if mode == "rule" else POLICY.partition("  rules:")[0] + "  rules:\n"
        node.compile(base + tried)
        with guarded(adapter, "/usr/sbin/runc", node, bundle) as container:
            assert f"REQUESTS_CA_BUNDLE={ca}" in container.environ()
    run("umount", str(mounted))
    [event] = node.logged()
    assert [edit["name"] for edit in event["edits"] if edit["rule"] == "tried"] == ["/opt"]
    assert event["event"] == "container.edited", "nothing that would be refused is made up"
