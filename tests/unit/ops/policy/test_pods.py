"""A pod's YAML as the containers that an engine would be asked to start."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from ruamel.yaml import YAML

from hook.core.container.identity import Identity
from hook.core.container.start import Start
from hook.ops.policy.pods import UID, Given, Pod, PodProblem

HEAD = "kind: Pod\nmetadata: {name: web, namespace: team-a, labels: {app: web}, annotations: {x: y}}\nspec:\n"


def pod(text: str) -> Pod:
    """A pod of the documents in this text."""
    return Pod(list(YAML(typ="safe", pure=True).load_all(io.StringIO(text))), "pod.yaml")


def start(own: str, given: Given | None = None, **options: Any) -> Start:
    """The only container, of HEAD with these lines appended."""
    return both(own, given, **options)[1]


def both(own: str, given: Given | None = None, **options: Any) -> tuple[Identity, Start]:
    """Its identity too."""
    found = pod(HEAD + own)
    [(kind, container)] = found.containers()
    return found.start(kind, container, given or Given(), **options)


def env(own: str, given: Given | None = None) -> list[str]:
    """Its env."""
    return start(f"  containers:\n  - name: c\n{own}", given).env


def test_identity_is_that_of_the_pod() -> None:
    identity, _ = both("  containers: [{name: c, image: i}]")
    assert (identity.namespace, identity.pod, identity.uid, identity.container, identity.image) == (
        "team-a",
        "web",
        UID,
        "c",
        "i",
    )
    assert (identity.types, identity.labels) == (("container",), {"app": "web"})


def test_wrapper_sees_no_annotations_of_the_pod() -> None:
    identity, found = both("  containers: [{name: c, image: i}]", sees_annotations=False)
    assert (identity.labels, identity.types, found.pod_annotations) == ({"app": "web"}, ("container",), None)


def test_env_comes_from_image_plugin_and_pod_in_this_order() -> None:
    given = Given(["A=image"], {"A": "plugin"})
    assert env("    env: [{name: A, value: pod}]", given) == ["A=image", "A=plugin", "A=pod"]


def test_references_are_replaced_as_kubelet_does() -> None:
    own = """    env:
    - {name: A, value: x}
    - {name: B, value: "$(A)-$(C)-$$(A)-$A"}
    - {name: C, value: late}
    - {name: EMPTY}
"""
    assert env(own) == ["A=x", "B=x-$(C)-$(A)-$A", "C=late", "EMPTY="]


def test_env_of_config_maps_and_secrets() -> None:
    own = """    envFrom:
    - {prefix: P_, configMapRef: {name: m}}
    - {secretRef: {name: s}}
    - {configMapRef: {name: gone, optional: true}}
    env:
    - {name: K, valueFrom: {configMapKeyRef: {name: m, key: a}}}
    - {name: S, valueFrom: {secretKeyRef: {name: s, key: b}}}
    - {name: NONE, valueFrom: {secretKeyRef: {name: s, key: c, optional: true}}}
---
kind: ConfigMap
metadata: {name: m}
data: {a: "1"}
---
kind: Secret
metadata: {name: s}
data: {b: """
    secret = base64.b64encode(b"2").decode()
    assert env(f"{own}{secret}}}\nstringData: {{t: '3'}}\n") == ["P_a=1", "b=2", "t=3", "K=1", "S=2"]
    given = Given(config_maps={"m": {"a": "9"}})
    assert env("    envFrom: [{configMapRef: {name: m}}]", given) == ["a=9"]


def test_fields_of_the_pod() -> None:
    paths = [
        "metadata.name",
        "metadata.namespace",
        "metadata.labels['app']",
        "status.hostIP",
        "spec.serviceAccountName",
    ]
    own = "".join(
        f'    - {{name: N{n}, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}\n' for n, path in enumerate(paths)
    )
    assert env("    env:\n" + own) == ["N0=web", "N1=team-a", "N2=web", "N3=<status.hostIP>", "N4=default"]


def test_mounts_of_volumes() -> None:
    found = start("""  volumes:
  - {name: h, hostPath: {path: /srv/x}}
  - {name: e, emptyDir: {}}
  containers:
  - name: c
    volumeMounts:
    - {name: h, mountPath: /h, readOnly: true}
    - {name: e, mountPath: /e, subPath: a/b, mountPropagation: Bidirectional}
    volumeDevices: [{name: b, devicePath: /dev/x}]
""")
    below = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/e/a/b"
    assert found.mounts == [
        {"destination": "/h", "type": "bind", "source": "/srv/x", "options": ["rbind", "rprivate", "ro"]},
        {"destination": "/e", "type": "bind", "source": below, "options": ["rbind", "rshared", "rw"]},
    ]
    assert [device["path"] for device in found.devices] == ["/dev/x"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_template_of_a_workload(kind: str) -> None:
    text = "template:\n      metadata: {labels: {a: b}}\n      spec: {containers: [{name: c}]}\n"
    inner = (
        f"jobTemplate:\n     spec:\n      {text.replace('      ', '        ')}" if kind == "CronJob" else f"  {text}"
    )
    found = pod(f"kind: {kind}\nmetadata: {{name: w, namespace: n}}\nspec:\n  {inner.strip()}\n")
    [(container_type, container)] = found.containers()
    identity = found.start(container_type, container, Given())[0]
    assert (identity.namespace, identity.pod, identity.labels) == ("n", "w", {"a": "b"})


def test_init_and_ephemeral_containers_have_their_type() -> None:
    text = HEAD + "  initContainers: [{name: i}]\n  containers: [{name: c}]\n  ephemeralContainers: [{name: e}]\n"
    assert [(kind, each["name"]) for kind, each in pod(text).containers()] == [
        ("init", "i"),
        ("container", "c"),
        ("ephemeral", "e"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: Service", "0 pods in this file"),
        (f"{HEAD}  containers: []\n---\n{HEAD}  containers: []", "2 pods in this file"),
        ("kind: Pod\nspec: {}", "the pod has no spec.containers"),
    ],
)
def test_file_without_one_pod_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PodProblem, match=complaint):
        pod(text)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ("    envFrom: [{configMapRef: {name: m}}]", "ConfigMap m is not given"),
        ("    env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", "Secret s is not given"),
        ("    env: [{name: A, value: 1}]", "env A: the value is not a string; quote it"),
        ("    volumeMounts: [{name: v, mountPath: /v}]", "volumeMount v: the pod has no such volume"),
    ],
)
def test_what_is_missing_is_named(own: str, complaint: str) -> None:
    with pytest.raises(PodProblem, match=complaint):
        env(own)


@pytest.mark.parametrize(
    ("spec", "own", "shared"),
    [
        ("", "", ""),
        ("shareProcessNamespace: true", "", "joins the PID namespace of others"),
        ("hostPID: true", "", "has the node's PID namespace"),
        ("", "targetContainerName: app", "joins the PID namespace of others"),
    ],
)
def test_processes_that_a_container_shares(spec: str, own: str, shared: str) -> None:
    found = pod(
        f"kind: Pod\nspec:\n  {spec}\n  containers: [{{name: app}}]\n  ephemeralContainers: [{{name: e, {own}}}]"
    )
    kind, container = found.containers()[-1]
    assert found.start(kind, container, Given())[1].shared_processes == shared
