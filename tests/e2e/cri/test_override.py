"""A pod's author overrides what the node reserves: what the processes of its containers really get."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from e2e.cri.client import Container
from e2e.cri.conftest import CRI_POLICY
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import ENV, RESERVED, TEXT, assert_only_ours, reserved_in
from e2e.cri.images import HOSTILE
from e2e.cri.node import Containerd
from e2e.support import Node


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


@pytest.mark.parametrize("runtime", ["crun"])
def test_a_terminal_works_and_brings_nothing_back(start_pod: StartPod, containerd: Containerd) -> None:
    script = "tty; tr '\\0' '\\n' </proc/1/environ; echo end; exec sleep 1000"
    container = start_pod().run(image=HOSTILE, env=ENV, tty=True, command=["/bin/sh", "-c", script])
    output = container.output("end")
    assert output[0].startswith("/dev/")
    assert reserved_in(output) == RESERVED
    typed = _exec_with_terminal(containerd, container, "tty; tr '\\0' '\\n' </proc/self/environ")
    assert typed[0].startswith("/dev/")
    assert reserved_in(typed) == RESERVED


def _exec_with_terminal(containerd: Containerd, container: Container, script: str) -> list[str]:
    """What a shell prints in a terminal, as with `kubectl exec -it`."""
    ours, theirs = pty.openpty()
    script += "; echo end; read _"  # the client leaves with the shell, printed or not what is still on its way
    command = containerd.ctr_command("task", "exec", "--tty", "--exec-id", "t", container.id, "/bin/sh", "-c", script)
    client = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    output = b""
    while b"end\r" not in output:
        assert select.select([ours], [], [], 30)[0], output
        output += os.read(ours, 4096)
    os.write(ours, b"\n")
    assert client.wait(30) == 0, output
    os.close(ours)
    return [line.rstrip("\r") for line in output.decode().split("\n")]


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
