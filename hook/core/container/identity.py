"""A container's identity (engine, namespace, pod, name, image), read from config.json.

A field that a pod, an image or an engine's user can write never excludes a container from the policy. Annotations are
such fields, so they count only if something else proves which engine wrote config.json:

| proof | written by | can a pod, an image or an engine's user write it? |
|---|---|---|
| cgroupsPath `SLICE:cri-containerd:ID`, and annotations of its CRI plugin | containerd, systemd driver | no |
| cgroupsPath `SLICE:crio:ID`, `…/crio-ID`, and annotations of CRI-O | CRI-O | no |
| cgroupsPath `SLICE:libpod:ID`, `…/libpod-ID` | podman | no, but `--cgroups=disabled` leaves it out |
| cgroupsPath `SLICE:docker:ID` | dockerd, systemd driver | no |
| bundle `…/k8s.io/ID` | containerd: its namespace for CRI | no; docker's is `moby`, or set in dockerd's configuration |
| bundle `…/ID/userdata` | podman, CRI-O | no |

A cgroup parent of `docker run` and `podman run` gives more parts or a `/`, and their own ID is the end. Of `docker
build` (buildkit's executor/oci/spec.go), of BuildKit's frontends and of `podman build` (buildah's run_linux.go) it can
be any such path, but they write no annotation that anybody chooses.

Without proof, annotations that claim a pod make every field unknown: each rule still applies, and nothing is excluded.
With proof, annotations of other engines are ignored.

docker's config.json has nothing that only kubelet can have caused, so files of the node prove a pod's container
(hook.core.container.dockershim):

| source | can a pod, an image or a user of docker write it? |
|---|---|
| cgroup parent `…/podUID` | yes: --cgroup-parent. It has to be the UID of the mount |
| a mount of `KUBELET/pods/UID/containers/NAME/`, the termination log | who can mount kubelet's directory is root |
| `VolumesFrom` in hostconfig.json, dockerd's | yes: --volumes-from copies a pod's mounts. They then prove nothing |
| /var/lib/dockershim/sandbox/ID, /var/lib/cri-dockerd/sandbox/ID | no: root's, and dockerd chooses the ID |
| /var/log/pods/NAMESPACE_NAME_UID, kubelet's | no: API server and kubelet choose the three |
| labels in config.v2.json, dockerd's | yes: --label, LABEL of an image. They prove nothing |
| the container's name, annotations | yes: --name, --annotation. They do not count |

The mount proves a pod's container and its name, and the file of dockershim or cri-dockerd proves a sandbox: kubelet
makes all of these before the container starts. The directory of logs then names the pod. Of a proven container,
kubelet's labels count, since no label of an image replaces them: they name its sandbox, which has the pod's labels.
"""

from __future__ import annotations

from hook.core.container.spec import Spec

SANDBOX, INIT, CONTAINER, EPHEMERAL = "sandbox", "init", "container", "ephemeral"
TYPES = (SANDBOX, INIT, CONTAINER, EPHEMERAL)

APP_TYPES = (CONTAINER, INIT, EPHEMERAL)
"""Types that no engine distinguishes: it writes "container" for all three, and kubelet tells it no more."""

NOT_LISTED = (INIT, EPHEMERAL)
"""Those of them that kubelet's PodResources does not list. Nothing on the node distinguishes the two. A sidecar, which
is an init container with `restartPolicy: Always`, is listed, and counts as CONTAINER."""

CONTAINERD, CRIO, PODMAN, DOCKER = "containerd", "cri-o", "podman", "docker"
"""Engines of containers. `install` has other names for some: hook.node.engines.facts."""
_CGROUP_PREFIXES = {"cri-containerd": CONTAINERD, "crio": CRIO, "libpod": PODMAN, "docker": DOCKER}

CRI = "io.kubernetes.cri."  # containerd, pkg/cri/annotations
_CRIO = "io.kubernetes.cri-o."  # cri-o, internal/annotations
_ANNOTATIONS = {CONTAINERD: CRI, CRIO: _CRIO}
"""How annotations begin that an engine writes for each of its containers. A builder, whose user chooses the whole
cgroupsPath, writes none of them."""
_MANAGER = "io.container.manager"  # libpod and CRI-O write it; libpod does not overwrite one of an image or a user
_KUBELET = "io.kubernetes."  # kubelet's labels in its CRI requests, pkg/kubelet/types/labels.go


