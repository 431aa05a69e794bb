"""The containers that run on this node, found without asking any engine.

| source | containers of |
|---|---|
| state directories of runc, crun and youki | containerd, CRI-O, docker, podman, k3s, RKE2, runtimes called by hand |
| bundles of containerd's shims, with `init.pid` | the same with another `--root`; without that file unknown (kata) |
| first processes in /proc whose cgroup is a container's | others; nothing but the id is known of them |

Not found: containers that a container starts itself (docker in docker), which are that container's own. Rootless
containers of users are not looked for: a user owns their records.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.isotime import seconds_of
from hook.core.base.system import read_file
from hook.core.container.dockershim import prove
from hook.core.container.identity import SANDBOX, Identity, identify
from hook.core.container.runtime_records import record_in
from hook.core.container.spec import CONFIG_LIMIT, Spec
from hook.core.decide import Adapter
from hook.core.facts.cri import learn
from hook.core.policy.model import Policy
from hook.core.policy.store import KUBELET_ROOT, STORE
from hook.inside.process import HEADLESS, ContainerGone, Process, is_gvisor, when
from hook.inside.traces import Traces, states

GVISOR = "it runs in gVisor, whose kernel shows env and mounts to the container alone"
"""`problem` of such a container."""

_NAMES_LIMIT = 16 << 20

_ASKING_SECONDS = 10.0
"""How long the engines are asked about containers, all together: each answers within milliseconds, or none does."""

_CREATING = 30.0
"""Age in seconds from which a bundle without a process is not new: its container runs elsewhere."""

_CGROUP = re.compile(r"/(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
"""The part of a cgroup's path that engines make of a container's id."""


@dataclass(frozen=True)
class Running:
    """A container that runs. `pid`, `started`: of its first process; `started` in clock ticks since the boot.

    `bundle`: "" if it is not known. `state`: the runtime's directory for it, "" if unknown. `created`: seconds since
    the epoch. `config`: the path of its config.json, `identity`: what that says; "" and None if it cannot be read.
    `problem`: why it is unknown, or why the container itself cannot be looked at.
    """

    id: str
    pid: int
    started: int
    bundle: str
    state: str
    created: float
    name: str = ""
    config: str = ""
    identity: Identity | None = field(default=None, compare=False)
    problem: str = ""

    def spec(self) -> Spec:
        """Its config.json. It is read again each time: a pod can make it large. Raises ReassertError, OSError."""
        return Spec(read_file(self.config, CONFIG_LIMIT), self.config)

    @property
    def engine(self) -> str:
        """The engine, "" if nothing shows it."""
        engine = self.identity.engine if self.identity else ""
        return engine if engine not in ("", "ambiguous") else "docker" if f"/moby/{self.id}" in self.bundle else ""

    @property
    def handler(self) -> str:
        """The engine's name for the runtime that it was created with; "" if that is not known.

        dockerd gives each of its runtimes a directory of its own, runtime-NAME.
        """
        return next((part[8:] for part in self.state.split("/") if part.startswith("runtime-")), "")

    @property
    def namespace(self) -> str:
        """The pod's namespace, "" if the container has no pod or the pod is unknown."""
        return (self.identity.namespace if self.identity else "") or ""

    @property
    def pod(self) -> str:
        """The pod's name, "" if the container has no pod or the pod is unknown."""
        return (self.identity.pod if self.identity else "") or ""

    @property
    def title(self) -> str:
        """Its name in Kubernetes' form, else the engine's name for it, else its id."""
        identity = self.identity
        if identity and identity.kubernetes and (identity.namespace or identity.pod or identity.container):
            return str(identity)
        return self.name or self.id


def running(traces: Collection[Traces]) -> list[Running]:
    """Every container that runs, in the order of namespace, pod and name. Needs root: raises ReassertError without.

    `traces`: where engines leave some (hook.node.engines.facts.TRACES).
    """
    if os.geteuid() != 0:
        raise ReassertError("only root can look into containers: run this with sudo")
    found: dict[tuple[str, int], Running] = {}
    names = names_of(traces)
    recorded: set[str] = set()
    for directory in states(traces):
        recorded.add(directory.rpartition("/")[2])
        container = from_state(directory, names)
        if container:
            found[container.id, container.pid] = container
    bundles = dict.fromkeys(pattern for each in traces for pattern in each.bundles)
    for container in _of_bundles(bundles, recorded, names):
        found[container.id, container.pid] = container
        recorded.add(container.id)
    pids = {container.pid for container in found.values()}
    found.update({(container.id, container.pid): container for container in _of_processes(pids, recorded, names)})
    return sorted(
        found.values(), key=lambda container: (container.namespace, container.pod, container.title, container.id)
    )


