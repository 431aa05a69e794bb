"""A pod's YAML as its containers: what an engine would be asked to start, in OCI's words.

kubelet and the engine add more than a pod's YAML says: what is known of it (image, ConfigMaps, Secrets, device plugins)
is given; what is not given and not needed by a policy is left out, such as the mounts of /proc and /etc/hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook.compile import go_yaml
from hook.core.base.errors import ReassertError, named
from hook.core.container.identity import CONTAINER, CONTAINERD, NOT_LISTED, Identity
from hook.core.container.spec import JOINED, THE_NODES
from hook.core.container.start import Start
from hook.core.reserve.edits import Reason
from hook.resident.terminal import counted

UID = "00000000-0000-0000-0000-000000000000"
"""Used if the YAML has none: no pod of a cluster has this one."""

_TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job")
_LISTS = "initContainers", "containers", "ephemeralContainers"
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
    *_LISTS,
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


STDIN = "-"


def documents(path: str | Path, content: bytes | None = None) -> list[Any]:
    """The documents of a YAML or JSON file, read as kubectl does. `content`: the file's, if it was read already.

    Raises PodProblem, OSError.
    """
    from ruamel.yaml.error import YAMLError

    try:
        text = (Path(path).read_bytes() if content is None else content).decode("utf-8")
        return [document for document in go_yaml.documents(text) if document is not None]
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise PodProblem(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def pods(found: list[Any], error_path: str) -> list[Pod]:
    """The pods of the documents of one file: Pods, templates of pods, and those in Lists. Raises PodProblem.

    Objects of other kinds are left out, but for the ConfigMaps and Secrets, which each pod may refer to.
    """
    config_maps: dict[str, Mapping[str, str]] = {}
    secrets: dict[str, Mapping[str, str]] = {}
    workloads: list[tuple[str, dict[str, Any]]] = []
    for document in _flat(found):
        kind, name = str(document.get("kind")), _name(document)
        if kind == "ConfigMap":
            config_maps[name] = _strings(document.get("data"))
        elif kind == "Secret":
            secrets[name] = _Secret(document)
        elif (template := _template(document, error_path)) is not None:
            workloads.append((f"{kind}/{name}", template))
    if not workloads:
        kinds = ", ".join(dict.fromkeys(str(each.get("kind")) for each in _flat(found))) or "nothing"
        raise PodProblem(
            f"{error_path}: no pod in this file, which has {kinds}; give a Pod, an object with a template, or an "
            "OCI config.json"
        )
    return [Pod(workload, template, config_maps, secrets, error_path) for workload, template in workloads]


def pod(found: list[Any], error_path: str, workload: str = "") -> Pod:
    """The one pod of a file, or that of a workload: its name, or KIND/NAME. Raises PodProblem."""
    every = pods(found, error_path)
    chosen = [each for each in every if workload in ("", each.workload, each.workload.partition("/")[2])]
    if len(chosen) != 1:
        there = ", ".join(each.workload for each in every)
        raise PodProblem(f"{error_path}: {counted(len(chosen), 'pod')} to choose from; name one as workload: {there}")
    return chosen[0]


class Pod:
    """A pod, or the template of one.

    `workload`: KIND/NAME of the object. `not_given`: env names whose value is of a ConfigMap or Secret that is neither
    in the file nor given, with its kind and name, by container; `PREFIX*` for all of its keys (`envFrom`).
    """

    def __init__(
        self,
        workload: str,
        pod: dict[str, Any],
        config_maps: dict[str, Mapping[str, str]],
        secrets: dict[str, Mapping[str, str]],
        error_path: str,
    ) -> None:
        """`config_maps`, `secrets`: those beside it in its file, by name. Raises PodProblem."""
        self.workload, self.error_path = workload, error_path
        self._config_maps, self._secrets, self._pod = config_maps, secrets, pod
        self.not_given: dict[str, dict[str, str]] = {}
        self.metadata: dict[str, Any] = pod.get("metadata") or {}
        spec = pod.get("spec")
        if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
            raise PodProblem(f"{error_path}: {workload} has no spec.containers")
        self.spec: dict[str, Any] = spec

    def containers(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """The types that each container may have on a node (Identity.types), and the container."""
        return [(_types(key, each), each) for key in _LISTS for each in self.spec.get(key) or []]

    def start(
        self, types: tuple[str, ...], container: dict[str, Any], given: Given, sees_annotations: bool = True
    ) -> tuple[Identity, Start]:
        """What the engine would be asked to start. `sees_annotations`: the pod's, as NRI; config.json has none.

        Raises PodProblem.
        """
        name = str(container.get("name", ""))
        meta = self.metadata
        identity = Identity(
            CONTAINERD,
            True,
            namespace=str(meta.get("namespace") or "default"),
            pod=str(meta.get("name") or meta.get("generateName") or "pod"),
            uid=str(meta.get("uid") or UID),
            container=name,
            types=types,
            image=str(container.get("image") or "") or None,
            labels=_strings(meta.get("labels")),
        )
        env = self._env(container, given, identity)
        start = Start(
            [*given.image_env, *[f"{name}={value}" for name, value in given.plugin_env.items()], *env],
            list(self._mounts(container)),
            devices=[{"path": str(d.get("devicePath")), "type": "b"} for d in container.get("volumeDevices") or []],
            shared_processes=self._shared_processes(container),
        )
        start.has_users = self.spec.get("hostUsers") is False
        if sees_annotations:
            start.pod_annotations = _strings(meta.get("annotations"))
        return identity, start

    def check_needed(self, denials: Iterable[Reason]) -> None:
        """Raises PodProblem if a refusal is for a value that is not given: it may be the one that the policy wants."""
        for name, lacking in [item for found in self.not_given.values() for item in found.items()]:
            if any(reason.kind == "env" and named(name) in reason.message for reason in denials):
                why = f"{lacking} is not given, and the policy refuses another value of {name}"
                raise PodProblem(f"{self.error_path}: {why}: put it into the same file, or into the case")

    def _shared_processes(self, container: dict[str, Any]) -> str:
        """What `shared_processes` of hook.core.container.spec returns for what kubelet asks an engine for."""
        if self._true(self.spec, "hostPID"):
            return THE_NODES
        joins = self._true(self.spec, "shareProcessNamespace") or container.get("targetContainerName")
        return f"{JOINED} of others" if joins else ""

    def _true(self, mapping: dict[str, Any], field: str) -> bool:
        """A boolean field. Raises PodProblem for a text, which the API server refuses too."""
        value = mapping.get(field)
        if value is not None and not isinstance(value, bool):
            raise PodProblem(f"{self.error_path}: {self.workload}: {field}: {value!r} is not true or false")
        return bool(value)

    def _env(self, container: dict[str, Any], given: Given, identity: Identity) -> list[str]:
        """The pod's env as kubelet makes it: envFrom, then env, in which $(NAME) of earlier names is replaced."""
        values: dict[str, str] = {}
        maps, secrets = {**given.config_maps, **self._config_maps}, {**given.secrets, **self._secrets}
        self.not_given.pop(identity.container or "", None)
        for source in container.get("envFrom") or []:
            prefix = str(source.get("prefix") or "")
            for key, known, what in (("configMapRef", maps, "ConfigMap"), ("secretRef", secrets, "Secret")):
                if key in source:
                    data = self._data(source[key], known, what)
                    if data is None:
                        lacking = f"{what} {_name_of(source[key])}"
                        self.not_given.setdefault(identity.container or "", {})[f"{prefix}*"] = lacking
                    values.update((prefix + name, value) for name, value in (data or {}).items())
        for entry in container.get("env") or []:
            name = str(entry.get("name", ""))
            if entry.get("valueFrom"):
                found = self._value_from(name, entry["valueFrom"], maps, secrets, identity)
                if found is not None:
                    values[name] = found
                continue
            value = entry.get("value")
            if value is not None and not isinstance(value, str):
                raise PodProblem(f"{self.error_path}: env {name}: the value is not a string; quote it")
            values[name] = _expanded(value or "", values)
        return [f"{name}={value}" for name, value in values.items()]

    def _data(self, reference: Any, known: dict[str, Mapping[str, str]], what: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap or Secret; None if it is elsewhere. Raises PodProblem."""
        name = _name_of(reference)
        found = known.get(name)
        if isinstance(found, _Secret):
            return found.decoded(self.error_path)
        return {} if found is None and (reference or {}).get("optional") else found

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
                if data is None:
                    lacking = f"{what} {_name_of(reference)}"
                    self.not_given.setdefault(identity.container or "", {})[name] = lacking
                    return f"<{lacking}/{key}>"
                if key in data or reference.get("optional"):
                    return data.get(key)
                raise PodProblem(f"{self.error_path}: env {name}: {what} {reference.get('name')} has no key {key}")
        if "fieldRef" in origin:
            return self._field(str((origin["fieldRef"] or {}).get("fieldPath", "")), identity)
        return f"<{next(iter(origin), 'nothing')}>"  # resourceFieldRef, fileKeyRef: only the node knows the value

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
            read_only = "rro" if mount.get("recursiveReadOnly") == "Enabled" else "ro"
            options = ["rbind", propagation, read_only if self._true(mount, "readOnly") else "rw"]
            yield {
                "destination": path if path.startswith("/") else "/" + path,
                "type": "bind",
                "source": f"{source}/{below}" if below else source,
                "options": options,
            }
        if container.get("terminationMessagePath"):  # kubelet mounts a file there; without, at /dev/termination-log
            of_pod = f"/var/lib/kubelet/pods/{self.metadata.get('uid') or UID}/containers/{container.get('name')}"
            yield {
                "destination": f"/{str(container['terminationMessagePath']).lstrip('/')}",
                "type": "bind",
                "source": f"{of_pod}/0",
                "options": ["rbind", "rprivate", "rw"],
            }

    def _source(self, name: str, volume: dict[str, Any]) -> str:
        if isinstance(volume.get("hostPath"), dict):
            return str(volume["hostPath"].get("path", ""))
        kind = next((directory for key, directory in _VOLUMES.items() if key in volume), "kubernetes.io~csi")
        return f"/var/lib/kubelet/pods/{self.metadata.get('uid') or UID}/volumes/{kind}/{name}"


def _types(key: str, container: dict[str, Any]) -> tuple[str, ...]:
    """What kubelet's PodResources tells of a container in one of _LISTS: it lists sidecars among the app containers."""
    is_sidecar = key == _LISTS[0] and container.get("restartPolicy") == "Always"
    return (CONTAINER,) if key == _LISTS[1] or is_sidecar else NOT_LISTED


def _flat(found: list[Any]) -> Iterator[dict[str, Any]]:
    """The objects, also those of a List, of a PodList and the like."""
    for document in found:
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            kind = str(document.get("kind")).removesuffix("List")  # the items of a typed list have no kind
            yield from _flat([{"kind": kind, **each} for each in document["items"] if isinstance(each, dict)])
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


def _template(document: dict[str, Any], error_path: str) -> dict[str, Any] | None:
    """A pod of an object: of a Pod the object itself, of a Deployment and its kin the template. None of any other.

    Also of a custom resource with a pod's template at the same place, such as a Rollout. Raises PodProblem.
    """
    kind, spec = document.get("kind"), document.get("spec")
    is_known = kind in ("Pod", "CronJob", *_TEMPLATES)
    template = spec.get("template") if isinstance(spec, dict) else None
    inner = template.get("spec") if isinstance(template, dict) else None
    if not is_known and not (isinstance(inner, dict) and isinstance(inner.get("containers"), list)):
        return None
    _check_shape(document, f"{error_path}: {kind}/{_name(document)}")
    if kind == "Pod":
        return document
    spec = spec or {}
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = spec.get("template") or {}
    own = document.get("metadata") or {}
    metadata = {"name": own.get("name"), "namespace": own.get("namespace"), **(template.get("metadata") or {})}
    return {**template, "metadata": metadata, "claims": spec.get("volumeClaimTemplates") or []}


def _strings(data: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str((metadata.get("name") or metadata.get("generateName") or "") if isinstance(metadata, dict) else "")


def _name_of(reference: Any) -> str:
    return str(reference.get("name", "")) if isinstance(reference, dict) else ""


class _Secret(dict[str, str]):
    """A Secret. Its data is decoded where env needs it: a keystore, or a placeholder of an example, is only mounted."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._data = _strings(document.get("data"))
        self._name = _name(document)
        super().__init__(_strings(document.get("stringData")))

    def decoded(self, error_path: str) -> Mapping[str, str]:
        """Its texts. Bytes that are not UTF-8 are kept, as kubelet passes them on. Raises PodProblem."""
        import base64

        try:
            decoded = {key: base64.b64decode(value, validate=True) for key, value in self._data.items()}
        except ValueError:
            raise PodProblem(f"{error_path}: the data of Secret {self._name} is not base64") from None
        return {**{key: value.decode("utf-8", "surrogateescape") for key, value in decoded.items()}, **self}


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` replaced as kubelet does (third_party/forked/golang/expansion); `$$` is one dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else values.get(match[1][1:-1], match[0])

    return _REFERENCE.sub(value, text)
