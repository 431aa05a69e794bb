"""A pod's YAML as its containers: what an engine would be asked to start, in OCI's words.

kubelet and the engine add more than a pod's YAML says: what is known of it (image, ConfigMaps, Secrets, device plugins)
is given; what is not given and not needed by a policy is left out, such as the mounts of /proc and /etc/hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.container.identity import CONTAINER, CONTAINERD, EPHEMERAL, INIT, Identity
from hook.core.container.spec import JOINED, THE_NODES
from hook.core.container.start import Start
from hook.node.terminal import counted

UID = "00000000-0000-0000-0000-000000000000"
"""Used if the YAML has none: no pod of a cluster has this one."""

_TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job")
_LISTS = ((INIT, "initContainers"), (CONTAINER, "containers"), (EPHEMERAL, "ephemeralContainers"))
_VOLUMES = {
    "configMap": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "emptyDir": "kubernetes.io~empty-dir",
    "projected": "kubernetes.io~projected",
    "downwardAPI": "kubernetes.io~downward-api",
}
_OBJECTS = (
    *("metadata", "spec", "template", "jobTemplate", "hostPath", "valueFrom", "fieldRef"),
    *("configMapRef", "secretRef", "configMapKeyRef", "secretKeyRef"),
)
_OBJECT_LISTS = (
    *(key for _, key in _LISTS),
    *("volumes", "volumeClaimTemplates", "env", "envFrom", "volumeMounts", "volumeDevices"),
)
_PROPAGATION = {"HostToContainer": "rslave", "Bidirectional": "rshared"}
_REFERENCE = re.compile(r"\$(\$|\([^()]*\))")


class PodProblem(ReassertError):
    """The YAML has no pod, or needs data that was not given."""


@dataclass
class Given:
    """What a pod's YAML does not say.

    `image_env`: the image's ENV. `plugin_env`: what device plugins set; kubelet puts it before the pod's own env.
    `config_maps`, `secrets`: their data, by name.
    """

    image_env: list[str] = field(default_factory=list)
    plugin_env: dict[str, str] = field(default_factory=dict)
    config_maps: dict[str, Mapping[str, str]] = field(default_factory=dict)
    secrets: dict[str, Mapping[str, str]] = field(default_factory=dict)


def documents(path: str | Path) -> list[Any]:
    """The documents of a YAML file. Raises PodProblem, OSError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        return [document for document in yaml.load_all(Path(path).read_bytes()) if document is not None]
    except (YAMLError, ValueError, RecursionError) as error:
        raise PodProblem(f"{path}: not YAML: {' '.join(str(error).split())}") from None


