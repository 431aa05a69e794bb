"""A pod's author overrides what the node reserves: what the processes of its containers really get."""

from __future__ import annotations

from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.conftest import CRI_POLICY
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import ENV, NOT_UTF8, RESERVED, TEXT, assert_only_ours, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd


@marks.claim("env", "runtime")
@marks.claim("exec", "runtime")
@marks.claim("mounts", "runtime")
@pytest.mark.parametrize(
    ("runtime", "paths"), [("runc", ["/etc/ssl/certs"]), ("crun", ["/etc/ssl", "/etc//ssl/./certs/"])]
)
def test_an_override_is_undone_in_the_container_and_in_exec(
    start_pod: StartPod, node: Node, evil: Path, paths: list[str]
) -> None:
    container = start_pod().run(image=HOSTILE, env=ENV, mounts=[(str(evil), path) for path in paths])
    for environ in (container.environ(), container.exec_environ()):
        assert reserved_in(environ) == RESERVED
        assert f"TEXT={TEXT}" in environ
        assert "PATH=/bin" in environ
    assert_only_ours(container.mounts())
    assert_only_ours(container.exec_mounts())
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    [event] = [event for event in node.logged() if event["id"] == container.id]
    assert (event["event"], event["applied"], event["adapter"]) == ("container.edited", True, "runtime")
    assert event["container"]["namespace"] == "default"


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_env_that_is_not_utf8_gains_nothing(start_pod: StartPod) -> None:
    """containerd takes it, and writes U+FFFD into config.json."""
    env = [("NVIDIA_VISIBLE_DEVICES", NOT_UTF8), ("REQUESTS_CA_BUNDLE", f"/tmp/evil{NOT_UTF8}"), ("TEXT", NOT_UTF8)]
    container = start_pod().run(image=HOSTILE, env=env)
    for environ in (container.environ(), container.exec_environ()):
        assert reserved_in(environ) == RESERVED
        assert "TEXT=\ufffd" in environ


@one_runtime
def test_the_pods_sandbox_is_a_container_too(start_pod: StartPod, containerd: Containerd, node: Node) -> None:
    """A pause image is empty but for its program: the mount's target has to be made."""
    pod = start_pod()
    assert reserved_in(containerd.environ(pod.id)) == RESERVED
    assert_only_ours(containerd.mounts(pod.id, "/etc/ssl"))
    node.write_policy(CRI_POLICY.replace("exclude: {", "exclude: {containerTypes: [sandbox], "))
    pod = start_pod()
    assert reserved_in(containerd.environ(pod.id)) == {}
    assert containerd.mounts(pod.id, "/etc/ssl") == []
    assert reserved_in(pod.run(image=HOSTILE, env=ENV).environ()) == RESERVED
