"""The chart on a real cluster (tests/lab/cluster/run.sh): steps in order, on nodes with containerd 1.6, 1.7 and 2.1."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from e2e.cri.images import PLAIN
from e2e.kubernetes.image import NAME
from e2e.kubernetes.pods import one_rule
from e2e.node.engines import CONFIG
from e2e.trust.authorities import Authority
from harness.paths import TOP
from unit.kubernetes.chart import load

from lab.cluster.cluster import CONTROL, NAMESPACE, TAINT, Cluster, Object, running

SUITES = ("bookworm", "trixie", "forky")
POLICY = one_rule("{name: gpu, env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]}")
OTHER = POLICY.replace("void", "none")
BROKEN = POLICY.replace("value:", "valeu:")
"""YAML and a NodePolicy, so that only `reassert policy check` sees it."""

CONDITION = "ReassertEnforcing"
COMPANY = {"name": "company-ca", "namespace": NAMESPACE}
VOLUMES = "ls /var/lib/kubelet/pods/*/volumes/*configmap/policy/policy.yaml"
HOSTILE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
REPORTED: Object = {"startupTaint": TAINT, "condition": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(*SUITES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def configs(cluster: Cluster) -> dict[str, bytes]:
    """config.toml of each node, before anything was installed."""
    return {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()}


def helm_error(words: str) -> Any:
    """Helm fails in the block, with these words."""
    import helm_python

    return pytest.raises(helm_python.HelmError, match=words)


def policy(text: str, **node: object) -> Object:
    """Values of the chart."""
    return {"policy": {"text": text}, "node": node}


def pod(name: str, node: str, tolerates: bool = True) -> Object:
    """A hostile pod for a node. `tolerates`: whether it may start before the node is wired."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": TAINT, "operator": "Exists"}] if tolerates else [],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": PLAIN, "imagePullPolicy": "Never", "env": HOSTILE}],
        },
    }


def seen(cluster: Cluster, *nodes: str) -> dict[str, list[str]]:
    """What a new hostile pod's /proc shows of the reserved name, by node."""
    names = {node: f"hostile-{node}" for node in nodes}
    cluster.apply(*(pod(name, node) for node, name in names.items()))
    cluster.kubectl("wait", "pod", *names.values(), "--for=condition=Ready", "--timeout=50s")
    found = {node: cluster.environ(name) for node, name in names.items()}
    cluster.kubectl("delete", "pod", *names.values(), "--wait")
    return {node: [entry for entry in entries if entry.startswith("NVIDIA")] for node, entries in found.items()}


def everywhere(value: str) -> dict[str, list[str]]:
    return {node: [f"NVIDIA_VISIBLE_DEVICES={value}"] for node in SUITES}


def condition(cluster: Cluster, node: str, field: str = "reason") -> tuple[str, str]:
    """Status and reason, or another field, of ReassertEnforcing."""
    for each in cluster.get("node", node)["status"]["conditions"]:
        if each["type"] == CONDITION:
            return each["status"], each.get(field, "")
    return "", ""


def taints(cluster: Cluster) -> set[str]:
    """Nodes that have the start-up taint."""
    return {
        node["metadata"]["name"]
        for node in cluster.get("nodes")
        if TAINT in {taint["key"] for taint in node["spec"].get("taints", [])}
    }


def roll(cluster: Cluster) -> int:
    """Wait for the end of a roll-out: at how many nodes it was at once, at most."""
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, cluster.get("daemonset", "reassert-node")["status"].get("numberUnavailable", 0))
        return cluster.rolled_out("reassert-node")

    cluster.wait(done, "the roll-out", 300)
    return most


def test_before_the_pods_author_has_the_last_word_and_the_taint_keeps_others_away(
    cluster: Cluster, configs: dict[str, bytes]
) -> None:
    assert seen(cluster, *SUITES) == everywhere("all")
    assert taints(cluster) == set(SUITES)
    cluster.apply(*(pod(f"waiting-{node}", node, tolerates=False) for node in SUITES))

    def is_kept_away(node: str) -> bool:
        return "untolerated taint" in cluster.kubectl("describe", "pod", f"waiting-{node}")

    cluster.wait(lambda: all(map(is_kept_away, SUITES)), "the scheduler")
    assert {each["status"]["phase"] for each in cluster.get("pods", namespace="default")} == {"Pending"}


