"""Reserved annotations of the container and of its pod."""

from __future__ import annotations

from typing import Any

import pytest

from hook.core.container.identity import Identity
from hook.core.facts import Container
from hook.core.plan import Plan, plan
from hook.core.reserve.unsafe_annotations import HARMLESS, PREFIXES
from unit.support import container, policy, problems

KEY = "nvidia.cdi.k8s.io/pod"


def decided(of: str | None, where: str, key: str = KEY, problem: str = "", **rule: Any) -> Plan:
    """The plan for a container with an annotation, of its own or of its pod."""
    entry = {"name": "nvidia.cdi.k8s.io/*", "absent": True, **({"of": of} if of else {})}
    made: Container = container()
    made.facts.allocation_problem = problem
    if where == "pod":
        made.start.pod_annotations = {key: "gpu=0"}
    else:
        made.start.annotations = {key: "gpu=0"}
    return plan(policy({"name": "cdi", "annotations": [entry], **rule}), made)


@pytest.mark.parametrize(
    ("of", "where", "edits", "denials"),
    [
        (None, "pod", 0, 1),
        ("Both", "pod", 0, 1),
        ("Pod", "pod", 0, 1),
        ("Container", "pod", 0, 0),
        (None, "container", 1, 0),
        ("Both", "container", 1, 0),
        ("Container", "container", 1, 0),
        ("Pod", "container", 0, 0),
    ],
)
def test_whose_annotation_counts(of: str | None, where: str, edits: int, denials: int) -> None:
    made = decided(of, where)
    assert (len(made.edits), len(made.denials)) == (edits, denials)
    if denials:
        assert (
            made.refusal() == f"rule cdi: annotation {KEY} of the pod must be absent and was set, and cannot be removed"
        )


def test_annotation_of_the_pod_refuses_whatever_else_is_known() -> None:
    assert decided(None, "pod", problem="no checkpoint").denials
    assert decided(None, "pod", onConflict="Deny").refusal()
    assert not decided(None, "pod", key="other.example/pod").denials


def test_many_annotations_of_the_pod_are_not_all_listed() -> None:
    made = container()
    made.start.pod_annotations = {f"nvidia.cdi.k8s.io/{number}": "x" for number in range(5000)}
    entry = {"name": "nvidia.cdi.k8s.io/*", "absent": True}
    assert 1 < len(plan(policy({"name": "cdi", "annotations": [entry]}), made).denials) < 100


def test_unknown_owner_is_an_error() -> None:
    text = (
        "apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {name: d}\nspec:\n  rules:\n"
        "  - {name: r, annotations: [{name: a, absent: true, of: Node}]}\n"
    )
    [problem] = problems(text)
    assert "Both" in str(problem)


def unsteered(annotations: dict[str, str], *rules: dict[str, Any], **spec: Any) -> tuple[Plan, dict[str, str]]:
    """The plan for a container with these annotations, and what it then has."""
    made: Container = container()
    made.start.annotations = annotations
    found = plan(policy(*(rules or ({"name": "env", "env": [{"name": "A", "value": "b"}]},)), **spec), made)
    found.apply(made.start)
    return found, made.start.annotations


STEERS = {f"{start}x" if start != "bundle" else start: "/x" for start in PREFIXES}


@pytest.mark.parametrize("key", [*STEERS, "bundle=/x", "org.criu.config=/x", "run.oci.hooks.stderr"])
def test_annotation_that_steers_a_runtime_is_removed(key: str) -> None:
    found, left = unsteered({key: "/x", "mine": "1"})
    assert left == {"mine": "1"}
    [edit] = [edit for edit in found.edits if edit.kind == "annotation"]
    assert edit.describe() == {"rule": "", "kind": "annotation", "name": key, "before": {"bytes": 2}, "after": None}
    assert edit.conflict().startswith(f"annotation {key} steers a runtime (")


@pytest.mark.parametrize("key", HARMLESS)
@pytest.mark.parametrize("value", ["/sys/fs/cgroup", "/etc/ssl"])
def test_what_engines_ask_for_by_themselves_stays(key: str, value: str) -> None:
    stays = value in (HARMLESS[key] or (value,))
    assert unsteered({key: value})[1] == ({key: value} if stays else {})


@pytest.mark.parametrize("key", ["bundled", "bundle.example/x", "run.ocix", "krun", "mine/run.oci.hooks.stderr"])
def test_annotation_whose_name_only_looks_alike_stays(key: str) -> None:
    assert unsteered({key: "/x"})[1] == {key: "/x"}


def test_policy_says_which_of_them_stay() -> None:
    found, left = unsteered(dict(STEERS), allowedAnnotations=["run.oci.*", "bundle"])
    assert left == {key: value for key, value in STEERS.items() if key.startswith(("run.oci.", "bundle"))}
    assert found.policy.allowed_annotations == ["run.oci.*", "bundle"]
    absent = {"name": "a", "annotations": [{"name": "run.oci.*", "absent": True}]}
    assert "run.oci.x" not in unsteered(dict(STEERS), absent, allowedAnnotations=["*"])[1]


def test_without_a_rule_that_applies_they_stay() -> None:
    """Reassert adds no hook and reserves nothing there."""
    nobody = {"name": "r", "match": {"namespaces": ["nobody"]}, "env": [{"name": "A", "value": "b"}]}
    found, left = unsteered(dict(STEERS), nobody)
    assert (left, found.is_empty()) == (STEERS, True)
    found, left = unsteered({"run.oci.x": "1"}, {"name": "n", "annotations": [{"name": "run.oci.*", "absent": True}]})
    assert ([edit.rule for edit in found.edits], left) == (["n"], {})


@pytest.mark.parametrize(("namespace", "stays"), [("default", False), ("other", True)])
def test_excluded_sandbox_loses_what_gvisor_takes_for_each_container_of_the_pod(namespace: str, stays: bool) -> None:
    given = {"dev.gvisor.spec.mount.a.type": "tmpfs", "run.oci.x": "1"}
    rule = {"name": "r", "match": {"namespaces": ["default"], "containerTypes": ["container"]}}
    sandbox = Identity("containerd", True, namespace=namespace, pod="p", uid="u", types=("sandbox",))
    made = container(identity=sandbox)
    made.start.annotations = dict(given)
    rules = {**rule, "env": [{"name": "A", "value": "b"}]}
    found = plan(policy(rules, exclude={"containerTypes": ["sandbox"]}), made)
    found.apply(made.start)
    assert (found.excluded, made.start.env) == ("container type sandbox", [])
    assert made.start.annotations == (given if stays else {"run.oci.x": "1"})


def test_too_many_of_them_refuse_the_container() -> None:
    found, _ = unsteered({f"run.oci.{number}": "" for number in range(1_001)})
    assert "more than 1000 annotation entries" in found.refusal()


def test_table_has_each_beginning() -> None:
    assert all(key.startswith(PREFIXES) for key in HARMLESS)
