"""Requests of sizes that nobody needs, one after the other, while others want containers too."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import marks
from harness.node import Node

from e2e.cri.client import CriError, Pod
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.nri.test_override import ENV

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
    "150,000 names": lambda _: env("A{:06x}".format, 150_000),
    "50,000 names that must be absent": lambda _: env("N_{}".format, 50_000),
    "5,000 mounts below": lambda there: {"mounts": [(there, f"/etc/ssl/{number}") for number in range(5_000)]},
    "60,000 annotations": lambda _: {"annotations": {f"a/{number}": "" for number in range(60_000)}},
}


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
            process = containerd.root.path("proc") / (containerd.bundle(container) / "init.pid").read_text()
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
        container.remove()


@marks.claim("bounded", "nri")
@marks.hole(
    "Late NRI decisions made containerd drop the plugin and start containers without it",
    since="0.1.0",
    fixed="0.2.0",
    severity="high",
)
@one_runtime
def test_hostile_sizes_are_refused_or_right_and_others_are_answered_meanwhile(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd, node: Node
) -> None:
    node.write_policy(POLICY)
    plugin = start_plugin()
    hostile, innocent = start_pod("open"), Innocent(containerd, start_pod())
    outcomes: dict[str, str] = {}
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(innocent.go_on)
        try:
            for number, shape in enumerate(SHAPES):
                outcomes[shape] = attack(containerd, hostile, number, shape, str(node.ca))
        finally:
            innocent.stop.set()
        others.result(60)
    status = (plugin.directory() / "status").read_text()
    print(outcomes, f"{len(innocent.took)} innocent containers, slowest {max(innocent.took):.1f} s")
    assert plugin.process.poll() is None
    assert plugin.connections() == 1, plugin.said()
    assert innocent.got == [RESERVED] * len(innocent.got)
    assert innocent.got
    refused = {shape for shape, outcome in outcomes.items() if "refused" in outcome}
    assert {"5 MB of env", "150,000 names", "50,000 names that must be absent", "5,000 mounts below"} <= refused
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak < 128 * 1024
