"""The chart's objects: what Kubernetes' own schemas and Helm say of them, and what they must never become."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import marks
import pytest
import yaml
from harness.tools import need

from hook import __version__
from hook.compile.compiler import compile_bytes
from hook.node.change.program import PRESETS, preset_text
from unit.kubernetes.chart import CHART, IMAGE, KUBERNETES, NAMESPACE, Object, find, helm, load, objects, text
from unit.support import ROOT

pytestmark = [
    marks.promise(
        "The chart is valid, refuses invalid values, and its pods wire and unwire a node", about="Packages and cluster"
    ),
    marks.promise("A node pod's token changes the start-up taint and the condition of its own node, and nothing else"),
]

EVERYTHING: Object = {
    "nri": {"enabled": True, "metrics": True, "index": "20", "gvisor": ["", "runsc"]},
    "node": {
        "engine": "containerd",
        "adapters": ["runtime", "hook"],
        "runtimeClass": "gpu",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "startupTaint": "reassert.internal/not-wired",
        "condition": True,
        "firstInstall": "AtOnce",
    },
    "fleet": {"enabled": True},
    "trust": {"configMap": "company-ca", "store": "sandboxes"},
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
SIGNED: Object = {"trust": {"clusterTrustBundle": {"signerName": "example.org/ca"}}}
OF_THE_PROMETHEUS_OPERATOR = {"PodMonitor", "PrometheusRule"}
"""Kinds for which Kubernetes has no schema."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "version"),
    [(values, version) for version in ("1.25", "1.37") for values in RELEASES.values()] + [(SIGNED, "1.37")],
)
def test_every_object_is_valid(values: Object, version: str) -> None:
    """Against the JSON schema that Kubernetes of this version publishes, unknown fields refused."""
    found = objects(values)
    assert {"DaemonSet", "Job", "Role"} <= {each["kind"] for each in found}
    for each in found:
        if each["kind"] not in OF_THE_PROMETHEUS_OPERATOR:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_helm_lint_has_nothing_to_say(release: str) -> None:
    report = helm().lint(CHART, {**IMAGE, **RELEASES[release]}, strict=True, namespace=NAMESPACE)
    said = [message["error"] for message in report["messages"] if message["error"] != "icon is recommended"]
    assert (said, report["errors"]) == ([], [])


def test_the_archive_has_the_policy_and_the_alerts(tmp_path: Path) -> None:
    """As copies: a link would lead nowhere in a chart that is copied alone, and Helm warns of one at each command."""
    path = helm().package(CHART, destination=tmp_path)
    with tarfile.open(path) as archive:
        presets = {f"presets/{name}": f"config/{path}" for name, path in PRESETS.items() if name}
        copies = {"policy": "config/policy.yaml", "alerts": "packaging/monitoring/alerts.yaml", **presets}
        for name, source in copies.items():
            member = archive.getmember(f"reassert/files/{name}.yaml")
            content = archive.extractfile(member)
            assert content
            assert content.read() == (ROOT / source).read_bytes()


def test_the_chart_is_of_the_programs_version() -> None:
    (chart,) = load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (__version__, __version__)
    changes = load(chart["annotations"]["artifacthub.io/changes"])[0]
    assert {each["kind"] for each in changes} <= {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert all(each.keys() == {"kind", "description"} for each in changes)


def of_nodes(found: list[Object]) -> Object:
    """The ConfigMap that the node pods mount, which is immutable."""
    volumes = find(found, "DaemonSet", "reassert-node")["spec"]["template"]["spec"]["volumes"]
    (name,) = [volume["configMap"]["name"] for volume in volumes if volume["name"] == "policy"]
    each = find(found, "ConfigMap", name)
    assert each["immutable"] is True
    return each


def test_each_policy_arrives_as_it_was_written_in_a_configmap_of_its_own() -> None:
    """So the roll-out of the DaemonSet is that of the policy. The default one is the repository's."""
    default = (ROOT / "config/policy.yaml").read_text()
    template = "# {{ .not }} a template\nkind: NodePolicy\nspec: {exclude: {namespaces: ['kube-*']}}\n"
    names = []
    for given, arrives in (("", default), (default, default), (default + "#\n", default + "#\n"), (template, template)):
        found = of_nodes(objects({"policy": {"text": given}}))
        assert found["data"]["policy.yaml"] == arrives
        names.append(found["metadata"]["name"])
    assert names[0] == names[1]
    assert len(set(names)) == 3


BRAKED = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: a}
# mode: Enforce
spec:%s
  exclude: {namespaces: [kube-system]}
  rules:
  - {name: one, mode: Enforce, env: [{name: A, value: on}, {name: B, value: yes}, {name: C, value: no}]}
  - name: two
    "mode":   'Enforce' # still
    env: [{name: D, value: y}, {name: E, value: off}, {name: F, value: ON}, {name: G, value: "0o17"}]
  - {name: three, mounts: [{hostPath: /etc/ssl, mountPath: /etc/ssl, readOnly: true}]}
