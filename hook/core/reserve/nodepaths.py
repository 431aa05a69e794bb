"""`nodePaths`: volumes by which a container reaches reassert's own files, or the engine's. Pure; builtins only.

By config.json here: paths as they are written. Links, subPaths and mounts below a volume are seen by the hook, in the
container's own mount table (`hook.core.linux.look.look_at_node_paths`). Loaded for containers with hostPaths only.
"""

import sys

from hook.core.base.compare import clean
from hook.core.base.errors import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hook.core.container.start import Json
    from hook.core.policy.model import Policy
    from hook.core.reserve import Outcome

KIND = "nodePaths"
REFUSE, REPORT = "Refuse", "Report"

OWN = (
    "/etc/reassert/",
    "/opt/reassert/",
    "/run/reassert/",
    "/usr/lib/reassert/",
    "/usr/local/sbin/reassert-",
    "/var/lib/reassert/",
    "/var/log/reassert/",
)
"""Policy and trust sources, program, the agent's socket, package, dispatchers, store, log: the beginnings of the paths
of all that lies there."""

ENGINES = (
    "/etc/containerd/",
    "/etc/containers/",
    "/etc/crio/",
    "/etc/docker/",
    "/etc/rancher/",
    "/run/containerd/containerd.sock/",
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


def own(policy: "Policy") -> "tuple[str, ...]":
    """The beginnings of reassert's own paths, with this policy file and this program wherever they are."""
    program = sys.executable.rpartition("/")[0] if hasattr(sys, "_MEIPASS") else OWN[1]
    return *OWN, f"{policy.path}/", f"{program}/"


def reached(source: str, paths: "Sequence[str]") -> "list[str]":
    """Which of some beginnings of paths are at a directory or file, below or above it. `source`: a normalised path."""
    within = source.rstrip("/") + "/"
    return [path for path in paths if path.startswith(within) or within.startswith(path)]


def check(policy: "Policy", mounts: "list[Json]", outcome: "Outcome") -> None:
    """Refuse, or note in `outcome.node_paths`, what the sources of a container's mounts reach.

    Mounts that edits replace or remove are not judged.
    Of an engine's paths only a volume of one counts here: whether one above has it, the hook sees, since most nodes
    lack most of them.
    """
    gone = {edit.name for edit in [*outcome.mounts, *outcome.edits] if edit.kind in ("mount", "device")}
    for mount in mounts:
        source = _without_link(clean(str(mount.get("source", ""))))
        if str(mount.get("source", ""))[:1] != "/" or clean(str(mount["destination"])) in gone:
            continue
        if not is_read_only(mount):
            judge(policy, str(mount["destination"]), reached(source, own(policy)), outcome)
        engines = [path for path in ENGINES if f"{source}/".startswith(path)]
        judge(policy, str(mount["destination"]), engines, outcome)


def is_read_only(mount: "Json") -> bool:
    """Whether a mount is, by its options (mount(8)); mounts below it may not be."""
    options = mount.get("options")
    words = [option for option in options if option in ("ro", "rro", "rw")] if isinstance(options, list) else []
    return words[-1:] not in ([], ["rw"])


def becomes_read_only(at: str, mounts: "list[Json]") -> bool:
    """Whether all mounts of config.json at a path are read-only: crun makes them so after its hooks.

    By the text of their destinations, in which most images' link /var/run counts as /run.
    """
    here = [mount for mount in mounts if _without_link(clean(str(mount["destination"]))) == _without_link(at)]
    return bool(here) and all(map(is_read_only, here))


def _without_link(path: str) -> str:
    """A path with /var/run as /run: on every distribution a link (file-hierarchy(7))."""
    return path[len("/var") :] if path.startswith("/var/run/") else path


def judge(policy: "Policy", at: str, paths: "list[str]", outcome: "Outcome") -> None:
    """Add to `outcome` what it means that a volume at a path of the container reaches some of OWN, or of ENGINES."""
    for path in paths[:1]:
        is_engine = path in ENGINES
        volume, what = f"the volume {named(at)}", path.rstrip("/-")
        if policy.node_paths["engine" if is_engine else "reassert"] == REPORT:
            outcome.node_paths.append(f"{named(at)}: {what}")
        elif is_engine:
            outcome.deny("", KIND, f"{volume} reaches {what} of the engine, and nodePaths.engine is {REFUSE}")
        else:
            outcome.deny(
                "", KIND, f"{volume} can be written and reaches {what} of reassert, and nodePaths.reassert is {REFUSE}"
            )
