"""`policy test`: cases beside a policy, and their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import marks
import pytest

from unit.support import CONTAINERD, ROOT, called, config, document, reassert

pytestmark = marks.promise("`policy test` runs a pod as kubelet and the engine make it", about="Policy")

POD = """kind: Pod
metadata: {name: web, namespace: team-a}
spec:
  containers:
  - name: c
    env: [{name: CA, value: /mine}]
    volumeMounts: [{name: v, mountPath: /etc/ssl}]
  volumes: [{name: v, emptyDir: {}}]
"""
RULE = {
    "name": "ca",
    "mode": "Audit",
    "env": [{"name": "CA", "value": "/ca.pem"}, {"name": "BAD", "absent": True}],
    "mounts": [{"hostPath": "/ca", "mountPath": "/etc/ssl"}],
}
LABELLED = {
    "name": "by-label",
    "match": {"podSelector": {"matchLabels": {"a": "b"}}, "ifUnknown": "Skip"},
    "env": [{"name": "L", "value": "1"}],
}
ALLOWED = {
    "name": "allowed",
    "match": {"namespaces": ["allowed"]},
    "env": [{"name": "LEVEL", "oneOf": ["low", "high"], "else": "low"}],
}
FROM_FILE = {"name": "file", "match": {"namespaces": ["f"]}, "env": [{"name": "F", "valueFrom": {"file": "/f"}}]}
DENY = {
    "name": "deny",
    "match": {"namespaces": ["deny"]},
    "env": [{"name": "CA", "value": "/ca.pem"}],
    "onConflict": "Deny",
}


class Suite:
    """A directory with a policy, a pod and cases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "policy.yaml").write_text(document(RULE, LABELLED, ALLOWED, FROM_FILE, DENY, mode="Audit"))
        (directory / "pod.yaml").write_text(POD)
        found = config(["CA=/mine"], annotations=CONTAINERD)
        (directory / "config.json").write_text(json.dumps(found))

    def run(self, *cases: dict[str, Any], output: str = "json", **fields: Any) -> tuple[int, str, str]:
        of_all = {"kind": "PolicyTest", "policy": "policy.yaml", "adapter": "runtime", **fields}
        test = {key: value for key, value in of_all.items() if value} | {"cases": list(cases)}
        (self.directory / "reassert-test.yaml").write_text(json.dumps(test))
        done = called("policy", "test", str(self.directory), "-o", output)
        return done.returncode, done.stdout, done.stderr

    def failures(self, expect: dict[str, Any], fields: dict[str, Any] | None = None, **case: Any) -> list[str]:
        """Of one case with the pod. `fields`: of all cases."""
        status, out, err = self.run({"name": "n", "pod": "pod.yaml", "expect": expect, **case}, **(fields or {}))
        [result] = json.loads(out)["tests"][0]["results"] if out else [{"failures": [err]}]
        assert status == (1 if result["failures"] else 0)
        found: list[str] = result["failures"]
        return found


@pytest.fixture
def suite(root_dir: Path) -> Suite:
    return Suite(root_dir)


@pytest.mark.parametrize(
    ("expect", "failure"),
    [
        ({"env": {"CA": "/ca.pem", "BAD": None}, "mounts": {"/etc/ssl": "/ca"}}, None),
        ({"env": {"CA": "/other"}}, "env CA: '/ca.pem', expected '/other'"),
        ({"env": {"CA": None}}, "env CA: '/ca.pem', expected absent"),
        ({"env": {"GONE": "x"}}, "env GONE: absent, expected 'x'"),
        ({"mounts": {"/etc/ssl/": None}}, "mount /etc/ssl: '/ca', expected absent"),
        ({"mounts": {"/x": "/y"}}, "mount /x: absent, expected '/y'"),
        ({"refusal": True}, "not refused"),
        ({"edits": []}, "edits: env CA, mount /etc/ssl; expected none"),
    ],
)
def test_rules_are_tested_as_if_they_were_enforced_and_a_difference_is_told(
    suite: Suite, expect: dict[str, Any], failure: str | None
) -> None:
    assert suite.failures(expect) == ([failure] if failure else [])


