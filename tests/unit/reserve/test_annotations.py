"""Reserved annotations of the container and of its pod."""

from __future__ import annotations

from typing import Any

import pytest

from hook.plan import Container, Plan, plan
from unit.support import container, policy, problems

KEY = "nvidia.cdi.k8s.io/pod"


def decided(of: str | None, where: str, key: str = KEY, problem: str = "", **rule: Any) -> Plan:
    """The plan for a container with an annotation, of its own or of its pod."""
    entry = {"name": "nvidia.cdi.k8s.io/*", "absent": True, **({"of": of} if of else {})}
    made: Container = container()
    made.facts.allocation_problem = problem
    if where == "pod":
        made.pod_annotations = {key: "gpu=0"}
    else:
        made.annotations = {key: "gpu=0"}
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
    made.pod_annotations = {f"nvidia.cdi.k8s.io/{number}": "x" for number in range(5000)}
    entry = {"name": "nvidia.cdi.k8s.io/*", "absent": True}
    assert 1 < len(plan(policy({"name": "cdi", "annotations": [entry]}), made).denials) < 100


def test_unknown_owner_is_an_error() -> None:
    text = (
        "apiVersion: reassert/v1\nkind: NodePolicy\nmetadata: {name: d}\nspec:\n  rules:\n"
        "  - {name: r, annotations: [{name: a, absent: true, of: Node}]}\n"
    )
    [problem] = problems(text)
    assert "Both" in str(problem)