class Pod:
    """A pod, or the template of one. The ConfigMaps and Secrets beside it in its file are `given` too."""

    def __init__(self, found: list[Any], error_path: str) -> None:
        """`found`: documents of one file. Raises PodProblem."""
        self.error_path = error_path
        self._config_maps: dict[str, Mapping[str, str]] = {}
        self._secrets: dict[str, Mapping[str, str]] = {}
        pods: list[dict[str, Any]] = []
        for document in _flat(found):
            _check_shape(document, error_path)
            kind = document.get("kind")
            name = str((document.get("metadata") or {}).get("name", ""))
            if kind == "ConfigMap":
                self._config_maps[name] = _strings(document.get("data"))
            elif kind == "Secret":
                self._secrets[name] = {
                    **_decoded(document.get("data"), error_path),
                    **_strings(document.get("stringData")),
                }
            elif (template := _template(document)) is not None:
                pods.append(template)
        if len(pods) != 1:
            there = counted(len(pods), "pod")
            raise PodProblem(f"{error_path}: {there} in this file; it takes one Pod, or one object with a template")
        self._pod = pods[0]
        self.metadata: dict[str, Any] = self._pod.get("metadata") or {}
        spec = self._pod.get("spec")
        if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
            raise PodProblem(f"{error_path}: the pod has no spec.containers")
        self.spec: dict[str, Any] = spec

    def containers(self) -> list[tuple[str, dict[str, Any]]]:
        """The type of each container, and the container."""
        return [(kind, each) for kind, key in _LISTS for each in self.spec.get(key) or []]

    def start(
        self, kind: str, container: dict[str, Any], given: Given, sees_annotations: bool = True
    ) -> tuple[Identity, Start]:
        """What the engine would be asked to start. `sees_annotations`: the pod's, as NRI; config.json has none.

        Raises PodProblem.
        """
        name = str(container.get("name", ""))
        meta = self.metadata
        identity = Identity(
            CONTAINERD,
            True,
            str(meta.get("namespace") or "default"),
            str(meta.get("name") or meta.get("generateName") or "pod"),
            str(meta.get("uid") or UID),
            name,
            (kind,),
            str(container.get("image") or "") or None,
            _strings(meta.get("labels")),
        )
        env = self._env(container, given, identity)
        start = Start(
            [*given.image_env, *[f"{name}={value}" for name, value in given.plugin_env.items()], *env],
            list(self._mounts(container)),
            devices=[{"path": str(d.get("devicePath")), "type": "b"} for d in container.get("volumeDevices") or []],
            shared_processes=self._shared_processes(container),
        )
        if sees_annotations:
            start.pod_annotations = _strings(meta.get("annotations"))
        return identity, start

    def _shared_processes(self, container: dict[str, Any]) -> str:
        """What `shared_processes` of hook.core.container.spec returns for what kubelet asks an engine for."""
        if self.spec.get("hostPID"):
            return THE_NODES
        joins = self.spec.get("shareProcessNamespace") or container.get("targetContainerName")
        return f"{JOINED} of others" if joins else ""

    def _env(self, container: dict[str, Any], given: Given, identity: Identity) -> list[str]:
        """The pod's env as kubelet makes it: envFrom, then env, in which $(NAME) of earlier names is replaced."""
        values: dict[str, str] = {}
        maps, secrets = {**given.config_maps, **self._config_maps}, {**given.secrets, **self._secrets}
        for source in container.get("envFrom") or []:
            prefix = str(source.get("prefix") or "")
            for key, known, what in (("configMapRef", maps, "ConfigMap"), ("secretRef", secrets, "Secret")):
                if key in source:
                    data = self._data(source[key], known, what)
                    values.update((prefix + name, value) for name, value in data.items())
        for entry in container.get("env") or []:
            name = str(entry.get("name", ""))
            if "valueFrom" in entry:
                found = self._value_from(name, entry["valueFrom"] or {}, maps, secrets, identity)
                if found is not None:
                    values[name] = found
                continue
            value = entry.get("value")
            if value is not None and not isinstance(value, str):
                raise PodProblem(f"{self.error_path}: env {name}: the value is not a string; quote it")
            values[name] = _expanded(value or "", values)
        return [f"{name}={value}" for name, value in values.items()]

    def _data(self, reference: Any, known: dict[str, Mapping[str, str]], what: str) -> Mapping[str, str]:
        name = str((reference or {}).get("name", ""))
        if name in known:
            return known[name]
        if (reference or {}).get("optional"):
            return {}
        raise PodProblem(f"{self.error_path}: {what} {name} is not given: put it into the same file, or into the case")

    def _value_from(
        self,
        name: str,
        origin: dict[str, Any],
        maps: dict[str, Mapping[str, str]],
        secrets: dict[str, Mapping[str, str]],
        identity: Identity,
    ) -> str | None:
        for field_, known, what in (("configMapKeyRef", maps, "ConfigMap"), ("secretKeyRef", secrets, "Secret")):
            if field_ in origin:
                reference = origin[field_] or {}
                data = self._data(reference, known, what)
                key = str(reference.get("key", ""))
                if key in data or reference.get("optional"):
                    return data.get(key)
                raise PodProblem(f"{self.error_path}: env {name}: {what} {reference.get('name')} has no key {key}")
        if "fieldRef" in origin:
            return self._field(str((origin["fieldRef"] or {}).get("fieldPath", "")), identity)
        return "0"  # resourceFieldRef: a number that only the node knows

    def _field(self, path: str, identity: Identity) -> str:
        """A field of the pod, for the downward API. For a value that only a node knows, a text says so."""
        keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)
        if keyed:
            return _strings(self.metadata.get(keyed[1])).get(keyed[2], "")
        known = {
            "metadata.name": identity.pod,
            "metadata.namespace": identity.namespace,
            "metadata.uid": identity.uid,
            "spec.serviceAccountName": str(self.spec.get("serviceAccountName") or "default"),
        }
        return known.get(path) or f"<{path}>"

    def _mounts(self, container: dict[str, Any]) -> Iterator[dict[str, object]]:
        volumes = {str(v.get("name")): v for v in self.spec.get("volumes") or [] if isinstance(v, dict)}
        claims = {str((t.get("metadata") or {}).get("name")) for t in self._pod.get("claims") or []}
        for mount in container.get("volumeMounts") or []:
            name, path = str(mount.get("name")), str(mount.get("mountPath", ""))
            if name not in volumes and name not in claims:
                raise PodProblem(f"{self.error_path}: volumeMount {name}: the pod has no such volume")
            source = self._source(name, volumes.get(name, {}))
            below = str(mount.get("subPath") or mount.get("subPathExpr") or "").strip("/")
            propagation = _PROPAGATION.get(str(mount.get("mountPropagation")), "rprivate")
            options = ["rbind", propagation, "ro" if mount.get("readOnly") else "rw"]
            yield {
                "destination": path if path.startswith("/") else "/" + path,
                "type": "bind",
                "source": f"{source}/{below}" if below else source,
                "options": options,
            }

    def _source(self, name: str, volume: dict[str, Any]) -> str:
        if isinstance(volume.get("hostPath"), dict):
            return str(volume["hostPath"].get("path", ""))
        kind = next((directory for key, directory in _VOLUMES.items() if key in volume), "kubernetes.io~csi")
        return f"/var/lib/kubelet/pods/{self.metadata.get('uid') or UID}/volumes/{kind}/{name}"


