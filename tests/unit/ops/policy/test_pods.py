"""A pod's YAML as the containers that an engine would be asked to start."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import marks
import pytest
from ruamel.yaml import YAML

from hook.core.container import oci
from hook.core.container.identity import Identity
from hook.core.container.start import UNSEEN, Start
from hook.ops.policy import pods
from hook.ops.policy.pods import UID, Given, Pod, PodProblem, documents

pytestmark = marks.promise("`policy test` runs a pod as kubelet and the engine make it")

HEAD = "kind: Pod\nmetadata: {name: web, namespace: team-a, labels: {app: web}, annotations: {x: y}}\nspec:\n"
ONE = f"{HEAD}  containers:\n  - name: c\n"


def pod(text: str) -> Pod:
    """A pod of the documents in this text."""
    return pods.pod(list(YAML(typ="safe", pure=True).load_all(io.StringIO(text))), "pod.yaml")


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
        assert found.pod_annotations == ({"x": "y"} if sees else UNSEEN)


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
        ("    env: [{name: A, value: x, valueFrom: null}]", None, ["A=x"]),
        ("    env: [{name: A, valueFrom: {fileKeyRef: {key: k}}}]", None, ["A=<fileKeyRef>"]),
        (f"    env:\n{OF_FIELDS}", None, ["N0=web", "N1=team-a", "N2=web", "N3=<status.hostIP>", "N4=default"]),
    ],
    ids=[
        *("image, plugin, pod", "references", "ConfigMaps and Secrets", "a ConfigMap that is given"),
        *("no source", "a file of a volume", "fields"),
    ],
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
    assert oci.objects(found.mounts) == [
        {"destination": "/h", "type": "bind", "source": "/srv/x", "options": ["rbind", "rprivate", "ro"]},
        {"destination": "/e", "type": "bind", "source": below, "options": ["rbind", "rshared", "rw"]},
    ]
    assert [device.path for device in found.devices] == ["/dev/x"]


def test_the_file_for_a_containers_last_words_is_a_mount_too() -> None:
    """A pod's author chooses where kubelet mounts it."""
    [mount] = start(f"{ONE}    terminationMessagePath: etc/ssl/ca.crt\n")[1].mounts
    source = f"/var/lib/kubelet/pods/{UID}/containers/c/0"
    assert (mount.destination, mount.source, mount.is_read_only) == ("/etc/ssl/ca.crt", source, False)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_template_of_a_workload(kind: str) -> None:
    template = "{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}"
    spec = f"{{jobTemplate: {{spec: {template}}}}}" if kind == "CronJob" else template
    identity, _ = start(f"kind: {kind}\nmetadata: {{name: w, namespace: n}}\nspec: {spec}\n")
    assert (identity.namespace, identity.pod, identity.labels) == ("n", "w", {"a": "b"})


def test_containers_have_the_types_that_a_node_knows() -> None:
    """kubelet tells an app container or a sidecar from an init container or an ephemeral one, and these not apart."""
    init = "{name: i}, {name: s, restartPolicy: Always}"
    text = f"{HEAD}  initContainers: [{init}]\n  containers: [{{name: c}}]\n  ephemeralContainers: [{{name: e}}]\n"
    found = {each["name"]: types for types, each in pod(text).containers()}
    either = ("init", "ephemeral")
    assert found == {"i": either, "s": ("container",), "c": ("container",), "e": either}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: Service", "no pod in this file, which has Service"),
        (
            f"{HEAD}  containers: []\n---\n{HEAD}  containers: []",
            "2 pods to choose from; name one as workload: Pod/web, Pod/web",
        ),
        ("kind: Pod\nspec: {}", "Pod/ has no spec.containers"),
        ("kind: Pod\nspec: 5", "spec has something that is not an object"),
        ("kind: Deployment\nspec: {template: [5]}", "template is not an object"),
        (f"{HEAD}  containers: [5]", "containers has something that is not an object"),
        (f"{HEAD}  containers: []\n  initContainers: {{a: b}}", "initContainers is not a list"),
        (f"{ONE}    env: [5]", "env has something that is not an object"),
        (f"{ONE}    env: [{{name: A, valueFrom: {{secretKeyRef: [s]}}}}]", "secretKeyRef is not an object"),
        (f"{ONE}    env: [{{name: A, value: 1}}]", "env A: the value is not a string; quote it"),
        (f'{HEAD}  hostPID: "no"\n  containers: [{{name: c}}]', "Pod/web: hostPID: 'no' is not true or false"),
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


