"""Who a container is, from what its engine wrote into config.json. Part of the start path: builtins only.

Of every field one question is asked: can a pod, an image or an engine's user write it? What they can write never takes
a container out of the policy. So annotations are believed only of an engine that is known otherwise:

| known by | who writes it | can they? |
|---|---|---|
| cgroupsPath `SLICE:cri-containerd:ID` | containerd, systemd driver | no; a cgroup parent gives more parts or a `/` |
| cgroupsPath `SLICE:crio:ID`, `…/crio-ID` | CRI-O | no; docker's ends in its own ID, podman's in `libpod-ID` |
| cgroupsPath `SLICE:libpod:ID`, `…/libpod-ID` | podman | no, but `--cgroups=disabled` leaves it out |
| cgroupsPath `SLICE:docker:ID` | dockerd, systemd driver | no |
| bundle `…/k8s.io/ID` | containerd: its namespace for CRI | no; docker's is `moby`, or what dockerd is told |
| bundle `…/ID/userdata` | podman, CRI-O | no |

Annotations that claim a pod in a spec of no engine that is known so tell nothing: every field is unknown, no rule is
lost and nothing is excluded. Those of another engine than the known one are ignored.
"""

from hook.container.spec import Spec

SANDBOX, INIT, CONTAINER, EPHEMERAL = "sandbox", "init", "container", "ephemeral"
TYPES = (SANDBOX, INIT, CONTAINER, EPHEMERAL)

APP_TYPES = (CONTAINER, INIT, EPHEMERAL)
"""containerd says only "container". `io.kubernetes.container.type` would tell the three apart, but where it is copied
into the spec a pod's own annotation of that name is too, so it is not believed."""

CONTAINERD, CRIO, PODMAN, DOCKER = "containerd", "cri-o", "podman", "docker"
_CGROUP_PREFIXES = {"cri-containerd": CONTAINERD, "crio": CRIO, "libpod": PODMAN, "docker": DOCKER}

_CONTAINERD = "io.kubernetes.cri."  # containerd, pkg/cri/annotations
_CRIO = "io.kubernetes.cri-o."  # cri-o, internal/annotations
_MANAGER = "io.container.manager"  # libpod's and CRI-O's; libpod leaves one that an image or a user brings
_KUBELET = "io.kubernetes."  # kubelet's labels on what it asks an engine for, pkg/kubelet/types/labels.go


