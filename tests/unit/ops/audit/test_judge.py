"""How a running container differs from what the policy wants, and why, as far as its env and config.json tell it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hook.core.base.finding import ERROR
from hook.core.container.spec import Spec
from hook.core.facts import Container
from hook.core.plan import Plan, plan
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import Decision, stamp
from hook.inside.containers import Running
from hook.inside.process import Process
from hook.ops.audit.judge import INSIDE, Difference, Judge, Why, actual, has_mount
from unit.support import POD, bind, policy, spec

CA = {"name": "ca", "env": [{"name": "CA", "value": "/ca.pem"}]}
CONTAINER = Running("0a", os.getpid(), 0, "/bundle", "", 0.0)
WHY = Why(ERROR, "past it", "created without reassert")


def judged(
    has: list[str], *rules: dict[str, Any], decision: dict[str, str] | None = None, **fields: Any
) -> tuple[Judge, Plan, Any, list[Decision | None]]:
    """A judge and the plan for a container whose process has this env. The last: what it was told of create.

    `decision`: annotations that reassert wrote; those of `fields` are the engine's.
    """
    told: list[Decision | None] = []

    def why(_: Running, created: Decision | None) -> Why:
        told.append(created)
        return WHY

    started = spec(**fields)
    if decision:
        started.annotations = decision
        started = Spec(started.render(), "config.json")
    return Judge(why), plan(policy(*rules), Container(POD, actual(started, has))), started, told


def differences(has: list[str], *rules: dict[str, Any], **fields: Any) -> list[Difference]:
    judge, decided, started, _ = judged(has, *rules, **fields)
    with Process(os.getpid()) as process:
        return judge.differences(CONTAINER, started, decided, process)


@pytest.mark.parametrize(
    ("env", "configured", "found"),
    [
        (["CA=/ca.pem"], ["CA=/ca.pem"], []),
        (["CA=/x", "CA=/ca.pem"], ["CA=/x"], []),  # the last one counts
        (["CA=/x"], ["CA=/ca.pem"], [("env CA differs", INSIDE)]),
        (["CA=/x"], ["CA=/x", "CA=/ca.pem"], [("env CA differs", INSIDE)]),
        (["CA=/x"], ["CA=/x"], [("env CA differs", WHY)]),
        ([], ["CA=/ca.pem"], [("env CA is missing", INSIDE)]),
        ([], [], [("env CA is missing", WHY)]),
    ],
)
def test_env_of_the_process_counts_and_config_json_says_why(
    env: list[str], configured: list[str], found: list[tuple[str, Why]]
) -> None:
    told = differences(env, CA, env=configured)
    assert [(d.rule, d.kind, d.name, d.why) for d in told] == [("ca", "env", "CA", why.text) for _, why in found]
    assert all(("is missing" in d.message) == (not env) for d in told)
    assert all("/x" not in d.message for d in told), "no value is shown"


def test_void_of_nvidias_runtime_does_not_differ() -> None:
    """It writes that in place of what the variable had, and gave the container these GPUs."""
    rule = {"name": "gpu", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-4"}]}
    for has, known in (("void", 0), ("all", 1), ("none", 1)):
        env = [f"NVIDIA_VISIBLE_DEVICES={has}"]
        assert len(differences(env, rule, env=env)) == known
    assert len(differences(["CA=void"], CA, env=["CA=void"])) == 1


@pytest.mark.parametrize(
    ("has", "configured", "why"),
    [
        ("/b", "/ca.pem", None),  # a process may have another allowed value than its container
        ("/x", "/b", INSIDE),
        ("/x", "/x", WHY),
        ("/b", "/x", None),
    ],
)
def test_a_process_with_an_allowed_value_does_not_differ(has: str, configured: str, why: Why | None) -> None:
    allowed = {"name": "ca", "env": [{"name": "CA", "oneOf": ["/ca.pem", "/b"], "else": "/ca.pem"}]}
    told = differences([f"CA={has}"], allowed, env=[f"CA={configured}"])
    assert [(d.message, d.why) for d in told] == (
        [("env CA was set to a value that is not allowed", why.text)] if why else []
    )


def test_what_else_differs_was_so_at_create() -> None:
    rule = {"name": "r", "annotations": [{"name": "gpu.example/*", "absent": True}]}
    [found] = differences([], rule, annotations={"gpu.example/mine": "1"})
    assert (found.rule, found.kind, found.name, found.why) == ("r", "annotation", "gpu.example/mine", WHY.text)
    assert "gpu.example/mine" in found.message


def test_refusal_is_told_once_and_with_what_create_decided() -> None:
    decision = stamp({}, Reserved({"CA": "/older"}, []), fingerprint="older")
    judge, decided, started, told = judged(["CA=/x"], {**CA, "onConflict": "Deny"}, env=["CA=/x"], decision=decision)
    assert decided.denials
    assert judge.denied(CONTAINER, started, decided) == [], "the edit says it"
    with Process(os.getpid()) as process:
        assert len(judge.differences(CONTAINER, started, decided, process)) == 1
    assert [created and created.policy for created in told] == ["older"]
    alone = {"name": "alone", "sharedProcesses": "Refuse"}
    linux = {"namespaces": [{"type": "pid", "path": "/proc/1/ns/pid"}]}
    for forged in ({"reassert/decision": "{"}, decision):
        judge, decided, started, told = judged([], alone, linux=linux, annotations=forged)
        assert [(d.rule, d.why) for d in judge.denied(CONTAINER, started, decided)] == [("alone", WHY.text)]
        assert told == [None], "a pod wrote that annotation"


def test_mount_of_config_json_is_known_by_path_and_hostpath() -> None:
    started = spec(mounts=[bind("/etc/ssl", "/srv/ca")])
    assert has_mount(started, "/etc/ssl", "/srv/ca")
    assert not has_mount(started, "/etc/ssl", "/srv")
    assert not has_mount(started, "/etc", "/srv/ca")