def _flat(found: list[Any]) -> Iterator[dict[str, Any]]:
    """The objects, also those of a List."""
    for document in found:
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from _flat(document.get("items") or [])
        elif isinstance(document, dict):
            yield document


def _check_shape(found: dict[str, Any], error_path: str) -> None:
    """Raises PodProblem unless what is read as an object, or as a list of objects, is one."""
    for key in (*_OBJECTS, *_OBJECT_LISTS):
        value = found.get(key)
        if value is not None and isinstance(value, list) != (key in _OBJECT_LISTS):
            raise PodProblem(f"{error_path}: {key} is not {'a list' if key in _OBJECT_LISTS else 'an object'}")
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(each, dict):
                raise PodProblem(f"{error_path}: {key} has something that is not an object")
            _check_shape(each, error_path)


def _template(document: dict[str, Any]) -> dict[str, Any] | None:
    """A pod of an object: of a Pod the object itself, of a Deployment and its kin the template. None of any other."""
    kind, spec = document.get("kind"), document.get("spec") or {}
    if kind == "Pod":
        return document
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    elif kind not in _TEMPLATES:
        return None
    template = spec.get("template") or {}
    own = document.get("metadata") or {}
    metadata = {"name": own.get("name"), "namespace": own.get("namespace"), **(template.get("metadata") or {})}
    return {**template, "metadata": metadata, "claims": spec.get("volumeClaimTemplates") or []}


def _strings(data: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _decoded(data: Any, error_path: str) -> dict[str, str]:
    import base64

    try:
        return {key: base64.b64decode(value).decode() for key, value in _strings(data).items()}
    except ValueError:
        raise PodProblem(f"{error_path}: a Secret's data is not base64 of UTF-8 text") from None


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` replaced as kubelet does (third_party/forked/golang/expansion); `$$` is one dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else values.get(match[1][1:-1], match[0])

    return _REFERENCE.sub(value, text)
