"""What the node pods' token may do on a real API server (tests/lab/cluster/run.sh), with no node behind it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.tools import run
from unit.kubernetes.chart import KUBERNETES

from lab.cluster.cluster import NAMESPACE, PROGRAMS, TAINT, Cluster, Object, control_plane

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
    "owner": ("", merge("metadata", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}])),
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane with the chart as installed without the policy, two nodes, and a pod on each."""
    with control_plane(controllers="") as cluster:
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


def one_round(client: Client, at: Path, **environment: str) -> None:
    """report.sh with a token; `at` has its state and facts."""
    (at / "sleep").write_text("#!/bin/sh\nexit 1\n")  # ends it after one round
    (at / "sleep").chmod(0o755)
    if not (at / "kubectl").exists():
        (at / "kubectl").symlink_to(PROGRAMS / "kubectl")
    own = {"PATH": f"{at}:{os.environ['PATH']}", "HOME": str(at)}  # kubectl caches below HOME
    own |= {"KUBECONFIG": str(client.kubeconfig), "NODE": MINE}
    own |= {"STATE_FILE": str(at / "state"), "FACTS_FILE": str(at / "facts.json")}
    done = run("sh", str(KUBERNETES / "image/report.sh"), env=own | environment, check=False)
    assert "could not" not in done.stderr, done.stderr


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
    for state, status in (("NotReady words\n", "False"), ("Enforcing \n", "True")):
        (tmp_path / "state").write_text(state)
        one_round(limited, tmp_path, CONDITION="true", TAINT=TAINT)
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


# -- NodeEnforcement (docs/kubernetes.md, "All nodes in one view")

GROUP = "/apis/reassert.internal/v1alpha1/nodeenforcements"
FACTS: Object = {
    "lookedAt": "2026-01-31T12:00:00Z",
    "state": "Enforcing",
    "policy": {
        "wanted": {"hash": "a" * 12, "sha256": "a" * 64},
        "inForce": {"hash": "b" * 12, "sha256": "b" * 64, "mode": "Mixed", "enforcedRules": 3, "triedRules": 1},
    },
    "handlers": {"wired": 1, "notWired": 1, "notKnown": 0},
    "verify": {"at": "2026-01-31T11:00:00Z", "result": "Protected", "engines": [{"engine": "crio", "exitStatus": 0}]},
    "containers": {"inPolicy": 20, "drifted": 2, "exempt": 9, "unknown": 0},
    "lastDay": {"refusals": 4, "overrides": 5},
    "trustStores": [{"name": "company", "generation": 7}],
}


def enforcement(name: str, **more: object) -> Object:
    """An object as report.sh makes it, without its owner."""
    return {"apiVersion": "reassert.internal/v1alpha1", "kind": "NodeEnforcement", "metadata": {"name": name}, **more}


def apply(client: Client, what: Object, *options: str) -> tuple[int, str]:
    """Server-side apply, as report.sh does it."""
    command = ("apply", "--server-side", "--force-conflicts", "--field-manager=reassert", "--validate=false")
    return client.kubectl(*command, "--filename=-", *options, input=json.dumps(what))


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, limited: Client) -> Client:
    """The token of MINE, once the cluster has the view, and FOREIGN its object."""
    cluster.install({**VALUES, "node": REPORTS, "fleet": {"enabled": True}}, upgrade=True)
    cluster.kubectl("wait", "crd/nodeenforcements.reassert.internal", "--for=condition=Established", "--timeout=60s")
    cluster.kubectl("create", "--filename=-", input=json.dumps(enforcement(FOREIGN)))
    name = "reassert-enforcement"
    assert cluster.get("validatingadmissionpolicy", name)["spec"]["failurePolicy"] == "Fail"
    cluster.wait(lambda: f"'{name}'" in apply(limited, enforcement(FOREIGN), "--dry-run=server")[1], "the policy")
    return limited


def report(cluster: Cluster, client: Client, at: Path, facts: Object) -> list[str]:
    """A round of report.sh, with the view alone, and the columns of `kubectl get nodeenforcements NODE`."""
    (at / "facts.json").write_text(json.dumps(facts))
    one_round(client, at, FLEET="true")
    return cluster.kubectl("get", "nodeenforcements", MINE, "--no-headers").split()


