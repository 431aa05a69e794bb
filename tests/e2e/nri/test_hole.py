"""NRI replaces only the first of two entries of one name: the hole, open and closed. The handlers `bare` have no
base_runtime_spec, so that containerd leaves the plugin's value and the pod's side by side."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cri.client import CriError, wait_for
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE, PLAIN
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.nri.naive import naive_plugin, setting
from e2e.nri.test_override import ENV
from e2e.support import Node

pytestmark = one_runtime

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def logged(node: Node, kind: str) -> list[dict[str, Any]]:
    """The events of a kind. The plugin writes one after its answer, which a busy machine sees first."""
    wait_for(lambda: any(event["event"] == kind for event in node.logged()), kind, lambda: str(node.logged()))
    return [event for event in node.logged() if event["event"] == kind]


def test_the_hole_is_open_with_a_naive_adjustment(start_pod: StartPod, containerd: Containerd, node: Node) -> None:
    with naive_plugin(node, containerd.directory / "nri.sock", setting(RESERVED)) as naive:
        container = start_pod("bare").run(image=HOSTILE, env=ENV)
        assert naive.asked.is_set()
    assert reserved_in(container.environ())[VISIBLE] == reserved_in(container.exec_environ())[VISIBLE] == "all"


def test_it_is_closed_with_ours_even_without_base_runtime_spec(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    start_plugin()
    pod = start_pod("bare")
    with pytest.raises(CriError) as error:
        pod.create(image=HOSTILE, env=ENV)
    assert "reassert: refused default/p/c: rule company-ca: env REQUESTS_CA_BUNDLE occurs more" in str(error.value)
    assert f"rule gpu: env {VISIBLE} occurs more than once" in str(error.value)
    [event] = logged(node, "container.denied")
    assert (event["applied"], event["level"]) == (False, "error")
    container = pod.run(name="once", image=PLAIN, env=[(VISIBLE, "all")])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == RESERVED


def test_what_has_to_be_absent_is_refused_since_nri_cannot_remove_env(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    node.write_policy(NRI_POLICY + "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n")
    start_plugin()
    pod = start_pod()
    with pytest.raises(CriError, match="rule tls: env PYTHONHTTPSVERIFY must be absent and was set, and NRI cannot"):
        pod.create(image=PLAIN, env=[("PYTHONHTTPSVERIFY", "0")])
    assert reserved_in(pod.run(name="tame").environ()) == RESERVED
