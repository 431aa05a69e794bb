"""Which pod's container docker starts, by what kubelet, dockershim or cri-dockerd, and dockerd have written about it.

The table in hook/core/container/identity.py says who can write each of these files. Start path, loaded for containers
of docker in a pod's cgroup.
"""

from __future__ import annotations

import posix

from hook.core.base.errors import ReassertError
from hook.core.base.jsontext import bounded, decode, parse
from hook.core.base.system import is_shortage, read_file, trusted
from hook.core.container.identity import APP_TYPES, DOCKER, SANDBOX, Identity

POD_LOGS = "/var/log/pods"
"""kubelet's directories of logs: NAMESPACE_NAME_UID. Only API server and kubelet decide what is in these names."""

SANDBOXES = ("/var/lib/dockershim/sandbox/", "/var/lib/cri-dockerd/sandbox/")
"""Where dockershim and cri-dockerd keep a file for each sandbox, named by docker's id of it."""

_NOT_THE_PODS = ("io.kubernetes.", "annotation.")
"""Prefixes of a sandbox's labels that kubelet and dockershim add; docker has no annotations of a container."""

_LIMIT, _ENTRIES = 1024 * 1024, 10_000
"""The most bytes and JSON entries of a file of dockerd. It holds what its user asked for; a usual one has a few KB."""

_HEXADECIMAL = frozenset("0123456789abcdef")


def prove(
    identity: Identity,
    kubelet_root: str,
    *,
    asks: bool = False,
    pod_logs: str = POD_LOGS,
    sandboxes: tuple[str, ...] = SANDBOXES,
) -> Identity:
    """The identity of a container of docker as far as root's files prove it; without proof, `identity`.

    `asks`: whether the pod's labels are asked for. Raises OSError for a shortage.
    """
    unproven = identity.unproven
    try:
        identity = _proven(identity, kubelet_root, pod_logs, sandboxes)
        if asks and unproven and identity.kubernetes:
            identity.labels = _pod_labels(unproven[2], _container_id(unproven[1]), identity.types == (SANDBOX,))
    except OSError as error:
        if is_shortage(error):
            raise
    except (ReassertError, ValueError):  # not trusted, or not JSON
        pass
    return identity


def _proven(identity: Identity, kubelet_root: str, pod_logs: str, sandboxes: tuple[str, ...]) -> Identity:
    if identity.unproven is None:
        return identity
    uid, cgroup, root, sources = identity.unproven
    container_id = _container_id(cgroup)
    made = _record(root, container_id, "hostconfig.json")
    if made is None or made.get("VolumesFrom"):  # not docker's, or it may have a pod's mounts
        return identity
    logs = f"{kubelet_root}/pods/{uid}/containers/"
    files = [source[len(logs) :].split("/") for source in sources if source.startswith(logs)]
    names = {parts[0] if len(parts) == 2 else "" for parts in files}
    name = names.pop() if len(names) == 1 else None
    types: tuple[str, ...] = APP_TYPES
    if not files and any(_is_trusted(directory + container_id) for directory in sandboxes):
        types = (SANDBOX,)
    elif not name:
        return identity
    namespace, pod = _pod(uid, pod_logs)
    return Identity(DOCKER, True, namespace=namespace, pod=pod, uid=uid, container=name, types=types)


def _container_id(cgroup: str) -> str:
    """The id that dockerd gave the container and writes behind any cgroup parent."""
    return cgroup.replace(":", "/").rpartition("/")[2]


def _pod_labels(root: str, container_id: str, is_sandbox: bool) -> dict[str, str] | None:
    """The pod's labels: those of its sandbox, whose id is a label of each proven container.

    dockershim writes this label last, also over an image's. Raises Untrusted, Malformed, OSError.
    """
    labels = _docker_labels(root, container_id)
    if not is_sandbox:
        labels = _docker_labels(root, str(labels.get("io.kubernetes.sandbox.id")))
    mine = {key: value for key, value in labels.items() if isinstance(value, str) and not key.startswith(_NOT_THE_PODS)}
    return mine if labels else None


def _docker_labels(root: str, container_id: str) -> dict[str, object]:
    config = (_record(root, container_id, "config.v2.json") or {}).get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels if isinstance(labels, dict) else {}


def _record(root: str, container_id: str, name: str) -> dict[str, object] | None:
    """A file of dockerd about a container, None without. Raises Untrusted, Malformed, OSError.

    `root`: the path of its root filesystem: DATA-ROOT/overlay2/LAYER/merged, DATA-ROOT/rootfs/overlayfs/ID, … With
    devicemapper it has a part more.
    """
    above = root.split("/")
    is_id = len(container_id) == 64 and _HEXADECIMAL.issuperset(container_id)
    for parts in (3, 4) if is_id and root.startswith("/") else ():
        path = f"{'/'.join(above[:-parts])}/containers/{container_id}/{name}"
        if _is_trusted(path):
            record = parse(decode(bounded(read_file(path, _LIMIT), _ENTRIES, path)))
            return record if isinstance(record, dict) else None
    return None


def _is_trusted(path: str) -> bool:
    """Whether there is a file at the path that only root can have made. Raises Untrusted, OSError."""
    try:
        trusted(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _pod(uid: str, pod_logs: str) -> tuple[str | None, str | None]:
    """A pod's namespace and name; None if kubelet's directories do not tell. Raises OSError."""
    try:
        names = [name.split("_") for name in posix.listdir(pod_logs) if name.endswith("_" + uid)]
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    return (names[0][0], names[0][1]) if len(names) == 1 and len(names[0]) == 3 else (None, None)