def test_the_page_of_the_fleet(cluster: Cluster, fleet: Client, tmp_path: Path) -> None:
    """What report.sh sends is what kubectl shows; a fact that is not looked at any more is not there any more."""
    cells = report(cluster, fleet, tmp_path, FACTS)
    assert cells[:9] == [MINE, "Enforcing", "Mixed", "b" * 12, "a" * 12, "1", "Protected", "2", "4"]
    assert cells[9] == "5"
    wide = cluster.kubectl("get", "nodeenforcements", MINE, "--no-headers", "--output=wide").split()
    assert wide[wide.index("20") : wide.index("20") + 3] == ["20", "9", "7"]  # in policy, exempt, trust
    made = cluster.get("nodeenforcement", MINE)
    assert made["status"] == FACTS
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", cluster.get("node", MINE)["metadata"]["uid"])
    fewer = {name: FACTS[name] for name in ("lookedAt", "state")}
    report(cluster, fleet, tmp_path, fewer)
    assert cluster.get("nodeenforcement", MINE)["status"] == fewer
    report(cluster, fleet, tmp_path, FACTS)


def test_a_deleted_object_is_made_again(cluster: Cluster, fleet: Client, tmp_path: Path) -> None:
    cluster.kubectl("delete", "nodeenforcement", MINE)
    report(cluster, fleet, tmp_path, FACTS)
    assert cluster.get("nodeenforcement", MINE)["status"] == FACTS


def owned_by(name: str, uid: str, kind: str = "Node") -> Object:
    return {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}]}


@pytest.mark.parametrize("name", [FOREIGN, "new"])
@pytest.mark.parametrize("part", ["", "status"])
def test_the_token_writes_no_other_nodes_enforcement(cluster: Cluster, fleet: Client, name: str, part: str) -> None:
    """Neither an object that is there nor a new one."""
    before = cluster.kubectl("get", "--raw", f"{GROUP}/{FOREIGN}")
    subresource = ["--subresource=status"] if part else []
    tried = [
        apply(fleet, enforcement(name, **({"status": FACTS} if part else {})), *subresource),
        fleet.kubectl(
            "patch", "nodeenforcement", name, "--type=merge", '--patch={"status": {"state": "x"}}', *subresource
        ),
        fleet.kubectl("create", "--filename=-", input=json.dumps(enforcement(name))),
        fleet.kubectl("delete", "nodeenforcement", name),
        fleet.kubectl("delete", "nodeenforcement", MINE),
    ]
    assert all(status for status, _ in tried)
    if name == FOREIGN:
        assert f"may write the NodeEnforcement of node {MINE} alone" in tried[0][1] + tried[1][1]
    assert cluster.kubectl("get", "--raw", f"{GROUP}/{FOREIGN}") == before
    assert {each["metadata"]["name"] for each in cluster.get("nodeenforcements")} == {MINE, FOREIGN}


def test_of_its_own_the_token_writes_status_and_owner_alone(cluster: Cluster, fleet: Client) -> None:
    uids = {name: cluster.get("node", name)["metadata"]["uid"] for name in (MINE, FOREIGN)}
    for metadata in (
        owned_by(FOREIGN, uids[FOREIGN]),
        owned_by(MINE, uids[FOREIGN]),
        owned_by(MINE, uids[MINE], "Pod"),
        {"finalizers": ["example.org/stay"]},
        {"labels": {"pool": "gpu"}},
        {"annotations": {"note": "1"}},
    ):
        status, said = apply(fleet, enforcement(MINE) | {"metadata": {"name": MINE, **metadata}})
        assert status == 1, metadata
        assert "this token of reassert may" in said
    assert apply(fleet, enforcement(MINE, status={**FACTS, "containers": {"drifted": "many"}}), "--subresource=status")[
        0
    ]


def test_a_token_of_no_pod_writes_no_enforcement(cluster: Cluster, fleet: Client) -> None:
    status, said = apply(Client(cluster, "unbound-fleet"), enforcement(MINE, status=FACTS), "--subresource=status")
    assert (status, "this token of reassert names no node" in said) == (1, True)