def test_refusal_is_expected_by_a_part_of_its_text(suite: Suite) -> None:
    text = "rule deny: env CA is reserved and was set to something else"
    assert suite.failures({"refusal": "rule deny"}, namespace="deny") == []
    assert suite.failures({"refusal": True}, namespace="deny") == []
    assert suite.failures({"refusal": "rule other"}, namespace="deny") == [f"refused with another text: {text}"]
    assert suite.failures({"env": {}}, namespace="deny") == [f"refused: {text}"]


def test_a_value_that_is_not_allowed_is_replaced(suite: Suite) -> None:
    for given, wanted in (("LEVEL=top", "low"), ("LEVEL=high", "high"), ("OTHER=", None)):
        expect = {"env": {"LEVEL": wanted}}
        assert suite.failures(expect, namespace="allowed", image={"env": [given]}) == []
        assert suite.failures(expect, namespace="allowed", image={"env": [given]}, adapter="nri") == []


def test_labels_and_adapter_decide_which_rules_match(suite: Suite) -> None:
    assert suite.failures({"env": {"L": None}}) == []
    assert suite.failures({"env": {"L": "1"}}, labels={"a": "b"}, adapter="runtime") == []


@marks.promise(
    "`explain POD.yaml` and `policy test` judge as each adapter, or as the one that is named, and fail where "
    "they differ",
    about="Decision",
)
def test_without_an_adapter_each_one_must_do_what_is_expected(suite: Suite) -> None:
    """The NRI plugin cannot remove env, and a hook cannot set it."""

    def failures(expect: dict[str, Any], **case: Any) -> list[str]:
        return suite.failures(expect, {"adapter": None}, **case)

    [only_hook] = failures({"env": {"CA": "/ca.pem"}})
    assert only_hook.startswith("as hook: refused: rule ca: env CA is not what the policy wants, and a hook cannot set")
    nri, hook = failures({"env": {"CA": "/ca.pem"}}, image={"env": ["BAD=1"]})
    assert nri.startswith("as nri: refused: rule ca: env BAD must be absent")
    assert hook.startswith("as hook: refused: ")
    assert failures({"env": {"CA": "/ca.pem"}}, adapter="nri") == []
    assert failures({"refusal": True}, adapter="hook") == []
    (suite.directory / "pod.yaml").write_text(POD.replace("env: [{name: CA, value: /mine}]", "env: []"))
    assert failures({"env": {"CA": "/ca.pem"}}) == []  # without the wrapper, from base_runtime_spec


def test_base_runtime_spec_has_the_default_of_an_allocation(suite: Suite) -> None:
    allocated = {"name": "GPU", "valueFrom": {"deviceAllocation": {"default": "void"}}}
    (suite.directory / "policy.yaml").write_text(document({"name": "gpu", "env": [allocated]}))
    assert suite.failures({"env": {"GPU": "void"}}, adapter="hook") == []


def test_facts_of_the_node_are_given_and_not_read_here(suite: Suite) -> None:
    node = {"files": {"/f": "value"}, "missing": ["/ca"]}
    [missing] = suite.failures({"env": {}}, node={"missing": ["/ca"]})
    assert "hostPath /ca for mount /etc/ssl does not exist on this node" in missing
    assert suite.failures({"env": {"F": "value"}}, namespace="f", node={"files": {"/f": "value"}}) == []
    [unsaid] = suite.failures({"env": {}}, namespace="f")
    assert "the case does not say what /f has (node.files)" in unsaid
    assert suite.failures({"refusal": "hostPath /ca"}, namespace="f", node=node) == []


def test_config_json_is_an_input_too_and_the_report_names_rules_without_a_case(suite: Suite) -> None:
    case = {"name": "n", "config": "config.json", "expect": {"env": {"CA": "/ca.pem"}}}
    status, out, _ = suite.run(case)
    [result] = json.loads(out)["tests"][0]["results"]
    assert (status, result["passed"], result["rules"]) == (0, True, ["ca"])
    _, out, _ = suite.run(case, output="table")
    assert "no case for: by-label, allowed, file, deny" in out
    assert "1 passed, 0 failed" in out


