"""The chart's objects: what Kubernetes' own schemas and Helm say of them, and what they must never become."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from e2e.support import need

from hook import __version__
from hook.policy.compiler import compile_bytes
from unit.kubernetes.chart import CHART, IMAGE, KUBERNETES, NAMESPACE, Object, find, helm, is_hook, load, objects
from unit.support import ROOT

EVERYTHING: Object = {
    "nri": {"enabled": True, "metrics": True, "index": "20"},
    "node": {"engine": "containerd", "adapters": ["runtime", "hook"], "runtimeClass": "gpu", "maxUnavailable": "10%"},
    "monitoring": {"podMonitor": True, "rules": True, "labels": {"release": "prometheus"}},
    "runtimeClasses": [
        {
            "name": "gpu",
            "handler": "nvidia",
            "scheduling": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}]},
            "overhead": {"podFixed": {"cpu": "10m"}},
        }
    ],
    "priorityClass": {"create": True},
    "imagePullSecrets": [{"name": "registry"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "seLinuxOptions": {"type": "spc_t"},
    "podLabels": {"team": "platform"},
    "podAnnotations": {"note": "1"},
}
RELEASES = {"default": {}, "everything": EVERYTHING, "own-policy": {"policy": {"manage": False}}}
OF_THE_PROMETHEUS_OPERATOR = {"PodMonitor", "PrometheusRule"}
"""Kinds for which Kubernetes has no schema."""


@pytest.mark.parametrize("version", ["1.25", "1.30", "1.37"])
@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_valid(release: str, version: str) -> None:
    """Against the JSON schema that Kubernetes of this version publishes, unknown fields refused."""
    found = objects(RELEASES[release])
    assert {"DaemonSet", "Job", "Role"} <= {each["kind"] for each in found}
    for each in found:
        if each["kind"] not in OF_THE_PROMETHEUS_OPERATOR:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_a_misspelled_field() -> None:
    """Or the test above would say nothing."""
    daemon = find(objects(), "DaemonSet")
    daemon["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(daemon, "1.30", strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_helm_lint_has_nothing_to_say(release: str) -> None:
    report = helm().lint(CHART, {**IMAGE, **RELEASES[release]}, strict=True, namespace=NAMESPACE)
    said = [message["error"] for message in report["messages"] if message["error"] != "icon is recommended"]
    assert (said, report["errors"]) == ([], [])


def test_the_archive_has_the_policy_and_the_alerts(tmp_path: Path) -> None:
    """They are links in the repository, so that there is one of each."""
    path = helm().package(CHART, destination=tmp_path)
    with tarfile.open(path) as archive:
        for name, source in {"policy": "config/policy.yaml", "alerts": "packaging/monitoring/alerts.yaml"}.items():
            member = archive.getmember(f"reassert/files/{name}.yaml")
            content = archive.extractfile(member)
            assert content
            assert content.read() == (ROOT / source).read_bytes()


def test_the_chart_is_of_the_programs_version() -> None:
    (chart,) = load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (__version__, __version__)


def test_the_default_policy_is_the_repositorys() -> None:
    """And reassert itself finds nothing wrong with it, after its way through YAML."""
    policy = find(objects(), "ConfigMap")["data"]["policy.yaml"]
    assert policy == (ROOT / "config/policy.yaml").read_text()
    assert compile_bytes("policy.yaml", policy.encode()).lines


def test_a_policy_arrives_as_it_was_written() -> None:
    text = "\n".join(["# {{ .not }} a template", "kind: NodePolicy", "spec: {exclude: {namespaces: ['kube-*']}}", ""])
    assert find(objects({"policy": {"text": text}}), "ConfigMap")["data"]["policy.yaml"] == text


def test_a_new_policy_rolls_the_nodes() -> None:
    """What depends on its names is made by `node install`, which a pod runs when it starts."""

    def checksum(values: Object) -> Any:
        return find(objects(values), "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["checksum/policy"]

    text = (ROOT / "config/policy.yaml").read_text()
    assert checksum({}) == checksum({"policy": {"text": text}})
    assert checksum({}) != checksum({"policy": {"text": text + "#"}})


def test_nodes_may_keep_their_own_policy() -> None:
    found = objects({"policy": {"manage": False}})
    assert "ConfigMap" not in {each["kind"] for each in found}
    assert [volume["name"] for volume in find(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]] == ["work"]


def test_what_the_node_command_is_told() -> None:
    def arguments(nri: bool = False, agent: bool = True, textfile: str = "", **node: object) -> Any:
        given = {"enabled": agent, "textfile": textfile}
        found = objects({"node": node, "nri": {"enabled": nri}, "agent": given})
        (container,) = find(found, "DaemonSet", "reassert-node")["spec"]["template"]["spec"]["containers"]
        assert f"--textfile={textfile}" in container["args"]
        return [argument for argument in container["args"] if not argument.startswith("--textfile")]

    assert arguments() == ["--adapter=runtime", "--agent", "--default"]
    assert arguments(textfile="/var/lib/node_exporter") == arguments()
    assert arguments(agent=False) == ["--adapter=runtime", "--no-agent", "--default"]
    told = arguments(engine="crio", adapters=["runtime", "hook"], runtimeClass="gpu")
    assert told == ["--engine=crio", "--adapter=runtime,hook", "--agent", "--runtime-class=gpu"]
    assert arguments(nri=True) == ["--adapter=runtime", "--agent", "--default"]
    assert arguments(nri=True, adapters=["nri"]) == ["--adapter=nri", "--no-unit", "--agent", "--default"]


def test_no_pod_on_the_nodes_has_a_token() -> None:
    for each in objects(EVERYTHING):
        if each["kind"] == "DaemonSet":
            assert each["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
            assert "serviceAccountName" not in each["spec"]["template"]["spec"]


def test_the_removal_may_touch_one_object_and_is_there_only_while_helm_deletes() -> None:
    found = objects(EVERYTHING)
    hooks = [each for each in found if is_hook(each)]
    assert {each["kind"] for each in hooks} == {"ServiceAccount", "Role", "RoleBinding", "Job"}
    assert not {each["kind"] for each in found if not is_hook(each)} & {"ServiceAccount", "Role", "RoleBinding", "Job"}
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"pre-delete"}
    (rule,) = find(hooks, "Role")["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["daemonsets"], ["reassert-node"])


def test_nothing_is_removed_where_that_was_asked_for() -> None:
    assert not any(map(is_hook, objects({"node": {"onUninstall": "Keep"}})))


def test_the_removal_says_to_the_pods_what_they_understand() -> None:
    """The Job's own command, carried out by kubectl on the DaemonSet that was rendered; without an API server."""
    need(shutil.which("kubectl") is not None, "kubectl")
    found = objects()
    (ask,) = find(found, "Job")["spec"]["template"]["spec"]["initContainers"]
    kubectl, namespace, *verb = ask["command"]
    options = [word for word in verb if word != "daemonset/reassert-node"]
    command = [kubectl, *options, "--local", "--filename=-", "--output=json"]
    daemon = find(found, "DaemonSet")
    asked = subprocess.run(command, input=json.dumps(daemon), capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    (container,) = json.loads(asked.stdout)["spec"]["template"]["spec"]["containers"]
    assert (container["env"][0], namespace) == ({"name": "STATE", "value": "absent"}, f"--namespace={NAMESPACE}")
    assert "absent)" in (KUBERNETES / "image/node.sh").read_text()


def test_only_the_node_pods_are_privileged() -> None:
    """The others hold to as little as they need; the removal even to PodSecurity's level `restricted`."""
    found = objects(EVERYTHING)
    (node,) = find(found, "DaemonSet", "reassert-node")["spec"]["template"]["spec"]["containers"]
    nri, metrics = find(found, "DaemonSet", "reassert-nri")["spec"]["template"]["spec"]["containers"]
    removal = find(found, "Job")["spec"]["template"]["spec"]
    assert node["securityContext"]["privileged"]
    for container in (nri, metrics, *removal["containers"], *removal["initContainers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert container is nri or "add" not in context["capabilities"]
    assert nri["securityContext"]["capabilities"]["add"] == ["SYS_CHROOT"]
    assert nri["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert removal["securityContext"]["runAsNonRoot"]
    assert removal["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_pods_are_found_by_what_selects_them() -> None:
    for name in ("default", "everything"):
        for each in objects(RELEASES[name], name="prod", namespace=NAMESPACE):
            if each["kind"] == "DaemonSet":
                labels = each["spec"]["template"]["metadata"]["labels"]
                assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
                assert each["metadata"]["name"].startswith("prod-reassert-")


def test_prometheus_is_told_of_the_pods_and_the_alerts() -> None:
    found = objects(EVERYTHING)
    labels = find(found, "DaemonSet", "reassert-nri")["spec"]["template"]["metadata"]["labels"]
    monitor = find(found, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (alerts,) = load((ROOT / "packaging/monitoring/alerts.yaml").read_text())
    assert find(found, "PrometheusRule")["spec"] == alerts


def test_the_longest_name_of_a_release_is_cut() -> None:
    """Helm takes 53 characters; a label's value 63."""
    for each in objects(EVERYTHING, name="x" * 53):
        assert len(each["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in each["metadata"].get("labels", {}).values())


def test_the_digest_goes_before_the_tag() -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example:5000/a/reassert", "tag": "1", "digest": digest}
    (container,) = find(objects({"image": image}), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example:5000/a/reassert@{digest}"
