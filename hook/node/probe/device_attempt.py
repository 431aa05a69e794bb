"""The ways in which a pod can ask for a device that it was not allocated, one test container for each.

Only ways that a rule of the policy forbids: `deviceAllocations.exclusive`, and `annotations` that must be absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from hook.core.base.compare import glob_match, is_pattern
from hook.core.base.errors import ReassertError, describe
from hook.core.container.identity import Identity
from hook.core.container.injections import Specs
from hook.core.container.start import Start
from hook.core.facts import Container, Facts
from hook.core.policy.entries import EXCLUSIVE
from hook.core.policy.model import Rule
from hook.core.reserve.exclusive import Closed
from hook.core.reserve.listed_annotations import BOTH, CONTAINER, FIELD, POD
from hook.inside import observe
from hook.inside.process import is_gvisor
from hook.node.engines.base import NRI, Handler
from hook.node.probe.report import ABSENT, EXPOSED, PROTECTED, UNTRIED, Tried
from hook.node.probe.retry import refusal, run_probe, translate_exit
from hook.node.probe.starter import Extra, NotRemoved, NotStarted, Pairs, Running, Starter, Unsupported
from hook.node.services import NRI_SOCKET

_ASKED_FOR = 4
"""How many devices one test container asks for."""

_TARGET = "/reassert-verify"


@dataclass(frozen=True)
class DeviceAttempt:
    """A way to ask. `why`: why it cannot be tried, or ""; `absent`: no pod of this node can use it either."""

    name: str
    mounts: Pairs = ()
    extra: Extra = field(default_factory=Extra)
    why: str = ""
    absent: bool = False


def closed_world(rules: list[Rule], facts: Facts, identity: Identity) -> Closed | None:
    """The devices that a container without an allocation must not have; None without a rule about that."""
    if facts.devices is None:
        return None
    return Closed(rules, facts.devices, Container(identity, Start([], []), facts), [])


def ways(rules: list[Rule], closed: Closed | None) -> list[DeviceAttempt]:
    """The ways that these rules forbid. Raises Undecided, OSError."""
    return [*(_to_devices(rules, closed) if closed else []), *_by_annotation(rules)]


def _to_devices(rules: list[Rule], closed: Closed) -> list[DeviceAttempt]:
    paths = sorted(path for _, path in closed.nodes.values())
    names = ["device", "mount", "directory", "privileged"]
    if paths:
        some = paths[:_ASKED_FOR]
        targets = [(path, f"{_TARGET}-{at}") for at, path in enumerate(some)]
        found = [
            DeviceAttempt("device", extra=Extra(devices=[(path, f"/dev{target}") for path, target in targets])),
            DeviceAttempt("mount", targets),
            DeviceAttempt("directory", [(os.path.dirname(some[0]), _TARGET)]),
            DeviceAttempt("privileged", extra=Extra(privileged=True)),
        ]
    else:
        patterns = ", ".join(dict.fromkeys(p for rule in rules for p in rule.raw.get(EXCLUSIVE, [])))
        found = [DeviceAttempt(name, why=f"this node has no device of {patterns}", absent=True) for name in names]
    device = _cdi_device(rules, closed)
    if device:
        asked = [("cdi.k8s.io/reassert-verify", device)]
        return [
            *found,
            DeviceAttempt("cdi", extra=Extra(cdi=(device,))),
            DeviceAttempt("cdi-annotation", extra=Extra(annotations=asked)),
        ]
    why = "no CDI spec of this node places such a device"
    return [*found, *(DeviceAttempt(name, why=why, absent=True) for name in ("cdi", "cdi-annotation"))]


def _cdi_device(rules: list[Rule], closed: Closed) -> str:
    """A CDI device that places a closed device or, of a kind that is closed, anything."""
    kinds = [pattern for rule in rules for pattern in rule.raw.get(EXCLUSIVE, []) if not pattern.startswith("/")]
    for name, placed in sorted(Specs(["*"]).devices.items()):
        if placed.nodes.keys() & closed.nodes.keys():
            return name
        if placed.mounts and any(glob_match(kind, name.partition("=")[0]) for kind in kinds):
            return name
    return ""


def _by_annotation(rules: list[Rule]) -> Iterator[DeviceAttempt]:
    asked: dict[str, dict[str, str]] = {CONTAINER: {}, POD: {}}
    for rule in rules:
        for entry in rule.raw.get(FIELD, []):
            name, of = str(entry["name"]), str(entry.get("of", BOTH))
            key = name.replace("*", "reassert-verify").replace("?", "x") if is_pattern(name) else name
            for each in (CONTAINER, POD) if of == BOTH else (of,):
                if not key.startswith("cdi.k8s.io/"):  # an engine refuses one that names no CDI device
                    asked[each][key] = "reassert-verify"
    if asked[CONTAINER]:
        yield DeviceAttempt("annotation", extra=Extra(annotations=list(asked[CONTAINER].items())))
    if asked[POD]:
        yield DeviceAttempt("pod-annotation", extra=Extra(pod_annotations=list(asked[POD].items())))


def try_attempt(way: DeviceAttempt, handler: Handler, starter: Starter, closed: Closed | None) -> Tried:
    """Start a container that asks in this way and look at what it got. Raises NotRemoved."""
    if way.why:
        return Tried(way.name, ABSENT if way.absent else UNTRIED, way.why)
    if way.extra.pod_annotations and NRI not in handler.wired:
        if not os.path.exists(NRI_SOCKET):
            return Tried(way.name, ABSENT, f"there is no {NRI_SOCKET}: no NRI plugin acts on a pod's annotations")
        return Tried(way.name, UNTRIED, "only `--adapter nri` sees annotations of a pod")
    try:
        return run_probe(
            lambda: starter.start(handler.name, (), way.mounts, way.extra), lambda running: _look(way, running, closed)
        )
    except Unsupported as error:
        return Tried(way.name, ABSENT, str(error))
    except NotStarted as error:
        if refusal(str(error)):
            return Tried(way.name, PROTECTED, "refused")
        return Tried(way.name, UNTRIED, f"such a container does not start: {error}")
    except NotRemoved:
        raise
    except (ReassertError, OSError) as error:
        return Tried(way.name, UNTRIED, describe(error))


def _look(way: DeviceAttempt, running: Running, closed: Closed | None) -> Tried:
    running.environ()  # its program runs
    if way.extra.pod_annotations:
        return Tried(way.name, EXPOSED, f"a pod with the annotation {next(iter(way.extra.pod_annotations))[0]} starts")
    if way.name == "annotation":
        try:
            with translate_exit(running):
                there = running.annotations()
        except Unsupported as error:
            return Tried(way.name, UNTRIED, str(error))
        left = [key for key, value in way.extra.annotations if there.get(key) == value]
        return Tried(way.name, EXPOSED, f"it has the annotation {left[0]}") if left else Tried(way.name, PROTECTED)
    if is_gvisor(running.pid):
        return Tried(way.name, UNTRIED, "it runs in gVisor, into whose devices only the container can look")
    found = observe.reached(running.pid, closed) if closed else []
    if not found:
        running.environ()  # it still runs, so nothing is missing because of its end
    return Tried(way.name, EXPOSED, "; ".join(found[:3])) if found else Tried(way.name, PROTECTED)
