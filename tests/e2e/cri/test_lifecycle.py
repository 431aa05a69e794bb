"""Containers through a containerd restart, from before reassert's arrival, and to their end."""

from __future__ import annotations

import os
from pathlib import Path

from harness.node import Node
from harness.paths import RUNTIMES

from e2e.cri.conftest import later
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import ENV, OVERRIDDEN, RESERVED, assert_only_ours, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd


@one_runtime
def test_exec_keeps_its_env_over_a_restart_of_containerd(start_pod: StartPod, containerd: Containerd) -> None:
    pod = start_pod()
    container = pod.run(image=HOSTILE, env=ENV)
    containerd.stop()
    containerd.start()
    assert reserved_in(container.exec_environ()) == reserved_in(container.environ()) == RESERVED
    assert reserved_in(pod.run(name="next", image=HOSTILE, env=ENV).environ()) == RESERVED


@one_runtime
def test_a_container_from_before_reassert_keeps_its_env(
    start_pod: StartPod, node: Node, runtime: str, evil: Path
) -> None:
    """Until it is made anew: what its first process was given, its exec'd ones are."""
    program = later(node, runtime)
    program.symlink_to(RUNTIMES[runtime])
    pod = start_pod("later")
    hostile = {"image": HOSTILE, "env": ENV, "mounts": [(str(evil), "/etc/ssl/certs")]}
    old = pod.run(name="old", **hostile)
    os.replace(_link(node, node.dispatcher(RUNTIMES[runtime])), program)
    assert reserved_in(old.environ()) == reserved_in(old.exec_environ()) == OVERRIDDEN
    new = pod.run(name="new", **hostile)
    assert reserved_in(new.environ()) == reserved_in(new.exec_environ()) == RESERVED
    assert_only_ours(new.mounts())


def _link(node: Node, target: str) -> Path:
    path = node.directory / "link"
    path.symlink_to(target)
    return path
