"""What the node pods' token may do on a real API server (tests/cluster/run.sh), with no node behind it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.support import run
from unit.kubernetes.chart import KUBERNETES

from cluster.cluster import NAMESPACE, PROGRAMS, TAINT, Cluster, Object

ACCOUNT = "reassert-node"
OTHER = "reassert.internal/other"
MINE, FOREIGN = "a", "b"
"""Nodes: that of the pod whose token is tried, and another one."""

VALUES: Object = {"policy": {"check": False}}
REPORTS: Object = {"startupTaint": TAINT, "condition": True, "onUninstall": "Keep", "firstInstall": "AtOnce"}
OURS = {"type": "ReassertEnforcing", "status": "True", "reason": "Enforcing", "message": ""}
READY = {"type": "Ready", "status": "False", "reason": "Forged", "message": ""}


def merge(part: str, **content: object) -> tuple[str, str]:
    """A merge patch: its type, and its text."""
    return "merge", json.dumps({part: content})


def taint(key: str, effect: str = "NoSchedule") -> Object:
    return {"key": key, "effect": effect}


def conditions(*those: Object) -> tuple[str, str]:
    """What report.sh sends."""
    return "strategic", json.dumps({"status": {"conditions": list(those)}})


HOSTILE: dict[str, tuple[str, tuple[str, str]]] = {
    "label": ("", merge("metadata", labels={"pool": "gpu"})),
    "label-by-status": ("status", merge("metadata", labels={"pool": "gpu"})),
    "label-removed": ("", merge("metadata", labels={"pool": None})),
    "all-labels-removed-by-status": ("status", merge("metadata", labels=None)),
    "annotation": ("", merge("metadata", annotations={"note": "1"})),
    "annotation-by-status": ("status", merge("metadata", annotations={"note": "1"})),
    "finalizer": ("", merge("metadata", finalizers=["example.org/stay"])),
    "owner": (
        "",
        merge("metadata", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}]),
    ),
    "other-taint-removed": ("", merge("spec", taints=[taint(TAINT)])),
    "all-taints-removed": ("", merge("spec", taints=None)),
    "taint-added": ("", merge("spec", taints=[taint(TAINT), taint(OTHER), taint("mine", "NoExecute")])),
    "taint-added-as-ours-goes": ("", merge("spec", taints=[taint(OTHER), taint("mine", "NoExecute")])),
    "our-taint-evicts": ("", merge("spec", taints=[taint(TAINT, "NoExecute"), taint(OTHER)])),
    "taints-in-another-order": ("", merge("spec", taints=[taint(OTHER), taint(TAINT)])),
    "cordon": ("", merge("spec", unschedulable=True)),
    "provider": ("", merge("spec", providerID="cloud://mine")),
    "pod-network": ("", merge("spec", podCIDR="10.0.0.0/24", podCIDRs=["10.0.0.0/24"])),
    "other-condition": ("status", conditions(READY)),
    "other-condition-beside-ours": ("status", conditions(OURS, READY)),
    "new-condition": ("status", conditions({**READY, "type": "Forged"})),
    "conditions-removed": ("status", merge("status", conditions=None)),
    "conditions-removed-by-json": ("status", ("json", '[{"op": "remove", "path": "/status/conditions/0"}]')),
    "address": ("status", merge("status", addresses=[{"type": "InternalIP", "address": "10.66.0.1"}])),
    "capacity": ("status", merge("status", capacity={"example.org/gpu": "8"})),
    "images": ("status", merge("status", images=None)),
    "kubelet-port": ("status", merge("status", daemonEndpoints={"kubeletEndpoint": {"Port": 1}})),
}
"""Patches of the own node by their names: the subresource, and the patch."""

OWN: dict[str, tuple[str, tuple[str, str]]] = {
    "condition": ("status", conditions(OURS)),
    "taint": ("", merge("spec", taints=[taint(OTHER)])),
}
"""What report.sh does."""


class Client:
    """kubectl with a token of the node pods' service account."""

    def __init__(self, cluster: Cluster, name: str, *bound: str) -> None:
        token = cluster.kubectl("create", "token", ACCOUNT, "--namespace", NAMESPACE, *bound).strip()
        self.kubeconfig = cluster.authority.kubeconfig(f"token-{name}", token)

    def kubectl(self, *arguments: str, **options: str) -> tuple[int, str]:
        """Exit status, and what the API server says."""
        done = run(str(PROGRAMS / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments, check=False, **options)
        return done.returncode, done.stdout + done.stderr

    def patch(self, node: str, case: tuple[str, tuple[str, str]], *options: str) -> tuple[int, str]:
        """The same, of one of the patches above."""
        part, (kind, text) = case
        command = ["patch", "node", node, f"--type={kind}", f"--patch={text}", *options]
        return self.kubectl(*command, *([f"--subresource={part}"] if part else []))


def node(name: str) -> Object:
    """As large as kubelet makes it: the cost of an expression is limited."""
    images = [{"names": [f"registry.example/{'x' * 100}/{each}"], "sizeBytes": each} for each in range(50)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"pool": "cpu", **{f"example.org/label-{each}": str(each) for each in range(100)}},
            "annotations": {f"example.org/note-{each}": "x" * 500 for each in range(100)},
        },
        "spec": {"taints": [taint(TAINT), taint(OTHER)]},
        "status": {
            "conditions": [{**READY, "status": "True"}, {**READY, "type": "DiskPressure"}],
            "images": images,
            "capacity": {"cpu": "8", "memory": "64Gi", "pods": "110"},
        },
    }