class _Engines(Adapter):
    """The engines whose sockets a store names, and kubelet."""

    def __init__(self, store: str) -> None:
        self.sockets = store


def learn_all(policy: Policy, containers: Iterable[Running], store: str = STORE) -> None:
    """Ask the engines what a policy needs to know of containers, with rights that the processes that look lack."""
    began = time.monotonic()
    for container in containers if policy.asks else ():
        if container.identity and time.monotonic() - began < _ASKING_SECONDS:
            with suppress(ReassertError, OSError, ValueError, MemoryError):  # the look at the container reports it
                learn(_Engines(store), policy, container.identity, container.spec(), container_id=container.id)


def of_directories(directories: list[str], traces: Collection[Traces]) -> list[Running]:
    """The containers of some of the runtimes' directories that run."""
    names = names_of(traces) if directories else {}
    return [found for directory in directories if (found := from_state(directory, names))]


def from_state(directory: str, names: dict[str, str] | None = None) -> Running | None:
    """The container of a runtime's state directory; None if it does not run, or is not started yet."""
    container_id = directory.rpartition("/")[2]
    try:
        record, bundle = record_in(directory)
        pid, started = _process(record)
        if pid <= 0 or os.path.lexists(f"{directory}/exec.fifo"):  # stopped, or created and not started
            return None
        with Process(pid, started) as process:
            created = seconds_of(record.get("created")) or when(process.started)
            is_sentry = isinstance(record.get("sandbox"), dict)  # runsc's record, which no process can write over
            return _described(container_id, process, bundle, directory, created, names or {}, is_sentry)
    except ContainerGone:
        return None
    except (ReassertError, OSError) as error:
        return Running(container_id, 0, 0, "", directory, 0.0, problem=f"{directory}: {describe(error)}")


def _described(
    container_id: str,
    process: Process,
    bundle: str,
    state: str,
    created: float,
    names: dict[str, str],
    is_sentry: bool,
) -> Running:
    """The container with what its config.json says. Raises ContainerGone."""
    identity = None
    path, problem = f"{bundle.rstrip('/')}/config.json", ""
    try:
        identity = prove(identify(Spec(read_file(path, CONFIG_LIMIT), path)), KUBELET_ROOT)
    except (ReassertError, OSError) as error:
        path, problem = "", describe(error)
    if process.is_headless():
        problem = HEADLESS
    elif is_sentry:
        problem = GVISOR
    about = (container_id, process.pid, process.started, bundle, state, created, names.get(container_id, ""))
    return Running(*about, path, identity, problem)


def _process(record: dict[str, Any]) -> tuple[int, int]:
    """The first process and its start time, 0 if unknown, from runc's state.json, crun's status or runsc's record."""
    sandbox = record.get("sandbox")  # runsc's
    pid = record.get("init_process_pid", sandbox.get("pid") if isinstance(sandbox, dict) else record.get("pid"))
    started = record.get("init_process_start", record.get("process-start-time"))
    return (pid if isinstance(pid, int) else 0), (started if isinstance(started, int) else 0)


def _of_bundles(patterns: Iterable[str], recorded: set[str], names: dict[str, str]) -> Iterator[Running]:
    """Containers of containerd that no known state directory has. `recorded`: ids that one has, also of no process."""
    for pattern in patterns:
        for bundle in sorted(glob(pattern)):
            container_id = bundle.rpartition("/")[2]
            if container_id in recorded:
                continue
            try:
                with Process(int(read_file(f"{bundle}/init.pid", 64))) as process:
                    if any(container_id in group for group in process.cgroups()):
                        began, is_sentry = when(process.started), is_gvisor(process.pid)
                        yield _described(container_id, process, bundle, "", began, names, is_sentry)
            except FileNotFoundError:
                if _age(f"{bundle}/config.json") > _CREATING:
                    problem = "its runtime keeps no record that shows a process (kata?)"
                    yield Running(container_id, 0, 0, bundle, "", 0.0, names.get(container_id, ""), problem=problem)
            except (ReassertError, OSError, ValueError):
                continue


