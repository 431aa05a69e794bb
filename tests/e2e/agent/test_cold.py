"""What starts cold, and is right all the same. test_told.py has each reason, unit/agent/test_front.py front's own."""

from __future__ import annotations

import json
import os
import subprocess

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.tools import need, run

from e2e.agent.support import WENT_COLD, Agent, Cold, reason_of

pytestmark = [
    pytest.mark.frozen,
    pytest.mark.engine,
    pytest.mark.root,
    marks.promise(
        "A start that the agent does not answer is cold, and events, `status` and metrics say why", about="Agent"
    ),
]


def test_a_hook_is_cold_for_a_bundle_that_is_another_for_the_agent(start: Cold) -> None:
    """crun takes --config apart from the bundle, in which a relative root.path is."""
    hook = start.agent.only_warm(start.agent.hook_file())
    state = json.dumps({"id": "0a", "bundle": "/proc/self/cwd", "pid": 1})
    for bundle, status in ((str(start.bundle), 1), ("/proc/self/cwd", WENT_COLD)):
        command = [hook, "--bundle", bundle, "--config", str(start.bundle / "config.json"), "createRuntime"]
        done = subprocess.run(command, cwd=start.bundle, input=state, text=True, capture_output=True, timeout=600)
        assert done.returncode == status, done.stderr
        assert (done.stderr == "--cold=path\n") == (status == WENT_COLD)


def test_a_refusal_is_cold_with_a_log_that_means_something_else_to_the_agent(start: Cold) -> None:
    (start.bundle / "config.json").write_text("{")
    for option in ("--log", "/dev/stderr"), ("--log=/proc/self/fd/2",):
        assert start.reason(*option, "create", "0a") == "path", option
    before = len(start.agent.node.logged())
    assert before == 1, "agent.listening: the cold start writes the event"
    done = subprocess.run(
        [start.full, "--log", "/dev/stderr", "create", "0a"], cwd=start.bundle, capture_output=True, timeout=600
    )
    assert done.stderr.count(b"config.json: ") == 2, "on standard error, and in the log, which is the same"
    assert [event["cold"] for event in start.agent.node.logged()[before:]] == ["path"]


def test_cold_for_what_takes_the_other_threads_time(start: Cold) -> None:
    """Long links of an image: the agent stops after 20 ms of CPU time. It went on for minutes, and others waited."""
    rootfs = start.bundle / "rootfs"
    (rootfs / "d").mkdir(parents=True)
    mounts = []
    for number in range(30):
        for at in range(39):
            onward = f"{number}-{at + 1}" if at < 38 else "end"
            (rootfs / f"{number}-{at}").symlink_to("/" + "d/../" * 800 + onward)
        mounts.append({"destination": f"/{number}-0", "type": "bind", "source": "/mnt", "options": ["rbind"]})
    spec = {"process": {"env": []}, "root": {"path": "rootfs"}, "mounts": mounts}
    spec["linux"] = {"devices": [{"path": "/data/disk", "type": "c", "major": 1, "minor": 5}]}
    (start.bundle / "config.json").write_text(json.dumps(spec))
    assert start.reason() == "long"
    said = subprocess.run([start.full, "create", "0a"], cwd=start.bundle, capture_output=True, text=True, timeout=600)
    assert said.returncode == 1
    assert "steps to follow the container's paths and their links" in said.stderr
    event = start.agent.node.logged()[-1]
    assert (event["event"], event["cold"]) == ("container.denied", "long")


def test_cold_where_gvisor_needs_mounts_of_its_own(agent: Agent) -> None:
    """Of `create`, and of `start`, which makes the gofer of a pod's second container."""
    need(os.access("/usr/bin/runsc", os.X_OK), "runsc")
    real = agent.node.directory / "sandboxed"
    real.write_text('#!/bin/sh\nexec /usr/bin/runsc --platform=ptrace --network=none --ignore-cgroups "$@"\n')
    real.chmod(0o755)
    file = agent.dispatcher(str(real))
    bundle = Bundle(agent.node.directory / "bundle")
    bundle.save()
    container = Running(file, bundle)
    try:
        assert container.create() == 0, container.output()
        done = subprocess.run([agent.only_warm(file), "start", container.id], capture_output=True, timeout=600)
        assert (done.returncode, reason_of(done.stderr)) == (WENT_COLD, "mount")
        run(file, "start", container.id)
        assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
    finally:
        run(file, "delete", "--force", container.id, check=False)
    [event] = [event for event in agent.node.logged() if event.get("id") == container.id]
    assert (event["start"], event["cold"], event["applied"]) == ("cold", "mount", True)
