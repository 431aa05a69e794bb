"""The CDI devices that a pod's resource claims gave it (Dynamic Resource Allocation).

kubelet keeps the claims of its pods in dra_manager_state. It holds pod UIDs, but no container names: which of a pod's
containers a claim is for stands in the pod, and kubelet's PodResources tells it (hook.core.facts.cri). kubelet writes
the file before it creates the pod's sandbox.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, decode, parse
from hook.core.container.cdi import items

CLAIMS_KIND, CLAIMS_API = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class Unknown(Malformed):
    """The file is of another version."""


class Claim:
    """A resource claim of a pod."""

    def __init__(self, namespace: str, name: str, cdi: list[str], requests: int = 1) -> None:
        self.namespace = namespace
        self.name = name
        self.cdi = cdi
        """Fully qualified CDI device names."""
        self.requests = requests
        """The number of its requests."""
        self.is_whole = False
        """Whether the container is known to have all of these devices."""
        self.mounts: list[tuple[str, str, list[str]]] = []
        """(host path, container path, options), which the CDI specs of the devices place."""
        self.devices: list[tuple[str, str, str]] = []
        """(host path, container path, permissions), likewise."""

    def place(self, edits: dict[str, Any]) -> None:
        """Add what `containerEdits` place, as far as it is restored: bind mounts, and nodes that the node has.

        CDI's default of `permissions` is rwm. NRI cannot give `m`, and a container that has the node needs no mknod(2).
        """
        for mount in items(edits, "mounts", dict):
            options = items(mount, "options", str)
            if not {"bind", "rbind"}.isdisjoint(options):
                self.mounts.append((str(mount.get("hostPath")), str(mount.get("containerPath")), options))
        for node in items(edits, "deviceNodes", dict):
            if "major" not in node:
                path = str(node.get("path"))
                self.devices.append((str(node.get("hostPath") or path), path, str(node.get("permissions") or "rw")))

    def __str__(self) -> str:
        return f"claim {self.name}"


def claims(data: bytes, uid: str, path: str, asked: list[str] | None = None) -> list[Claim]:
    """The claims of one pod; with `asked`, those of them and their devices that kubelet asked for by CDI name.

    Raises Undecided for a file of another version, or with a wrong checksum.
    """
    try:
        outer = parse(decode(data))
        text = outer.get("Data") if isinstance(outer, dict) else None
        if not isinstance(text, str):
            raise Malformed("it has no Data")
        if crc32(text.encode()) != outer.get("Checksum"):
            raise Malformed("its checksum is wrong")
        state = parse(text)
        kind, version = (state.get("kind"), state.get("apiVersion")) if isinstance(state, dict) else (None, None)
        if (kind, version) != (CLAIMS_KIND, CLAIMS_API):
            raise Unknown(f"{kind} {version} is not the known version, {CLAIMS_KIND} {CLAIMS_API}")
        of_pod = [_claim(entry) for entry in state.get("ClaimInfoStateList") or [] if uid in _object(entry, "PodUIDs")]
    except (Malformed, UnicodeEncodeError) as error:
        remedy = "drain the node, remove the file and restart kubelet"
        if isinstance(error, Unknown):
            remedy = "use a version of reassert that knows it"
        raise Undecided(f"kubelet's record of resource claims, {path}: {error}; {remedy}") from None
    if asked is None:
        return of_pod
    for claim in of_pod:
        claim.cdi = [name for name in claim.cdi if name in asked]
        claim.is_whole = True
    return [claim for claim in of_pod if claim.cdi]


def of_container(of_pod: list[Claim], answer: dict[str, str] | None, container: str | None) -> tuple[list[Claim], str]:
    """The claims of a pod that the container names, and why its devices are not known exactly, or "".

    `answer`: the claims of each container (hook.core.facts.cri), None without an answer. A claim without an answer
    counts for each container of the pod. A container that names a claim may have named one of several requests.
    """
    if answer is None:
        return of_pod, "kubelet's PodResources gave no answer"
    if container not in answer:
        return of_pod, "kubelet's PodResources does not list the container; it lists no init containers"
    if not {f"{claim.namespace}/{claim.name}" for claim in of_pod}.issuperset(" ".join(answer.values()).split()):
        return of_pod, "kubelet's PodResources lists another pod of this name"
    named = answer[container].split()
    of_pod = [claim for claim in of_pod if f"{claim.namespace}/{claim.name}" in named]
    for claim in of_pod:
        claim.is_whole = claim.requests < 2
    several = [str(claim) for claim in of_pod if not claim.is_whole]
    return of_pod, f"kubelet's PodResources does not tell the requests of {several[0]} apart" if several else ""


def _claim(entry: dict[str, Any]) -> Claim:
    names, requests = [], set()
    for driver in _object(entry, "DriverState").values():
        for device in driver.get("Devices") or [] if isinstance(driver, dict) else ():
            names += [str(name) for name in _member(device, "CDIDeviceIDs", list)]
            requests.add(str(_member(device, "RequestNames", list)))
    return Claim(str(entry.get("Namespace")), str(entry.get("ClaimName")), names, len(requests))


def _object(entry: object, member: str) -> dict[str, Any]:
    value: dict[str, Any] = _member(entry, member, dict)
    return value


def _member(entry: object, member: str, kind: type[Any]) -> Any:
    value = entry.get(member) if isinstance(entry, dict) else ""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise Malformed(f"{member} is not what kubelet writes")
    return value