def _age(path: str) -> float:
    """Seconds since a file was changed; -1 if there is none."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return -1.0


def _of_processes(known: set[int], recorded: set[str], names: dict[str, str]) -> Iterator[Running]:
    """First processes in /proc whose cgroup has a container's id, and that belong to no known container.

    A process whose parent is in the same mount namespace is not the first one. The cgroup's first such part counts:
    a container can make cgroups below its own and name them as it likes, and what it starts there is its own.
    """
    namespaces, containers = _of_known(known)
    containers |= recorded
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid in known:
            continue
        try:
            with Process(pid) as process:
                namespace = "" if process.is_headless() else process.mount_namespace()  # it has none any more
                if namespace in namespaces:
                    continue
                container_id = _id_in(process.cgroups())
                if not container_id or container_id in containers or not _is_first(process, namespace, container_id):
                    continue
                containers.add(container_id)
                where = "no state directory of a runtime has it"
                yield Running(
                    *(container_id, process.pid, process.started, "", "", when(process.started)),
                    names.get(container_id, ""),
                    problem=where,
                )
        except (ReassertError, OSError, ValueError):
            continue


def _is_first(process: Process, namespace: str, container_id: str) -> bool:
    """Whether its parent is outside of the container, or invisible to this process."""
    try:
        with Process(process.parent()) as parent:
            return parent.mount_namespace() != namespace and _id_in(parent.cgroups()) != container_id
    except (ReassertError, OSError):
        return True


def _of_known(pids: set[int]) -> tuple[set[str], set[str]]:
    """The mount namespaces of the node and of known containers, and the ids of these."""
    namespaces, ids = {os.readlink("/proc/self/ns/mnt")}, set()
    for pid in pids:
        try:
            with Process(pid) as process:
                namespaces.add(process.mount_namespace())
                ids.add(_id_in(process.cgroups()))
        except (ReassertError, OSError):
            continue
    return namespaces, ids


def _id_in(cgroups: list[str]) -> str:
    """The outermost container's id in cgroup paths, "" without one; not in a user's cgroup."""
    for path in cgroups:
        match = None if path.startswith("/user.slice/") else _CGROUP.search(path)
        if match:
            return match[1]
    return ""


def chosen(word: str, containers: list[Running]) -> Running:
    """The container that a user means: by id, else by the beginning of an id, else by a name.

    A name that equals another container's id does not hide that container. A pod's sandbox is chosen only if no other
    container matches. Raises ReassertError if no container matches, or more than one.
    """
    exact = [container for container in containers if container.id == word]
    if exact:
        return _only(word, exact)
    found = [container for container in containers if len(word) >= 4 and container.id.startswith(word)]
    found += [container for container in containers if container not in found and word in _names(container)]
    sandboxes = [container for container in found if container.identity and container.identity.types == (SANDBOX,)]
    return _only(word, [container for container in found if container not in sandboxes] or found)


def _only(word: str, found: list[Running]) -> Running:
    if not found:
        raise ReassertError(f"no running container has the id or name {word}; `reassert audit` lists them")
    if len(found) > 1:
        listed = ", ".join(f"{container.id} ({container.title})" for container in found[:8])
        raise ReassertError(f"{len(found)} running containers have the id or name {word}: {listed}; give the id")
    return found[0]


def _names(container: Running) -> set[str]:
    identity = container.identity
    names = {container.name, container.title}
    if identity and identity.pod:
        names |= {identity.pod, f"{identity.namespace}/{identity.pod}"}
        names |= {identity.container, f"{identity.pod}/{identity.container}"} if identity.container else set()
    return names - {"", None}


def names_of(traces: Collection[Traces]) -> dict[str, str]:
    """The engines' names for their containers, by id: they are shown, never trusted.

    docker writes `ID` and `Name` into a file for each container, podman `id` and `names` into one file for all. A
    record that cannot be read is left out.
    """
    names: dict[str, str] = {}
    for path in (path for each in traces for pattern in each.names for path in glob(pattern)):
        said = _json(path)
        for record in said if isinstance(said, list) else [said]:
            if isinstance(record, dict):
                given = record.get("names") or [record.get("Name", "")]
                container_id = str(record.get("ID") or record.get("id"))
                names[container_id] = str(given[0]).lstrip("/") if isinstance(given, list) else ""
    return names


def _json(path: str) -> Any:
    try:
        with Path(path).open("rb") as file:
            return json.loads(file.read(_NAMES_LIMIT))
    except (OSError, ValueError):
        return None