def test_a_first_policy_with_errors_installs_nothing(cluster: Cluster, configs: dict[str, bytes]) -> None:
    with helm_error("policy-check"):
        cluster.install(policy(BROKEN, **REPORTED))
    said = cluster.kubectl("logs", "job/reassert-policy-check", "--namespace", NAMESPACE)
    assert "policy.yaml:6:" in said
    assert "valeu" in said
    assert not cluster.get("daemonsets")
    assert {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()} == configs
    cluster.helm.uninstall("reassert", timeout=120)  # nothing to remove from the nodes


def test_the_install_wires_every_node_and_takes_the_taint_off(cluster: Cluster) -> None:
    cluster.install(policy(POLICY, **REPORTED) | {"fleet": {"enabled": True}})
    cluster.rollout()
    cluster.wait(lambda: not taints(cluster), "the taints")
    cluster.wait(lambda: {condition(cluster, node) for node in SUITES} == {("True", "Enforcing")}, "the conditions")
    cluster.kubectl("wait", "pod", *(f"waiting-{node}" for node in SUITES), "--for=condition=Ready", "--timeout=50s")
    for node in SUITES:
        assert "NVIDIA_VISIBLE_DEVICES=void" in cluster.environ(f"waiting-{node}")
    assert seen(cluster, *SUITES) == everywhere("void")


def test_a_node_pods_token_is_for_its_own_node(cluster: Cluster) -> None:
    """The token that kubelet gave the pod. All that it is refused: on_api_server.py."""
    for limit in cluster.get("validatingadmissionpolicies"):
        assert limit["status"]["typeChecking"] == {}, "what the controller manager warns of"
    here, there, *_ = cluster.pods("node")
    for each, words in ((here, "start-up taint and condition alone"), (there, "is for updates of node")):
        patch = ("patch", "node", each["spec"]["nodeName"], "--type=merge", '--patch={"metadata":{"labels":{"a":"b"}}}')
        report = ("exec", here["metadata"]["name"], "--namespace", NAMESPACE, "--container=report", "--")
        status, said = cluster.try_kubectl(*report, "kubectl", *patch)
        assert status == 1
        assert words in said


