"""Who a container is, from bundles that real engines wrote; and nobody, where a pod may have had its hand in it."""

from __future__ import annotations

import json

import pytest

from hook.container.identity import TYPES, Identity, identify
from hook.container.spec import Spec
from hook.policy.match import excluded, select
from unit.support import CONTAINERD, FIXTURES, policy, spec

APPS = ("container", "init", "ephemeral")

CRIO = {
    "io.container.manager": "cri-o",
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.ImageName": "registry.example/app:1",
    "io.kubernetes.cri-o.Labels": json.dumps(
        {
            "io.kubernetes.container.name": "app",
            "io.kubernetes.pod.name": "web-1",
            "io.kubernetes.pod.namespace": "team-a",
            "io.kubernetes.pod.uid": "1-2-3",
            "tier": "web",
        }
    ),
    "io.kubernetes.container.name": "app",
    "io.kubernetes.pod.name": "web-1",
    "io.kubernetes.pod.namespace": "team-a",
    "io.kubernetes.pod.uid": "1-2-3",
}
PODMAN = {
    "io.container.manager": "libpod",
    "io.kubernetes.cri-o.Created": "2024-05-01T10:00:00.000000000Z",
    "io.kubernetes.cri-o.TTY": "false",
    "io.podman.annotations.autoremove": "TRUE",
}


def recorded(name: str) -> Identity:
    """Of a config.json that an engine wrote for a real kubelet."""
    path = FIXTURES / "kubelet" / name
    return identify(Spec(path.read_bytes(), name))


def noted(*annotations: dict[str, str]) -> Identity:
    """Of a spec with these annotations."""
    return identify(spec(annotations={key: value for notes in annotations for key, value in notes.items()}))


def known(who: Identity) -> tuple[object, ...]:
    """All of an identity, to compare."""
    return tuple(getattr(who, field) for field in Identity.__slots__)


def test_containerd_container() -> None:
    who = recorded("containerd-container.json")
    assert (who.engine, who.kubernetes, who.types, who.labels) == ("containerd", True, APPS, None)
    assert who.as_dict() == {
        "namespace": "default",
        "pod": "victim-labnode",
        "uid": "720176327c71c863979a705b8a60913d",
        "container": "evil",
        "image": "lab.local/plain:1",
    }


def test_containerd_sandbox() -> None:
    who = recorded("containerd-sandbox.json")
    assert (who.engine, who.namespace, who.pod, who.container, who.types) == (
        "containerd",
        "default",
        "victim-labnode",
        None,
        ("sandbox",),
    )


def test_containerd_does_not_believe_a_type_that_a_pod_may_have_written() -> None:
    assert noted(CONTAINERD, {"io.kubernetes.container.type": "init"}).types == APPS


def test_dockershim_container_is_known_by_uid_and_name() -> None:
    who = recorded("dockershim-container.json")
    assert (who.engine, who.kubernetes, who.types, who.namespace) == ("docker", True, APPS, None)
    assert who.as_dict() == {"uid": "79a3cc685b68dbeb0caaea052c524305", "container": "evil"}


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        ("/kubepods/burstable/pod1-2-3/0a1b", "1-2-3"),
        ("/node/kubepods/pod1-2-3/0a1b", "1-2-3"),
        ("kubepods-besteffort-pod1_2_3.slice:docker:0a1b", "1-2-3"),
        ("/system.slice/docker-0a1b.scope", None),
        ("/docker/pod1-2-3", None),
    ],
)
def test_dockershim_pod_is_known_by_its_cgroup(cgroup: str, uid: str | None) -> None:
    """Without a termination log it is the sandbox; in no pod's cgroup it is a container of no pod."""
    who = identify(spec(linux={"cgroupsPath": cgroup}))
    assert (who.uid, who.kubernetes) == (uid, uid is not None)
    assert who.types == (("sandbox",) if uid else ("container",))


