"""What a node without a supported engine shows of the platform that it is (docs/platforms.md)."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RELEASE = "/etc/os-release"
_OTHERS = {"/var/lib/k0s": "k0s", "/var/snap/microk8s": "MicroK8s"}
"""Distributions with a containerd that reassert does not know."""
_SIGNS = {
    "/var/lib/rancher/k3s": "k3s",
    "/var/lib/rancher/rke2": "RKE2",
    **_OTHERS,
    "/run/containerd/containerd.sock": "containerd's socket",
    "/run/k3s/containerd/containerd.sock": "the socket of k3s' or RKE2's containerd",
    "/run/k0s/containerd.sock": "the socket of k0s' containerd",
    "/run/crio/crio.sock": "CRI-O's socket",
    "/run/docker.sock": "docker's socket",
    "/var/lib/kubelet": "kubelet's directory",
    "/etc/kubernetes/kubelet": "kubelet's configuration",
}


def seen() -> str:
    """Returns a clause for a message: the operating system, and traces of engines and distributions."""
    traces = [f"{path} ({what})" for path, what in _SIGNS.items() if os.path.lexists(path)]
    return f"; this node is {_system()} and has {', '.join(traces) or 'no trace of another engine'}"


def others() -> list[str]:
    """Returns a hint for each distribution here whose containers are started by none of the supported engines."""
    return [
        f"{path}: the containers of {what} are started by a containerd of its own, which is none of these engines; "
        "see docs/platforms.md"
        for path, what in _OTHERS.items()
        if os.path.lexists(path)
    ]


def _system() -> str:
    try:
        found = re.search(r"""^PRETTY_NAME=["']?([^"'\n]+)""", Path(_RELEASE).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "an unknown system"