def test_the_view_of_all_nodes(cluster: Cluster) -> None:
    """Written by the pods themselves, with the token that kubelet gave them."""

    def page() -> dict[str, Object]:
        return {each["metadata"]["name"]: each.get("status", {}) for each in cluster.get("nodeenforcements")}

    cluster.wait(lambda: {each.get("state") for each in page().values()} == {"Enforcing"}, "the view")
    found = page()
    assert found.keys() == set(SUITES)
    for node, version in (("bookworm", "1.6"), ("trixie", "1.7"), ("forky", "2.1")):
        status = found[node]
        assert status["engine"].startswith(f"containerd {version}")
        assert (status["verify"]["result"], status["handlers"]["notWired"]) == ("Protected", 0)
        assert status["policy"]["inForce"]["sha256"] == status["policy"]["wanted"]["sha256"]
        assert {"inPolicy", "drifted", "exempt"} <= status["containers"].keys()
        assert {"refusals", "overrides"} == status["lastDay"].keys()  # of a look before the hostile pods
    (owner,) = cluster.get("nodeenforcement", "forky")["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.get("node", "forky")["metadata"]["uid"]
    print(cluster.kubectl("get", "nodeenforcements", "--output=wide"))


def test_a_typo_in_a_host_path_stops_at_the_first_node_and_every_node_keeps_its_policy(cluster: Cluster) -> None:
    """A valid policy, so that Helm's check sees nothing. `helm rollback` undoes it."""
    before = cluster.uids()
    typo = OTHER + "  - {name: ca, mounts: [{hostPath: /etc/ssl/ca-certificate.crt, mountPath: /ca.crt}]}\n"
    cluster.install(policy(typo, **REPORTED), upgrade=True)

    def stopped() -> list[str]:
        return [node for node in SUITES if "ca-certificate.crt: No such file" in condition(cluster, node, "message")[1]]

    cluster.wait(lambda: len(stopped()) == 1, "the first node")
    (first,) = stopped()
    assert {node for node, uid in cluster.uids().items() if before[node] != uid} == {first}
    assert seen(cluster, *SUITES) == everywhere("void")
    # A node that reboots before its turn: kubelet starts the same pod again, which finds its ConfigMap.
    other = next(node for node in SUITES if node != first)
    cluster.nodes[other].run("systemctl", "stop", "kubelet", "containerd")
    cluster.nodes[other].run("sh", "-c", "umount -l /var/lib/kubelet/pods/*/volumes/*configmap/policy 2>&1; true")
    cluster.nodes[other].run("sh", "-c", "rm -rf /var/lib/kubelet/pods/*/volumes/*configmap/policy")
    cluster.nodes[other].run("systemctl", "start", "containerd", "kubelet")
    cluster.wait(lambda: cluster.nodes[other].run("sh", "-c", VOLUMES, check=False).stdout != "", "its ConfigMap")
    cluster.helm.rollback("reassert", wait="hookOnly")
    cluster.rollout()
    assert seen(cluster, *SUITES) == everywhere("void")
    cluster.wait(lambda: {condition(cluster, node) for node in SUITES} == {("True", "Enforcing")}, "the conditions")


def test_the_emergency_brake(cluster: Cluster) -> None:
    """The commands of docs/break-glass.md."""
    begun = time.monotonic()
    braked = policy(POLICY, **REPORTED, maxUnavailable="100%")
    braked["policy"]["audit"] = True
    cluster.install(braked, upgrade=True)
    in_force = [node.path("/etc/reassert/policy.yaml") for node in cluster.nodes.values()]
    cluster.wait(lambda: all("mode: Audit" in path.read_text() for path in in_force), "Audit")
    print(f"Audit on {len(SUITES)} nodes: {time.monotonic() - begun:.0f} s")
    assert seen(cluster, *SUITES) == everywhere("all")
    cluster.rollout()
    print(f"and ready: {time.monotonic() - begun:.0f} s")
    cluster.helm.rollback("reassert", wait="hookOnly")
    begun = time.monotonic()
    cluster.rollout()
    print(f"node by node, {len(SUITES)} nodes: {time.monotonic() - begun:.0f} s")
    assert seen(cluster, *SUITES) == everywhere("void")
    begun = time.monotonic()
    kubectl = ("--namespace", NAMESPACE)
    strategy = {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}}}
    cluster.kubectl(*kubectl, "patch", "daemonset/reassert-node", f"--patch={json.dumps(strategy)}")
    cluster.kubectl(*kubectl, "set", "env", "daemonset/reassert-node", "--containers=node", "STATE=absent")
    cluster.rollout()
    print(f"unwired on {len(SUITES)} nodes: {time.monotonic() - begun:.0f} s")
    assert seen(cluster, *SUITES) == everywhere("all")
    # Helm 4 applies as Kubernetes' server-side apply does, and kubectl owns maxUnavailable now.
    with helm_error("conflict"):
        cluster.install(policy(POLICY, **REPORTED), upgrade=True)

    def forced(**given: Any) -> str:
        return json.dumps({name: value for name, value in given.items() if value} | {"force_conflicts": True})

    with pytest.MonkeyPatch.context() as patched:  # the library has no parameter for --force-conflicts
        patched.setattr("helm_python.config._opts", forced)
        cluster.install(policy(POLICY, **REPORTED), upgrade=True)
    cluster.rollout()
    assert seen(cluster, *SUITES) == everywhere("void")


