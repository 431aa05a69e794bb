"""How Kubernetes' own controllers roll a policy out (tests/lab/cluster/run.sh). Nodes are objects alone.

Threads do for the pods what kubelet would do: they end those that are deleted, make the others ready, and run the Job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import pytest
from harness.tools import run
from unit.kubernetes.chart import CHART, find, load, objects

from lab.cluster.cluster import NAMESPACE, PROGRAMS, Cluster, Object, control_plane

NODES = ("a", "b", "c", "d")
ONE = "kind: NodePolicy\nspec: {exclude: {namespaces: [kube-system]}, rules: []}\n"
TWO, BAD = ONE + "# two\n", ONE + "# bad\n"
OURS = "--selector=app.kubernetes.io/name=reassert"


class Kubelets:
    """Of all nodes. Pods of the ConfigMap `never_ready`, or with the STATE `refuses_state`, do not become ready."""

    def __init__(self, cluster: Cluster) -> None:
        self.never_ready = ""
        self.refuses_state = "none"
        self._cluster, self._ended = cluster, Event()
        self._jobs: dict[str, Thread] = {}
        self._thread = Thread(target=self._work)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in (self._thread, *self._jobs.values()):
            thread.join(60)

    def _work(self) -> None:
        while not self._ended.wait(0.2):
            for pod in self._cluster.get("pods"):
                name, job = pod["metadata"]["name"], pod["metadata"]["labels"].get("batch.kubernetes.io/job-name")
                if "deletionTimestamp" in pod["metadata"]:
                    ended = ("delete", "pod", name, "--namespace", NAMESPACE, "--force", "--grace-period=0")
                    self._cluster.try_kubectl(*ended)
                elif job and name not in self._jobs:
                    self._jobs[name] = Thread(target=self._run, args=(pod,))
                    self._jobs[name].start()
                elif not job and "nodeName" in pod["spec"] and not is_ready(pod) and self._may_be_ready(pod["spec"]):
                    self._tell(name, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})

    def _may_be_ready(self, spec: Object) -> bool:
        state = {"name": "STATE", "value": self.refuses_state}
        return policy_of(spec) != self.never_ready and state not in spec["containers"][0]["env"]

    def _tell(self, pod: str, status: Object) -> None:
        patch = ("patch", "pod", pod, "--namespace", NAMESPACE, "--subresource=status", "--type=merge")
        self._cluster.try_kubectl(*patch, f"--patch={json.dumps({'status': status})}")

    def _run(self, pod: Object) -> None:
        """The Job's command, as the administrator; of its rights there is a test with a kubelet."""
        with TemporaryDirectory() as directory:
            kubectl = Path(directory, "kubectl")
            kubectl.write_text(
                f'#!/bin/sh\nexec {PROGRAMS}/kubectl --kubeconfig={self._cluster.directory}/admin.conf "$@"\n'
            )
            kubectl.chmod(0o755)
            (container,) = pod["spec"]["containers"]
            environment = {"PATH": f"{directory}:{os.environ['PATH']}", "HOME": directory}
            done = run(*container["command"], *container["args"], env=environment, check=False)
        self._tell(pod["metadata"]["name"], {"phase": "Failed" if done.returncode else "Succeeded"})


def is_ready(pod: Object) -> bool:
    return "True" in [each["status"] for each in pod["status"].get("conditions", []) if each["type"] == "Ready"]


def policy_of(spec: Object) -> str:
    """The name of the ConfigMap that a node pod mounts."""
    (name,) = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "policy"]
    return str(name)


def values(policy: str, **node: object) -> Object:
    """Values of the chart, without the hooks that need a kubelet."""
    return {
        "policy": {"text": policy, "check": False},
        "node": {"firstInstall": "AtOnce", "onUninstall": "Keep", **node},
    }