TWO = f"""{HEAD}  containers: [{{name: c}}]
---
kind: Deployment
metadata: {{name: api}}
spec: {{template: {{spec: {{containers: [{{name: d}}]}}}}}}
"""


@pytest.mark.parametrize(
    ("text", "workloads"),
    [
        (TWO, ["Pod/web", "Deployment/api"]),
        ("kind: List\nitems:\n- {kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}\n", ["Pod/a"]),
        ("kind: PodList\nitems:\n- {metadata: {name: a}, spec: {containers: [{name: c}]}}\n", ["Pod/a"]),
        ("kind: Rollout\nmetadata: {name: r}\nspec: {template: {spec: {containers: [{name: c}]}}}\n", ["Rollout/r"]),
        (f"{ONE}---\nkind: SecurityContextConstraints\nvolumes: ['*']\n", ["Pod/web"]),
        (f"{ONE}---\nkind: CustomResourceDefinition\nspec: {{env: 5, template: [x]}}\n", ["Pod/web"]),
        (f"{ONE}---\njust a text\n---\n[1]\n", ["Pod/web"]),
    ],
)
def test_each_workload_of_a_file(text: str, workloads: list[str]) -> None:
    found = pods.pods(list(YAML(typ="safe", pure=True).load_all(io.StringIO(text))), "pod.yaml")
    assert [each.workload for each in found] == workloads


@pytest.mark.parametrize("name", ["api", "Deployment/api"])
def test_one_workload_is_chosen_by_its_name(name: str) -> None:
    found = list(YAML(typ="safe", pure=True).load_all(io.StringIO(TWO)))
    assert pods.pod(found, "pod.yaml", name).workload == "Deployment/api"


def test_data_that_is_elsewhere_is_a_placeholder_and_is_noted() -> None:
    found = pod(
        f"{ONE}    envFrom: [{{prefix: P_, configMapRef: {{name: m}}}}]\n"
        "    env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]"
    )
    kind, container = found.containers()[-1]
    assert found.start(kind, container, Given())[1].env == ["A=<Secret s/k>"]
    assert found.not_given == {"c": {"P_*": "ConfigMap m", "A": "Secret s"}}


def test_a_secret_is_decoded_where_env_needs_it() -> None:
    keystore = "kind: Secret\nmetadata: {name: s}\ndata: {k: /u3+7QAAAAI=, p: <base64-encoded>}\n---\n"
    assert start(keystore + ONE)[1].env == []
    with pytest.raises(PodProblem, match="the data of Secret s is not base64"):
        start(f"{keystore}{ONE}    envFrom: [{{secretRef: {{name: s}}}}]")
    binary = keystore.replace(", p: <base64-encoded>", "")
    assert start(f"{binary}{ONE}    envFrom: [{{secretRef: {{name: s}}}}]")[1].env[0].startswith("k=\udcfe")


@pytest.mark.parametrize(
    ("written", "option"), [("no", "rw"), ("off", "rw"), ("yes", "ro"), ("On", "ro"), ("true", "ro")]
)
def test_booleans_are_read_as_kubectl_does(tmp_path: Path, written: str, option: str) -> None:
    (tmp_path / "p.yaml").write_text(
        f"{ONE}    volumeMounts: [{{name: v, mountPath: /v, readOnly: {written}}}]\n"
        "    env: [{name: A, value: 'n'}, {name: B, value: '1:30'}, {name: C}]\n  volumes: [{name: v, emptyDir: {}}]\n"
    )
    found = pods.pod(documents(tmp_path / "p.yaml"), "p")
    kind, container = found.containers()[-1]
    made = found.start(kind, container, Given())[1]
    assert (made.mounts[0].options, made.env) == (["rbind", "rprivate", option], ["A=n", "B=1:30", "C="])


@marks.hole(
    "A pod's YAML of a kilobyte, with merge keys (`<<`) of aliases in aliases, kept `explain` and `policy test` busy"
    " for ever",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("form", ["<<: [{}]", "a: [{}]"])
def test_aliases_in_aliases_are_refused_at_once(form: str) -> None:
    levels = [f"b{n}: &b{n} {{" + form.format(", ".join([f"*b{n - 1}"] * 20)) + "}\n" for n in range(1, 11)]
    with pytest.raises(PodProblem, match=r"p\.yaml: not YAML: its aliases make more than 1000000 nodes of it"):
        documents("p.yaml", ("b0: &b0 {x: 1}\n" + "".join(levels)).encode())
    assert documents("p.yaml", ("b0: &b0 {x: 1}\n" + levels[0]).encode())
