"""`nodePaths`: volumes by which a container reaches reassert's own files, or the engine's. Pure.

By config.json here: paths as they are written. Links, subPaths and mounts below a volume are seen by the hook, in the
container's own mount table (hook.core.linux.look_node_paths), also where the text of a path shows nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hook.core.base.compare import clean, glob_match, is_below
from hook.core.base.errors import named
from hook.core.container.identity import DOCKER, Identity
from hook.core.container.oci import Mount
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.policy.model import Policy, Rule
from hook.core.reserve.edits import SHOWN, Reason
from hook.core.reserve.plan import Plan

KIND = "nodePaths"
REFUSE, TRY, REPORT = "Refuse", "Try", "Report"
"""What becomes of a container. Try: as Report, and the event says what Refuse would do (`hook.core.policy.model`)."""

OF_REASSERT, OF_ENGINE = "reassert", "engine"
"""The fields of nodePaths, by whose files it is for."""

ADMINISTRATOR = "or the node's administrator excepts the namespace (nodePaths.except)"
"""The end of each refusal for a volume: what the author of the pod cannot do."""

LOG_DIRECTORY = "/var/log/reassert/"
"""The directory of reassert's log. A container can do no more than spoil what it can write: no program trusts what the
log says. So the container keeps a writable volume of the directory above, and gets this one read-only in it."""

REASSERT_PATHS = (
    "/etc/reassert/",
    "/etc/systemd/system/reassert-",
    "/opt/.reassert.reassert-aside/",
    "/opt/reassert/",
    "/run/reassert/",
    "/usr/lib/reassert/",
    "/usr/lib/systemd/system/reassert-",
    "/usr/local/bin/reassert/",
    "/usr/local/sbin/reassert-",
    "/var/lib/reassert/",
    "/var/lib/reassert-kubernetes/",
    "/var/log/reassert/",
)
"""Policy and trust sources, units, the staging directory, program and dispatchers, the agent's socket, the package, the
command, 0.3's dispatchers, store, the chart's directory, log: the beginnings of the paths of all that lies there.

tests/e2e/node/test_lists.py compares them with an installed node, unit/node/test_own_paths.py with the code.
"""

_OF_DOCKER = ("/var/lib/cri-dockerd/", "/var/lib/docker/containers", "/var/lib/dockershim/", "/var/log/pods")
"""What proves a pod under docker (hook.core.container.dockershim). What is below a path without a `/` at its end
belongs to containers: only that directory itself and those above it count.
"""

ENGINE_PATHS = (
    "/etc/containerd/",
    "/etc/containers/",
    "/etc/crio/",
    "/etc/docker/",
    "/etc/rancher/",
    "/etc/systemd/system/docker.service.d/",
    "/run/containerd/containerd.sock.ttrpc/",
    "/run/containerd/containerd.sock/",
    "/run/containerd/s/",
    "/run/cri-dockerd.sock/",
    "/run/crio/",
    "/run/docker.sock/",
    "/run/docker/",
    "/run/dockershim.sock/",
    "/run/k0s/containerd.sock.ttrpc/",
    "/run/k0s/containerd.sock/",
    "/run/k3s/containerd/containerd.sock.ttrpc/",
    "/run/k3s/containerd/containerd.sock/",
    "/run/k3s/containerd/s/",
    "/run/nri/",
    "/run/podman/podman.sock/",
    "/var/lib/rancher/k3s/agent/etc/",
    "/var/lib/rancher/rke2/agent/etc/",
)
"""Sockets and configuration of engines: who talks to one, or changes the other, starts containers without reassert.

In the directories `s`, the shims of containerd listen: a client of one executes any program as root of the node. Whole
directories of containerd's, k3s' and k0s' state would be wrong: each pod has its /dev/shm from there.
tests/e2e/node/test_lists.py compares them with what listens on a node.
"""


def own(policy: Policy, identity: Identity) -> tuple[str, ...]:
    """The beginnings of reassert's own paths, with this policy file and this program wherever they are."""
    program = sys.executable.rpartition("/")[0] if hasattr(sys, "_MEIPASS") else "/opt/reassert"
    proofs = (*_OF_DOCKER, f"{policy.kubelet_root}/pods") if identity.engine == DOCKER or identity.unproven else ()
    return *REASSERT_PATHS, f"{policy.path}/", f"{program}/", *proofs


