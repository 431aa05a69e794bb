"""The policy file's life under a running containerd: absent, changed, broken, mended."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.conftest import CRI_POLICY
from e2e.cri.fixtures import StartPod
from e2e.cri.hostile import ENV, OVERRIDDEN, RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd


def missing(node: Node) -> str:
    node.policy.unlink()
    return "No such file or directory"


def broken(node: Node) -> str:
    node.write_policy(CRI_POLICY.replace("spec:\n", "spec:\n  mood: Enforce\n"))
    return "unknown field 'mood'"


def foreign(node: Node) -> str:
    node.policy.chmod(0o666)
    return "is writable by others"


@marks.claim("last-good-policy", "runtime")
@pytest.mark.parametrize(("runtime", "spoil"), [("runc", missing), ("crun", broken)])
def test_without_any_good_policy_only_kube_system_starts(
    start_pod: StartPod, node: Node, spoil: Callable[[Node], str]
) -> None:
    shutil.rmtree(node.store, ignore_errors=True)
    reason = spoil(node)
    try:
        container = start_pod(namespace="kube-system").run(image=HOSTILE, env=ENV)
        assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
        with pytest.raises(CriError) as error:
            start_pod()
    finally:
        node.policy.touch()
        node.policy.chmod(0o644)
    text = str(error.value)
    assert "OCI runtime create failed: reassert: refused default/p/sandbox: no node policy: " in text
    assert str(node.policy) in text
    assert reason in text


@marks.claim("last-good-policy", "runtime")
@pytest.mark.parametrize(("runtime", "spoil"), [("runc", broken), ("crun", foreign)])
def test_the_last_good_policy_stays_in_force(
    start_pod: StartPod, node: Node, containerd: Containerd, spoil: Callable[[Node], str]
) -> None:
    """The pods before and after are there for their sandboxes, which are containers too."""
    before = start_pod().run(image=HOSTILE, env=ENV)
    reason = spoil(node)
    try:
        held = start_pod().run(image=HOSTILE, env=ENV)
    finally:
        node.policy.touch()
        node.policy.chmod(0o644)
    assert reserved_in(held.environ()) == reserved_in(held.exec_environ()) == RESERVED
    [event] = [event for event in node.logged() if event["id"] == held.id]
    assert event["warning"].startswith("the last good policy stays in force: ")
    assert str(node.policy) in event["warning"]
    assert reason in event["warning"]
    node.write_policy(CRI_POLICY.replace("value: void", "value: mended"))
    assert reserved_in(containerd.environ(start_pod().id))["NVIDIA_VISIBLE_DEVICES"] == "mended"
    # What a container got at its start is what an exec in it gets, for as long as it runs.
    assert reserved_in(before.environ()) == reserved_in(before.exec_environ()) == RESERVED
