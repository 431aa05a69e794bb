"""A pod's directories with the agent: made warm on disk, cold in memory; and gone after the pod if it was killed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running

from e2e.agent.support import Agent
from e2e.cri.client import wait_for
from e2e.test_presets import POLICY
from hook.core.reserve.volumes import in_memory

pytestmark = [pytest.mark.frozen, pytest.mark.engine, pytest.mark.root]


def bundle_of(agent: Agent, name: str) -> Bundle:
    """A container of containerd; all are of one pod."""
    directory = agent.node.directory / "k8s.io" / name
    bundle = Bundle(directory)
    bundle.pod(container=name)
    bundle.save()
    return bundle


@marks.claim("empty-dir", "runtime")
def test_warm_and_cold_starts_share_it_and_a_killed_agent_leaves_nothing(agent: Agent) -> None:
    root = agent.node.directory / "kubelet"
    volumes = Path(in_memory(str(root / "pods")))
    agent.node.compile(POLICY.replace("ROOT", str(root)))
    pod = root / "pods/11111111-2222-3333-4444-555555555555"
    pod.mkdir(parents=True)
    full = agent.dispatcher("/usr/sbin/runc")
    with (
        Running(agent.only_warm(full, tries=30), bundle_of(agent, "warm")) as warm,
        Running(agent.only_cold(full), bundle_of(agent, "cold")) as cold,
        Running(full, bundle_of(agent, "m1")) as first,
        Running(agent.only_warm(full, tries=30), bundle_of(agent, "m2")) as second,
    ):
        cold.exec("/bin/sh", "-c", "echo disk > /disk/file")
        assert warm.exec("/bin/cat", "/disk/file") == "disk\n"
        first.exec("/bin/sh", "-c", "echo memory > /memory/file")
        assert second.exec("/bin/cat", "/memory/file", "/disk/file") == "memory\ndisk\n"
    made = [event for event in agent.node.logged() if "container" in event]
    starts = [(event["container"]["container"], event["start"], event.get("cold")) for event in made]
    assert starts == [("warm", "warm", None), ("cold", "cold", "absent"), ("m1", "cold", "mount"), ("m2", "warm", None)]
    assert len(list(volumes.glob("*/*"))) == 2  # the tmpfs, and the link to it
    agent.stop(signal.SIGKILL)
    shutil.rmtree(pod)
    agent.start()
    wait_for(lambda: not list(volumes.iterdir()), "the tmpfs unmounted", lambda: str(list(volumes.glob("*/*"))))
    assert str(volumes) not in Path("/proc/self/mountinfo").read_text()
    volumes.rmdir()
