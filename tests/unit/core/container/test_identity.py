"""Identities from bundles of real engines; fields that a pod can forge are unknown."""

from __future__ import annotations

import json

import marks
import pytest

from hook.core.container.identity import TYPES, Identity, identify
from hook.core.container.spec import Spec
from hook.core.policy.model import excluded, select
from unit.support import CONTAINERD, FIXTURES, SYSTEMD_CGROUP, config, policy, spec

APPS = ("container", "init", "ephemeral")

CRIO = {
    "io.container.manager": "cri-o",
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.Image": "registry.example/app:1",
    "io.kubernetes.cri-o.ImageName": "some.example/other:2",
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
CRI_BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
CGROUPS = {
    "containerd": SYSTEMD_CGROUP,
    "cri-o": "kubepods-besteffort-pod1_2_3.slice:crio:0a1b",
    "podman": "machine.slice:libpod:0a1b",
    "docker": "system.slice:docker:0a1b",
}
PODMAN = {
    "io.container.manager": "libpod",
    "io.kubernetes.cri-o.Created": "2024-05-01T10:00:00.000000000Z",
    "io.kubernetes.cri-o.TTY": "false",
    "io.podman.annotations.autoremove": "TRUE",
}


def recorded(name: str) -> Identity:
    """The identity in a config.json that an engine wrote for a real kubelet."""
    path = FIXTURES / "kubelet" / name
    return identify(Spec(path.read_bytes(), f"{CRI_BUNDLES}/0a1b/config.json"))


def noted(*annotations: dict[str, str], cgroup: str = "", where: str = "/b/config.json") -> Identity:
    """The identity in a spec with these annotations; without a cgroup or bundle, nothing proves the engine."""
    notes = {key: value for each in annotations for key, value in each.items()}
    return identify(Spec(json.dumps(config(annotations=notes, linux={"cgroupsPath": cgroup})).encode(), where))


def by(engine: str, *annotations: dict[str, str]) -> Identity:
    """The identity in a spec of this engine, with these annotations."""
    return noted(*annotations, cgroup=CGROUPS[engine])


def known(identity: Identity) -> tuple[object, ...]:
    """All fields of an identity, for a comparison."""
    return tuple(vars(identity).values())


def test_containerd_container() -> None:
    identity = recorded("containerd-container.json")
    assert (identity.engine, identity.kubernetes, identity.types, identity.labels) == ("containerd", True, APPS, None)
    assert identity.as_dict() == {
        "namespace": "default",
        "pod": "victim-labnode",
        "uid": "720176327c71c863979a705b8a60913d",
        "container": "evil",
        "image": "lab.local/plain:1",
    }


def test_containerd_sandbox() -> None:
    identity = recorded("containerd-sandbox.json")
    assert (identity.engine, identity.namespace, identity.pod, identity.container, identity.types) == (
        "containerd",
        "default",
        "victim-labnode",
        None,
        ("sandbox",),
    )


def test_containerd_does_not_believe_a_type_that_a_pod_may_have_written() -> None:
    assert by("containerd", CONTAINERD, {"io.kubernetes.container.type": "init"}).types == APPS


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
def test_container_of_docker_in_a_pods_cgroup_is_unknown_without_proof(cgroup: str, uid: str | None) -> None:
    """It may be of a user who gave that cgroup parent; unit/core/container/test_dockershim.py has the proofs."""
    identity = identify(spec(linux={"cgroupsPath": cgroup}))
    assert (identity.as_dict(), identity.kubernetes) == ({}, None if uid else False)
    assert (identity.unproven or (None,))[0] == uid
    assert identity.types == (TYPES if uid else ("container",))
    assert excluded(EVERYTHING, identity) == ("" if uid else "container type container")


def test_crio_container() -> None:
    identity = by("cri-o", CRIO)
    assert known(identity) == known(
        Identity(
            "cri-o",
            True,
            namespace="team-a",
            pod="web-1",
            uid="1-2-3",
            container="app",
            types=APPS,
            image="registry.example/app:1",
        )
    )


@marks.hole(
    "Under CRI-O, a pod's annotation was believed as the labels of its sandbox",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
def test_crio_labels_in_json_are_not_believed() -> None:
    """For a sandbox they can be the pod's own annotation; kubelet's labels stand there one by one, and last."""
    labels = json.dumps({"io.kubernetes.pod.namespace": "kube-system", "io.kubernetes.pod.uid": "9", "tier": "web"})
    identity = by("cri-o", CRIO, {"io.kubernetes.cri-o.Labels": labels, "io.kubernetes.cri-o.ContainerType": "sandbox"})
    assert (identity.namespace, identity.uid, identity.labels, identity.types) == (
        "team-a",
        "1-2-3",
        None,
        ("sandbox",),
    )


@marks.hole(
    "Under CRI-O, a second tag of an image bypassed a rule with `images`",
    since="0.1.0",
    fixed="0.2.0",
    severity="medium",
)
@pytest.mark.parametrize(
    ("asked", "image"),
    [
        ("registry.example/app:1", "registry.example/app:1"),
        ("registry.example/app@sha256:" + "0a" * 32, "registry.example/app@sha256:" + "0a" * 32),
        ("0a" * 32, None),
        ("sha256:" + "0a" * 32, None),
        ("", None),
    ],
)
def test_crio_image_is_what_kubelet_asked_for_or_unknown(asked: str, image: str | None) -> None:
    """`ImageName` is some name of the image in CRI-O's store, so a second tag there would take a rule away."""
    assert by("cri-o", CRIO, {"io.kubernetes.cri-o.Image": asked}).image == image


def test_crio_is_known_by_its_cgroup_in_both_forms() -> None:
    assert noted(CRIO, cgroup="/kubepods/besteffort/pod1-2-3/crio-0a1b").engine == "cri-o"
    assert noted(CRIO, cgroup="/kubepods/besteffort/pod1-2-3/0a1b").engine == "ambiguous"


@pytest.mark.parametrize("engine", ["containerd", "cri-o"])
def test_names_that_an_engine_does_not_write_for_a_sandbox_are_not_believed_there(engine: str) -> None:
    notes = {"containerd": (CONTAINERD, "cri.container-type"), "cri-o": (CRIO, "cri-o.ContainerType")}[engine]
    identity = by(engine, notes[0], {f"io.kubernetes.{notes[1]}": "sandbox"})
    assert (identity.types, identity.namespace, identity.container, identity.image) == (
        ("sandbox",),
        "team-a",
        None,
        None,
    )


@pytest.mark.parametrize("manager", ["libpod", "cri-o"])
@pytest.mark.parametrize("kind", ["container", "sandbox"])
@pytest.mark.parametrize(
    ("cgroup", "where"),
    [
        ("machine.slice:libpod:0a1b", "/b/config.json"),
        ("/libpod_parent/libpod-0a1b", "/b/config.json"),
        ("/kubepods/pod1-2-3/libpod-0a1b", "/b/config.json"),
        ("/user.slice/libpod-payload-0a1b", "/b/config.json"),
        ("", "/var/lib/containers/storage/overlay-containers/0a1b/userdata/config.json"),
    ],
)
def test_podman_container_is_of_no_pod_and_no_sandbox_whatever_its_image_says(
    manager: str, kind: str, cgroup: str, where: str
) -> None:
    said = {"io.container.manager": manager, "io.kubernetes.cri-o.ContainerType": kind}
    identity = noted(PODMAN, CONTAINERD, CRIO, said, cgroup=cgroup, where=where)
    assert known(identity) == known(Identity("podman", False, types=("container",)))


def test_docker_has_no_annotations_of_its_own() -> None:
    """`docker run --annotation` writes any into config.json."""
    for cgroup in (CGROUPS["docker"], "/docker/0a1b"):
        where = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/0a1b/config.json"
        assert noted(CONTAINERD, cgroup=cgroup, where=where).kubernetes is False
        assert noted(CRIO, cgroup=cgroup, where=where).kubernetes is False
    assert noted(CONTAINERD, cgroup="/kubepods/pod1-2-3/0a1b", where=where).kubernetes is None


def test_containerd_is_known_by_its_cgroup_or_its_bundle() -> None:
    where = f"{CRI_BUNDLES}/0a1b/config.json"
    assert noted(CONTAINERD, cgroup="/kubepods/pod1-2-3/0a1b", where=where).namespace == "team-a"
    assert noted(CONTAINERD, cgroup=SYSTEMD_CGROUP).namespace == "team-a"


@marks.hole(
    "A RUN step of `podman build` or `docker build` with `--cgroup-parent` counted as a pod of which nothing is known: "
    "with `ifUnknown: Skip` or `failurePolicy: Ignore` it kept its values",
    since="0.2.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("cgroup", ["x.slice:cri-containerd:0a1b", "x.slice:crio:0a1b", "/x/crio-0a1b"])
def test_a_cgroup_alone_proves_no_pod(cgroup: str) -> None:
    """The user of a builder chooses the whole path; the builder writes at most this annotation."""
    of_no_pod = known(Identity("", False, types=("container",)))
    assert known(noted(cgroup=cgroup)) == of_no_pod
    assert known(noted({"run.oci.keep_original_groups": "1"}, cgroup=cgroup)) == of_no_pod


def test_bare_bundle_is_of_no_pod() -> None:
    assert known(noted({})) == known(Identity("", False, types=("container",)))
    assert known(noted(PODMAN)) == known(Identity("podman", False, types=("container",)))


EVERYTHING = policy(exclude={"namespaces": ["*"], "containerTypes": list(TYPES)})
NARROW = {"namespaces": ["team-a"], "containerNames": ["app"], "containerTypes": ["container"]}
CLAIMS = [
    CONTAINERD,
    CRIO,
    {**CONTAINERD, "io.kubernetes.cri.container-type": "sandbox"},
    {**CRIO, "io.kubernetes.cri-o.ContainerType": "sandbox"},
    {"io.kubernetes.cri.sandbox-namespace": "kube-system"},
    {"io.container.manager": "cri-o", "io.kubernetes.pod.namespace": "kube-system"},
    {"io.container.manager": "?"},
]
PARENTS = [
    "",
    "/kubepods/pod1-2-3/0a1b",
    "/x:cri-containerd:y/0a1b",
    "/x:crio:y/0a1b",
    "x:cri-containerd:y/0a1b",
    "/kubepods/crio-1/0a1b",
    "x:cri-containerd:y.slice:docker:0a1b",
    "/k8s.io/0a1b",
    "crio-a.slice:b.slice:libpod:0a1b",
    "/x/crio-a.slice:docker:0a1b",
    "crio-0a:b.slice:libpod:0a1b",
    "/libpod-a.slice:b:docker:0a1b",
]
"""What a docker or podman user makes of cgroupsPath with a cgroup parent."""


@pytest.mark.parametrize("cgroup", PARENTS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_claim_of_a_pod_by_no_known_engine_is_unknown(claim: dict[str, str], cgroup: str) -> None:
    assert known(noted(claim, cgroup=cgroup)) == known(Identity("ambiguous", None, types=TYPES))


@marks.hole(
    "A pod that set another engine's annotations left each rule with `ifUnknown: Skip`",
    since="0.1.0",
    fixed="0.1.0",
    severity="medium",
)
@pytest.mark.parametrize("if_unknown", ["Enforce", "Skip"])
@pytest.mark.parametrize("cgroup", PARENTS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_of_no_known_engine_neither_escape_a_rule_nor_reach_an_exclusion(
    claim: dict[str, str], cgroup: str, if_unknown: str
) -> None:
    identity = noted(claim, cgroup=cgroup)
    narrow = policy({"name": "r", "match": {**NARROW, "ifUnknown": if_unknown}, "env": [{"name": "X", "absent": True}]})
    assert [match.applies for match in select(narrow, identity)] == [True]
    assert excluded(EVERYTHING, identity) == ""


@marks.hole("A pod that set another engine's annotations left each rule with `ifUnknown: Skip`")
@pytest.mark.parametrize("claim", [*CLAIMS, {"io.container.manager": "libpod"}])
@pytest.mark.parametrize(("engine", "real"), [("containerd", CONTAINERD), ("cri-o", CRIO)])
def test_annotations_of_another_engine_change_nothing(engine: str, real: dict[str, str], claim: dict[str, str]) -> None:
    """A pod may bring them where its engine passes annotations on; the engine writes its own over them."""
    assert known(by(engine, claim, real)) == known(by(engine, real))
