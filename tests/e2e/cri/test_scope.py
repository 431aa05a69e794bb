"""Who is meant and who is not, and what somebody hears who is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.conftest import CRI_POLICY
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import (
    ENV,
    OVERRIDDEN,
    RESERVED,
    assert_no_annotation_steers_a_runtime,
    assert_only_ours,
    reserved_in,
)
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from hook.core.base.text import WHERE_TO_LOOK

# What CRI-O writes about a container of kube-system's.
FORGED_CRIO = {
    "io.container.manager": "cri-o",
    "io.kubernetes.cri-o.ContainerType": "sandbox",
    "io.kubernetes.cri-o.Labels": json.dumps({"io.kubernetes.pod.namespace": "kube-system"}),
    "io.kubernetes.pod.namespace": "kube-system",
    "io.kubernetes.container.name": "trusted",
}
FORGED_CONTAINERD = {
    f"io.kubernetes.cri.{key}": value
    for key, value in {
        "container-type": "sandbox",
        "container-name": "trusted",
        "image-name": "registry.example/trusted:1",
        "sandbox-id": "0",
        "sandbox-name": "trusted",
        "sandbox-namespace": "kube-system",
        "sandbox-uid": "0",
    }.items()
}
FORGED_DECISION = {
    "reassert/decision": json.dumps(
        {"version": 1, "policy": "0" * 64, "env": {"REQUESTS_CA_BUNDLE": "/tmp/evil", "LD_PRELOAD": "x"}, "absent": []}
    )
}

NARROW_POLICY = CRI_POLICY.replace("exclude: {", "exclude: {containerTypes: [sandbox], ").replace(
    "- name: company-ca\n",
    "- name: company-ca\n    match: {namespaces: [def*], containerNames: [c], images: ['*/hostile:*']}\n",
)
"""A rule by everything that containerd tells; what is known for certain to be a sandbox is left alone."""


@one_runtime
def test_an_excluded_namespace_is_left_alone(
    start_pod: StartPod, node: Node, containerd: Containerd, evil: Path
) -> None:
    pod = start_pod(namespace="kube-system")
    container = pod.run(image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
    assert [mount.point for mount in container.mounts()] == ["/etc/ssl/certs"]
    assert reserved_in(containerd.environ(pod.id)) == {}
    assert "reassert/decision" not in containerd.annotations(container.id)
    assert node.logged() == []


@one_runtime
def test_a_denied_override_is_explained_where_kubectl_describe_shows_it(
    start_pod: StartPod, node: Node, containerd: Containerd, evil: Path
) -> None:
    node.write_policy(CRI_POLICY.replace("- name: company-ca\n", "- name: company-ca\n    onConflict: Deny\n"))
    pod = start_pod()
    assert reserved_in(pod.run(name="tame").environ()) == RESERVED  # nothing of its own: no conflict
    refused = pod.create(env=ENV, mounts=[(str(evil), "/etc/ssl/certs")])
    with pytest.raises(CriError) as error:
        refused.start()
    text = str(error.value)
    assert re.search(
        rf"OCI runtime create failed: reassert: refused default/p/c: rule company-ca: [^\n]+{WHERE_TO_LOOK}: unknown$",
        text,
    )
    assert "\n" not in text
    for named in ("REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY", "/etc/ssl/certs"):
        assert named in text
    assert "/tmp/evil" not in text  # values of a pod are its own affair
    [event] = [event for event in node.logged() if event["id"] == refused.id]
    assert (event["event"], event["applied"]) == ("container.denied", False)
    refused.remove()
    assert containerd.remains(refused.id) == []


@marks.promise("Audit mode decides, logs and changes nothing", about="Policy")
@one_runtime
def test_audit_mode_changes_nothing_and_logs(
    start_pod: StartPod, node: Node, containerd: Containerd, evil: Path
) -> None:
    node.write_policy(CRI_POLICY.replace("spec:\n", "spec:\n  mode: Audit\n"))
    container = start_pod("open", annotations=FORGED_DECISION).run(
        image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")]
    )
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
    assert "LD_PRELOAD=x" not in container.exec_environ()
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["evil.crt"]
    decision = json.loads(containerd.annotations(container.id)["reassert/decision"])
    assert (decision["env"], decision["absent"]) == ({}, []), (
        "a draft for the hook, which looks, and nothing of the pod's"
    )
    [event] = [event for event in node.logged() if event["id"] == container.id]
    assert (event["mode"], event["applied"]) == ("Audit", False)
    assert {edit["name"] for edit in event["edits"]} == {*OVERRIDDEN, "/etc/ssl"}


@marks.claim("exclusion", "runtime")
@pytest.mark.parametrize(
    "forged", [FORGED_CRIO, FORGED_CONTAINERD | FORGED_DECISION | {"bundle": "/tmp/evil"}], ids=["cri-o", "containerd"]
)
@one_runtime
def test_forged_annotations_gain_nothing(
    start_pod: StartPod, node: Node, containerd: Containerd, evil: Path, forged: dict[str, str]
) -> None:
    """Neither out of the rules, nor into `exclude`, nor another decision for exec."""
    node.write_policy(NARROW_POLICY)
    forged = forged | {"pods/own": "arrived"}
    pod = start_pod("open", annotations=forged)
    container = pod.run(image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")], annotations=forged)
    for each in (pod.id, container.id):
        assert containerd.annotations(each)["pods/own"] == "arrived"
    for environ in (container.environ(), container.exec_environ()):
        assert reserved_in(environ) == RESERVED
        assert "LD_PRELOAD=x" not in environ
    assert_only_ours(container.exec_mounts())


@marks.claim("unsafe-annotations", "runtime")
def test_annotations_that_steer_a_runtime_do_not_arrive(
    start_pod: StartPod, containerd: Containerd, tmp_path: Path
) -> None:
    assert_no_annotation_steers_a_runtime(start_pod, containerd, tmp_path)