def pod(on: str) -> Object:
    """For the token: a pod of the account on a node. Nothing starts it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"node-{on}", "namespace": NAMESPACE},
        "spec": {
            "nodeName": on,
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "registry.example/none"}],
        },
    }


@contextmanager
def ended(cluster: Cluster) -> Iterator[Cluster]:
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane with the chart as installed without the policy, two nodes, and a pod on each."""
    with ended(Cluster(controllers="")) as cluster:
        for name in (MINE, FOREIGN):
            cluster.kubectl("create", "--filename=-", input=json.dumps(node(name)))
            alone = merge("spec", taints=node(name)["spec"]["taints"])  # the API server adds one: not-ready
            cluster.kubectl("patch", "node", name, f"--type={alone[0]}", f"--patch={alone[1]}")
        cluster.install({**VALUES, "node": {**REPORTS, "tokenPolicy": "Never"}})
        for name in (MINE, FOREIGN):
            cluster.kubectl("create", "--filename=-", input=json.dumps(pod(name)))
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    """With the token that the pod on node MINE has."""
    return Client(cluster, "mine", "--bound-object-kind=Pod", f"--bound-object-name=node-{MINE}")


@pytest.fixture(scope="module")
def limited(cluster: Cluster, client: Client) -> Client:
    """The same token, once the API server has the policy, which the chart has by default."""
    cluster.install({**VALUES, "node": REPORTS}, upgrade=True)
    assert cluster.get("validatingadmissionpolicy", ACCOUNT)["spec"]["failurePolicy"] == "Fail"
    cluster.wait(lambda: client.patch(FOREIGN, OWN["condition"], "--dry-run=server")[0] != 0, "the policy")
    return client


@pytest.fixture
def unchanged(cluster: Cluster) -> Iterator[None]:
    """No node changes in the test."""

    def versions() -> list[Any]:
        return [each["metadata"]["resourceVersion"] for each in cluster.get("nodes")]

    before = versions()
    yield
    assert versions() == before


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.usefixtures("unchanged")
def test_of_its_own_node_the_token_cannot_change(limited: Client, case: str) -> None:
    status, said = limited.patch(MINE, HOSTILE[case])
    assert status == 1
    assert f"ValidatingAdmissionPolicy '{ACCOUNT}' with binding '{ACCOUNT}' denied request: this token of" in said


