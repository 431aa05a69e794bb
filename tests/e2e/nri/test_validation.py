"""Another NRI plugin asks for something else after ours: containerd 2.2 and later ask ours about the result.

Before 2.2 the last plugin has the last word: the same tests show that the override is real.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from harness.node import Node
from harness.tools import suspend

from e2e.cri.client import CriError, wait_for
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import CA_BUNDLE, RESERVED, reserved_in
from e2e.cri.node import Containerd
from e2e.nri.conftest import StartPlugin
from e2e.nri.naive import Adjust, naive_plugin, setting

pytestmark = one_runtime

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
REFUSED = "plugin 20-naive"


@pytest.fixture
def validates(containerd: Containerd) -> bool:
    """Whether this containerd asks plugins about the adjustment of all of them."""
    major, minor = containerd.cri.version().split()[1].lstrip("v").split(".")[:2]
    return (int(major), int(minor)) >= (2, 2)


def removing(name: str) -> Adjust:
    """Takes an earlier plugin's env away."""
    return lambda pod, container, made: made.env.add(key=f"-{name}") and None


def test_connection_says_whether_later_plugins_are_checked(
    start_pod: StartPod, start_plugin: StartPlugin, validates: bool
) -> None:
    plugin = start_plugin()
    said = [line["message"] for line in plugin.said() if line["event"] == "nri.connected"]
    assert ("the changes of all plugins are checked" in said[0]) is validates
    assert reserved_in(start_pod("bare").run(env=[(VISIBLE, "all")]).environ()) == RESERVED
    assert plugin.connections() == 1  # no runtime refuses what the plugin subscribes to


@pytest.mark.parametrize(
    ("what", "env"), [("set", [(VISIBLE, "void"), ("REQUESTS_CA_BUNDLE", CA_BUNDLE)]), ("removed", [(VISIBLE, "all")])]
)
def test_later_plugin_cannot_change_reserved_env(
    start_pod: StartPod,
    start_plugin: StartPlugin,
    containerd: Containerd,
    node: Node,
    validates: bool,
    env: list[tuple[str, str]],
    what: str,
) -> None:
    start_plugin()
    adjust = setting({VISIBLE: "evil"}, again=True) if what == "set" else removing(VISIBLE)
    with naive_plugin(node, containerd.directory / "nri.sock", adjust, "20"):
        pod = start_pod("bare")
        if not validates:
            assert reserved_in(pod.run(env=env).environ()) != RESERVED
            return
        with pytest.raises(CriError, match=f"rule gpu: env {VISIBLE} is not as reserved.*{REFUSED}"):
            pod.create(env=env)

    def logged() -> list[dict[str, Any]]:
        return [event for event in node.logged() if event["event"].startswith("container.")]

    wait_for(lambda: bool(logged()), "the event, which is written in a pause after the answer")
    [event] = logged()
    assert (event["event"], event["applied"], event["verified"]) == ("container.denied", False, "")
    assert [edit["after"] for edit in event["edits"]] == ["void"]


def test_plugin_that_stops_answering_lets_nothing_start(
    start_pod: StartPod, start_plugin: StartPlugin, validates: bool
) -> None:
    """Before 2.2 the runtime goes on without its answer."""
    plugin = start_plugin()
    pod = start_pod("bare")
    pod.run(name="before", env=[(VISIBLE, "all")])
    suspend(plugin.process)
    try:
        if validates:
            with pytest.raises(CriError, match="validator plugin 10-reassert failed"):
                pod.create(name="stopped", env=[(VISIBLE, "all")])
        else:
            assert reserved_in(pod.run(name="stopped", env=[(VISIBLE, "all")]).environ())[VISIBLE] == "all"
    finally:
        plugin.signal(signal.SIGCONT)
    plugin.wait_until_connected(2)

    def corrected() -> bool:
        container = pod.run(name=f"after-{time.monotonic_ns()}", env=[(VISIBLE, "all")])
        return reserved_in(container.environ()) == RESERVED

    wait_for(corrected, "a corrected container")
