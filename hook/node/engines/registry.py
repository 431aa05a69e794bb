"""The engines that reassert can be wired into, and which of them this node's kubelet uses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hook.base.errors import ReassertError
from hook.node import systemd
from hook.node.engines.base import AnyEngine
from hook.node.engines.containerd.engine import Containerd
from hook.node.engines.crio import Crio
from hook.node.engines.docker.engine import Docker
from hook.node.engines.podman import Podman
from hook.node.errors import NodeError
from hook.node.probe.proof import clear
from hook.node.probe.starter import clear_marks, traces

_ENGINES: dict[str, type[AnyEngine]] = {each.name: each for each in (Containerd, Crio, Docker, Podman)}
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

    Raises NodeError if none of these is there.
    """
    if name is not None:
        return name
    found = installed()
    kubelets = _kubelets_engine()
    if kubelets in found:
        return kubelets
    running = [name for name in found if _class(name).service and systemd.is_active(_class(name).service)]
    for only in (found, running):
        if len(only) == 1:
            return only[0]
    if not found:
        raise NodeError(f"none of {', '.join(NAMES)} is installed on this node")
    raise NodeError(f"this node has {' and '.join(found)}, and kubelet's configuration names none; use --engine NAME")


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


def _class(name: str) -> type[AnyEngine]:
    return _ENGINES[name]