@pytest.mark.parametrize("case", [*HOSTILE, *OWN])
@pytest.mark.usefixtures("unchanged")
def test_of_another_node_the_token_can_change_nothing(limited: Client, case: str) -> None:
    status, said = limited.patch(FOREIGN, {**HOSTILE, **OWN}[case])
    assert status == 1
    assert f"this token of reassert is for updates of node {MINE}" in said


@pytest.mark.parametrize("case", OWN)
@pytest.mark.usefixtures("unchanged")
def test_a_token_of_no_pod_can_change_nothing(cluster: Cluster, limited: Client, case: str) -> None:
    """Such as one that somebody with the right to make tokens has taken along."""
    status, said = Client(cluster, "unbound").patch(MINE, OWN[case])
    assert status == 1
    assert "this token of reassert names no node" in said


@pytest.mark.usefixtures("unchanged")
def test_others_are_not_limited(cluster: Cluster, limited: Client) -> None:
    cluster.kubectl("label", "node", FOREIGN, "pool=gpu", "--overwrite", "--dry-run=server")


def test_what_reports_do_on_their_own_node(cluster: Cluster, limited: Client, tmp_path: Path) -> None:
    """report.sh with this token sets and changes the condition, and takes the taint off; all else is as before."""
    before = cluster.get("node", MINE)
    (tmp_path / "sleep").write_text("#!/bin/sh\nexit 1\n")  # ends it after one round
    (tmp_path / "sleep").chmod(0o755)
    (tmp_path / "kubectl").symlink_to(PROGRAMS / "kubectl")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}  # kubectl caches below HOME
    environment["KUBECONFIG"] = str(limited.kubeconfig)
    environment |= {"NODE": MINE, "CONDITION": "true", "TAINT": TAINT, "STATE_FILE": str(tmp_path / "state")}
    for state, status in (("NotReady words\n", "False"), ("Enforcing \n", "True")):
        (tmp_path / "state").write_text(state)
        done = run("sh", str(KUBERNETES / "image/report.sh"), env=environment, check=False)
        assert "could not" not in done.stderr, done.stderr
        after = cluster.get("node", MINE)
        found = {each["type"]: each["status"] for each in after["status"]["conditions"]}
        assert found["ReassertEnforcing"] == status
    assert [each["key"] for each in after["spec"]["taints"]] == [OTHER]
    after["spec"]["taints"] = before["spec"]["taints"]
    after["status"]["conditions"] = [
        each for each in after["status"]["conditions"] if each["type"] != "ReassertEnforcing"
    ]
    for each in (before, after):
        for field in ("resourceVersion", "managedFields"):
            each["metadata"].pop(field, None)
    assert after == before


def test_a_role_that_gives_the_account_more_gives_the_token_no_more_of_nodes(cluster: Cluster, limited: Client) -> None:
    """RBAC adds up: somebody may bind a role to all accounts of a namespace."""
    more = ("--clusterrole=cluster-admin", f"--serviceaccount={NAMESPACE}:{ACCOUNT}")
    cluster.kubectl("create", "clusterrolebinding", "more", *more)
    cluster.wait(lambda: limited.kubectl("auth", "can-i", "delete", "nodes")[0] == 0, "the role")
    new = json.dumps(node(MINE) | {"metadata": {"name": "c"}})
    for tried in (("delete", "node", MINE), ("delete", "node", FOREIGN), ("create", "--filename=-")):
        status, said = limited.kubectl(*tried, input=new)
        assert status == 1
        assert f"ValidatingAdmissionPolicy '{ACCOUNT}' with binding '{ACCOUNT}' denied request" in said
    assert {each["metadata"]["name"] for each in cluster.get("nodes")} == {MINE, FOREIGN}