def test_a_rotated_ca_reaches_a_running_pod(cluster: Cluster, tmp_path: Path) -> None:
    """From a ConfigMap, as trust-manager writes it, without a roll-out: curl's library asks the store at each start."""
    old, new = (Authority(tmp_path, name, CONTROL) for name in ("old", "new"))
    ports = {old: 10443, new: 10444}
    for node in cluster.nodes.values():  # the system's roots
        roots = node.path("/etc/ssl/certs/ca-certificates.crt")
        roots.parent.mkdir(parents=True, exist_ok=True)
        roots.write_text(Authority(tmp_path, "public").pem.read_text())

    def bundle(*authorities: Authority) -> None:
        data = {"ca.crt": "".join(each.pem.read_text() for each in authorities)}
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": COMPANY, "data": data})

    def accepted() -> list[str]:
        """The servers to which the running pod connects."""
        found = []
        for authority, port in ports.items():
            client = ("openssl", "s_client", "-connect", f"{CONTROL}:{port}", "-verify_return_error", "-brief")
            if cluster.try_kubectl("exec", "client", "--", *client)[0] == 0:
                found.append(authority.name)
        return found

    rules = POLICY + "  - {name: company, trust: {bundle: company}}\n"
    bundle(old)
    cluster.install({**policy(rules, **REPORTED), "trust": {"configMap": COMPANY["name"]}}, upgrade=True)
    cluster.rollout()
    client = pod("client", "trixie")
    client["spec"]["containers"][0] |= {"image": NAME, "command": ["sleep", "10000"]}
    cluster.apply(client)
    cluster.kubectl("wait", "pod", "client", "--for=condition=Ready", "--timeout=50s")
    with ExitStack() as stack:
        for authority, port in ports.items():
            served = ("-accept", f"{CONTROL}:{port}", "-cert", str(authority.server), "-quiet")
            server = subprocess.Popen(["openssl", "s_server", *served], stdin=subprocess.PIPE)
            stack.callback(server.wait)
            stack.callback(server.kill)
        cluster.wait(lambda: accepted() == ["old"], "the old CA")
        before = cluster.uids()
        bundle(old, new)
        cluster.wait(lambda: accepted() == ["old", "new"], "both CAs", 240)
        bundle()
        cluster.wait(lambda: condition(cluster, "trixie") == ("False", "NotReady"), "the empty bundle held back", 240)
        assert accepted() == ["old", "new"]
        begun = time.monotonic()
        bundle(new)
        cluster.wait(lambda: accepted() == ["new"], "the new CA", 240)
        print(f"a rotation in a running pod: {time.monotonic() - begun:.0f} s")
        cluster.rollout()
        assert cluster.uids() == before
    cluster.kubectl("delete", "pod", "client", "--wait")


def test_a_cluster_trust_bundle_reaches_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    signer = "example.org/ca"

    def bundle(authority: Authority) -> None:
        spec = {"signerName": signer, "trustBundle": authority.pem.read_text()}
        metadata = {"name": "example.org:ca:one"}
        kind = {"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle"}
        cluster.apply({**kind, "metadata": metadata, "spec": spec})

    def stored(authority: Authority) -> bool:
        live = [node.path("/var/lib/reassert/trust/company/live/added.pem") for node in cluster.nodes.values()]
        (wanted,) = x509.load_pem_x509_certificates(authority.pem.read_bytes())
        return all(x509.load_pem_x509_certificates(path.read_bytes()) == [wanted] for path in live)

    one, two = (Authority(tmp_path, name) for name in ("one", "two"))
    bundle(one)
    trust = {"clusterTrustBundle": {"signerName": signer}}
    cluster.install({**policy(POLICY, **REPORTED), "trust": trust}, upgrade=True)
    cluster.rollout()
    assert stored(one)
    bundle(two)
    cluster.wait(lambda: stored(two), "kubelet's sync", 240)
    cluster.install(policy(POLICY, **REPORTED), upgrade=True)
    cluster.rollout()


def test_a_node_that_somebody_unwires_says_so(cluster: Cluster) -> None:
    config = cluster.nodes["forky"].path("/etc/containerd/config.toml")
    wired = config.read_bytes()
    config.write_bytes(wired.replace(b"reassert", b"nothing!"))
    try:
        cluster.wait(lambda: condition(cluster, "forky") == ("False", "NotReady"), "the condition")
        assert condition(cluster, "trixie") == ("True", "Enforcing")
        cluster.wait(lambda: not cluster.rolled_out("reassert-node"), "the readiness probe")
        with helm_error("Pod/kube-system/reassert-test not ready"):
            cluster.helm.test("reassert", timeout=20)
        logs = ("logs", "reassert-test", "--namespace", NAMESPACE)
        cluster.wait(lambda: "2 of 3 updated pods are available" in cluster.try_kubectl(*logs)[1], "the test's log")
        selector = re.findall(r"describe pods (\S+)", cluster.kubectl(*logs))
        assert "Readiness probe failed: " in cluster.kubectl("describe", "pods", *selector, "--namespace", NAMESPACE)
    finally:
        config.write_bytes(wired)
    cluster.wait(lambda: condition(cluster, "forky") == ("True", "Enforcing"), "the condition")
    cluster.helm.test("reassert", timeout=300)


