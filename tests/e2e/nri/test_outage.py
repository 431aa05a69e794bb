"""The plugin dies, hangs or is killed in the middle of a request: no container may start unadjusted meanwhile."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import marks
import pytest
from harness.tools import suspend

from e2e.cri.client import CriError, Pod, wait_for
from e2e.cri.fixtures import StartPod
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin
from e2e.nri.plugin import Plugin
from e2e.nri.test_override import ENV

pytestmark = marks.promise("The plugin reconnects by itself, and can be launched by the runtime", about="NRI")


class Creation:
    """Creates one hostile container after the other. `started`: what their processes got; `refused`: the texts."""

    def __init__(self, containerd: Containerd, pod: Pod) -> None:
        self.containerd = containerd
        self.pod = pod
        self.started: list[dict[str, str]] = []
        self.refused: list[str] = []
        self.stop = False

    def one(self, name: str) -> bool:
        """Whether it started."""
        try:
            container = self.pod.run(name=name, image=HOSTILE, env=ENV)
        except CriError as error:
            self.refused.append(str(error))
            return False
        environs = (self.containerd.environ(container.id), container.exec_environ())
        self.started += [reserved_in(environ) for environ in environs]
        return True

    def go_on(self, worker: int) -> None:
        """Until `stop`."""
        number = 0
        while not self.stop:
            self.one(f"c{worker}-{number}")
            number += 1

    def until(self, starts: bool) -> None:
        """Until one starts, or until one does not."""
        deadline = time.monotonic() + 600
        while self.one(uuid.uuid4().hex) is not starts:
            assert time.monotonic() < deadline, self.refused[-1:]


def _says_why(text: str) -> bool:
    """runc shows what a hook says; crun only that it failed. containerd 2.2 itself refuses a validator's silence."""
    return any(
        why in text
        for why in (
            "env NVIDIA_VISIBLE_DEVICES is not what the policy wants",
            "error executing hook",
            "validator plugin 10-reassert failed",
        )
    )


def killed(plugin: Plugin) -> None:
    plugin.signal(signal.SIGKILL)
    plugin.process.wait(600)


def stopped(plugin: Plugin) -> None:
    """The runtime waits for 2 s, gives it up and goes on without it."""
    suspend(plugin.process)


def bring_back(plugin: Plugin, start_plugin: StartPlugin) -> Plugin:
    """The one that goes on, or the next one."""
    if plugin.process.poll() is not None:
        return start_plugin()
    plugin.signal(signal.SIGCONT)
    return plugin


@marks.claim("outage", "nri")
@pytest.mark.parametrize(
    ("containerd", "runtime", "harm"), [("1.7", "runc", killed), ("2.1", "crun", stopped)], indirect=["containerd"]
)
def test_nothing_starts_unadjusted_while_the_plugin_is_away(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd, harm: Callable[[Plugin], None]
) -> None:
    """Three at a time, so that some requests are in the middle. Creation works again after the plugin's return."""
    plugin = start_plugin()
    creation = Creation(containerd, start_pod())
    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(creation.go_on, number) for number in range(3)]
        try:
            wait_for(lambda: len(creation.started) > 2, "containers", lambda: str(creation.refused))
            harm(plugin)
            wait_for(lambda: len(creation.refused) > 5, "refused containers")
        finally:
            creation.stop = True
        for worker in workers:
            worker.result(60)
    assert all(_says_why(text) for text in creation.refused), creation.refused
    plugin = bring_back(plugin, start_plugin)
    creation.until(starts=True)
    harm(plugin)
    creation.until(starts=False)
    bring_back(plugin, start_plugin)
    creation.until(starts=True)
    assert creation.started == [RESERVED] * len(creation.started)
