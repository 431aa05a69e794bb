"""`reassert verify` against a real containerd: what it says of handlers that are wired, and of others."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import marks
import pytest
from harness.node import Node
from harness.paths import RUNTIMES

from e2e.cri.conftest import CRI_POLICY, later
from e2e.cri.kubelet import exclusive
from e2e.cri.node import Containerd
from e2e.cri.verify import housekeeping, verify
from hook.node.probe.readable import READER

pytestmark = marks.promise(
    "`verify` starts hostile containers, tries every way to a closed device, and reports `protected` only for"
    " parts that were tried",
    about="Node",
)

WIRED = {name: ["runtime"] for name in RUNTIMES}
PLAINS: dict[str, list[str]] = {f"{name}-plain": [] for name in RUNTIMES}

ALL = 0xFFFFFFFF
"""The id of an entry that names nobody."""

WIDE = CRI_POLICY + "  - {name: proxies, env: [{name: '*_PROXY', absent: true}]}\n"


@pytest.fixture(autouse=True)
def nothing_stays(containerd: Containerd, node: Node) -> object:
    """Whatever the outcome, nothing of a probe is left."""
    volumes = set(containerd.root.path("run").glob("reassert-verify-*"))
    yield
    assert containerd.pods() == []
    assert set(containerd.root.path("run").glob("reassert-verify-*")) == volumes
    assert list(containerd.root.path("run").glob("reassert/probes/*")) == []
    assert [path.name for path in node.ca.iterdir()] == ["certs"]


def test_wired_handlers_are_protected_and_others_are_a_way_around(containerd: Containerd, node: Node) -> None:
    """The emptyDirs are made in pods that kubelet does not know, and go with them."""
    root = node.directory / "kubelet-of-probes"
    volumes = "    - {emptyDir: {}, mountPath: /cache}\n    - {emptyDir: {medium: Memory}, mountPath: /scratch}\n"
    text = WIDE.replace("  exclude", f"  kubelet: {{root: {root}}}\n  exclude", 1)
    node.write_policy(text + f"  - name: preset\n    mounts:\n{volumes}")
    verified = verify(containerd, {**WIRED, **PLAINS})
    assert (verified.status, verified.error, verified.report["protected"]) == (1, "", False)
    assert verified.results() == dict.fromkeys(WIRED, ("protected",) * 2) | dict.fromkeys(
        PLAINS, ("not protected",) * 2
    )
    assert verified.saw("runc") == verified.saw("crun") == ["put back: 4 env, 4 mounts; in exec too"]
    assert verified.saw("runc-plain") == verified.saw("crun-plain")
    assert [line for line in verified.saw("runc-plain") if "/cache" not in line and "/scratch" not in line] == [
        "env REQUESTS_CA_BUNDLE is reassert-verify-pod, the policy wants /etc/ssl/certs/ca-certificates.crt",
        "env PYTHONHTTPSVERIFY is there, the policy wants it absent",
        "env NVIDIA_VISIBLE_DEVICES is reassert-verify-pod, the policy wants void",
        "env REASSERT_PROXY is there, the policy wants it absent",
        f"mount /etc/ssl: /etc/ssl, /etc/ssl/certs is mounted, the policy wants {node.ca} "
        "['rbind', 'rprivate', 'ro', 'rro']",
        "it is not wired: every pod that may use it bypasses reassert",
    ]
    assert list((root / "pods").iterdir()) == []
    assert {event.get("probe") for event in node.logged()} == {True}
    probes = len(node.logged())
    node.write_policy(WIDE)
    pod = containerd.cri.run_pod("runc", labels={"reassert.probe": "1-0"})
    pod.run(env=[("NVIDIA_VISIBLE_DEVICES", "all"), ("REASSERT_PROBE", "1-0")])
    pod.remove()
    assert {event.get("probe") for event in node.logged()[probes:]} == {None}, "of a pod that says that it is one"


def test_rules_that_differ_by_type_are_no_contradiction(containerd: Containerd, node: Node) -> None:
    """kubelet does not know the pod of a probe, which counts as an app container."""
    text = CRI_POLICY + "  - {name: app, match: {containerTypes: [container]}, env: [{name: KIND, value: app}]}\n"
    others = "match: {containerTypes: [init, ephemeral]}, env: [{name: KIND, value: others}]"
    node.write_policy(f"{text}  - {{name: others, {others}}}\n")
    verified = verify(containerd, WIRED)
    assert verified.error == ""
    assert verified.results() == dict.fromkeys(WIRED, ("protected",) * 2)
    assert verified.report["notTried"] == [
        {"part": "rule/others", "because": "containerTypes container is not init|ephemeral", "accepted": False}
    ]


def test_every_way_to_a_device_is_tried(containerd: Containerd, node: Node, gpu_node: Path) -> None:
    """containerd 1.6 has no CDI by CRI, and nobody can set env of an exec there.

    tests/e2e/nri/test_verify.py has a handler without reassert too.
    """
    node.write_policy(CRI_POLICY + exclusive(gpu_node))
    verified = verify(containerd, {"runc": ["runtime"]})
    [found] = verified.report["handlers"]
    by_device = dict.fromkeys(("device", "mount", "directory", "privileged"), "protected")
    assert found["ways"] == {**by_device, **dict.fromkeys(("cdi", "cdi-annotation", "exec-env"), "not there")}
    assert "of no use: device, mount, directory, privileged" in verified.saw("runc")


def test_a_file_that_containers_cannot_read_is_found(containerd: Containerd, node: Node) -> None:
    """The mounts are as the policy wants them, and another user than root can read one of four."""
    files = {name: node.directory / name / "company.pem" for name in ("mode", "acl", "closed", "open")}
    for file in files.values():
        file.parent.mkdir()
        file.write_text("company\n")
        file.chmod(0o644)
    files["mode"].chmod(0o600)
    os.setxattr(files["acl"], "system.posix_acl_access", access_control_list(READER.user))
    files["closed"].parent.chmod(0o700)
    (files["open"].parent / "a.key").touch(0o600)  # beside what is for everybody
    mounts = [f"{{hostPath: {files[name]}, mountPath: /{name}.pem}}" for name in ("mode", "acl")]
    mounts += [f"{{hostPath: {files[name].parent}, mountPath: /{name}}}" for name in ("closed", "open")]
    node.write_policy(CRI_POLICY + f"  - {{name: company, mounts: [{', '.join(mounts)}]}}\n")
    verified = verify(containerd, {"runc": ["runtime"]})
    assert (verified.status, verified.error, verified.report["protected"]) == (4, "", True)
    assert verified.results() == {"runc": ("protected", "protected")}
    found = {each["path"]: each["because"] for each in verified.report["unreadable"]}
    said = found["/acl.pem"].partition("for reading: ")[2]
    assert {**found, "/acl.pem": said} == {
        "/mode.pem": f"the mode of {files['mode']} is 0600, owner 0:0",
        "/acl.pem": "Permission denied; its mode permits it, and it has an access control list",
        "/closed/company.pem": f"the mode of {files['closed'].parent} is 0700, owner 0:0",
    }
    warnings = [each for each in verified.report["findings"] if each["severity"] == "warning"]
    assert {each["part"]: each["remedy"] for each in warnings} == {
        "file/mode.pem": f"chmod o+r {files['mode']}",
        "file/acl.pem": f"getfacl {files['acl']}",
        "file/closed/company.pem": f"chmod o+rx {files['closed'].parent}",
    }


def access_control_list(user: int) -> bytes:
    """All may read a file, and this user may not (acl(5), as linux/posix_acl_xattr.h has it)."""
    entries = [(0x01, 6, ALL), (0x02, 0, user), (0x04, 4, ALL), (0x10, 4, ALL), (0x20, 4, ALL)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_a_wrapper_that_forgets_exec_is_found_out(containerd: Containerd, node: Node) -> None:
    """It passes `create` on to reassert and all else to the real runtime."""
    wrapper = later(node, "runc")
    create = node.dispatcher(RUNTIMES["runc"])
    wrapper.unlink(missing_ok=True)  # it may be a link of another test to `create`
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" create "*) exec {create} "$@";; esac\nexec {RUNTIMES["runc"]} "$@"\n'
    )
    wrapper.chmod(0o755)
    try:
        verified = verify(containerd, {"runc-later": ["runtime"]})
    finally:
        wrapper.unlink()
    assert verified.status == 1
    assert verified.results() == {"runc-later": ("not protected", "not protected")}
    assert verified.saw("runc-later") == [
        "executed in it: env REQUESTS_CA_BUNDLE is reassert-verify-pod, "
        "the policy wants /etc/ssl/certs/ca-certificates.crt",
        "executed in it: env PYTHONHTTPSVERIFY is there, the policy wants it absent",
        "executed in it: env NVIDIA_VISIBLE_DEVICES is reassert-verify-pod, the policy wants void",
    ]


def test_pods_that_kubelet_ends_are_started_again(containerd: Containerd, node: Node) -> None:
    node.write_policy(WIDE)
    with housekeeping(containerd) as ended:
        verified = verify(containerd, WIRED)
    assert (verified.status, verified.error, verified.report["protected"]) == (0, "", True), verified
    assert verified.results() == dict.fromkeys(RUNTIMES, ("protected", "protected"))
    assert len(ended) >= 3


def test_without_the_sandbox_image_it_says_what_to_do(containerd: Containerd, node: Node) -> None:
    verified = verify(containerd, WIRED, image="reassert.test/none:1")
    assert (verified.status, verified.report) == (1, {})
    assert "the sandbox image reassert.test/none:1 is not on this node" in verified.error


def test_a_probe_that_wants_nothing_starts_or_says_why_not(containerd: Containerd, node: Node) -> None:
    assert verify(containerd, WIRED, probe=True).status == 0
    later(node, "crun").unlink(missing_ok=True)
    failed = verify(containerd, {"crun-later": []}, probe=True)
    assert failed.status == 1
    assert "later-crun" in failed.error
    text = CRI_POLICY.replace("hostPath: CA", "hostPath: /no/such")
    node.write_policy(text.replace("  exclude", "  onMissingFiles: Enforce\n  exclude", 1))
    refused = verify(containerd, WIRED, probe=True)
    assert refused.status == 1
    assert "reassert: refused default/reassert-verify-" in refused.error


def test_what_an_interrupted_probe_left_is_removed(containerd: Containerd, node: Node) -> None:
    """And what one left that still runs is not."""
    dead = containerd.cri.run_pod("runc-plain", labels={"reassert.probe": "99999999-0"})
    dead.run()
    alive = containerd.cri.run_pod("runc-plain", name="q", labels={"reassert.probe": "1-0"})
    assert verify(containerd, WIRED, probe=True).status == 0
    assert containerd.pods() == [alive.id]
    alive.remove()
