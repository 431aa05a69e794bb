"""Values that would not do are refused before anything is applied, with what is wrong with them."""

from __future__ import annotations

import pytest

from unit.kubernetes.chart import CHART, NAMESPACE, Object, helm, objects

POLICY = "apiVersion: reassert/v1\nkind: NodePolicy\nspec: {exclude: {namespaces: [%s]}, rules: []}\n"


def refusal(values: Object, namespace: str = NAMESPACE) -> str:
    """What Helm says to these values."""
    with pytest.raises(helm().HelmError) as caught:
        objects(values, namespace=namespace)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"imag": {}}, "imag"),
        ({"image": {"repository": "Registry Example"}}, "repository"),
        ({"image": {"repository": "a", "digest": "sha256:1"}}, "digest"),
        ({"image": {"repository": "a", "pullPolicy": "never"}}, "pullPolicy"),
        ({"policy": {"text": {"kind": "NodePolicy"}}}, "text"),
        ({"node": {"engine": "rkt"}}, "engine"),
        ({"node": {"adapters": []}}, "adapters"),
        ({"node": {"adapters": ["wrapper"]}}, "adapters"),
        ({"node": {"adapters": ["hook", "hook"]}}, "adapters"),
        ({"node": {"adapters": "hook"}}, "adapters"),
        ({"node": {"runtimeClass": "a b; reboot"}}, "runtimeClass"),
        ({"node": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"node": {"maxUnavailable": "0%"}}, "maxUnavailable"),
        ({"node": {"firstInstall": "rolling"}}, "firstInstall"),
        ({"trust": {"configMap": "A_b"}}, "configMap"),
        ({"trust": {"store": "../etc"}}, "store"),
        ({"trust": {"clusterTrustBundle": {"name": "a b"}}}, "name"),
        ({"nri": {"gvisor": ["a b"]}}, "gvisor"),
        ({"node": {"onUninstall": "remove"}}, "onUninstall"),
        ({"node": {"tokenPolicy": "always"}}, "tokenPolicy"),
        ({"nri": {"enabled": "yes"}}, "enabled"),
        ({"agent": {"textfile": "/a b"}}, "textfile"),
        ({"nri": {"index": 10}}, "index"),
        ({"runtimeClasses": [{"name": "gpu"}]}, "handler"),
        ({"priorityClass": {"value": 2000000000}}, "value"),
        ({"tolerations": {"operator": "Exists"}}, "tolerations"),
    ],
)
def test_what_the_schema_refuses(values: Object, where: str) -> None:
    assert where in refusal(values)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"image": {"repository": ""}}, "there is no public image"),
        ({"policy": {"text": "a: b: c"}}, "not YAML"),
        ({"policy": {"text": "rules: []"}}, "not a policy of reassert"),
        ({"policy": {"text": "just text"}}, "policy"),
        ({"policy": {"text": POLICY % "team-a"}}, "must exclude namespace kube-system"),
        ({"nri": {"enabled": True}, "node": {"enabled": False}}, "nri.enabled needs node.enabled"),
        ({"nri": {"enabled": True}, "node": {"adapters": ["hook", "cdi"]}}, "the wrapper or the verifying hook"),
        ({"monitoring": {"podMonitor": True}}, "needs nri.metrics"),
        ({"trust": {"clusterTrustBundle": {"name": "a", "signerName": "b/c"}}}, "set name or signerName"),
    ],
)
def test_what_the_templates_refuse(values: Object, what: str) -> None:
    assert what in refusal(values)


def test_the_releases_own_namespace_has_to_be_excluded() -> None:
    """A pod that corrects a node must not be refused on it."""
    for excluded in ("security", "'*'", "sec*", "'s?curity'", "other, security"):
        assert objects({"policy": {"text": POLICY % excluded}}, namespace="security")
    for excluded in ("kube-system", "sec", "'security.'", "curity"):
        said = refusal({"policy": {"text": POLICY % excluded}}, namespace="security")
        assert "must exclude namespace security" in said


def test_nri_in_a_pod_needs_a_second_line() -> None:
    for node in ({}, {"adapters": ["runtime", "hook"]}, {"adapters": ["nri"]}):
        names = {each["metadata"]["name"] for each in objects({"nri": {"enabled": True}, "node": node})}
        assert {"reassert-nri", "reassert-node"} <= names


def test_the_schema_knows_every_default_and_no_more() -> None:
    """What is in values.yaml is all that there is to say."""
    with helm().Chart.load(CHART) as chart:
        known, values = chart.schema["properties"], chart.values
    assert set(known) == {*values, "global"}  # Helm's own
    for name, part in values.items():
        if "properties" in known[name]:
            assert set(part) == set(known[name]["properties"]), name
