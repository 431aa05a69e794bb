"""tests/hostile-pod by a real containerd's CRI, with the NRI plugin and its second line, and with a naive plugin."""

from __future__ import annotations

from harness.node import Node

from e2e.cri.fixtures import one_runtime
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.hostile_pod import BUNDLE, of_result, policy, suite_of
from e2e.nri.conftest import StartPlugin
from e2e.nri.naive import naive_plugin, setting

LOST = ("env-plugin-then-pod", "env-three", "env-absent", "mount-default")


@one_runtime
def test_pods_hold_all_with_the_nri_plugin(
    node: Node, containerd: Containerd, runtime: str, start_plugin: StartPlugin
) -> None:
    node.compile(policy(node))
    start_plugin()
    status, found, output = suite_of(containerd, runtime, HOSTILE, "--half", "hostile")
    assert status == 0, output
    assert of_result(found, "error", "FAILED") == set(), output


def test_a_plugin_that_only_sets_env_loses_each_name_that_is_there_twice(node: Node, containerd: Containerd) -> None:
    wanted = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": BUNDLE}
    cases = [option for name in (*LOST, "env-default") for option in ("--case", name)]
    with naive_plugin(node, containerd.directory / "nri.sock", setting(wanted)):
        status, found, output = suite_of(containerd, "runc-bare", HOSTILE, *cases)
    assert status == 1, output
    assert found == dict.fromkeys(LOST, "FAILED") | {"env-default": "held"}, output