def test_junit_has_a_case_for_each_container(suite: Suite) -> None:
    good = {"name": "good <&>", "pod": "pod.yaml", "expect": {"env": {"CA": "/ca.pem"}}}
    bad = {"name": "bad", "pod": "pod.yaml", "expect": {"env": {"CA": "\u0007x"}}}
    status, out, _ = suite.run(good, bad, output="junit")
    root = ElementTree.fromstring(out.partition("\n")[2])
    [one] = root
    assert (status, one.attrib["tests"], one.attrib["failures"]) == (1, "2", "1")
    assert [case.attrib["name"] for case in one] == ["good <&>: c", "bad: c"]
    assert [len(case) for case in one] == [0, 1]


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ({"pod": "pod.yaml", "expects": {}}, "unknown field 'expects'; did you mean expect?"),
        ({"pod": "pod.yaml"}, "expect is missing"),
        ({"expect": {}}, "it takes a pod or a config"),
        ({"pod": "gone.yaml", "expect": {}}, "gone.yaml: No such file or directory"),
        ({"pod": "pod.yaml", "expect": {"envs": {}}}, "unknown field 'envs'; did you mean env?"),
        ({"pod": "pod.yaml", "container": "x", "expect": {}}, "the pod has no container x"),
        ({"pod": "pod.yaml", "adapter": "x", "expect": {}}, "adapter: 'x' is not one of runtime, nri, hook"),
    ],
)
def test_case_that_is_wrong_is_an_error_of_its_own(suite: Suite, case: dict[str, Any], complaint: str) -> None:
    status, out, err = suite.run({"name": "n", **case})
    assert (status, out) == (1, "")
    assert complaint in err


