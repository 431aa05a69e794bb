"""The plugin beside a runtime: started by it, and told the labels of pods."""

from __future__ import annotations

import json
from collections.abc import Iterator

import marks
import pytest
from harness.node import Node
from harness.paths import REASSERT

from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import PLAIN
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin

pytestmark = [
    one_runtime,
    marks.promise("The plugin reconnects by itself, and can be launched by the runtime"),
]

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture
def launched(containerd: Containerd, node: Node) -> Iterator[Containerd]:
    """A containerd that found the program in its plugin directory, and a policy in its configuration directory."""
    plugins, settings = containerd.directory / "nri-plugins", containerd.directory / "nri-conf"
    for path in (plugins, settings):
        path.mkdir(exist_ok=True)
    (plugins / "10-reassert").symlink_to(REASSERT)
    (settings / "10-reassert.conf").write_text(node.policy.read_text().replace("value: void", "value: launched"))
    containerd.stop()
    containerd.start()
    yield containerd
    (plugins / "10-reassert").unlink()
    (settings / "10-reassert.conf").unlink()
    containerd.stop()
    containerd.start()


def test_launched_from_the_plugin_directory(launched: Containerd, start_pod: StartPod) -> None:
    """With no argument at all, by its name alone. Policy and event log are where they are on a node."""
    container = start_pod("bare").run(image=PLAIN, env=[(VISIBLE, "all")])
    wanted = RESERVED | {VISIBLE: "launched"}
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == wanted
    log = launched.root.path("var/log/reassert/events.jsonl").read_text()
    events = [json.loads(line) for line in log.splitlines()]
    assert next(event for event in events if event.get("id") == container.id)["adapter"] == "nri"


@marks.claim("pod-selector", "nri")
def test_pod_labels_decide(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    match = "match: {podSelector: {matchLabels: {tier: web}}, ifUnknown: Skip}"  # the hook does not see labels
    node.write_policy(NRI_POLICY.replace("{name: gpu,", f"{{name: gpu, {match},"))
    start_plugin()
    for labels, value in (({"tier": "web"}, "void"), ({"tier": "db"}, "all"), ({}, "all")):
        container = start_pod(labels=labels).run(image=PLAIN, env=[(VISIBLE, "all")])
        assert reserved_in(container.environ())[VISIBLE] == value
