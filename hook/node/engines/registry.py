"""The engines that reassert can be wired into, and which of them this node's kubelet uses."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.core.base.errors import ReassertError
from hook.node import systemd
from hook.node.engines.base import AnyEngine, Base, Choice, Config, Daemon, Handler, Wiring
from hook.node.engines.facts import FACTS
from hook.node.errors import NodeError

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

_KUBELET = ("/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml", "/etc/default/kubelet")

_RELEASE = "/etc/os-release"

_OTHERS = {"/var/lib/k0s": "k0s", "/var/snap/microk8s": "MicroK8s"}
"""Distributions with a containerd that reassert does not know."""

_SIGNS = {
    **{path: what for row in FACTS.values() for path, what in row.seen.items()},
    **_OTHERS,
    "/run/k0s/containerd.sock": "the socket of k0s' containerd",
    "/var/lib/kubelet": "kubelet's directory",
    "/etc/kubernetes/kubelet": "kubelet's configuration",
}


def installed() -> list[str]:
    """Names of the engines on this node."""
    return [name for name in FACTS if is_installed(name)]


def is_installed(name: str) -> bool:
    """Whether an engine is on this node. The name may be one that this version does not know."""
    sign = FACTS[name].sign if name in FACTS else ""
    return os.path.isdir(sign) if "/" in sign else bool(sign) and systemd.which(sign) is not None


def units() -> list[str]:
    """The systemd units by which the engines on this node may run."""
    return [unit for name in installed() for unit in FACTS[name].units]


def engine_or_removed(name: str) -> AnyEngine:
    """Returns an engine that reassert was wired into, or a stand-in if it was removed since. Raises NodeError."""
    return engine(name) if is_installed(name) else _Removed(name)


def engine(name: str) -> AnyEngine:
    """Returns an engine of this node. Raises NodeError if it is not installed or its configuration is broken."""
    if not is_installed(name):
        raise NodeError(f"{name} is not installed on this node")
    return _class(name).find()


def chosen(name: str | None, wired: Sequence[str] = ()) -> str:
    """Returns the engine to use: `name`, else kubelet's, else the only one that is installed, runs or is wired.

    A kubelet that an engine brings is the node's where that engine runs. `wired`: the engines that are wired.

    Raises NodeError if none of these is there.
    """
    if name is not None:
        return name
    found = installed()
    kubelets = [*_running([name for name in found if FACTS[name].brings_kubelet]), _kubelets_engine()]
    if kubelets[0] in found:
        return kubelets[0]
    running = _running(found)
    for only in (found, running, [engine for engine in found if engine in wired]):
        if len(only) == 1:
            return only[0]
    if not found:
        raise NodeError(none_installed())
    raise NodeError(f"this node has {' and '.join(found)}, and kubelet's configuration names none; use --engine NAME")


def install_command(name: str, wired: Sequence[str]) -> str:
    """Returns the command that installs for an engine, with `--engine` where this node needs it. `wired`: as above."""
    try:
        is_the_only_one = chosen(None, wired) == name
    except NodeError:
        is_the_only_one = False
    return "reassert install" + ("" if is_the_only_one else f" --engine {name}")


def none_installed() -> str:
    """Returns the message for a node without a supported engine, with what was seen there instead."""
    traces = [f"{path} ({what})" for path, what in _SIGNS.items() if os.path.lexists(path)]
    return (
        f"none of {', '.join(FACTS)} was found on this node; this node is {_system()} and has "
        f"{', '.join(traces) or 'no trace of another engine'}; see docs/engines.md"
    )


def clear_probes() -> list[str]:
    """Removes leftovers of interrupted test containers from every engine. Returns the problems."""
    from hook.node.probe import starter

    left = starter.traces()
    problems = []
    starter.clear_marks()
    for name in installed() if left else []:
        try:
            engine(name).clear_probes()
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
        endpoint = found[1] if found else ""
        for name, row in FACTS.items():
            if any(part in endpoint for part in row.endpoints):
                return name
    return ""


def _running(names: list[str]) -> list[str]:
    return [name for name in names if any(map(systemd.is_active, FACTS[name].units))]


def _class(name: str) -> type[AnyEngine]:
    """The class of an engine. With --engine the modules of the other engines are not loaded."""
    module, _, of_engine = FACTS[name].daemon.partition(":")
    found: type[AnyEngine] = getattr(import_module(module), of_engine)
    return found


def other_distributions() -> list[str]:
    """Returns a hint for each distribution here whose containers are started by none of the supported engines."""
    return [
        f"{path}: the containers of {what} are started by a containerd of its own, which is none of these engines; "
        "see docs/engines.md"
        for path, what in _OTHERS.items()
        if os.path.lexists(path)
    ]


def _system() -> str:
    try:
        found = re.search(r"""^PRETTY_NAME=["']?([^"'\n]+)""", Path(_RELEASE).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "an unknown system"


class _NoConfig(Config):
    """The configuration of an engine that is missing."""

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        return []

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        raise NodeError("the engine is not installed on this node")

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        return content  # an edited file stays as it is


class _Removed(Daemon[Config]):
    """A stand-in for the missing engine: an uninstall restores its files and restarts nothing."""

    adapters = ()
    config_class = _NoConfig

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = f"{name}, which is not installed any more,"

    @classmethod
    def find(cls) -> Self:
        raise NodeError("the engine is not installed on this node")

    def read(self) -> Config:
        return _NoConfig()

    def check(self, config: Config, wiring: Wiring) -> None:
        pass

    def running(self) -> bool:
        return False

    def restart(self) -> None:
        pass

    def starter(self, config: Config) -> Starter:
        raise NodeError(f"{self.name} is not installed on this node")
