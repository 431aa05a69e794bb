"""Which type a pod's container has: what a real kubelet's PodResources answered while it created the containers."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core.container.identity import APP_TYPES, CONTAINER, DOCKER, NOT_LISTED, SANDBOX, Identity, identify
from hook.core.container.spec import Spec
from hook.core.container.start import Start
from hook.core.decide import Adapter, Case
from hook.core.facts.cri import learn
from hook.core.plan import Plan
from hook.core.policy.model import excluded
from unit.ownmachine import Machine
from unit.podresources import MESSAGES, RECORDED, PodResources, answer, busy, listing, recorded
from unit.support import FIXTURES, WithPolicy, policy

INIT = {"name": "init", "match": {"containerTypes": ["init"]}, "env": [{"name": "KIND", "value": "init"}]}
APP = {"name": "app", "match": {"containerTypes": ["container"]}, "env": [{"name": "KIND", "value": "app"}]}
OTHERS = {
    "name": "others",
    "match": {"containerTypes": ["init", "ephemeral"]},
    "env": [{"name": "KIND", "value": "others"}],
}
SKIP = {**INIT, "match": {**INIT["match"], "ifUnknown": "Skip"}}


@pytest.fixture
def kubelet(root_dir: Path) -> Iterator[PodResources]:
    found = PodResources(root_dir)
    yield found
    found.close()


def config(name: str) -> Spec:
    """A recorded config.json: POD.CONTAINER.ATTEMPT with DRA, or POD.CONTAINER of a static pod."""
    directory = "k1.36-dra" if name in RECORDED else "k1.36-containerd"
    path = FIXTURES / "kubelet" / directory / (f"{name}.config.json" if name in RECORDED else f"config.{name}.json")
    return Spec(path.read_bytes(), "config.json")


def decide(root: Path, spec: Spec, *rules: dict[str, Any], container_id: str = "0a", **more: Any) -> tuple[Case, Plan]:
    case = Case(WithPolicy(policy(*rules, kubelet={"root": str(root)}, **more), learns=True), container_id)
    return case, case.decide(identify(spec, copied=True), spec)


def types(root: Path, name: str, *rules: dict[str, Any], **more: Any) -> tuple[str, ...]:
    """What is known of a recorded container's type after the policy's questions."""
    case, _ = decide(root, config(name), *(rules or () if more else (APP,)), **more)
    assert case.identity
    return case.identity.types


def static(name: str) -> bytes:
    """A recorded answer of List about static pods. It was recorded decoded; the bytes are made of that."""
    path = FIXTURES / f"kubelet/k1.36-containerd/podresources.list.{name}.json"
    found = MESSAGES["ListPodResourcesResponse"]()
    for each in json.loads(path.read_text())["pod_resources"]:
        names = [{"name": container["name"]} for container in each["containers"]]
        found.pod_resources.add(name=each["name"], namespace=each["namespace"], containers=names)
    return bytes(found.SerializeToString())


@pytest.mark.parametrize("by_list", [False, True], ids=["Get", "List"])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("d-init.init.0", NOT_LISTED),
        ("d-init.main.0", (CONTAINER,)),
        ("f-sidecar.side.0", (CONTAINER,)),
        ("f-sidecar.main.0", (CONTAINER,)),
    ],
)
def test_a_recorded_kubelet_lists_app_containers_and_sidecars(
    root_dir: Path, kubelet: PodResources, name: str, found: tuple[str, ...], by_list: bool
) -> None:
    kubelet.add(recorded(name))
    if by_list:  # as before 1.36
        kubelet.has_get = False
        kubelet.listed = base64.b64decode(RECORDED[name]["list"])
    assert types(root_dir, name) == found
    assert kubelet.lists == by_list


@pytest.mark.parametrize(
    ("name", "list_of", "found"),
    [
        ("edge.plain-init", "edge", NOT_LISTED),
        ("edge.sidecar", "edge", (CONTAINER,)),
        ("edge.priv", "edge", (CONTAINER,)),
        ("victim.init-gpu", "during-init", NOT_LISTED),
        ("victim.init-nodev", "during-init", NOT_LISTED),
        ("victim.nodev", "during-init", (CONTAINER,)),
    ],
)
def test_a_recorded_kubelet_lists_static_pods(
    root_dir: Path, kubelet: PodResources, name: str, list_of: str, found: tuple[str, ...]
) -> None:
    kubelet.listed = static(list_of)
    assert types(root_dir, name) == found


def test_rules_that_differ_by_type_do_not_contradict_each_other(root_dir: Path, kubelet: PodResources) -> None:
    kubelet.add(recorded("d-init.main.0"))
    for name, value in (("d-init.main.0", "app"), ("d-init.init.0", "others")):
        spec = config(name)
        _, decided = decide(root_dir, spec, APP, OTHERS)
        assert decided.refusal() == ""
        decided.apply(spec)
        assert f"KIND={value}" in spec.env
    kubelet.answers.clear()
    _, decided = decide(root_dir, config("d-init.main.0"), APP, OTHERS)
    assert "wants another value for env KIND" in decided.refusal()


def test_init_and_ephemeral_containers_stay_unknown_among_each_other(root_dir: Path, kubelet: PodResources) -> None:
    """`ifUnknown` decides for both, and neither type alone excludes one."""
    kubelet.add(recorded("d-init.main.0"))
    for rule, met in ((INIT, True), (SKIP, False)):
        for name, applies in (("d-init.init.0", met), ("d-init.main.0", False)):
            _, decided = decide(root_dir, config(name), rule)
            assert [match.applies for match in decided.matches] == [applies]
    for kinds, names in (
        (["init"], []),
        (["ephemeral"], []),
        (["init", "ephemeral"], ["d-init.init.0"]),
        (["container"], ["d-init.main.0"]),
        (["container", "init"], ["d-init.main.0"]),
    ):
        for name in ("d-init.init.0", "d-init.main.0"):
            case, _ = decide(root_dir, config(name), exclude={"containerTypes": kinds})
            assert case.policy and case.identity
            why = excluded(case.policy, case.identity)
            assert why == ("" if name not in names else f"container type {' or '.join(case.identity.types)}")


def test_without_an_answer_no_container_is_excluded_but_by_all_types(root_dir: Path) -> None:
    spec = config("d-init.main.0")
    for kinds, out in ((["container"], False), (["init", "ephemeral"], False), ([*APP_TYPES], True)):
        case, _ = decide(root_dir, spec, exclude={"containerTypes": kinds})
        assert case.policy and case.identity
        assert bool(excluded(case.policy, case.identity)) is out


def test_kubelet_is_asked_only_where_the_type_decides(root_dir: Path, kubelet: PodResources) -> None:
    kubelet.add(recorded("d-init.main.0"))
    everywhere = {**APP, "match": {"containerTypes": ["container", "init", "ephemeral"]}}
    another = {**APP, "match": {**APP["match"], "containerNames": ["another"]}}
    for name in ("d-init.main.0", "d-init.init.0"):
        for rules, more in (
            ([everywhere], {}),
            ([another], {}),
            ([], {"exclude": {"containerTypes": ["sandbox"]}}),
            ([], {"exclude": {"containerTypes": ["init"]}}),
            ([APP], {"exclude": {"namespaces": ["dra"]}}),
        ):
            decide(root_dir, config(name), *rules, **more)
    assert kubelet.asked == []


def test_kubelet_is_asked_once_about_types_and_claims(root_dir: Path, kubelet: PodResources, machine: Machine) -> None:
    kubelet.add(recorded("f-sidecar.main.0"))
    recorded_state = FIXTURES / "kubelet/k1.36-dra/dra_manager_state.all"
    (root_dir / "dra_manager_state").write_bytes(recorded_state.read_bytes())
    gpu = {"name": "gpu", "env": [{"name": "TOY_GPU", "valueFrom": {"deviceAllocation": {"default": "none"}}}]}
    decide(root_dir, config("f-sidecar.main.0"), APP, gpu)
    assert kubelet.asked == ["dra/f-sidecar"]


@pytest.mark.parametrize(
    "listed",
    [
        listing(answer("dra", "d-init", {"main": []}), answer("dra", "d-init", {"init": []})),
        listing(answer("dra", "another", {"main": []})),
        b"",
        b"\xff",
        None,
    ],
    ids=["two pods of one name", "other pods", "no pod", "garbage", "no List"],
)
def test_a_pod_that_is_not_listed_once_leaves_the_type_unknown(
    root_dir: Path, kubelet: PodResources, listed: bytes | None
) -> None:
    kubelet.listed = listed
    assert types(root_dir, "d-init.init.0") == types(root_dir, "d-init.main.0") == APP_TYPES


def test_a_kubelet_that_is_away_or_hangs_leaves_the_type_unknown(root_dir: Path) -> None:
    assert types(root_dir, "d-init.main.0") == APP_TYPES
    (root_dir / "pod-resources").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root_dir / "pod-resources/kubelet.sock"))
        assert types(root_dir, "d-init.main.0") == APP_TYPES
        listening.listen()
        assert types(root_dir, "d-init.main.0") == APP_TYPES


def test_a_kubelet_that_is_busy_is_asked_again(root_dir: Path) -> None:
    with busy(root_dir, recorded("d-init.main.0")):
        assert types(root_dir, "d-init.init.0") == NOT_LISTED


def test_a_socket_that_others_can_replace_does_not_count(root_dir: Path, kubelet: PodResources) -> None:
    kubelet.add(recorded("d-init.main.0"))
    kubelet.socket.parent.chmod(0o777)
    assert types(root_dir, "d-init.main.0") == APP_TYPES
    assert kubelet.asked == []


def test_nobody_is_asked_about_what_is_no_pods_container(root_dir: Path, kubelet: PodResources) -> None:
    kubelet.add(answer("a", "p", {"c": []}))
    rules = policy(APP, kubelet={"root": str(root_dir)})
    for identity in (
        Identity("ambiguous", None),
        Identity(DOCKER, None, namespace="a", pod="p", uid="1", container="c", types=APP_TYPES),
        Identity(DOCKER, True, namespace=None, pod=None, uid="1", container="c", types=APP_TYPES),
        Identity("containerd", True, namespace="a", pod="p", uid="1", container=None, types=(SANDBOX,)),
    ):
        before = identity.types
        learn(Adapter(), rules, identity, Start([], []), container_id="0a")
        assert identity.types == before
    assert kubelet.asked == []
    proven = Identity(
        DOCKER, True, namespace="a", pod="p", uid="1", container="c", types=APP_TYPES
    )  # by dockershim's files
    learn(Adapter(), rules, proven, Start([], []), container_id="0a")
    assert proven.types == (CONTAINER,)


def test_a_probe_is_an_app_container(root_dir: Path, kubelet: PodResources, machine: Machine) -> None:
    """kubelet does not know the pod of `verify`."""
    spec = config("d-init.main.0")
    machine.file("/run/reassert/probes/0a")
    case, decided = decide(root_dir, spec, APP, OTHERS)
    assert case.identity and case.identity.types == (CONTAINER,)
    assert decided.refusal() == ""
    case, _ = decide(root_dir, spec, APP, OTHERS, container_id="another")
    assert case.identity and case.identity.types == APP_TYPES
    assert kubelet.asked == ["dra/d-init"]
