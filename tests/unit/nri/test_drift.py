"""What is told of running containers that differ from the policy, and that nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.start import Start
from hook.core.plan import Plan
from hook.core.reserve import Edit
from hook.nri.creation import removes_mounts, sends_cdi_devices, version_at_least
from unit.nri.support import Running, create_request, running
from unit.support import bind, document

GPU = {"name": "gpu", "env": [{"name": "GPU", "value": "void"}]}
ANNOTATION = {"name": "notes", "annotations": [{"name": "gpu.example/*", "absent": True, "of": "Pod"}]}
PAUSED, RUNS, STOPPED = 2, 3, 4


@pytest.fixture
def plugin(root_dir: Path) -> Iterator[Running]:
    of_web = {"name": "web", "match": {"namespaces": ["web"]}, "env": [{"name": "WEB", "value": "1"}]}
    ca = {"name": "ca", "mounts": [{"hostPath": str(root_dir), "mountPath": "/ca"}]}
    with running(root_dir, document(GPU, of_web, ca)) as plugin:
        yield plugin


def container(
    name: str, *env: str, pod: str = "pod", state: int = RUNS, source: object = None, namespace: str = "team-a"
) -> Any:
    """A request about a container in its pod. `source`: of its mount at /ca."""
    mounts = [{**bind("/ca", str(source)), "options": ["rbind", "rprivate", "ro", "rro"]}] if source else []
    return create_request(
        list(env), mounts, id=name, state=state, pod_sandbox_id=pod, pod={"id": pod, "namespace": namespace}
    )


def drifted(plugin: Running, *asked: Any, pods: list[Any] | None = None) -> dict[str, list[str]]:
    """The names of what differs, by container."""
    before = len(plugin.logged())
    pods = [each.pod for each in asked] if pods is None else pods
    count = plugin.decider.look_at_running(pods, [each.container for each in asked])
    events = [event for event in plugin.logged()[before:] if event["event"] == "container.drifted"]
    assert count == len(events)
    assert all((event["level"], event["applied"]) == ("warning", False) for event in events)
    return {event["id"]: [edit["name"] for edit in event["edits"]] for event in events}


def test_containers_that_run_or_are_paused_are_compared(plugin: Running, root_dir: Path) -> None:
    asked = [container(f"c{state}", state=state, source=root_dir) for state in range(5)]
    assert drifted(plugin, *asked) == {"c2": ["GPU"], "c3": ["GPU"]}
    assert drifted(plugin, *asked, pods=[]) == {}, "nothing is known of a pod that is not listed"
    assert plugin.metric("reassert_errors_total", kind="decision") is None
    assert plugin.metric("reassert_drift_total", rule="gpu", kind="env") == 2


def test_each_is_held_against_the_policy_as_a_container_of_its_own_pod(plugin: Running, root_dir: Path) -> None:
    first = container("c0", "GPU=void", source=root_dir)
    second = container("c1", "GPU=void", source=root_dir, pod="other", namespace="web")
    assert drifted(plugin, first, second) == {"c1": ["WEB"]}
    assert drifted(plugin, container("c2", "GPU=x", pod="other", namespace="web"), first) == {
        "c2": ["GPU", "WEB", "/ca"]
    }


def test_one_that_cannot_be_read_hides_no_other(plugin: Running, root_dir: Path) -> None:
    broken, wrong = container("c0", "A\0=1"), container("c1", source=root_dir)
    assert drifted(plugin, broken, wrong) == {"c1": ["GPU"]}
    assert "a string in the container's env holds a NUL" in plugin.logged()[-2]["denials"][0]["message"]
    assert plugin.metric("reassert_errors_total", kind="decision") == 1


@pytest.mark.parametrize(
    ("env", "left"),
    [
        (None, {"GPU": ["all"], "/ca": []}),  # this process cannot look at it: its record counts
        (["GPU=void"], {"/ca": []}),
        (["GPU=none"], {"GPU": ["none"], "/ca": []}),
    ],
)
def test_what_the_wrapper_put_right_after_the_record_is_no_drift_and_an_event_says_what_is_there(
    plugin: Running, env: list[str] | None, left: dict[str, list[str]]
) -> None:
    asked: list[str] = []

    def compare(container_id: str, decide: Callable[[Start], Plan]) -> list[Edit] | None:
        asked.append(container_id)
        return None if env is None else list(decide(Start(env, [])).edits)

    plugin.decider.compare = compare
    drifted(plugin, container("c0", "GPU=all"))
    [event] = [event for event in plugin.logged() if event["event"] == "container.drifted"]
    assert {edit["name"]: edit["before"] for edit in event["edits"]} == left
    assert asked == ["c0"]


def test_what_a_look_at_a_container_does_not_show_is_known_of_the_request(root_dir: Path) -> None:
    """A pod's annotations are in no config.json."""
    with running(root_dir, document(GPU, {**ANNOTATION, "onConflict": "Deny"})) as plugin:
        seen: list[bool] = []

        def compare(_: str, decide: Callable[[Start], Plan]) -> None:
            seen.append(bool(decide(Start([], [])).denials))

        plugin.decider.compare = compare
        for notes in ({"gpu.example/mine": "1"}, {}):
            create = create_request([], state=RUNS, pod={"annotations": notes})
            plugin.decider.look_at_running([create.pod], [create.container])
        assert seen == [True, False]


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("containerd", "1.7.24", (False, False)),
        ("containerd", "v2.0.0-rc.1", (True, False)),
        ("containerd", "2.2.9", (True, False)),
        ("containerd", "2.3.0", (True, True)),
        ("containerd", "10.0", (True, True)),
        ("containerd", "", (False, False)),
        ("cri-o", "2.3.0", (False, False)),
    ],
)
def test_what_a_runtimes_nri_can_do_is_known_of_its_version(
    engine: str, version: str, found: tuple[bool, bool]
) -> None:
    assert (removes_mounts(engine, version), sends_cdi_devices(engine, version)) == found
    assert not version_at_least(engine, version, {})