class Identity:
    """A container's names. None means unknown to this adapter."""

    def __init__(
        self,
        engine: str,
        kubernetes: bool | None,
        *,
        namespace: str | None = None,
        pod: str | None = None,
        uid: str | None = None,
        container: str | None = None,
        types: tuple[str, ...] = TYPES,
        image: str | None = None,
        labels: dict[str, str] | None = None,
        cdi: list[str] | None = None,
    ) -> None:
        self.engine = engine
        self.kubernetes = kubernetes
        """True for a container of a pod, False for a container outside Kubernetes, None if that is unknown."""
        self.namespace = namespace
        self.pod = pod
        self.uid = uid
        self.container = container
        self.types = types
        """The types (of TYPES) that the container may have: (CONTAINER,), NOT_LISTED, (SANDBOX,), or more of them."""
        self.image = image
        self.labels = labels
        """The pod's labels, of docker's containers; else an engine can be asked (hook.core.facts.cri)."""
        self.cdi = cdi
        """The CDI devices that kubelet asked for. NRI alone has them."""
        self.unproven: tuple[str, str, str, list[str]] | None = None
        """What docker's config.json says of a pod, until files prove it (hook.core.container.dockershim): the pod's
        UID, cgroupsPath, the path of the root filesystem, and the sources of the mounts."""
        self.digest: str | None = None
        """The image as NAME@DIGEST. NRI alone has it."""
        self.of_kubelet: tuple[dict[str, str] | None] | None = None
        """kubelet's answer about the pod, once kubelet was asked (hook.core.facts.cri.of_kubelet)."""

    @property
    def proven_uid(self) -> str:
        """The UID of the pod as one name of a path; "" without a proven pod.

        No pod's author chooses it: the engine has it in its record of what kubelet asked for.
        """
        uid = self.uid or ""
        return uid if self.kubernetes and uid.strip(".") and "/" not in uid else ""

    def as_dict(self) -> dict[str, str]:
        """The known fields, for an event or a table."""
        fields = ((key, getattr(self, key)) for key in ("namespace", "pod", "uid", "container", "image"))
        return {key: value for key, value in fields if value}

    def __str__(self) -> str:
        if self.kubernetes and (self.namespace or self.pod or self.container):
            return "/".join(part or "?" for part in (self.namespace, self.pod, self.container or self.types[0]))
        return self.container or "a container of no pod"


def identify(spec: Spec, copied: bool = False) -> Identity:
    """The identity of the container of a config.json. `spec.where`: its path in the bundle that the engine made.

    `copied`: config.json may be a copy outside of the bundle, for `explain`. Without proof of the engine, annotations
    count then, because no container is started from a copy.
    """
    cgroup = spec.linux.get("cgroupsPath")
    path = cgroup if isinstance(cgroup, str) else ""
    annotations = spec.annotations
    engine = _engine(path, spec.where, annotations)
    if engine == CONTAINERD:
        return _containerd(annotations)
    if engine == CRIO:
        return crio(annotations)
    if engine == PODMAN:
        return _podman()
    manager = annotations.get(_MANAGER)
    claims_pod = any(key.startswith((CRI, _CRIO)) for key in annotations) or manager == "cri-o"
    uid = _cgroup_uid(path)
    if engine == DOCKER or not (claims_pod or _MANAGER in annotations):
        return _docker(spec, uid, path)
    if uid is None and manager == "libpod":  # podman without a cgroup; its user cannot make it a pod's container
        return _podman()
    if copied and CRI + "sandbox-id" in annotations:
        return _containerd(annotations)
    if copied and _CRIO + "ContainerType" in annotations:
        return crio(annotations)
    return Identity("ambiguous", None)


def _engine(cgroup: str, where: str, annotations: dict[str, str]) -> str:
    """The engine that wrote a spec, proved by what only this engine writes; "" without proof."""
    engine = _engine_of_cgroup(cgroup)
    if engine and (engine not in _ANNOTATIONS or any(key.startswith(_ANNOTATIONS[engine]) for key in annotations)):
        return engine
    directories = where.split("/")[:-1]
    if directories[-1:] == ["userdata"]:
        return PODMAN  # CRI-O's bundles always have a `crio` cgroup, which is handled above
    if directories[-2:-1] == ["k8s.io"]:
        return CONTAINERD
    return DOCKER if directories[-2:-1] == ["moby"] else ""


def _engine_of_cgroup(cgroup: str) -> str:
    """The engine that names its cgroups so, "" for others."""
    parts = cgroup.split(":")
    if len(parts) == 3 and "/" not in cgroup:
        return _CGROUP_PREFIXES.get(parts[1], "")
    name, _, number = cgroup.rpartition("/")[2].rpartition("-")
    if number and number.strip("0123456789abcdef") == "":  # the engine's own part, below any parent that a user names
        return {"crio": CRIO, "libpod": PODMAN, "libpod-payload": PODMAN}.get(name, "")
    return ""


