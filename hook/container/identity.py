"""Who a container is, from what its engine wrote into config.json. Part of the start path: builtins only.

Engines say it in annotations of their own (keys below); docker as dockershim and cri-dockerd drive it says nothing,
and only kubelet's cgroup path and termination-log mount give the pod away. Pod authors can put annotations of
*other* engines into a spec (containerd's `pod_annotations`, CRI-O's allowed annotations, `podman --annotation`), so a
spec that more than one engine seems to have written tells nothing at all: every field is unknown, no rule is lost.
"""

from hook.base.jsontext import Malformed, parse
from hook.container.spec import Spec

SANDBOX, INIT, CONTAINER, EPHEMERAL = "sandbox", "init", "container", "ephemeral"
TYPES = (SANDBOX, INIT, CONTAINER, EPHEMERAL)

APP_TYPES = (CONTAINER, INIT, EPHEMERAL)
"""containerd says only "container". `io.kubernetes.container.type` would tell the three apart, but where it is copied
into the spec a pod's own annotation of that name is too, so it is not believed."""

_CONTAINERD = "io.kubernetes.cri."  # containerd, pkg/cri/annotations
_CRIO = "io.kubernetes.cri-o."  # cri-o, pkg/annotations
_MANAGER = "io.container.manager"  # libpod's and CRI-O's
_KUBELET = "io.kubernetes."  # kubelet's labels on what it asks an engine for, pkg/kubelet/types/labels.go


class Identity:
    """A container's names. None means that this adapter cannot know.

    `kubernetes`: True for a pod's container, False for one of no pod, None where even that is unknown.
    `types`: the container types it may be (of TYPES); one where it is known.
    `labels`: the pod's labels.
    """

    __slots__ = ("container", "engine", "image", "kubernetes", "labels", "namespace", "pod", "types", "uid")

    def __init__(
        self,
        engine: str,
        kubernetes: "bool | None",
        namespace: "str | None" = None,
        pod: "str | None" = None,
        uid: "str | None" = None,
        container: "str | None" = None,
        types: "tuple[str, ...]" = TYPES,
        image: "str | None" = None,
        labels: "dict[str, str] | None" = None,
    ) -> None:
        self.engine = engine
        self.kubernetes = kubernetes
        self.namespace = namespace
        self.pod = pod
        self.uid = uid
        self.container = container
        self.types = types
        self.image = image
        self.labels = labels

    def as_dict(self) -> "dict[str, str]":
        """What is known, for an event or a table; keys in Kubernetes' spelling."""
        known: dict[str, str] = {}
        for key in ("namespace", "pod", "uid", "container", "image"):
            value = getattr(self, key)
            if value:
                known[key] = value
        return known

    def __str__(self) -> str:
        if self.kubernetes and (self.namespace or self.pod or self.container):
            return "/".join(part or "?" for part in (self.namespace, self.pod, self.container or self.types[0]))
        return self.container or "a container of no pod"


def identify(spec: Spec) -> Identity:
    """The identity in a config.json, by whichever engine wrote it."""
    notes = spec.annotations
    manager = notes.get(_MANAGER)
    claims: list[Identity] = []
    if _CONTAINERD + "sandbox-id" in notes or _CONTAINERD + "container-type" in notes:
        claims.append(_containerd(notes))
    if manager == "cri-o" or _CRIO + "Labels" in notes or (_CRIO + "ContainerType" in notes and manager != "libpod"):
        claims.append(_crio(notes))
    if manager == "libpod":
        claims.append(_podman(notes))
    if not claims:
        return _docker(spec)
    return claims[0] if len(claims) == 1 else Identity("ambiguous", None)


def _types(said: "str | None") -> "tuple[str, ...]":
    if said == SANDBOX:
        return (SANDBOX,)
    return APP_TYPES if said == CONTAINER else TYPES


def _containerd(notes: "dict[str, str]") -> Identity:
    types = _types(notes.get(_CONTAINERD + "container-type"))
    return Identity(
        "containerd",
        True,
        namespace=notes.get(_CONTAINERD + "sandbox-namespace"),
        pod=notes.get(_CONTAINERD + "sandbox-name"),
        uid=notes.get(_CONTAINERD + "sandbox-uid"),
        container=notes.get(_CONTAINERD + "container-name"),
        types=types,
        image=notes.get(_CONTAINERD + "image-name"),
    )


def _crio(notes: "dict[str, str]") -> Identity:
    """CRI-O writes kubelet's labels both one by one and, under a key of its own, as one JSON text; that one first."""
    labels = _labels(notes.get(_CRIO + "Labels"))
    own = {key: value for key, value in labels.items() if not key.startswith(_KUBELET)}

    def name(key: str) -> "str | None":
        return labels.get(_KUBELET + key) or notes.get(_KUBELET + key)

    return Identity(
        "cri-o",
        True,
        namespace=name("pod.namespace"),
        pod=name("pod.name"),
        uid=name("pod.uid"),
        container=name("container.name"),
        types=_types(notes.get(_CRIO + "ContainerType")),
        image=notes.get(_CRIO + "ImageName"),
        labels=own or None,
    )


def _labels(text: "str | None") -> "dict[str, str]":
    try:
        value = parse(text) if text else None
    except Malformed:
        value = None
    if not isinstance(value, dict):
        return {}
    return {key: entry for key, entry in value.items() if isinstance(entry, str)}


def _podman(notes: "dict[str, str]") -> Identity:
    """A podman container, in a podman pod or not, belongs to no Kubernetes namespace."""
    types = (SANDBOX,) if notes.get(_CRIO + "ContainerType") == SANDBOX else (CONTAINER,)
    return Identity("podman", False, types=types, image=notes.get(_CRIO + "ImageName"))


def _docker(spec: Spec) -> Identity:
    """No annotations: kubelet's cgroup `pod<uid>` and its termination-log file under pods/UID/containers/NAME/."""
    uid = _cgroup_uid(spec.member("linux"))
    if uid is None:
        return Identity("", False, types=(CONTAINER,))
    for mount in spec.mounts:
        source = mount.get("source")
        parts = source.split("/") if isinstance(source, str) else []
        if len(parts) >= 6 and parts[-5] == "pods" and parts[-4] == uid and parts[-3] == "containers":
            return Identity("docker", True, uid=uid, container=parts[-2], types=APP_TYPES)
    return Identity("docker", True, uid=uid, types=(SANDBOX,))


def _cgroup_uid(linux: object) -> "str | None":
    """The pod UID in linux.cgroupsPath: `/kubepods/burstable/pod<uid>/…`, or systemd's `kubepods-pod<uid_>.slice:…`."""
    path = linux.get("cgroupsPath") if isinstance(linux, dict) else None
    if not isinstance(path, str) or "kubepods" not in path:
        return None
    for part in path.replace(":", "/").split("/"):
        if part.startswith("pod"):
            return part[3:]
        if part.startswith("kubepods") and part.endswith(".slice") and "-pod" in part:
            return part.rpartition("-pod")[2][: -len(".slice")].replace("_", "-")
    return None