class Identity:
    """A container's names. None means that this adapter cannot know.

    `kubernetes`: True for a pod's container, False for one of no pod, None where even that is unknown.
    `types`: the container types it may be (of TYPES); one where it is known.
    `labels`: the pod's labels, which no config.json has; NRI tells them.
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


def identify(spec: Spec, copied: bool = False) -> Identity:
    """The identity in a config.json; `spec.where` is its path, in the bundle as the engine made it.

    `copied`: it may be a copy that lies elsewhere, which nothing will be started of: of no known engine, the one that
    its annotations claim is believed.
    """
    notes = spec.annotations
    linux = spec.member("linux")
    cgroup = linux.get("cgroupsPath") if isinstance(linux, dict) else None
    path = cgroup if isinstance(cgroup, str) else ""
    engine = _engine(path, spec.where)
    if engine == CONTAINERD:
        return _containerd(notes)
    if engine == CRIO:
        return _crio(notes)
    if engine == PODMAN:
        return _podman()
    claimed = any(key.startswith((_CONTAINERD, _CRIO)) for key in notes) or notes.get(_MANAGER) == "cri-o"
    uid = _cgroup_uid(path)
    if engine == DOCKER or not (claimed or _MANAGER in notes):
        return _docker(spec, uid)
    if uid is None and notes.get(_MANAGER) == "libpod":  # a podman that has no cgroup, and its user no pod
        return _podman()
    if copied and _CONTAINERD + "sandbox-id" in notes:
        return _containerd(notes)
    if copied and _CRIO + "ContainerType" in notes:
        return _crio(notes)
    return Identity("ambiguous", None)


def _engine(cgroup: str, where: str) -> str:
    """The engine that wrote a spec, by what only that engine can have written; "" where nothing tells."""
    parts = cgroup.split(":")
    if len(parts) == 3 and "/" not in cgroup:
        return _CGROUP_PREFIXES.get(parts[1], "")
    last = cgroup.rpartition("/")[2]
    if last.startswith("crio-"):
        return CRIO
    if last.startswith("libpod-"):
        return PODMAN
    directories = where.split("/")[:-1]
    if directories[-1:] == ["userdata"]:
        return PODMAN  # CRI-O always gives a cgroup of its own
    if directories[-2:-1] == ["k8s.io"]:
        return CONTAINERD
    return DOCKER if directories[-2:-1] == ["moby"] else ""


def _types(said: "str | None") -> "tuple[str, ...]":
    if said == SANDBOX:
        return (SANDBOX,)
    return APP_TYPES if said == CONTAINER else TYPES


def _containerd(notes: "dict[str, str]") -> Identity:
    """Its CRI plugin writes these after what `pod_annotations` and `container_annotations` let a pod bring along.

    For a sandbox it writes no container-name and no image-name, so there these can be the pod's.
    """
    types = _types(notes.get(_CONTAINERD + "container-type"))
    app = types == APP_TYPES
    return Identity(
        CONTAINERD,
        True,
        namespace=notes.get(_CONTAINERD + "sandbox-namespace"),  # containerd's, in sandboxes too
        pod=notes.get(_CONTAINERD + "sandbox-name"),  # containerd's, in sandboxes too
        uid=notes.get(_CONTAINERD + "sandbox-uid"),  # containerd's, in sandboxes too
        container=notes.get(_CONTAINERD + "container-name") if app else None,
        types=types,  # containerd's, in sandboxes too
        image=notes.get(_CONTAINERD + "image-name") if app else None,  # containerd's first name of the image's id
    )


def _crio(notes: "dict[str, str]") -> Identity:
    """It writes in this order: a pod's allowed annotations, its own annotations, kubelet's labels one by one.

    For a sandbox the pod's annotations come between the last two, so there only kubelet's labels are certain. That a
    sandbox calls itself a container gains it nothing. A container's name can be the pod's in a sandbox.
    """
    types = _types(notes.get(_CRIO + "ContainerType"))
    app = types == APP_TYPES
    return Identity(
        CRIO,
        True,
        namespace=notes.get(_KUBELET + "pod.namespace"),  # kubelet's label, last of all
        pod=notes.get(_KUBELET + "pod.name"),  # kubelet's label, last of all
        uid=notes.get(_KUBELET + "pod.uid"),  # kubelet's label, last of all
        container=notes.get(_KUBELET + "container.name") if app else None,  # kubelet's label, last of all
        types=types,  # CRI-O's in containers; in sandboxes the pod can say "container"
        image=crio_image(notes) if app else None,
    )


def crio_image(annotations: "dict[str, str]") -> "str | None":
    """What kubelet asked for, None where that is an ID. CRI-O's `ImageName` is *some* name of that ID in its store."""
    asked = annotations.get(_CRIO + "Image", "")
    name = asked.removeprefix("sha256:")
    is_id = len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)
    return None if is_id or not asked else asked


def _podman() -> Identity:
    """A podman container, in a podman pod or not, belongs to no Kubernetes namespace, and infra is no sandbox.

    All of its annotations can be its image's or its user's, `io.kubernetes.cri-o.ContainerType` and `ImageName` too.
    Rules apply to an infra container; it needs nothing that they could take.
    """
    return Identity(PODMAN, False, types=(CONTAINER,))


def _docker(spec: Spec, uid: "str | None") -> Identity:
    """No annotation counts (`docker run --annotation`). `uid`: of kubelet's cgroup `pod<uid>`.

    The container's name is in kubelet's termination-log file, under pods/UID/containers/NAME/. A user of docker can
    write both: a cgroup parent, and a mount from there (who may mount kubelet's directory is root). Pause has no such
    mount, and a user's container in that cgroup need not: it is no sandbox, and may be of no pod.
    """
    if uid is None:
        return Identity("", False, types=(CONTAINER,))
    for mount in spec.mounts:
        source = mount.get("source")
        parts = source.split("/") if isinstance(source, str) else []
        if len(parts) >= 6 and parts[-5] == "pods" and parts[-4] == uid and parts[-3] == "containers":
            return Identity(DOCKER, True, uid=uid, container=parts[-2], types=APP_TYPES)
    return Identity(DOCKER, None, uid=uid)


def _cgroup_uid(path: str) -> "str | None":
    """The pod UID in linux.cgroupsPath: `/kubepods/burstable/pod<uid>/…`, or systemd's `kubepods-pod<uid_>.slice:…`."""
    if "kubepods" not in path:
        return None
    for part in path.replace(":", "/").split("/"):
        if part.startswith("pod"):
            return part[3:]
        if part.startswith("kubepods") and part.endswith(".slice") and "-pod" in part:
            return part.rpartition("-pod")[2][: -len(".slice")].replace("_", "-")
    return None