def name_of(policy: str) -> str:
    return policy_of(find(objects(values(policy)), "DaemonSet")["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane("*,-node-lifecycle-controller") as cluster:
        for name in NODES:
            labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            cluster.apply({**node, "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}})
        yield cluster


@pytest.fixture(scope="module")
def kubelets(cluster: Cluster) -> Iterator[Kubelets]:
    kubelets = Kubelets(cluster)
    yield kubelets
    kubelets.end()


def policies(cluster: Cluster) -> dict[str, str]:
    """The ConfigMap that each node's pod mounts, by node."""
    return {
        pod["spec"]["nodeName"]: policy_of(pod["spec"]) for pod in cluster.pods("node") if "nodeName" in pod["spec"]
    }


def configmaps(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.get("configmaps", OURS)}


def revise(cluster: Cluster, policy: str, **node: object) -> None:
    """Install or upgrade, and wait for the roll-out."""
    cluster.install(values(policy, **node), upgrade=bool(cluster.helm.list()))
    cluster.rollout(seconds=60)


@pytest.mark.usefixtures("kubelets")
def test_a_policy_comes_and_goes_with_its_pods(cluster: Cluster) -> None:
    revise(cluster, ONE)
    assert configmaps(cluster) == {name_of(ONE)}
    revise(cluster, TWO)
    assert policies(cluster) == dict.fromkeys(NODES, name_of(TWO))
    assert configmaps(cluster) == {name_of(ONE), name_of(TWO)}
    text = cluster.get("configmap", name_of(ONE))["data"]["policy.yaml"]
    assert text == ONE
    others = [f"{ONE}# {number}\n" for number in range(3)]
    for policy in others:
        revise(cluster, policy)
    assert configmaps(cluster) == {name_of(policy) for policy in others}


def test_a_bad_policy_stops_at_the_first_node_and_rollback_undoes_it(cluster: Cluster, kubelets: Kubelets) -> None:
    revise(cluster, ONE)
    kubelets.never_ready = name_of(BAD)
    cluster.install(values(BAD), upgrade=True)
    cluster.wait(lambda: name_of(BAD) in policies(cluster).values(), "the first pod")
    for _ in range(20):  # the controller looks at each change of a pod; none goes further
        assert list(policies(cluster).values()).count(name_of(BAD)) <= 1
    # Every pod that has not had its turn still has its ConfigMap, as it needs when its node reboots.
    assert {*policies(cluster).values()} <= configmaps(cluster)
    # Whoever gives up on one bad policy and rolls out another keeps them, too.
    cluster.install(values(BAD + "#"), upgrade=True)
    kubelets.never_ready = name_of(BAD + "#")
    assert {*policies(cluster).values()} <= configmaps(cluster)
    assert name_of(ONE) in configmaps(cluster)
    cluster.helm.rollback("reassert", version=len(cluster.helm.history("reassert")) - 2, wait="hookOnly")
    cluster.rollout(seconds=60)
    assert policies(cluster) == dict.fromkeys(NODES, name_of(ONE))
    assert name_of(ONE) in configmaps(cluster)
    for policy in (TWO, ONE, TWO):
        revise(cluster, policy)
    assert configmaps(cluster) == {name_of(ONE), name_of(TWO)}


def test_uninstall_leaves_no_policy(cluster: Cluster, kubelets: Kubelets) -> None:
    """In the middle of a roll-out, too."""
    kubelets.never_ready = name_of(BAD)
    cluster.install(values(BAD), upgrade=True)
    cluster.helm.uninstall("reassert", timeout=60)
    assert configmaps(cluster) == set()
    cluster.wait(lambda: not cluster.pods("node"), "the end of the pods")
    kubelets.never_ready = ""


@pytest.mark.usefixtures("kubelets")
def test_audit_everywhere_keeps_the_other_values(cluster: Cluster) -> None:
    """The command of docs/break-glass.md: --reuse-values, and two values."""
    revise(cluster, ONE.replace("rules: []", "rules: [{name: a, mode: Enforce, env: [{name: A, value: b}]}]"))
    brake = {"policy": {"audit": True}, "node": {"maxUnavailable": "100%"}}
    cluster.helm.upgrade(CHART, "reassert", brake, namespace=NAMESPACE, reuse_values=True, wait="hookOnly")
    cluster.rollout(seconds=60)
    (name,) = {*policies(cluster).values()}
    (policy,) = load(cluster.get("configmap", name)["data"]["policy.yaml"])
    rule = {"name": "a", "mode": "Audit", "env": [{"name": "A", "value": "b"}]}
    assert policy["spec"] == {"exclude": {"namespaces": ["kube-system"]}, "mode": "Audit", "rules": [rule]}
    strategy = cluster.get("daemonset", "reassert-node")["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == "100%"
    cluster.helm.uninstall("reassert", timeout=60)
    cluster.wait(lambda: not cluster.pods("node"), "the end of the pods")


def states(cluster: Cluster) -> list[str]:
    """The env STATE of each node pod."""

    def state(pod: Object) -> str:
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        return str(env.get("STATE", ""))

    return sorted(state(pod) for pod in cluster.pods("node"))


def test_the_first_roll_out_goes_from_node_to_node(cluster: Cluster, kubelets: Kubelets) -> None:
    """It stops at the first node that fails. Later ones leave STATE as it is."""
    kubelets.never_ready = ""
    kubelets.refuses_state = "present"
    cluster.install(values(ONE, firstInstall="Rolling"))  # with the Job, which waits for the pods
    cluster.wait(lambda: states(cluster) == ["", "", "", "present"], "the first pod with STATE")
    for _ in range(20):
        assert states(cluster) in (["", "", "", "present"], ["", "", ""])
    kubelets.refuses_state = "none"
    cluster.rollout(seconds=60)
    assert states(cluster) == ["present"] * 4
    before = cluster.get("daemonset", "reassert-node")["metadata"]["generation"]
    cluster.install(values(ONE, firstInstall="Rolling"), upgrade=True)
    assert cluster.get("daemonset", "reassert-node")["metadata"]["generation"] == before
    cluster.install(values(TWO, firstInstall="Rolling"), upgrade=True)
    cluster.rollout(seconds=60)
    cluster.helm.rollback("reassert", wait="hookOnly")
    cluster.rollout(seconds=60)
    assert states(cluster) == ["present"] * 4
    # After an unwiring by hand (docs/break-glass.md), an upgrade wires the nodes again.
    cluster.kubectl("set", "env", "daemonset/reassert-node", "STATE=absent", "--namespace", NAMESPACE)
    cluster.rollout(seconds=60)
    cluster.install(values(ONE, firstInstall="Rolling"), upgrade=True)
    cluster.rollout(seconds=60)
    assert states(cluster) == ["present"] * 4
    cluster.helm.uninstall("reassert", timeout=60)
