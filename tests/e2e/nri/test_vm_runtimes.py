"""What a VM runtime's shim is handed by containerd, with the NRI plugin: a shim that only records takes its place.

There is no second line here: base_runtime_spec would bring a hook that looks into a container which this node has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError
from e2e.cri.fixtures import StartPod
from e2e.cri.hostile import RESERVED, reserved_in
from e2e.cri.images import HOSTILE, PLAIN
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin
from e2e.nri.recorder import PROGRAM, Recorder
from e2e.nri.test_override import ENV, OVERRIDDEN

pytestmark = pytest.mark.parametrize("runtime", ["recorder"])

both = pytest.mark.parametrize("containerd", ["1.7", "2.1"], indirect=True)

ONCE = [("NVIDIA_VISIBLE_DEVICES", "all"), ("REQUESTS_CA_BUNDLE", "/tmp/evil")]
"""An override that NRI can correct: no name twice, and the image has none of them."""


@pytest.fixture
def shim(containerd: Containerd, node: Node) -> Iterator[Recorder]:
    """The shim of the handler `recorder`."""
    path = node.directory / "recorder.sock"
    recorder = Recorder(path, containerd.root.path(f"usr/local/bin/{PROGRAM}"))
    yield recorder
    recorder.close()
    path.unlink()


@both
def test_without_a_plugin_the_shim_is_handed_the_override(shim: Recorder, start_pod: StartPod, evil: Path) -> None:
    """The other tests would prove nothing if it was not."""
    container = start_pod().run(image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")])
    handed = shim.containers[container.id]
    assert handed.rootfs, "the image is the shim's to mount"
    last = dict(entry.partition("=")[::2] for entry in handed.environ())
    assert {name: last[name] for name in OVERRIDDEN} == OVERRIDDEN
    assert [mount[:2] for mount in handed.mounts("/etc/ssl")] == [(str(evil), "/etc/ssl/certs")]
    container.exec("/bin/true")
    [process] = shim.execs
    assert process.environ() == handed.environ()


@marks.claim("vm-runtimes", "nri")
@both
@pytest.mark.parametrize("path", ["/etc/ssl", "/etc//ssl/./certs/"])
def test_the_shim_is_handed_the_policys_env_and_mounts(
    shim: Recorder, start_pod: StartPod, start_plugin: StartPlugin, node: Node, evil: Path, path: str
) -> None:
    start_plugin()
    pod = start_pod()
    container = pod.run(image=PLAIN, env=[*ONCE, ("TEXT", "a b")], mounts=[(str(evil), path)])
    handed = shim.containers[container.id]
    container.exec("/bin/true")
    [process] = shim.execs
    for each in (handed, process):
        assert reserved_in(each.environ()) == RESERVED
        assert {"TEXT=a b", "PATH=/bin"} <= set(each.environ())
    mounts = handed.mounts("/etc/ssl")
    assert mounts[0][:2] == (str(node.ca), "/etc/ssl")
    assert all(source.startswith(str(node.ca)) and "ro" in options for source, _, options in mounts), mounts
    assert not any(str(evil) in str(mount) for mount in handed.spec["mounts"])
    assert list(shim.containers) == [pod.id, container.id]
    [event] = [event for event in node.logged() if event.get("id") == container.id]
    assert (event["event"], event["adapter"], event["applied"]) == ("container.edited", "nri", False)


@marks.claim("vm-runtimes", "nri")
@both
def test_the_shim_is_handed_nothing_of_a_refused_container(
    shim: Recorder, start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    node.write_policy(NRI_POLICY + "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n")
    start_plugin()
    pod = start_pod()
    with pytest.raises(CriError, match="reassert: refused default/p/c: rule company-ca: env REQUESTS_CA_BUNDLE occurs"):
        pod.create(image=HOSTILE, env=ENV)
    with pytest.raises(CriError, match="rule tls: env PYTHONHTTPSVERIFY must be absent and was set, and NRI cannot"):
        pod.create(name="tls", image=PLAIN, env=[("PYTHONHTTPSVERIFY", "0")])
    assert list(shim.containers) == [pod.id]
