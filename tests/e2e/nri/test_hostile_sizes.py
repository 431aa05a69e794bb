"""Requests of sizes that nobody needs, one after the other, while others want containers too.

Each shape once; `REASSERT_HOSTILE_REQUESTS=1000` makes that many requests, which takes several minutes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Event
from typing import Any

import pytest

from e2e.cri.client import Container, CriError, Pod
from e2e.cri.fixtures import StartPod
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.nri.test_override import ENV
from e2e.support import Node

POLICY = NRI_POLICY.replace("spec:\n", "spec:\n  failurePolicy: Ignore\n") + (
    "  - name: tls\n"
    "    env: [{name: 'N_*', absent: true}, {name: '*_TOKEN', absent: true}, {name: '*secret*', absent: true}]\n"
    "  - {name: notes, annotations: [{name: 'evil/*', absent: true}]}\n"
)
"""`Ignore`, since what a pod makes too large must not pass by it."""


def env(form: Callable[[int], str], count: int, value: str = "") -> dict[str, Any]:
    return {"env": [*((form(number), value) for number in range(count)), *ENV]}


SHAPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "3 MB of env": lambda _: env("LONG_{}".format, 30, "x" * 100_000),
    "5 MB of env": lambda _: env("LONG_{}".format, 50, "x" * 100_000),
    "90,000 names": lambda _: env("A{:06x}_TOKE".format, 90_000),
    "150,000 names": lambda _: env("A{:06x}".format, 150_000),
    "50,000 names that must be absent": lambda _: env("N_{}".format, 50_000),
    "30,000 times a reserved name": lambda _: env(lambda _: "NVIDIA_VISIBLE_DEVICES", 30_000, "all"),
    "3,000 mounts": lambda there: {"mounts": [(there, f"/m/{number}") for number in range(3_000)]},
    "5,000 mounts below": lambda there: {"mounts": [(there, f"/etc/ssl/{number}") for number in range(5_000)]},
    "5,000 mounts at": lambda there: {"mounts": [(there, "/etc/ssl" + "/" * (number % 50)) for number in range(5_000)]},
    "60,000 annotations": lambda _: {"annotations": {f"a/{number}": "" for number in range(60_000)}},
    "30,000 annotations that must be absent": lambda _: {
        "annotations": {f"evil/{number}": "" for number in range(30_000)}
    },
}


REQUESTS = max(len(SHAPES), int(os.environ.get("REASSERT_HOSTILE_REQUESTS", "0")))


class Innocent:
    """Somebody who wants usual containers meanwhile. `got`: what they got; `took`: seconds that each took to start."""

    def __init__(self, containerd: Containerd, pod: Pod) -> None:
        self.containerd = containerd
        self.pod = pod
        self.got: list[dict[str, str]] = []
        self.took: list[float] = []
        self.stop = Event()

    def go_on(self) -> None:
        """One after the other, until `stop`."""
        while not self.stop.wait(0.2):
            began = time.monotonic()
            container = self.pod.run(name=f"innocent-{len(self.took)}", image=HOSTILE, env=ENV)
            self.took.append(time.monotonic() - began)
            self.got += [reserved_in(self.containerd.environ(container.id)), reserved_in(container.exec_environ())]
            container.remove()


def environ(containerd: Containerd, container: str) -> list[str] | None:
    """What its process got; None where execve(2) did not take so much."""
    for _ in range(1000):
        try:
            process = containerd.view("proc") / (containerd.bundle(container) / "init.pid").read_text()
            found = (process / "environ").read_text().split("\0")
            if "PATH=/bin" in found:
                return found
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return None
        if state == "Z":
            return None
        time.sleep(0.01)
    raise AssertionError("neither a process nor its end")


def attack(containerd: Containerd, pod: Pod, number: int, shape: str, there: str) -> str:
    """What came of one hostile container: refused, by whom, or right."""
    try:
        container = pod.create(name=f"c{number}", image=HOSTILE, **SHAPES[shape](there))
    except CriError as error:
        return "refused by reassert" if "reassert: refused" in str(error) else f"refused: {str(error)[:150]}"
    try:
        container.start()
        got = environ(containerd, container.id)
        assert got is None or reserved_in(got) == RESERVED
        return "right" if got else "its process died in execve(2)"
    except CriError as error:
        return f"did not start: {str(error)[-150:]}"
    finally:
        remove(container)


def remove(container: Container) -> None:
    """A shim whose process died in execve(2) may go away while it is asked to kill it; then once more."""
    try:
        container.remove()
    except CriError:
        container.remove()


@pytest.mark.parametrize("containerd", ["2.1"], indirect=True)
@pytest.mark.parametrize("runtime", ["runc"])
def test_hostile_sizes_are_refused_or_right_and_others_are_answered_meanwhile(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd, node: Node
) -> None:
    node.write_policy(POLICY)
    plugin = start_plugin()
    hostile, innocent = start_pod("open"), Innocent(containerd, start_pod())
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(innocent.go_on)
        try:
            for number, shape in zip(range(REQUESTS), cycle(SHAPES), strict=False):
                outcomes[f"{shape}: {attack(containerd, hostile, number, shape, str(node.ca))}"] += 1
        finally:
            innocent.stop.set()
        others.result(60)
    status = (plugin.directory() / "status").read_text()
    print(f"{outcomes.total()} requests, {len(innocent.took)} innocent containers, slowest {max(innocent.took):.1f} s")
    print("\n".join(f"{count:5} {outcome}" for outcome, count in sorted(outcomes.items())))
    print("\n".join(line for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS"))))
    assert plugin.process.poll() is None
    assert plugin.connections() == 1, plugin.said()
    assert containerd.cri.version()
    assert innocent.got == [RESERVED] * len(innocent.got)
    assert innocent.got
    refused = {outcome.partition(":")[0] for outcome in outcomes if "refused" in outcome}
    assert {"5 MB of env", "150,000 names", "50,000 names that must be absent", "5,000 mounts below"} <= refused
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak < 128 * 1024


@pytest.mark.parametrize("containerd", ["1.7"], indirect=True)
@pytest.mark.parametrize("runtime", ["runc"])
def test_very_long_paths_below_a_reserved_mount_do_not_make_the_answer_late(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    """Where NRI removes no mount, each is looked for in the reserved hostPath. A late answer could let it start."""
    node.write_policy(POLICY)
    start_plugin()
    mounts = [(str(node.ca), f"/etc/ssl/{number}{'/a' * 1950}") for number in range(700)]
    with pytest.raises(CriError, match="conflicts with the reserved mount /etc/ssl"):
        start_pod("open").create(name="long", image=HOSTILE, env=ENV, mounts=mounts)