"""


@pytest.mark.parametrize(
    ("spec", "then"),
    [
        ("\n  mode: Enforce", "\n  mode: Audit"),
        (" # of all\n\n  # first\n  mode: Audit", " # of all\n\n  # first\n  mode: Audit"),
        ("", "\n  mode: Audit"),
        (" # of all\n\n  # first", " # of all\n\n  # first\n  mode: Audit"),
    ],
)
def test_audit_is_for_every_rule_and_changes_nothing_else(spec: str, then: str) -> None:
    """Not even what Helm, which reads YAML 1.1, takes for something else: reassert would refuse the brake."""
    text = BRAKED % spec
    audited = of_nodes(objects({"policy": {"text": text, "audit": True}}))["data"]["policy.yaml"]
    assert audited.split() == (BRAKED % then).replace("Enforce", "Audit").split()
    lines = compile_bytes("policy.yaml", text.encode())
    assert lines.policy().mode != "Audit" or "Audit" in spec
    policy = compile_bytes("policy.yaml", audited.encode()).policy()
    assert policy.mode == "Audit"
    assert {rule["mode"] for rule in load(audited)[0]["spec"]["rules"] if "mode" in rule} == {"Audit"}


@pytest.mark.parametrize(
    "text",
    [
        """{"kind":"NodePolicy","spec":{"mode":"Enforce","exclude":{"namespaces":["kube-system"]},"rules":[]}}""",
        "kind: NodePolicy\nspec: {exclude: {namespaces: [kube-system]}, rules: [{name: a, mode: Enforce}]}\n",
        'kind: NodePolicy\nspec: {exclude: {namespaces: [kube-system]}, rules: [{name: "a, mode: Enforce"}]}\n',
        "kind: NodePolicy\nspec: {exclude: {namespaces: [kube-system]}, rules: [{name: a, mode: !!str Enforce}]}\n",
    ],
)
def test_audit_is_for_a_policy_however_it_is_written(text: str) -> None:
    (found,) = load(of_nodes(objects({"policy": {"text": text, "audit": True}}))["data"]["policy.yaml"])
    (wanted,) = load(text)
    wanted["spec"]["mode"] = "Audit"
    for rule in wanted["spec"]["rules"]:
        rule.update({"mode": "Audit"} if "mode" in rule else {})
    assert found == wanted


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
        assert {"name": "STATE", "value": "present"} not in container["env"]
        assert {"--service-log-format=", "--service-log-level="} <= {*container["args"]}
        return [each for each in container["args"] if not each.startswith(("--textfile", "--service-log"))]

    assert arguments() == ["--adapter=runtime", "--agent", "--default"]
    assert arguments(textfile="/var/lib/node_exporter") == arguments()
    assert arguments(agent=False) == ["--adapter=runtime", "--no-agent", "--default"]
    told = arguments(engine="crio", adapters=["runtime", "hook"], runtimeClass="gpu")
    assert told == ["--engine=crio", "--adapter=runtime,hook", "--agent", "--runtime-class=gpu"]
    assert arguments(nri=True) == ["--adapter=runtime", "--agent", "--default"]
    assert arguments(nri=True, adapters=["nri"]) == ["--adapter=nri", "--no-unit", "--agent", "--default"]


@pytest.mark.parametrize(
    ("node", "rules"),
    [
        ({}, None),
        ({"condition": True}, [("nodes/status", ["get", "patch"])]),
        ({"startupTaint": "a/b"}, [("nodes", ["get", "patch"])]),
        ({"condition": True, "startupTaint": "a/b"}, [("nodes", ["get", "patch"]), ("nodes/status", ["get", "patch"])]),
    ],
)
def test_what_reports_may_is_what_was_asked_for(node: Object, rules: list[tuple[str, list[str]]] | None) -> None:
    found = objects({"node": node})
    roles = [each for each in found if each["kind"] == "ClusterRole"]
    assert [[(rule["resources"][0], rule["verbs"]) for rule in role["rules"]] for role in roles] == (
        [rules] if rules else []
    )


def test_the_view_of_all_nodes_is_one_definition_and_what_its_writer_needs() -> None:
    found = objects({"fleet": {"enabled": True}, "node": {"tokenPolicy": "Always"}})
    definition = find(found, "CustomResourceDefinition")
    (version,) = definition["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    for column in version["additionalPrinterColumns"]:
        at = status
        for name in column["jsonPath"].removeprefix(".status.").replace("[*]", "").split("."):
            at = at.get("items", at)["properties"][name]
    (role,) = [each for each in found if each["kind"] == "ClusterRole"]
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["nodes"], ["get"]),
        (["nodeenforcements", "nodeenforcements/status"], ["get", "create", "patch"]),
    ]
    names = [each["metadata"]["name"] for each in found if each["kind"] == "ValidatingAdmissionPolicy"]
    assert names == ["reassert-enforcement", "reassert-node"]
    assert "CustomResourceDefinition" not in {
        each["kind"] for each in objects({"fleet": {"enabled": True, "crd": False}})
    }
    node, report = find(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    for container in (node, report):
        assert {"name": "FLEET", "value": "true"} in container["env"]


def limits(**node: object) -> list[Object]:
    """What limits the token. Helm's library knows no kinds of a cluster, like one before Kubernetes 1.30."""
    return [each for each in objects({"node": node}) if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_a_cluster_without_the_api_gets_no_policy_and_helm_says_so() -> None:
    """With the API on a real one: tests/lab/cluster/on_api_server.py."""
    words = "may patch every node"
    assert not limits(condition=True, startupTaint="a/b")
    assert not limits(condition=True, tokenPolicy="Never")
    assert not limits(tokenPolicy="Always")  # there is no token
    for node, said in (({"condition": True}, True), ({"condition": True, "tokenPolicy": "Always"}, False), ({}, False)):
        assert (words in text({"node": node})["NOTES.txt"]) is said


@marks.hole(
    "The token of one node's pod could label, taint and report every node",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
    command="sudo tests/lab/cluster/run.sh --bin DIR --api-server",
)
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_policy_is_about_the_token_that_the_pods_have(version: str) -> None:
    node = {"condition": True, "startupTaint": "a/b", "tokenPolicy": "Always"}
    policy, binding = limits(**node)
    for each in (policy, binding):
        kubernetes_validate.validate(each, version, strict=True)
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    account = find(objects({"node": node}), "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{account}'"
    allowed = "\n".join(each["expression"] for each in policy["spec"]["validations"])
    assert "taint.key != 'a/b'" in allowed
    assert "each.type != 'ReassertEnforcing'" in allowed


def hooks_of(found: list[Object], moment: str) -> list[Object]:
    return [each for each in found if each["metadata"].get("annotations", {}).get("helm.sh/hook") == moment]


def test_the_removal_and_helm_test_may_touch_one_object_each_and_are_there_only_while_helm_needs_them() -> None:
    hooks = hooks_of(objects(EVERYTHING), "pre-delete")
    assert {each["kind"] for each in hooks} == {"ServiceAccount", "Role", "RoleBinding", "Job"}
    rules = [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in find(hooks, "Role")["rules"]]
    assert rules == [
        (["daemonsets"], ["reassert-node"], ["get", "list", "watch", "patch"]),
        (["jobs"], ["reassert-first-install"], ["get", "list", "watch", "delete"]),
    ]
    assert find(objects(), "Job", "reassert-first-install")  # the name of what it deletes
    assert not hooks_of(objects({"node": {"onUninstall": "Keep"}}), "pre-delete")
    hooks = hooks_of(objects(EVERYTHING), "test")
    assert {each["kind"] for each in hooks} == {"ServiceAccount", "Role", "RoleBinding", "Pod"}
    (rule,) = find(hooks, "Role")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["reassert-node"], ["get", "list", "watch"])


def test_a_policy_is_checked_before_anything_changes() -> None:
    """By the program of the image, on the text that the nodes would get."""
    found = objects({"policy": {"text": "kind: NodePolicy\nspec: {exclude: {namespaces: [kube-system]}}\n"}})
    hooks = hooks_of(found, "pre-install,pre-upgrade")
    assert find(hooks, "ConfigMap")["data"] == of_nodes(found)["data"]
    (container,) = find(hooks, "Job")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/opt/reassert/reassert", "policy", "check", "/policy/policy.yaml"]
    weights = {each["kind"]: each["metadata"]["annotations"]["helm.sh/hook-weight"] for each in hooks}
    assert int(weights["ConfigMap"]) < int(weights["Job"])
    assert not hooks_of(objects({"policy": {"check": False}}), "pre-install,pre-upgrade")
    assert not hooks_of(objects({"policy": {"manage": False}}), "pre-install,pre-upgrade")


LATER_IN_A_PART = (
    ("policy", "audit"),
    ("nri", "gvisor"),
    *(("node", name) for name in ("firstInstall", "firstInstallSeconds", "tokenPolicy")),
)


@pytest.mark.parametrize("nri", [False, True])
def test_values_of_an_earlier_release_do(nri: bool) -> None:
    """`helm upgrade --reuse-values` has no value that came later; of Helm's library null makes the same of one."""
    earlier: Object = {"fleet": None, "trust": None, "agent": None, "log": None}
    for part, name in LATER_IN_A_PART:
        earlier.setdefault(part, {})[name] = None
    earlier["nri"]["enabled"] = nri
    now, then = objects({"nri": {"enabled": nri}}), objects(earlier)
    assert [(each["kind"], each["metadata"]["name"]) for each in then] == [
        (each["kind"], each["metadata"]["name"]) for each in now
    ]
    assert find(then, "DaemonSet", "reassert-node") == find(now, "DaemonSet", "reassert-node")
    assert "wired by maxUnavailable" in text(earlier)["NOTES.txt"]
    braked = find(objects({**earlier, "policy": {"audit": True}}), "DaemonSet", "reassert-node")
    assert {"name": "CHECK", "value": ""} in braked["spec"]["template"]["spec"]["containers"][0]["env"]


def test_pools_are_releases() -> None:
    """Two releases in one namespace, for two pools of nodes: no object is in both."""
    both = [{(each["kind"], each["metadata"]["name"]) for each in objects(name=name)} for name in ("gpu", "cpu")]
    assert both[0] & both[1] == set()
    daemons = [find(objects({"nodeSelector": {"pool": name}}, name=name), "DaemonSet") for name in ("gpu", "cpu")]
    assert daemons[0]["spec"]["selector"] != daemons[1]["spec"]["selector"]


KUBECTL = """\
#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case $* in *" get "*) [ -z "$FAILS" ] && printf %s "$DAEMON" ;; esac
"""


def removal(tmp_path: Path, daemon: str, fails: str = "", **node: object) -> list[str]:
    """The calls of kubectl by the removal Job. `daemon`: the DaemonSet that it finds; `fails`: it cannot look."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (container,) = find(objects({"node": node}), "Job", "reassert-removal")["spec"]["template"]["spec"]["containers"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "DAEMON": daemon}
    environment["FAILS"] = fails
    done = subprocess.run([*container["command"], *container["args"]], env=environment, timeout=600)
    assert bool(done.returncode) == bool(fails)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert {call.partition(" ")[0] for call in calls} == {f"--namespace={NAMESPACE}"}
    return [call.partition(" ")[2] for call in calls]


def test_the_removal_asks_and_waits(tmp_path: Path) -> None:
    """It first ends the Job of an install that Helm has given up on, which sets STATE too."""
    assert removal(tmp_path, "daemonset.apps/reassert-node")[1:] == [
        "delete job/reassert-first-install --ignore-not-found --cascade=foreground --timeout=60s",
        "set env daemonset/reassert-node --containers=node STATE=absent",
        "rollout status daemonset/reassert-node",
    ]
    # A release that the policy check stopped has no DaemonSet, and Helm deletes no release whose removal Job fails.
    assert [call.split()[0] for call in removal(tmp_path / "stopped", "")] == ["get"]
    assert [call.split()[0] for call in removal(tmp_path / "down", "", fails="yes")] == ["get"]
    # kubectl knows no roll-out of an OnDelete DaemonSet, so the removal makes it one of RollingUpdate first.
    strategy = {"type": "OnDelete"}
    _, _, patch, ask, _ = removal(tmp_path / "hand", "daemonset.apps/reassert-node", updateStrategy=strategy)
    assert json.loads(patch.partition("--patch=")[2]) == {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    assert "STATE=absent" in ask
    assert not hooks_of(objects({"node": {"updateStrategy": strategy}}), "test")


def test_the_removal_says_to_the_pods_what_they_understand() -> None:
    """The Job's own command, carried out by kubectl on the DaemonSet that was rendered; without an API server."""
    need(shutil.which("kubectl") is not None, "kubectl")
    found = objects()
    (container,) = find(found, "Job", "reassert-removal")["spec"]["template"]["spec"]["containers"]
    (line,) = [line for line in container["args"][0].splitlines() if "set env" in line]
    kubectl, *options = [word for word in line.split() if word != "daemonset/reassert-node"]
    command = [kubectl, *options, "--local", "--filename=-", "--output=json"]
    daemon = find(found, "DaemonSet")
    asked = subprocess.run(command, input=json.dumps(daemon), capture_output=True, text=True, timeout=600)
    assert asked.returncode == 0, asked.stderr
    (container,) = json.loads(asked.stdout)["spec"]["template"]["spec"]["containers"]
    assert {"name": "STATE", "value": "absent"} in container["env"]
    assert "absent)" in (KUBERNETES / "image/node.sh").read_text()


def test_only_the_node_pods_are_privileged() -> None:
    """And have no token. The others hold to as little as they need; the removal to PodSecurity's level `restricted`."""
    for each in [*objects(EVERYTHING), *objects()]:
        if each["kind"] == "DaemonSet":
            pod = each["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            volumes = {c["name"]: {mount["name"] for mount in c.get("volumeMounts", [])} for c in pod["containers"]}
            assert {name for name, mounted in volumes.items() if "token" in mounted} <= {"report"}
            assert ("report" in volumes) == ("serviceAccountName" in pod)
    found = objects(EVERYTHING)
    node, report = find(found, "DaemonSet", "reassert-node")["spec"]["template"]["spec"]["containers"]
    check = find(found, "Job", "reassert-policy-check")["spec"]["template"]["spec"]
    test = find(found, "Pod")["spec"]
    nri, metrics = find(found, "DaemonSet", "reassert-nri")["spec"]["template"]["spec"]["containers"]
    removal = find(found, "Job", "reassert-removal")["spec"]["template"]["spec"]
    assert node["securityContext"]["privileged"]
    for container in (*(nri, metrics, report, *check["containers"], *test["containers"]), *removal["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert container is nri or "add" not in context["capabilities"]
    assert nri["securityContext"]["capabilities"]["add"] == ["SYS_CHROOT"]
    assert nri["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    for pod in (removal, check, test):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_pods_are_found_by_what_selects_them_and_the_longest_name_of_a_release_is_cut() -> None:
    """Helm takes 53 characters; a label's value 63."""
    for release, start in (("prod", "prod-reassert-"), ("x" * 53, "xxx"), ("reassert" + "x" * 45, "reassertx")):
        for each in objects(EVERYTHING, name=release):
            assert len(each["metadata"]["name"]) <= 63
            assert all(len(value) <= 63 for value in each["metadata"].get("labels", {}).values())
            if each["kind"] == "DaemonSet":
                labels = each["spec"]["template"]["metadata"]["labels"]
                assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
                assert each["metadata"]["name"].startswith(start)


def test_prometheus_is_told_of_the_pods_and_the_alerts() -> None:
    found = objects(EVERYTHING)
    labels = find(found, "DaemonSet", "reassert-nri")["spec"]["template"]["metadata"]["labels"]
    monitor = find(found, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (alerts,) = load((ROOT / "packaging/monitoring/alerts.yaml").read_text())
    assert find(found, "PrometheusRule")["spec"] == alerts


def test_the_digest_goes_before_the_tag() -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example:5000/a/reassert", "tag": "1", "digest": digest}
    (container,) = find(objects({"image": image}), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example:5000/a/reassert@{digest}"


FEW_AT_FIRST = """\
#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case $* in
*" get "*)
  round=$(grep -c " get " "$CALLS")
  [ "$round" -gt "${DOWN:-0}" ] || exit 1
  [ "$round" -lt 3 ] || STATE=$LATER
  [ "$round" -gt 1 ] && FEW=$ENOUGH
  echo "state=$STATE 7 2 2 $FEW"
  ;;
*" patch "*) [ "$(grep -c " patch " "$CALLS")" -gt "${CONFLICTS:-0}" ] ;;
esac
"""


@pytest.mark.parametrize(
    ("few", "enough"), [("3", "3 3"), ("3 2", "3 3"), ("40 37", "40 38"), ("2000 1899", "2000 1900"), ("0", "0")]
)
def test_a_first_roll_out_begins_when_the_pods_run(tmp_path: Path, few: str, enough: str) -> None:
    """The controller replaces at once what is not available, as many as that are."""
    *looks, patch = started(tmp_path, few, enough)
    assert len(looks) == (2 if few != enough else 1)
    assert patch.startswith(f"--namespace={NAMESPACE} patch daemonset/reassert-node")
    asked = json.loads(patch.partition("--patch=")[2])
    assert asked["metadata"] == {"resourceVersion": "7"}  # of the look, so a change since refuses it
    (container,) = asked["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "node", "env": [{"name": "STATE", "value": "present"}]}


def test_a_first_roll_out_that_is_delayed(tmp_path: Path) -> None:
    """Of three nodes two are 19 of 20 never; so that nothing changes any more counts, if most pods run."""
    assert len(started(tmp_path / "one", "3 1", "3 2")) == 1 + 61 + 1
    assert len(started(tmp_path / "two", "3", "3 1", ended=True)) == 75
    # An answer that failed is none.
    assert verbs(tmp_path / "down", "3", "3 3", DOWN="4") == ["get"] * 5 + ["patch"]


def test_the_first_roll_out_leaves_a_state_that_was_set_meanwhile(tmp_path: Path) -> None:
    """As the removal does while the Job of an install that Helm has given up on still waits."""
    for later in ("absent", "present"):
        assert verbs(tmp_path / later, "3", "3 1", later=later) == ["get"] * 3
    assert verbs(tmp_path / "conflict", "3", "3 3", later="absent", CONFLICTS="1") == ["get", "get", "patch", "get"]
    by_hand = verbs(tmp_path / "by-hand", "3", "3 3", state="absent", later="absent")  # before an upgrade
    assert by_hand == ["get", "get", "patch"]
    assert verbs(tmp_path / "upgrade", "3", "3", state="present") == ["get"]


def test_the_first_roll_out_waits_no_longer_than_helm() -> None:
    """Helm's default for --timeout is five minutes."""
    for node, seconds in (({}, 300), ({"firstInstallSeconds": 1800}, 1800)):
        job = find(objects({"node": node}), "Job", "reassert-first-install")
        assert job["spec"]["activeDeadlineSeconds"] == seconds


def verbs(tmp_path: Path, few: str, enough: str, **more: Any) -> list[str]:
    """Of the calls below."""
    return [call.split()[1] for call in started(tmp_path, few, enough, **more)]


def started(
    tmp_path: Path, few: str, enough: str, state: str = "", later: str = "", ended: bool = False, **fails: str
) -> list[str]:
    """The calls of kubectl by the Job after an install.

    `few`, `enough`: desired and available pods, first and then; `later`: the state at the third look; `ended`: the
    Job is ended after 75 looks.
    """
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "calls").unlink(missing_ok=True)
    sleep = '#!/bin/sh\n[ "$(grep -c " get " "$CALLS")" -lt 75 ] || kill $PPID\n'
    for name, script in {"kubectl": FEW_AT_FIRST, "sleep": sleep}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (container,) = find(objects(), "Job", "reassert-first-install")["spec"]["template"]["spec"]["containers"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}
    environment |= {"STATE": state, "LATER": later, "FEW": few, "ENOUGH": enough, **fails}
    done = subprocess.run([*container["command"], *container["args"]], env=environment, timeout=600)
    assert (done.returncode != 0) is ended
    return (tmp_path / "calls").read_text().splitlines()


def test_bundles_of_the_cluster_are_for_the_node_pods_alone() -> None:
    def sources(trust: Object) -> Any:
        spec = find(objects({"trust": trust}), "DaemonSet")["spec"]["template"]["spec"]
        found = [volume["projected"]["sources"] for volume in spec["volumes"] if volume["name"] == "trust"]
        mounted = "trust" in {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert mounted is bool(found)
        return found[0] if found else None

    assert sources({}) is None
    assert sources({"configMap": "company-ca"}) == [{"configMap": {"name": "company-ca", "optional": True}}]
    named = {"name": "example.org:ca:1", "path": "cluster-trust-bundle.pem", "optional": True}
    assert sources({"clusterTrustBundle": {"name": named["name"]}}) == [{"clusterTrustBundle": named}]
    signed: Object = {"signerName": "example.org/ca", "labelSelector": {"matchLabels": {"live": "yes"}}}
    whole = {**signed, "path": "cluster-trust-bundle.pem", "optional": True}
    assert sources({"clusterTrustBundle": signed}) == [{"clusterTrustBundle": whole}]


def test_the_log_of_the_services_and_of_the_plugins_pod() -> None:
    found = objects({"nri": {"enabled": True}, "log": {"format": "json", "level": "warning"}})
    plugin, node = (
        find(found, "DaemonSet", f"reassert-{name}")["spec"]["template"]["spec"]["containers"][0]["args"]
        for name in ("nri", "node")
    )
    assert plugin == ["--log-format=json", "--log-level=warning"]
    assert {"--service-log-format=json", "--service-log-level=warning"} <= {*node}


def test_the_plugin_is_told_which_handlers_are_of_gvisor() -> None:
    def arguments(*handlers: str) -> Any:
        found = objects({"nri": {"enabled": True, "gvisor": list(handlers)}})
        (container,) = find(found, "DaemonSet", "reassert-nri")["spec"]["template"]["spec"]["containers"]
        return container.get("args", [])

    assert arguments() == []
    assert arguments("", "gvisor") == ["--gvisor=", "--gvisor=gvisor"]


@pytest.mark.parametrize("preset", [name for name in PRESETS if name])
def test_a_preset_is_a_policy_in_audit_mode(preset: str) -> None:
    maps = [each["data"] for each in objects({"policy": {"preset": preset}}) if each["kind"] == "ConfigMap"]
    [given] = {data["policy.yaml"] for data in maps if "policy.yaml" in data}
    assert yaml.safe_load(given) == yaml.safe_load(preset_text(preset))
    assert yaml.safe_load(given)["spec"]["mode"] == "Audit"
    with pytest.raises(Exception, match="two policies"):
        objects({"policy": {"preset": preset, "text": given}})