def types_of(container_type: str | None) -> tuple[str, ...]:
    """The types that a container may have, by the engine's own name of its type."""
    if container_type == SANDBOX:
        return (SANDBOX,)
    return APP_TYPES if container_type == CONTAINER else TYPES


def _containerd(annotations: dict[str, str]) -> Identity:
    """The identity of a container of containerd.

    Its CRI plugin writes these after the pod's annotations that `pod_annotations` and `container_annotations` allow. It
    writes no container-name and image-name for a sandbox, so in a sandbox these two can be the pod's.
    """
    types = types_of(annotations.get(CRI + "container-type"))
    app = types == APP_TYPES
    return Identity(
        CONTAINERD,
        True,
        namespace=annotations.get(CRI + "sandbox-namespace"),  # containerd's, in sandboxes too
        pod=annotations.get(CRI + "sandbox-name"),  # containerd's, in sandboxes too
        uid=annotations.get(CRI + "sandbox-uid"),  # containerd's, in sandboxes too
        container=annotations.get(CRI + "container-name") if app else None,
        types=types,  # containerd's, in sandboxes too
        image=annotations.get(CRI + "image-name") if app else None,  # containerd's first name of the image's id
    )


def crio(annotations: dict[str, str]) -> Identity:
    """CRI-O writes in this order: a pod's allowed annotations, its own annotations, kubelet's labels one by one.

    For a sandbox it writes the pod's annotations between its own and kubelet's labels, so there only kubelet's labels
    are certain. In a sandbox the container's name can be the pod's. A pod that sets its sandbox's type to "container"
    gains nothing: `exclude` for sandboxes then does not apply to it. A checkpoint that is restored: `not_restored`.
    """
    types = types_of(annotations.get(_CRIO + "ContainerType"))
    app = types == APP_TYPES
    return Identity(
        CRIO,
        True,
        namespace=annotations.get(_KUBELET + "pod.namespace"),  # kubelet's label, written last
        pod=annotations.get(_KUBELET + "pod.name"),  # kubelet's label, written last
        uid=annotations.get(_KUBELET + "pod.uid"),  # kubelet's label, written last
        container=annotations.get(_KUBELET + "container.name") if app else None,  # kubelet's label, written last
        types=types,  # CRI-O writes it in containers; in sandboxes the pod can set it to "container"
        image=crio_image(annotations) if app else None,
    )


def crio_image(annotations: dict[str, str]) -> str | None:
    """The image that kubelet requested; None if it requested an ID.

    CRI-O's `ImageName` does not count: it is any one of the names that the image's ID has in CRI-O's store.
    """
    requested = annotations.get(_CRIO + "Image", "")
    name = requested.removeprefix("sha256:")
    is_id = len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)
    return None if is_id or not requested else requested


def _podman() -> Identity:
    """A podman container: it has no Kubernetes namespace, also in a podman pod, and an infra container is no sandbox.

    An image or a user can set all of its annotations, also `io.kubernetes.cri-o.ContainerType` and `ImageName`. Rules
    apply to an infra container too, which needs no env and no mount that a rule can remove.
    """
    return Identity(PODMAN, False, types=(CONTAINER,))


def _docker(spec: Spec, uid: str | None, path: str) -> Identity:
    """A docker container. `uid`: of kubelet's cgroup `pod<uid>`, in `path`. No annotation counts (`--annotation`).

    A docker user can set the cgroup parent too. hook.core.container.dockershim proves whether it is a pod's container,
    by files. Until files prove it, it is unknown: it may be a sandbox, or a user's container in that cgroup.
    """
    if uid is None:
        return Identity("", False, types=(CONTAINER,))
    identity = Identity(DOCKER, None)
    identity.unproven = uid, path, str(spec.root.get("path")), [mount.source for mount in spec.mounts]
    return identity


def _cgroup_uid(path: str) -> str | None:
    """The pod UID in linux.cgroupsPath: `/kubepods/burstable/pod<uid>/…`, or systemd's `kubepods-pod<uid_>.slice:…`."""
    if "kubepods" not in path:
        return None
    for part in path.replace(":", "/").split("/"):
        if part.startswith("pod"):
            return part[3:]
        if part.startswith("kubepods") and part.endswith(".slice") and "-pod" in part:
            return part.rpartition("-pod")[2][: -len(".slice")].replace("_", "-")
    return None