def test_examples_pass_and_a_directory_without_cases_does_not(root_dir: Path) -> None:
    done = called("policy", "test", str(ROOT / "config/tests"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "4 passed, 0 failed" in done.stdout
    done = called("policy", "test", str(root_dir))
    assert (done.returncode, "no reassert-test.yaml in this directory" in done.stderr) == (1, True)


@marks.promise(
    "`explain POD.yaml` and `policy test` judge as each adapter, or as the one that is named, and fail where "
    "they differ"
)
def test_explain_shows_each_container_of_a_pod(suite: Suite) -> None:
    """An init container and an ephemeral one cannot be distinguished; a sidecar is an app container."""
    text = POD.replace("spec:\n", "spec:\n  initContainers: [{name: i}, {name: s, restartPolicy: Always}]\n")
    (suite.directory / "pod.yaml").write_text(text)
    where = (str(suite.directory / "pod.yaml"), "--policy", str(suite.directory / "policy.yaml"))
    done = called("explain", *where, "-o", "json", "--adapter", "runtime")
    assert done.returncode == 0, done.stderr
    init, sidecar, container = json.loads(done.stdout)
    assert init["container"]["types"] == ["init", "ephemeral"]
    assert sidecar["container"]["types"] == container["container"]["types"] == ["container"]
    assert "env CA" in [f"{edit['kind']} {edit['name']}" for edit in container["edits"]]
    table = called("explain", *where, "--adapter", "nri")
    assert (table.returncode, table.stdout.count("result  ")) == (0, 3)
    (suite.directory / "policy.yaml").write_text(document({"name": "ca", "env": RULE["env"]}))
    each = called("explain", *where, "--adapter", "all")
    told = [" ".join(line.split()) for line in each.stdout.splitlines() if line.startswith(("adapter", "result"))]
    assert told[1:3] == ["adapter runtime, nri, hook", "result started corrected"], each.stdout
    assert (each.returncode, each.stderr) == (1, ""), "the hook alone cannot set env"
    one = called("explain", *where)
    assert (one.returncode, one.stdout.count("result  ")) == (0, 3), "the adapter of `install`"
    assert called("explain", *where, "-o", "diff").returncode == 2


RENDERED = """kind: SecurityContextConstraints
volumes: ['*']
---
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {spec: {containers: [{name: web, env: [{name: CA, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}}
---
kind: List
items:
- {kind: Pod, metadata: {name: worker}, spec: {containers: [{name: worker, envFrom: [{configMapRef: {name: m}}]}]}}
"""


def test_explain_takes_a_rendered_chart_from_standard_input(suite: Suite) -> None:
    policy = suite.directory / "policy.yaml"
    policy.write_text(document({"name": "ca", "env": RULE["env"]}))
    done = reassert("explain", "-", "--policy", str(policy), input=RENDERED)
    assert (done.returncode, done.stdout.count("result  ")) == (0, 2), done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {"workload Deployment/web", "workload Pod/worker", "not given Secret s, which sets CA"} <= {*lines}
    assert "not given ConfigMap m, which sets *" in lines
    one = reassert("explain", "-", "--policy", str(policy), "--workload", "worker", "-o", "json", input=RENDERED)
    assert [each["workload"] for each in json.loads(one.stdout)] == ["Pod/worker"]
    policy.write_text(document({"name": "ca", "env": RULE["env"], "onConflict": "Deny"}))
    needed = reassert("explain", "-", "--policy", str(policy), input=RENDERED)
    assert needed.returncode == 1
    assert "Secret s is not given, and the policy refuses another value of CA" in needed.stderr


def test_explain_says_where_it_does_not_know_whether_a_value_is_allowed(suite: Suite) -> None:
    policy = suite.directory / "policy.yaml"
    policy.write_text(document({"name": "ca", "env": [{"name": "CA", "oneOf": ["/a", "/b"], "else": "/a"}]}))
    done = reassert("explain", "-", "--policy", str(policy), input=RENDERED)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    unsure = "whether the policy allows its value is not known"
    assert f"not given Secret s, which sets CA: {unsure}" in lines, done.stdout + done.stderr
    assert f"not given ConfigMap m, which sets *: {unsure}" in lines


def test_explain_takes_what_the_policy_names_as_there_on_a_laptop(suite: Suite) -> None:
    policy, pod = suite.directory / "policy.yaml", suite.directory / "pod.yaml"
    pod.write_text(POD)
    rule = {
        "name": "ca",
        "env": [{"name": "V", "valueFrom": {"file": "/nonexistent/value"}}],
        "mounts": [{"hostPath": "/nonexistent/ca", "mountPath": "/etc/ssl"}],
    }
    policy.write_text(document(rule))
    done = called("explain", str(pod), "--policy", str(policy))
    assert (done.returncode, "started corrected" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "are taken as there" in done.stdout
    assert "<first line of /nonexistent/value>" in done.stdout
    policy.write_text(document({"name": "ca", "env": RULE["env"]}))
    assert "taken as there" not in called("explain", str(pod), "--policy", str(policy)).stdout


def test_a_case_names_one_of_several_workloads(suite: Suite) -> None:
    (suite.directory / "policy.yaml").write_text(document({"name": "ca", "env": RULE["env"]}))
    (suite.directory / "pod.yaml").write_text(RENDERED)
    case = "{{name: a, pod: pod.yaml, adapter: runtime, {}expect: {{env: {{CA: /ca.pem}}}}}}"
    (suite.directory / "reassert-test.yaml").write_text(
        f"kind: PolicyTest\napiVersion: reassert/v1\ncases:\n- {case.format('workload: Deployment/web, ')}\n"
    )
    assert called("policy", "test", str(suite.directory)).returncode == 0
    (suite.directory / "reassert-test.yaml").write_text(
        f"kind: PolicyTest\napiVersion: reassert/v1\ncases:\n- {case.format('')}\n"
    )
    assert "name one as workload: Deployment/web, Pod/worker" in called("policy", "test", str(suite.directory)).stderr
