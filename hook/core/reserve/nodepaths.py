"""`nodePaths`: volumes by which a container reaches reassert's own files, or the engine's. Pure; builtins only.

By config.json here: paths as they are written. Links, subPaths and mounts below a volume are seen by the hook, in the
container's own mount table (`hook.core.linux.look.look_at_node_paths`). Loaded for containers with hostPaths only.
"""

import sys

from hook.core.base.compare import clean, is_below
from hook.core.base.errors import named
from hook.core.container.identity import DOCKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.identity import Identity
    from hook.core.container.start import Json, Start
    from hook.core.policy.model import Policy
    from hook.core.reserve import Outcome

KIND = "nodePaths"
REFUSE, REPORT = "Refuse", "Report"

OWN = (
    "/etc/reassert/",
    "/etc/systemd/system/reassert-",
    "/opt/reassert/",
    "/run/reassert/",
    "/usr/lib/reassert/",
    "/usr/local/sbin/reassert-",
    "/var/lib/reassert/",
    "/var/log/reassert/",
)
"""Policy and trust sources, units, program, the agent's socket, package, dispatchers, store, log: the beginnings of the
paths of all that lies there."""

_OF_DOCKER = ("/var/lib/cri-dockerd/", "/var/lib/docker/containers", "/var/lib/dockershim/", "/var/log/pods")
"""What proves a pod under docker (hook.core.container.dockershim). What is below a path without a `/` at its end
belongs to containers: only that directory itself and those above it count.
"""

ENGINES = (
    "/etc/containerd/",
    "/etc/containers/",
    "/etc/crio/",
    "/etc/docker/",
    "/etc/rancher/",
    "/run/containerd/containerd.sock/",
    "/run/containerd/containerd.sock.ttrpc/",
    "/run/cri-dockerd.sock/",
    "/run/crio/crio.sock/",
    "/run/docker.sock/",
    "/run/k3s/containerd/containerd.sock/",
    "/run/nri/",
    "/run/podman/podman.sock/",
    "/var/lib/rancher/k3s/agent/etc/",
    "/var/lib/rancher/rke2/agent/etc/",
)
"""Sockets and configuration of the engines that `reassert node install` wires: who talks to one, or changes the other,
starts containers without reassert."""


def own(policy: "Policy", identity: "Identity") -> "tuple[str, ...]":
    """The beginnings of reassert's own paths, with this policy file and this program wherever they are."""
    program = sys.executable.rpartition("/")[0] if hasattr(sys, "_MEIPASS") else OWN[2]
    proofs = (*_OF_DOCKER, f"{policy.kubelet_root}/pods") if identity.engine == DOCKER or identity.unproven else ()
    return *OWN, f"{policy.path}/", f"{program}/", *proofs


def reaches(source: str, path: str) -> bool:
    """Whether a directory or file has something of a path in it, or is below it. `path`: as in OWN."""
    within = source.rstrip("/") + "/"
    return f"{path}/".startswith(within) or (path[-1] in "/-" and within.startswith(path))


def check(policy: "Policy", identity: "Identity", start: "Start", placed: "set[str]", outcome: "Outcome") -> None:
    """Refuse, or note in `outcome.node_paths`, what the sources of a container's mounts reach.

    `placed`: as for `hook.core.plan.nodes_own`. A mount that `exclusive` takes out is not judged either.

    Only a volume of an engine's path itself counts here. The hook sees whether a volume above has one, since most nodes
    lack most of them.
    """
    outcome.node_paths_of_reassert = own(policy, identity)
    closed = outcome.closed
    for mount in start.mounts:
        path = str(mount["destination"])
        if clean(path) in placed or (closed and closed.mount(mount)):
            continue
        for source in _sources(mount):
            if not is_read_only(mount) or source != _without_link(clean(str(mount.get("source")))):
                found = [each for each in outcome.node_paths_of_reassert if reaches(source, each)]
                judge(policy, path, found, outcome)
            judge(policy, path, [each for each in ENGINES if f"{source}/".startswith(each)], outcome)
    _check_nested(policy, start, placed, outcome)


def _check_nested(policy: "Policy", start: "Start", placed: "set[str]", outcome: "Outcome") -> None:
    """Refuse, or note, mounts and devices in a read-only volume of reassert's own paths: a runtime makes files there.

    crun does before it makes the volume read-only, and runc in what is mounted below that. A file of any name stays.
    """
    # Where each is, and its source if it is a read-only volume.
    volumes = dict.fromkeys([clean(str(device.get("path", ""))) for device in start.devices], "")
    for mount in start.mounts:
        sources = _sources(mount) if is_read_only(mount) else []
        volumes[clean(str(mount["destination"]))] = sources[0] if sources else ""
    above: list[str] = []  # the mounts above each path, which come before it in this order
    for at in sorted(volumes, key=lambda path: path.replace("/", "\0")):
        while above and not is_below(at, above[-1]):
            above.pop()
        if above and volumes[above[-1]] and at not in placed:
            made = _without_link(volumes[above[-1]].rstrip("/") + at.removeprefix(above[-1].rstrip("/"))) + "/"
            own_paths = [each for each in outcome.node_paths_of_reassert if made.startswith(each)]
            judge(policy, above[-1], own_paths, outcome, f"has {named(at)} in it, which a runtime makes there, ")
        above.append(at)


def _sources(mount: "Json") -> "list[str]":
    """The paths of the node that a mount shows; of an overlay also where what is written to it goes."""
    options = mount.get("options")
    named_in = [str(option).partition("=") for option in options] if isinstance(options, list) else []
    paths = [str(mount.get("source", "")), *[path for name, _, path in named_in if name in ("upperdir", "workdir")]]
    return [_without_link(clean(path)) for path in paths if path[:1] == "/"]


def is_read_only(mount: "Json") -> bool:
    """Whether a mount is read-only by its options (mount(8)); mounts below it may not be."""
    options = mount.get("options")
    words = [option for option in options if option in ("ro", "rro", "rw", "rrw")] if isinstance(options, list) else []
    return words[-1:] in (["ro"], ["rro"])


def _without_link(path: str) -> str:
    """A path with /var/run as /run: on every distribution a link (file-hierarchy(7))."""
    return path[len("/var") :] if path.startswith("/var/run/") else path


def judge(policy: "Policy", at: str, paths: "list[str]", outcome: "Outcome", why: str = "can be written ") -> None:
    """Add to `outcome` what it means that a volume at a path of the container reaches some of OWN, or of ENGINES.

    `why`: what lets files of OWN be changed.
    """
    for path in paths[:1]:
        is_engine = path in ENGINES
        volume, what = f"the volume {named(at)}", path.rstrip("/-")
        if policy.node_paths["engine" if is_engine else "reassert"] == REPORT:
            outcome.node_paths.append(f"{named(at)}: {what}")
        elif is_engine:
            outcome.deny("", KIND, f"{volume} reaches {what} of the engine, and nodePaths.engine is {REFUSE}")
        else:
            outcome.deny("", KIND, f"{volume} {why}and reaches {what} of reassert, and nodePaths.reassert is {REFUSE}")
