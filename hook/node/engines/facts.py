"""What is known of each engine before it is asked: one row an engine, and no other file has a list of engines.

internals/architecture.md has the steps for a new one, and unit/test_new_engine.py takes them in a copy of the tree.
unit/node/engines/test_facts.py names what else must know each engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook.core.container.identity import CONTAINERD, CRIO, DOCKER, PODMAN
from hook.inside.traces import BY_HAND, Traces


@dataclass(frozen=True)
class EngineFacts:
    """One engine. No field has a default: a new engine answers each question.

    The attributes say what is asked.
    """

    name: str
    """The value of --engine, and the engine's name in the record of an install."""

    daemon: str
    """Its subclass of Daemon, as `module:class`. packaging/reassert.spec freezes the module."""

    sign: str
    """What it has on each node: a program in PATH or, with a `/`, a directory."""

    units: tuple[str, ...]
    """The systemd units by which it may run; none without a daemon."""

    endpoints: tuple[str, ...]
    """Parts of kubelet's containerRuntimeEndpoint that mean it."""

    brings_kubelet: bool
    """Whether it contains kubelet, which then uses no other engine."""

    containers: str
    """The engine of its containers, as config.json shows it (`Identity.engine`)."""

    runs_pods: bool
    """Whether its containers can belong to pods. Else no condition on a namespace or on pod labels is met."""

    unknown: tuple[str, ...]
    """The conditions of `match` that are never known of its containers, whatever the node does."""

    traces: Traces
    """Where its containers leave traces, by which `audit` finds them without asking it."""

    seen: dict[str, str]
    """Paths that show it on a node where none of the engines is found, with what each is."""

    closed: tuple[str, ...]
    """Its sockets and its configuration, as hook.core.reserve.node_paths.ENGINE_PATHS closes them to containers."""


_SHIMS = "io.containerd.runtime.v2.task/*/*"
_RUNC_OF_SHIMS = ("/run/containerd/runc/*",)
"""Where containerd's shim for runc has runc's records, whatever containerd's own state directory is."""

_SOCKET = "/run/containerd/containerd.sock"
_OF_K3S = "/run/k3s/containerd/containerd.sock"


def _rancher(name: str, title: str, units: tuple[str, ...]) -> EngineFacts:
    """k3s or RKE2, whose containerds are one program's."""
    return EngineFacts(
        name=name,
        daemon=f"hook.node.engines.containerd.rancher:{name.capitalize()}",
        sign=f"/var/lib/rancher/{name}/agent",
        units=units,
        endpoints=(),
        brings_kubelet=True,
        containers=CONTAINERD,
        runs_pods=True,
        unknown=(),
        traces=Traces(states=_RUNC_OF_SHIMS, bundles=(f"/run/k3s/containerd/{_SHIMS}",), names=()),
        seen={f"/var/lib/rancher/{name}": title, _OF_K3S: "the socket of k3s' or RKE2's containerd"},
        closed=(f"{_OF_K3S}/", f"{_OF_K3S}.ttrpc/", "/run/k3s/containerd/s/", f"/var/lib/rancher/{name}/agent/etc/"),
    )


FACTS = {
    row.name: row
    for row in (
        EngineFacts(
            name="containerd",
            daemon="hook.node.engines.containerd.daemon:Containerd",
            sign="containerd",
            units=("containerd.service",),
            endpoints=("containerd",),
            brings_kubelet=False,
            containers=CONTAINERD,
            runs_pods=True,
            unknown=(),
            traces=Traces(states=_RUNC_OF_SHIMS, bundles=(f"/run/containerd/{_SHIMS}",), names=()),
            seen={_SOCKET: "containerd's socket"},
            closed=(f"{_SOCKET}/", f"{_SOCKET}.ttrpc/", "/run/containerd/s/", "/etc/containerd/", "/run/nri/"),
        ),
        EngineFacts(
            name="crio",
            daemon="hook.node.engines.crio:Crio",
            sign="crio",
            units=("crio.service",),
            endpoints=("crio",),
            brings_kubelet=False,
            containers=CRIO,
            runs_pods=True,
            unknown=(),
            traces=BY_HAND,
            seen={"/run/crio/crio.sock": "CRI-O's socket"},
            closed=("/run/crio/", "/etc/crio/", "/run/nri/"),
        ),
        _rancher("k3s", "k3s", ("k3s.service", "k3s-agent.service")),
        _rancher("rke2", "RKE2", ("rke2-server.service", "rke2-agent.service")),
        EngineFacts(
            name="docker",
            daemon="hook.node.engines.docker:Docker",
            sign="dockerd",
            units=("docker.service",),
            endpoints=("dockershim", "cri-dockerd"),
            brings_kubelet=False,
            containers=DOCKER,
            runs_pods=True,
            unknown=("images",),
            traces=Traces(
                states=("/run/docker/runtime-*/*",),
                bundles=(f"/run/docker/containerd/daemon/{_SHIMS}",),
                names=("/var/lib/docker/containers/*/config.v2.json",),
            ),
            seen={"/run/docker.sock": "docker's socket"},
            closed=(
                "/run/docker.sock/",
                "/run/docker/",
                "/etc/docker/",
                "/etc/systemd/system/docker.service.d/",
                "/run/dockershim.sock/",
                "/run/cri-dockerd.sock/",
            ),
        ),
        EngineFacts(
            name="podman",
            daemon="hook.node.engines.podman:Podman",
            sign="podman",
            units=(),
            endpoints=(),
            brings_kubelet=False,
            containers=PODMAN,
            runs_pods=False,
            unknown=(),
            traces=Traces(
                states=BY_HAND.states,
                bundles=(),
                names=("/var/lib/containers/storage/overlay-containers/containers.json",),
            ),
            seen={},
            closed=("/run/podman/podman.sock/", "/etc/containers/"),
        ),
    )
}
"""By name. Where several engines are meant, the order is this one."""

NAMES = tuple(FACTS)

TRACES = (*(row.traces for row in FACTS.values()), BY_HAND)
"""Where containers are looked for."""


def containers_of(name: str) -> str:
    """The engine of the containers of an installed engine, as `Identity.engine`, events and `audit` name it.

    `name`: as the record of an install has it, which may be a name that this version does not know.
    """
    return FACTS[name].containers if name in FACTS else name
