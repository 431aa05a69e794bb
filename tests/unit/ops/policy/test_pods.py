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
ONE = f"{HEAD}  containers:\n  - name: c\n"


def pod(text: str) -> Pod:
    """A pod of the documents in this text."""
    return Pod(list(YAML(typ="safe", pure=True).load_all(io.StringIO(text))), "pod.yaml")


def start(text: str, given: Given | None = None, **options: Any) -> tuple[Identity, Start]:
    """The last container that the text has."""
    found = pod(text)
    kind, container = found.containers()[-1]
    return found.start(kind, container, given or Given(), **options)


def env(own: str, given: Given | None = None) -> list[str]:
    """The env of ONE with these lines appended."""
    return start(ONE + own, given)[1].env


def test_identity_is_that_of_the_pod_and_the_wrapper_sees_no_annotations_of_it() -> None:
    for sees in (True, False):
        identity, found = start(f"{HEAD}  containers: [{{name: c, image: i}}]", sees_annotations=sees)
        assert (identity.namespace, identity.pod, identity.uid, identity.container) == ("team-a", "web", UID, "c")
        assert (identity.image, identity.types, identity.labels) == ("i", ("container",), {"app": "web"})
        assert found.pod_annotations == ({"x": "y"} if sees else None)


OF_CLUSTER = Given(config_maps={"m": {"a": "9"}})
OF_PLUGIN = Given(["A=image"], {"A": "plugin"})
REFERENCES = '[{name: A, value: x}, {name: B, value: "$(A)-$(C)-$$(A)-$A"}, {name: C, value: late}, {name: EMPTY}]'
FIELDS = ("metadata.name", "metadata.namespace", "metadata.labels['app']", "status.hostIP", "spec.serviceAccountName")
OF_FIELDS = "".join(
    f'    - {{name: N{n}, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}\n' for n, path in enumerate(FIELDS)
)
OF_OBJECTS = f"""    envFrom:
    - {{prefix: P_, configMapRef: {{name: m}}}}
    - {{secretRef: {{name: s}}}}
    - {{configMapRef: {{name: gone, optional: true}}}}
    env:
    - {{name: K, valueFrom: {{configMapKeyRef: {{name: m, key: a}}}}}}
    - {{name: S, valueFrom: {{secretKeyRef: {{name: s, key: b}}}}}}
    - {{name: NONE, valueFrom: {{secretKeyRef: {{name: s, key: c, optional: true}}}}}}
---
kind: ConfigMap
metadata: {{name: m}}
data: {{a: "1"}}
---
kind: Secret
metadata: {{name: s}}
data: {{b: {base64.b64encode(b"2").decode()}}}
stringData: {{t: '3'}}
"""


@pytest.mark.parametrize(
    ("own", "given", "entries"),
    [
        ("    env: [{name: A, value: pod}]", OF_PLUGIN, ["A=image", "A=plugin", "A=pod"]),
        (f"    env: {REFERENCES}", None, ["A=x", "B=x-$(C)-$(A)-$A", "C=late", "EMPTY="]),
        (OF_OBJECTS, None, ["P_a=1", "b=2", "t=3", "K=1", "S=2"]),
        ("    envFrom: [{configMapRef: {name: m}}]", OF_CLUSTER, ["a=9"]),
        (f"    env:\n{OF_FIELDS}", None, ["N0=web", "N1=team-a", "N2=web", "N3=<status.hostIP>", "N4=default"]),
    ],
    ids=["image, plugin, pod", "references", "ConfigMaps and Secrets", "a ConfigMap that is given", "fields"],
)
def test_env_is_what_kubelet_makes_of_it(own: str, given: Given | None, entries: list[str]) -> None:
    assert env(own, given) == entries


def test_mounts_of_volumes() -> None:
    _, found = start(f"""{HEAD}  volumes:
  - {{name: h, hostPath: {{path: /srv/x}}}}
  - {{name: e, emptyDir: {{}}}}
  containers:
  - name: c
    volumeMounts:
    - {{name: h, mountPath: /h, readOnly: true}}
    - {{name: e, mountPath: /e, subPath: a/b, mountPropagation: Bidirectional}}
    volumeDevices: [{{name: b, devicePath: /dev/x}}]
""")
    below = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/e/a/b"
    assert found.mounts == [
        {"destination": "/h", "type": "bind", "source": "/srv/x", "options": ["rbind", "rprivate", "ro"]},
        {"destination": "/e", "type": "bind", "source": below, "options": ["rbind", "rshared", "rw"]},
    ]
    assert [device["path"] for device in found.devices] == ["/dev/x"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_template_of_a_workload(kind: str) -> None:
    template = "{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}"
    spec = f"{{jobTemplate: {{spec: {template}}}}}" if kind == "CronJob" else template
    identity, _ = start(f"kind: {kind}\nmetadata: {{name: w, namespace: n}}\nspec: {spec}\n")
    assert (identity.namespace, identity.pod, identity.labels) == ("n", "w", {"a": "b"})


def test_init_and_ephemeral_containers_have_their_type() -> None:
    text = f"{HEAD}  initContainers: [{{name: i}}]\n  containers: [{{name: c}}]\n  ephemeralContainers: [{{name: e}}]\n"
    found = [(kind, each["name"]) for kind, each in pod(text).containers()]
    assert found == [("init", "i"), ("container", "c"), ("ephemeral", "e")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: Service", "0 pods in this file"),
        (f"{HEAD}  containers: []\n---\n{HEAD}  containers: []", "2 pods in this file"),
        ("kind: Pod\nspec: {}", "the pod has no spec.containers"),
        ("kind: Pod\nspec: 5", "spec has something that is not an object"),
        ("kind: Deployment\nspec: {template: [5]}", "template is not an object"),
        (f"{HEAD}  containers: [5]", "containers has something that is not an object"),
        (f"{HEAD}  containers: []\n  initContainers: {{a: b}}", "initContainers is not a list"),
        (f"{ONE}    env: [5]", "env has something that is not an object"),
        (f"{ONE}    env: [{{name: A, valueFrom: {{secretKeyRef: [s]}}}}]", "secretKeyRef is not an object"),
        (f"{ONE}    envFrom: [{{configMapRef: {{name: m}}}}]", "ConfigMap m is not given"),
        (f"{ONE}    env: [{{name: A, valueFrom: {{secretKeyRef: {{name: s, key: k}}}}}}]", "Secret s is not given"),
        (f"{ONE}    env: [{{name: A, value: 1}}]", "env A: the value is not a string; quote it"),
        (f"{ONE}    volumeMounts: [{{name: v, mountPath: /v}}]", "volumeMount v: the pod has no such volume"),
    ],
)
def test_what_is_missing_or_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(PodProblem, match=complaint):
        start(text)


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
    both = f"containers: [{{name: app}}]\n  ephemeralContainers: [{{name: e, {own}}}]"
    assert start(f"kind: Pod\nspec:\n  {spec}\n  {both}")[1].shared_processes == shared