def test_with_on_delete_nothing_changes_until_its_pod_is_deleted(cluster: Cluster) -> None:
    cluster.rollout()
    cluster.install(policy(OTHER, **REPORTED, updateStrategy={"type": "OnDelete"}), upgrade=True)
    before = cluster.uids()
    (mine,) = [each for each in cluster.pods("node") if each["spec"]["nodeName"] == "forky"]
    cluster.kubectl("delete", "pod", mine["metadata"]["name"], "--namespace", NAMESPACE)

    def replaced() -> bool:
        return {node for node, uid in cluster.uids().items() if before[node] != uid} == {"forky"}

    cluster.wait(replaced, "the new pod")
    cluster.wait(lambda: cluster.get("daemonset", "reassert-node")["status"].get("numberReady") == 3, "readiness")
    texts = {name: node.path("/etc/reassert/policy.yaml").read_text() for name, node in cluster.nodes.items()}
    assert texts == {"bookworm": POLICY, "trixie": POLICY, "forky": OTHER}


def test_uninstall_removes_reassert_from_every_node(cluster: Cluster, configs: dict[str, bytes]) -> None:
    """With OnDelete, which the removal Job changes."""
    cluster.helm.uninstall("reassert", timeout=600)
    assert {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()} == configs
    assert seen(cluster, *SUITES) == everywhere("all")
    cluster.wait(lambda: not cluster.pods("node"), "the end of the pods")
    left = cluster.kubectl(
        "get",
        "all,configmap,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,"
        "validatingadmissionpolicy,validatingadmissionpolicybinding",
        "--all-namespaces",
        "--output=name",
        "--selector=app.kubernetes.io/name=reassert",
    )
    assert left == ""
    assert {condition(cluster, node) for node in SUITES} == {("False", "Removed")}


def test_pools_have_policies_of_their_own(cluster: Cluster, configs: dict[str, bytes]) -> None:
    """One release for each pool; one with a priority class of its own and a handler that it makes."""
    first = {"nodeSelector": {"pool": "bookworm"}, "priorityClass": {"create": True}, "priorityClassName": "reassert"}
    cluster.install({**policy(POLICY), **first}, "one")
    cluster.install({**policy(OTHER), "nodeSelector": {"pool": "forky"}}, "two")
    for release in ("one", "two"):
        cluster.rollout(release)
    assert seen(cluster, *SUITES) == {
        "bookworm": ["NVIDIA_VISIBLE_DEVICES=void"],
        "forky": ["NVIDIA_VISIBLE_DEVICES=none"],
        "trixie": ["NVIDIA_VISIBLE_DEVICES=all"],
    }
    cluster.helm.test("two", timeout=300)
    for release in ("one", "two"):
        cluster.helm.uninstall(release, timeout=600)
    assert {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()} == configs


def test_the_manifests_with_kubectls_validation(cluster: Cluster, configs: dict[str, bytes], tmp_path: Path) -> None:
    """As docs/kubernetes.md says it, the API server's schema in force: `--validate=strict` is the default."""
    manifests = TOP / "packaging/kubernetes/manifests"
    (tmp_path / "reassert.yaml").write_text((manifests / "reassert.yaml").read_text())
    repository, _, tag = NAME.partition(":")
    (kustomization,) = load((manifests / "kustomization.yaml").read_text())
    kustomization["images"] = [{"name": "reassert", "newName": repository, "newTag": tag}]
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    (tmp_path / "policy.yaml").write_text(OTHER)
    cluster.kubectl("apply", "--dry-run=server", "-k", str(manifests))
    cluster.kubectl("apply", "-k", str(tmp_path))
    cluster.rollout()
    assert {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()} == configs
    cluster.kubectl("--namespace", NAMESPACE, "set", "env", "daemonset/reassert-node", "STATE=present")
    assert roll(cluster) == 1
    assert seen(cluster, "forky") == {"forky": ["NVIDIA_VISIBLE_DEVICES=none"]}
    (tmp_path / "policy.yaml").write_text(POLICY)
    cluster.kubectl("apply", "-k", str(tmp_path))
    assert roll(cluster) == 1
    assert seen(cluster, "forky") == {"forky": ["NVIDIA_VISIBLE_DEVICES=void"]}
    cluster.kubectl("--namespace", NAMESPACE, "set", "env", "daemonset/reassert-node", "STATE=absent")
    cluster.rollout()
    cluster.kubectl("delete", "-k", str(tmp_path))
    assert {name: node.path(CONFIG).read_bytes() for name, node in cluster.nodes.items()} == configs
