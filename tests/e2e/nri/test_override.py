"""A pod's author overrides what the node reserves, with NRI in between: what the processes really get."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cri.fixtures import StartPod
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE
from e2e.nri.conftest import StartPlugin
from e2e.support import Node

ENV = [
    ("NVIDIA_VISIBLE_DEVICES", "GPU-4"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("REQUESTS_CA_BUNDLE", "/tmp/evil"),
    ("TEXT", "a b"),
]
"""As kubelet sends it: the device plugin's value first, then the pod's; the image has its own before both."""

OVERRIDDEN = {"NVIDIA_VISIBLE_DEVICES": "all", "REQUESTS_CA_BUNDLE": "/tmp/evil"}


def test_without_a_plugin_the_override_wins(start_pod: StartPod, evil: Path) -> None:
    """The other tests would prove nothing if it did not."""
    container = start_pod("bare").run(image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["evil.crt"]


@pytest.mark.parametrize("paths", [["/etc/ssl"], ["/etc/ssl/certs"], ["/etc/ssl", "/etc//ssl/./certs/"]], ids=" ".join)
def test_an_override_is_undone_in_the_container_and_in_exec(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node, evil: Path, paths: list[str]
) -> None:
    start_plugin()
    container = start_pod().run(image=HOSTILE, env=ENV, mounts=[(str(evil), path) for path in paths])
    for environ in (container.environ(), container.exec_environ()):
        assert reserved_in(environ) == RESERVED
        assert {"TEXT=a b", "PATH=/bin"} <= set(environ)
    for mounts in (container.mounts(), container.exec_mounts()):
        assert all("/ca" in source and options.startswith("ro") for source, _, options in mounts), mounts
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    [event] = [event for event in node.logged() if event.get("id") == container.id]
    assert (event["event"], event["applied"], event["adapter"]) == ("container.edited", True, "nri")
    assert event["container"]["namespace"] == "default"