def reaches(source: str, path: str) -> bool:
    """Whether a directory or file has something of a path in it, or is below it. `path`: as in REASSERT_PATHS."""
    within = source.rstrip("/") + "/"
    return f"{path}/".startswith(within) or (path[-1] in "/-" and within.startswith(path))


def is_excepted(policy: Policy, identity: Identity) -> bool:
    """Whether nodePaths is not for a container's namespace. One that no engine proves is no exception."""
    namespace = identity.namespace if identity.kubernetes else None
    return namespace is not None and True in [glob_match(each, namespace) for each in policy.node_paths_except]


def searched(paths: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Paths as in OWN, for `may_reach`."""
    return "\0" + "/\0".join(paths) + "/", tuple([path for path in paths if path[-1] in "/-"])


def may_reach(source: str, paths: tuple[str, tuple[str, ...]]) -> bool:
    """Whether a directory or file may reach one of several paths (`reaches`): two searches in place of one for each."""
    within = source.rstrip("/") + "/"
    return within.startswith(paths[1]) or f"\0{within}" in paths[0]


_KERNELS = ("proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2")
"""Types of mounts that show no file of the node."""


def concerns(rules: list[Rule], container: Container) -> bool:
    """Always: `nodePaths` is for containers without a rule too, and `want` looks at their mounts first."""
    return True


def want(rules: list[Rule], container: Container, plan: Plan) -> None:
    """Refuse, or note in `plan.node_paths`, what the sources of a container's mounts reach.

    An adapter removes other mounts where a reserved one comes, so they are not judged (`stays_below`: where one
    cannot). A mount that `exclusive` takes out is not judged either.

    Only a volume of an engine's path itself counts here. The hook sees whether a volume above has one, since most nodes
    lack most of them. The hook closes volumes too; `plan.node_logs` has those in which it will cover the log.
    """
    placed = {edit.name for edit in plan.mounts}  # no name of env or of a device, which a pod may choose
    policy, start = plan.policy, container.start
    if not (placed or _may_show_files(start.mounts)) or is_excepted(policy, container.identity):
        return
    plan.node_paths_of_reassert = own(policy, container.identity)
    own_paths = searched(plan.node_paths_of_reassert)
    exclusive = plan.exclusive
    for mount in start.mounts:
        path = mount.destination
        if mount.path in placed or (exclusive and exclusive.mount(mount)):
            continue
        for source in _sources(mount):
            if not may_reach(source, own_paths) and not f"{source}/".startswith(ENGINE_PATHS):
                continue
            is_path = bool(mount.source) and source == _without_link(clean(mount.source))
            if start.has_users or not mount.is_read_only or not is_path:
                paths = [each for each in plan.node_paths_of_reassert if reaches(source, each)]
                if (
                    paths == [LOG_DIRECTORY]
                    and is_path
                    and not start.has_users
                    and has_log(policy, source, LOG_DIRECTORY[:-1])
                ):
                    plan.node_logs.append(mount.path)
                else:
                    judge(path, paths, plan, cure=CURE_OF_USERS if start.has_users else CURE)
            judge(path, [each for each in ENGINE_PATHS if f"{source}/".startswith(each)], plan)
    _check_nested(start, placed, plan)


def apply(plan: Plan, target: Start) -> None:
    """Nothing: it only refuses, or leaves the volume to the hook."""


def _may_show_files(mounts: list[Mount]) -> bool:
    """Whether a mount may show a file of the node.

    The paths of kubelet's and engines' own files are no exception: a container with a writable volume above them makes
    links there, and an engine resolves a hostPath before the runtime does.
    """
    return any(mount.type not in _KERNELS or mount.source[:1] == "/" for mount in mounts)


def has_log(policy: Policy, above: str, path: str) -> bool:
    """Whether the log's directory can be covered in a volume of a directory `above`.

    A process renames any directory between the two, and with it the mount; it can rename no mount point, and not the
    root of the volume. `nodePaths.reassert: Report` leaves all volumes as they are.
    """
    return policy.node_paths[OF_REASSERT] != REPORT and path.rpartition("/")[0] == above.rstrip("/")


def stays_below(plan: Plan, mounts: list[Mount]) -> list[Reason]:
    """Why a container must not start where an adapter removes none of its mounts, which are given."""
    plan_below = Plan(plan.policy)
    reserved = {edit.name: edit.source() if edit.mount else "" for edit in plan.mounts}
    for mount in mounts:
        for source in _sources(mount) if mount.path in reserved else ():
            if not mount.is_read_only and source != reserved[mount.path]:
                judge(mount.path, [each for each in plan.node_paths_of_reassert if reaches(source, each)], plan_below)
    return plan_below.denials


def _check_nested(start: Start, placed: set[str], plan: Plan) -> None:
    """Refuse, or note, mounts and devices in a read-only volume of reassert's own paths: a runtime makes files there.

    crun does before it makes the volume read-only, and runc in what is mounted below that. A file of any name stays.
    """
    read_only = [source for mount in start.mounts if mount.is_read_only for source in _sources(mount)]
    all_own = searched(plan.node_paths_of_reassert)
    if True not in [may_reach(source, all_own) for source in read_only]:
        return
    # Where each is, and its source if it is a read-only volume.
    volumes = dict.fromkeys([device.path for device in start.devices], "")
    for mount in start.mounts:
        sources = _sources(mount) if mount.is_read_only else []
        volumes[mount.path] = sources[0] if sources else ""
    above: list[str] = []  # the mounts above each path, which come before it in this order
    for nested in sorted(volumes, key=lambda path: path.replace("/", "\0")):
        while above and not is_below(nested, above[-1]):
            above.pop()
        if above and volumes[above[-1]] and nested not in placed:
            made = _without_link(volumes[above[-1]].rstrip("/") + nested.removeprefix(above[-1].rstrip("/"))) + "/"
            own_paths = [each for each in plan.node_paths_of_reassert if made.startswith(each)]
            why = f"has {named(nested)} in it, which a runtime makes there, "
            judge(above[-1], own_paths, plan, why=why, cure=f"mount {named(nested)} elsewhere")
        above.append(nested)


def _sources(mount: Mount) -> list[str]:
    """The paths of the node that a mount shows; of an overlay also where what is written to it goes."""
    named_in = [option.partition("=")[2] for option in mount.options if option.startswith(("upperdir=", "workdir="))]
    paths = [mount.source, *named_in]
    return [_without_link(clean(path)) for path in paths if path[:1] == "/"]


def _without_link(path: str) -> str:
    """A path with /var/run as /run: on every distribution a link (file-hierarchy(7))."""
    return path[len("/var") :] if f"{path}/".startswith("/var/run/") else path


CURE = "set readOnly: true, or mount less of the node"
CURE_BELOW = "set recursiveReadOnly: Enabled, or mount less of the node"
CURE_OF_USERS = "with hostUsers: false no option keeps it read-only, so mount less of the node"
"""What the author of a pod can do."""


def judge(point: str, paths: list[str], plan: Plan, *, why: str = "can be written ", cure: str = CURE) -> None:
    """Add to a plan what it means that a volume at a path of the container reaches REASSERT_PATHS or ENGINE_PATHS.

    `why`: what lets files of REASSERT_PATHS be changed. `cure`: what the author of the pod can do about it.
    """
    for path in paths[:1]:
        is_engine = path in ENGINE_PATHS
        field, name = OF_ENGINE if is_engine else OF_REASSERT, path.rstrip("/-")
        if plan.policy.node_paths[field] == REPORT:
            plan.node_paths.append(f"{named(point)}: {name}")
            continue
        how = f"reaches {name} of the engine" if is_engine else f"{why}and reaches {name} of reassert"
        cure = "mount less of the node" if is_engine else cure
        message = f"the volume {named(point)} {how}, and nodePaths.{field} is {REFUSE}: {cure}; {ADMINISTRATOR}"
        reasons = plan.audited if plan.policy.node_paths[field] == TRY else plan.denials
        if len(reasons) <= SHOWN:
            reasons.append(Reason("", KIND, message))
