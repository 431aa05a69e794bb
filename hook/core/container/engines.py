"""Identity of containers of other engines than containerd. Loaded for these only; start path: builtins only."""

from hook.core.container.identity import (
    APP_TYPES,
    CONTAINER,
    CRI,
    CRIO,
    DOCKER,
    PODMAN,
    Identity,
    of_containerd,
    types_of,
)
from hook.core.container.spec import Spec

_CRIO = "io.kubernetes.cri-o."  # cri-o, internal/annotations
_MANAGER = "io.container.manager"  # libpod's and CRI-O's; libpod does not overwrite an image's or a user's
_KUBELET = "io.kubernetes."  # kubelet's labels in its CRI requests, pkg/kubelet/types/labels.go


def identify_other(engine: str, spec: Spec, path: str, copied: bool) -> Identity:
    """The identity of a container that containerd did not make, or that nothing proves to be of containerd.

    `engine`: the proven one, or "". `path`: linux.cgroupsPath. `copied`: as for `identify`.
    """
    annotations = spec.annotations
    if engine == CRIO:
        return _crio(annotations)
    if engine == PODMAN:
        return _podman()
    manager = annotations.get(_MANAGER)
    claims_pod = any(key.startswith((CRI, _CRIO)) for key in annotations) or manager == "cri-o"
    uid = _cgroup_uid(path)
    if engine == DOCKER or not (claims_pod or _MANAGER in annotations):
        return _docker(spec, uid)
    if uid is None and manager == "libpod":  # podman without a cgroup; its user cannot make it a pod's container
        return _podman()
    if copied and CRI + "sandbox-id" in annotations:
        return of_containerd(annotations)
    if copied and _CRIO + "ContainerType" in annotations:
        return _crio(annotations)
    return Identity("ambiguous", None)


def _crio(annotations: "dict[str, str]") -> Identity:
    """CRI-O writes in this order: a pod's allowed annotations, its own annotations, kubelet's labels one by one.

    For a sandbox it writes the pod's annotations between its own and kubelet's labels, so there only kubelet's labels
    are certain. In a sandbox the container's name can be the pod's. A pod that sets its sandbox's type to "container"
    gains nothing: `exclude` for sandboxes then does not apply to it.
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
        types=types,  # CRI-O's in containers; in sandboxes the pod can set it to "container"
        image=crio_image(annotations) if app else None,
    )


def crio_image(annotations: "dict[str, str]") -> "str | None":
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
    apply to an infra container too; it needs none of the env and mounts that a rule can take away.
    """
    return Identity(PODMAN, False, types=(CONTAINER,))


def _docker(spec: Spec, uid: "str | None") -> Identity:
    """A docker container. `uid`: of kubelet's cgroup `pod<uid>`. No annotation counts (`docker run --annotation`).

    The container's name comes from the mount of kubelet's termination-log file, pods/UID/containers/NAME/. A docker
    user can set the cgroup parent too, and can mount that file, but a user who may mount kubelet's directory is root.
    Without the mount the container may be pause, or a user's container in that cgroup. So it is not taken for a
    sandbox, and whether it is a pod's is unknown.
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
