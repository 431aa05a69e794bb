"""A container's identity (engine, namespace, pod, name, image), read from config.json. Start path: builtins only.

A field that a pod, an image or an engine's user can write never excludes a container from the policy. Annotations are
such fields, so they count only if something else proves which engine wrote config.json:

| proof | written by | can a pod, an image or an engine's user write it? |
|---|---|---|
| cgroupsPath `SLICE:cri-containerd:ID` | containerd, systemd driver | no; a cgroup parent gives more parts or a `/` |
| cgroupsPath `SLICE:crio:ID`, `…/crio-ID` | CRI-O | no; docker's ends in its own ID, podman's in `libpod-ID` |
| cgroupsPath `SLICE:libpod:ID`, `…/libpod-ID` | podman | no, but `--cgroups=disabled` leaves it out |
| cgroupsPath `SLICE:docker:ID` | dockerd, systemd driver | no |
| bundle `…/k8s.io/ID` | containerd: its namespace for CRI | no; docker's is `moby`, or set in dockerd's configuration |
| bundle `…/ID/userdata` | podman, CRI-O | no |

Without proof, annotations that claim a pod make every field unknown: each rule still applies, and nothing is excluded.
With proof, annotations of other engines are ignored.
"""

from hook.core.container.spec import Spec

SANDBOX, INIT, CONTAINER, EPHEMERAL = "sandbox", "init", "container", "ephemeral"
TYPES = (SANDBOX, INIT, CONTAINER, EPHEMERAL)

APP_TYPES = (CONTAINER, INIT, EPHEMERAL)
"""Types that containerd does not distinguish: it writes "container" for all three. `io.kubernetes.container.type` would
distinguish them, but an engine that copies it into the spec copies a pod's own annotation of that name too, so it does
not count."""

CONTAINERD, CRIO, PODMAN, DOCKER = "containerd", "cri-o", "podman", "docker"
_CGROUP_PREFIXES = {"cri-containerd": CONTAINERD, "crio": CRIO, "libpod": PODMAN, "docker": DOCKER}

CRI = "io.kubernetes.cri."  # containerd, pkg/cri/annotations


class Identity:
    """A container's names. None means unknown to this adapter.

    `kubernetes`: True for a container of a pod, False for a container outside Kubernetes, None if that is unknown.
    `types`: the container types (of TYPES) that it may have; exactly one if the type is known.
    `labels`: the pod's labels. `cdi`: the CDI devices that kubelet asked for. Only NRI has them.
    """

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
        cdi: "list[str] | None" = None,
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
        self.cdi = cdi

    def as_dict(self) -> "dict[str, str]":
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
    engine = _engine(path, spec.where)
    if engine == CONTAINERD:
        return of_containerd(spec.annotations)
    from hook.core.container.engines import identify_other

    return identify_other(engine, spec, path, copied)


def _engine(cgroup: str, where: str) -> str:
    """The engine that wrote a spec, proved by a path that only this engine writes; "" without proof."""
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
        return PODMAN  # CRI-O's bundles always have a `crio` cgroup, which is handled above
    if directories[-2:-1] == ["k8s.io"]:
        return CONTAINERD
    return DOCKER if directories[-2:-1] == ["moby"] else ""


def types_of(container_type: "str | None") -> "tuple[str, ...]":
    """The types that a container may have, by its engine's own word for it."""
    if container_type == SANDBOX:
        return (SANDBOX,)
    return APP_TYPES if container_type == CONTAINER else TYPES


def of_containerd(annotations: "dict[str, str]") -> Identity:
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
