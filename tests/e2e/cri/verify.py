"""`reassert verify` and its benign probe, beside a test's engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.node import Node
from harness.paths import TOP

from e2e.cri.images import PAUSE
from e2e.cri.node import Containerd
from hook.node.probe.cri import CallFailed, Cri
from hook.node.probe.pods import LABEL

INSIDE = Path(__file__).with_name("inside.py")

Wired = dict[str, list[str]]
"""Handlers by name, with the adapters that each is wired to."""


@dataclass(frozen=True)
class Verified:
    """What was said. `report`: {} where nothing could be tried; `error` says why."""

    status: int
    report: dict[str, Any]
    error: str

    def results(self) -> dict[str, tuple[str, str | None]]:
        """By handler: what became of its container, and of what was executed in it."""
        return {finding["name"]: (finding["result"], finding["exec"]) for finding in self.report["handlers"]}

    def saw(self, handler: str) -> list[str]:
        """What was seen under a handler."""
        [saw] = [finding["saw"] for finding in self.report["handlers"] if finding["name"] == handler]
        return list(saw)


def verify(containerd: Containerd, wired: Wired, image: str = PAUSE, probe: bool = False) -> Verified:
    """Run it for handlers of a containerd. `probe`: for a container that wants nothing."""
    socket = str(containerd.directory / "containerd.sock")
    return verify_inside(containerd.root.pid, containerd.node, wired, socket=socket, image=image, probe=probe)


def verify_inside(
    pid: int, node: Node, wired: Wired, socket: str = "", image: str = "", probe: bool = False
) -> Verified:
    """Run it in the namespaces of a process, through a CRI socket or, without one, docker's command line."""
    node.compile()
    where = {"policy": str(node.policy), "store": str(node.store)}
    request = {**where, "socket": socket, "image": image, "probe": probe, "wired": wired}
    done = subprocess.run(
        [sys.executable, str(INSIDE), str(pid), json.dumps(request)],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        text=True,
        capture_output=True,
        timeout=600,
    )
    return Verified(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)


@contextmanager
def housekeeping(containerd: Containerd) -> Iterator[list[str]]:
    """End most test pods midway, as kubelet's housekeeping does. Yields the pods that were ended.

    The times count from the moment when the pod is listed: each part of a look is met, on a fast and on a slow machine.
    Some pods between are left alone, and so are all after the last one of the table.
    """
    seconds = iter((0, 0, 0.02, None, 0.05, 0.1, 0.15, 0.2, None, 0.25, 0.3, 0.35, 0.4, None, 0.6, 0.8, 1))
    ended: list[str] = []
    over = threading.Event()

    def housekeep() -> None:
        seen: set[str] = set()
        with closing(Cri(str(containerd.directory / "containerd.sock"))) as cri:
            while not over.is_set():
                for pod in _test_pods(cri) - seen:
                    seen.add(pod)
                    after = next(seconds, None)
                    if after is not None:
                        time.sleep(after)
                        if pod in _test_pods(cri):
                            ended.append(pod)
                            _end(cri, pod)
                time.sleep(0.005)

    thread = threading.Thread(target=housekeep)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()


def _test_pods(cri: Cri) -> set[str]:
    return {pod.id for pod in cri.call("ListPodSandbox").items if LABEL in pod.labels}


def _end(cri: Cri, pod: str) -> None:
    for container in cri.call("ListContainers", filter={"pod_sandbox_id": pod}).containers:
        with suppress(CallFailed):  # it has not started
            cri.call("StopContainer", container_id=container.id, timeout=0)
    with suppress(CallFailed):  # `verify` removes it at the same time
        cri.call("StopPodSandbox", pod_sandbox_id=pod)
