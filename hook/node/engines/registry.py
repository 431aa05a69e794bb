"""The engines that reassert can be wired into, and which of them this node's kubelet uses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hook.base.errors import ReassertError
from hook.node import systemd
from hook.node.engines.base import AnyEngine
from hook.node.engines.containerd.engine import Containerd
from hook.node.engines.containerd.rancher import K3s, Rke2
from hook.node.engines.crio import Crio
from hook.node.engines.docker.engine import Docker
from hook.node.engines.podman import Podman
from hook.node.engines.signs import seen
from hook.node.errors import NodeError
from hook.node.probe.proof import clear
from hook.node.probe.starter import clear_marks, traces

_ENGINES: dict[str, type[AnyEngine]] = {each.name: each for each in (Containerd, Crio, Docker, Podman, K3s, Rke2)}
NAMES = tuple(_ENGINES)

_KUBELET = ("/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml", "/etc/default/kubelet")
_SOCKETS = {"containerd": "containerd", "crio": "crio", "dockershim": "docker", "cri-dockerd": "docker"}


def installed() -> list[str]:
    """Names of the engines on this node."""
    return [name for name in NAMES if _class(name).installed()]


def engine(name: str) -> AnyEngine:
    """Returns an engine of this node. Raises NodeError if it is not installed or its configuration is broken."""
    if not _class(name).installed():
        raise NodeError(f"{name} is not installed on this node")
    return _class(name).find()


def chosen(name: str | None) -> str:
    """Returns the engine to use: `name`, else kubelet's, else the only one installed, else the only one that runs.

    k3s and RKE2 contain the kubelet; it is theirs where they run.

    Raises NodeError if none of these is there.
    """
    if name is not None:
        return name
    found = installed()
    kubelets = [*_running([name for name in (K3s.name, Rke2.name) if name in found]), _kubelets_engine()]
    if kubelets[0] in found:
        return kubelets[0]
    running = _running(found)
    for only in (found, running):
        if len(only) == 1:
            return only[0]
    if not found:
        raise NodeError(none_installed())
    raise NodeError(f"this node has {' and '.join(found)}, and kubelet's configuration names none; use --engine NAME")


def none_installed() -> str:
    """Returns the message for a node without a supported engine, with what was seen there instead."""
    return f"none of {', '.join(NAMES)} was found on this node{seen()}; see docs/platforms.md"


def clear_probes() -> list[str]:
    """Removes leftovers of interrupted test containers from every engine. Returns the problems."""
    left = traces()
    problems = []
    clear_marks()
    for name in installed() if left else []:
        try:
            clear(engine(name))
        except ReassertError as error:
            problems.append(f"leftovers of an interrupted test container in {name} could not be removed: {error}")
    for path in left if not problems else []:
        shutil.rmtree(path, ignore_errors=True)
    return problems


def _kubelets_engine() -> str:
    """Returns the engine that kubelet's containerRuntimeEndpoint or --container-runtime-endpoint names, or ""."""
    for path in _KUBELET:
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        found = re.search(r"(?:container-runtime-endpoint[= ]|containerRuntimeEndpoint:)\s*(\S+)", text)
        for part, name in _SOCKETS.items():
            if found and part in found[1]:
                return name
    return ""


def _running(names: list[str]) -> list[str]:
    return [name for name in names if any(map(systemd.is_active, _class(name).services()))]


def _class(name: str) -> type[AnyEngine]:
    return _ENGINES[name]