def test_dockershim_container_name_comes_from_its_own_pods_directory_only() -> None:
    log = {"destination": "/t", "source": "/var/lib/kubelet/pods/other/containers/fake/0a"}
    own = {"destination": "/t", "source": "/srv/kubelet/pods/1-2-3/containers/app/0a"}
    linux = {"cgroupsPath": "/kubepods/pod1-2-3/0a"}
    assert identify(spec(mounts=[log, own], linux=linux)).container == "app"
    assert identify(spec(mounts=[log], linux=linux)).container is None


def test_crio_container_and_its_labels() -> None:
    who = noted(CRIO)
    assert known(who) == known(
        Identity("cri-o", True, "team-a", "web-1", "1-2-3", "app", APPS, "registry.example/app:1", {"tier": "web"})
    )


def test_crio_believes_its_own_copy_of_kubelets_labels_first() -> None:
    """The single annotations share their key with what a pod may bring along; the JSON text is CRI-O's alone."""
    assert noted(CRIO, {"io.kubernetes.pod.namespace": "kube-system"}).namespace == "team-a"


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_crio_labels_that_cannot_be_read_are_unknown(text: str) -> None:
    who = noted(CRIO, {"io.kubernetes.cri-o.Labels": text})
    assert (who.labels, who.namespace) == (None, "team-a")


def test_crio_sandbox() -> None:
    assert noted(CRIO, {"io.kubernetes.cri-o.ContainerType": "sandbox"}).types == ("sandbox",)


@pytest.mark.parametrize(
    ("annotations", "types"),
    [
        ({}, ("container",)),
        ({"io.kubernetes.cri-o.ContainerType": "container"}, ("container",)),
        ({"io.kubernetes.cri-o.ContainerType": "sandbox"}, ("sandbox",)),
    ],
)
def test_podman_container_is_of_no_kubernetes_pod(annotations: dict[str, str], types: tuple[str, ...]) -> None:
    who = noted(PODMAN, annotations)
    assert (who.engine, who.kubernetes, who.namespace, who.types) == ("podman", False, None, types)


def test_bare_bundle_is_of_no_pod() -> None:
    assert known(noted({})) == known(Identity("", False, types=("container",)))


FORGED = [
    (CONTAINERD, {"io.kubernetes.cri-o.ContainerType": "sandbox"}),
    (CONTAINERD, {"io.container.manager": "cri-o", "io.kubernetes.pod.namespace": "kube-system"}),
    (CONTAINERD, {"io.container.manager": "libpod"}),
    (CRIO, {"io.kubernetes.cri.sandbox-id": "x", "io.kubernetes.cri.sandbox-namespace": "kube-system"}),
    (CRIO, {"io.kubernetes.cri.container-type": "sandbox"}),
    (CRIO, {"io.container.manager": "libpod"}),
    (PODMAN, {"io.kubernetes.cri.sandbox-id": "x", "io.kubernetes.cri.sandbox-namespace": "kube-system"}),
]


@pytest.mark.parametrize(("real", "forged"), FORGED)
def test_annotations_of_a_second_engine_make_everything_unknown(real: dict[str, str], forged: dict[str, str]) -> None:
    assert known(noted(real, forged)) == known(Identity("ambiguous", None, types=TYPES))


@pytest.mark.parametrize("if_unknown", ["Enforce", "Skip"])
@pytest.mark.parametrize(("real", "forged"), FORGED)
def test_forged_annotations_neither_escape_a_rule_nor_reach_an_exclusion(
    real: dict[str, str], forged: dict[str, str], if_unknown: str
) -> None:
    who = noted(real, forged)
    match = {"namespaces": ["team-a"], "containerNames": ["app"], "containerTypes": ["container"]}
    narrow = policy({"name": "r", "match": {**match, "ifUnknown": if_unknown}, "env": [{"name": "X", "absent": True}]})
    assert [match.applies for match in select(narrow, who)] == [True]
    everything = policy(exclude={"namespaces": ["*"], "containerTypes": list(TYPES)})
    assert excluded(everything, who) == ""


def test_empty_foreign_claim_is_no_identity() -> None:
    """A namespace alone, without what its engine always writes, is only an annotation."""
    who = noted(PODMAN, {"io.kubernetes.cri.sandbox-namespace": "kube-system"})
    assert (who.engine, who.namespace) == ("podman", None)
