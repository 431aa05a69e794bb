"""The plugin beside a runtime: started by it, late for containers that run already, with a policy that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
from unit.kubelet import entry, write_checkpoint

from e2e.cri.client import wait_for
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE, PLAIN
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.support import REASSERT, Node

pytestmark = one_runtime

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
    log = launched.view("var/log/reassert/events.jsonl").read_text()
    events = [json.loads(line) for line in log.splitlines()]
    assert next(event for event in events if event.get("id") == container.id)["adapter"] == "nri"


def test_pod_labels_decide(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    match = "match: {podSelector: {matchLabels: {tier: web}}, ifUnknown: Skip}"  # the hook does not see labels
    node.write_policy(NRI_POLICY.replace("{name: gpu,", f"{{name: gpu, {match},"))
    start_plugin()
    for labels, value in (({"tier": "web"}, "void"), ({"tier": "db"}, "all"), ({}, "all")):
        container = start_pod(labels=labels).run(image=PLAIN, env=[(VISIBLE, "all")])
        assert reserved_in(container.environ())[VISIBLE] == value


def test_a_change_is_picked_up_and_a_broken_one_held_back(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    """On a busy node the first ones may get the policy before: a container waits a second for the compiler."""
    start_plugin()
    pod = start_pod("bare")
    names = map("c{}".format, count())
    assert reserved_in(pod.run(name=next(names)).environ()) == RESERVED
    node.write_policy(NRI_POLICY.replace("value: void", "value: none"))
    wait_for(lambda: reserved_in(pod.run(name=next(names)).environ())[VISIBLE] == "none", "the changed policy")
    node.write_policy(NRI_POLICY.replace("spec:\n", "spec:\n  mood: Enforce\n"))

    def held_back() -> bool:
        held = pod.run(name=next(names))
        assert reserved_in(held.environ())[VISIBLE] == "none"
        [event] = [event for event in node.logged() if event.get("id") == held.id]
        return str(event.get("warning")).startswith("the last good policy stays in force: ")

    wait_for(held_back, "the broken policy")


def test_an_allocated_value_comes_from_kubelets_record(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    root = node.directory / "kubelet"
    policy = NRI_POLICY.replace("value: void", "valueFrom: {deviceAllocation: {default: void}}")
    node.write_policy(policy.replace("spec:\n", f"spec:\n  kubelet: {{root: {root}}}\n"))
    start_plugin()
    pod = start_pod()
    write_checkpoint(root, entry(pod.config.metadata.uid, "c", "GPU-4", envs={VISIBLE: "GPU-4"}))
    for name, value in (("c", "GPU-4"), ("other", "void")):
        container = pod.run(name=name, image=HOSTILE, env=[(VISIBLE, "GPU-4"), (VISIBLE, "all")])
        for environ in (container.environ(), container.exec_environ()):
            assert reserved_in(environ)[VISIBLE] == value
