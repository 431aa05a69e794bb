"""Real containers through front and the agent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import time
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED
from harness.paths import REASSERT

from e2e.agent.support import Agent
from hook.node.artifacts.specs import oci_hook

pytestmark = [pytest.mark.frozen, pytest.mark.engine, pytest.mark.root]
RUNC = "/usr/sbin/runc"


@pytest.fixture
def bundle(agent: Agent) -> Bundle:
    bundle = Bundle(agent.node.directory / "bundle")
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=x"]
    bundle.save()
    return bundle


def test_a_containers_life(agent: Agent, bundle: Bundle) -> None:
    """Nothing of it starts cold: create with the look at its mounts, exec, state, delete."""
    hook = agent.only_warm(agent.hook_file())
    file = agent.dispatcher(RUNC)
    Path(file).write_text(Path(file).read_text().replace(agent.hook_file(), hook))
    with Running(agent.only_warm(file, tries=30), bundle) as running:
        assert WANTED in running.environ()
        assert [(mount.point, "ro" in mount.options) for mount in running.mounts()] == [("/etc/ssl", True)]
        assert WANTED in running.exec("/bin/env", options=("-e", "REQUESTS_CA_BUNDLE=y")).splitlines()
    (event,) = [event for event in agent.node.logged() if event["adapter"] == "runtime"]
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "container")


def test_a_refusal_of_the_warm_hook_reaches_the_engine_with_crun(agent: Agent, bundle: Bundle) -> None:
    """crun gives a hook no standard error; the agent writes to crun's."""
    hook = agent.only_warm(agent.hook_file())
    bundle.spec["hooks"] = {"createRuntime": [oci_hook(str(REASSERT), hook)]}
    bundle.save()
    container = Running("/usr/bin/crun", bundle)
    assert container.create() != 0
    assert "reassert: refused" in container.output()


def test_a_mount_that_a_hook_took_away_is_put_back(agent: Agent, bundle: Bundle) -> None:
    """As with the cold hook: what the look misses, it mounts. Warm cannot, and says so to nobody but front."""
    config = bundle.saved()
    script = bundle.directory / "umount.sh"
    script.write_text('#!/bin/sh\npid=$(sed \'s/.*"pid":\\([0-9]*\\).*/\\1/\')\nexec nsenter -t "$pid" -m umount -l '
                      f"{bundle.rootfs}/etc/ssl\n")  # fmt: skip
    script.chmod(0o755)
    config["hooks"] = {"createRuntime": [{"path": str(script)}]}
    bundle.config.write_text(json.dumps(config))
    with Running(agent.dispatcher(RUNC), bundle) as running:
        assert running.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
    assert reasons(agent) == ["mount"]


def until_held(agent: Agent, *files: str) -> None:
    """Until the agent keeps these files open."""
    for _ in range(4000):
        links = []
        for entry in os.scandir(f"/proc/{agent.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(entry))
        if set(files) <= set(links):
            return
        time.sleep(0.025)
    raise AssertionError(f"the agent does not keep {files} open, but {links}")


LEASE = """
import fcntl, os, sys
for path in sys.argv[1:]:
    for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
        with open(path, "rb") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
                print(path, kind)
            except OSError as error:
                assert error.errno == 11, error
print("tried")
"""


@marks.hole(
    "A container of root leased a reserved file: other pods' reads of it took 45 seconds",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
def test_no_container_gets_a_lease_on_what_starts_read_and_write(agent: Agent, bundle: Bundle) -> None:
    """Its root owns root's files, also where it sees them read-only; each open(2) by others would wait 45 seconds."""
    node = agent.node
    (node.ca / "proxy").write_text("http://proxy\n")
    more = f"    - {{name: HTTPS_PROXY, valueFrom: {{file: {node.ca}/proxy}}}}\n    mounts:"
    node.compile(POLICY.replace("    mounts:", more))
    held = [node.ca / "proxy", node.ca / "certs/company.crt", node.policy, node.compiled, node.events]
    until_held(agent, *map(str, held))
    for path in {path.parent for path in held}:
        bundle.bind(path, f"/mnt{path}", "ro")
    for path in ("/usr", "/lib", "/lib64"):
        bundle.bind(path, path, "ro")
    bundle.save()
    node.compile(POLICY.replace("    mounts:", more).replace("spec:\n", "spec:\n  nodePaths: {reassert: Report}\n"))
    until_held(agent, str(node.compiled))
    with Running(agent.dispatcher(RUNC), bundle) as running:
        seen = [f"/mnt{path}" for path in held]
        found = running.exec("/usr/bin/python3", "-c", LEASE, *seen).splitlines()
    # A read lease holds up no reader, and nothing but rename(2) writes to the files of the policy.
    assert [line for line in found if not line.endswith(f" {fcntl.F_RDLCK}") or "events" in line] == ["tried"]


def reasons(agent: Agent) -> list[str]:
    """Why the containers' starts were cold."""
    return [event.get("cold", "") for event in agent.node.logged() if event["event"].startswith("container.")]


@marks.hole(
    "With `failurePolicy: Ignore`, hanging requests used up the agent's descriptors, and mounts went unchecked",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
def test_a_look_for_which_no_descriptor_is_free_is_made_by_a_cold_start(agent: Agent, bundle: Bundle) -> None:
    """What keeps the agent's descriptors can be another container's doing: it must not be failurePolicy's affair."""
    agent.node.compile(POLICY.replace("spec:\n", "spec:\n  failurePolicy: Ignore\n"))
    config, script = bundle.saved(), bundle.directory / "umount.sh"
    config["hooks"] = {"createRuntime": [{"path": str(script), "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}]}
    file = agent.dispatcher(RUNC)
    until_held(agent, str(agent.node.events))
    before, limits = len(os.listdir(f"/proc/{agent.pid}/fd")), resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    for free in range(2, 16):
        script.write_text("#!/bin/sh\npid=$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')\n"
                          f'nsenter -t "$pid" -m umount -l {bundle.rootfs}/etc/ssl\n'
                          f"exec prlimit --pid {agent.pid} --nofile={before + free}:\n")  # fmt: skip
        script.chmod(0o755)
        bundle.config.write_text(json.dumps(config))
        with Running(file, bundle) as running:
            look = ("/bin/sh", "-c", "env; cat /etc/ssl/certs/company.crt")
            assert {WANTED, "company"} <= {*running.exec(*look, options=("-e", "REQUESTS_CA_BUNDLE=y")).splitlines()}, (
                free
            )
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
    found = reasons(agent)  # the last one had enough for the look, which found that the mount is gone
    assert set(found) == {"error", "mount"}
    assert len(found) == 14


def edited_after_create(agent: Agent, policy: str, real: str = RUNC) -> str:
    """A dispatcher to a runtime that changes the policy before it creates the container."""
    new = agent.node.policy.with_name("new.yaml")
    new.write_text(agent.node.placed(policy))
    script = agent.node.directory / "edits"
    script.write_text(f'#!/bin/sh\n[ "$1" != create ] || cp {new} {agent.node.policy}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return agent.dispatcher(str(script))


@pytest.mark.parametrize("way", ["warm", "cold"])
def test_a_policy_that_is_edited_between_create_and_its_hook(agent: Agent, bundle: Bundle, way: str) -> None:
    """The container starts with the env that create gave it; its own hook does not hold the edit against it."""
    file = edited_after_create(agent, POLICY.replace("/etc/ssl/certs/ca-certificates.crt", "/new.pem"))
    with Running(file if way == "warm" else agent.only_cold(file), bundle) as running:
        assert WANTED in running.environ()
        assert "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt" in running.exec("/bin/env").splitlines()
    assert way == "warm" or reasons(agent) == ["absent"]
    config = bundle.saved()
    del config["annotations"]["reassert/decision"]  # nobody decided
    bundle.config.write_text(json.dumps(config))
    assert "env REQUESTS_CA_BUNDLE is not what the policy wants" in Running(RUNC, bundle).refused()


CHANGES = {
    "another reserved name": ("    mounts:", "    - {name: LATER, value: x}\n    mounts:", "env LATER is not what the"),
    "no such mount": ("mountPath: /etc/ssl", "mountPath: /etc/pki", "mount /etc/ssl was reserved at create"),
    "a denial": (
        "PYTHONHTTPSVERIFY, absent: true}",
        "HTTP_PROXY, absent: true}\n    onConflict: Deny",
        "env HTTP_PROXY must be absent and was set",
    ),
    "a value": ("/etc/ssl/certs/ca-certificates.crt", "/new.pem", "REQUESTS_CA_BUNDLE is not what the policy wants"),
}  # fmt: skip
"""Edits of the policy between create and its hook, and what the container is refused for."""


@marks.hole(
    "A policy that was edited between `create` and the look was not enforced in that container",
    since="0.2.0",
    fixed="0.3.0",
    severity="low",
)
@pytest.mark.parametrize(("change", "way"), list(zip(CHANGES, ["warm", "cold"] * 2, strict=True)))
def test_what_a_newer_policy_wants_is_not_lost(agent: Agent, bundle: Bundle, change: str, way: str) -> None:
    """Only the values of env names that create decided about, and that the container has, are left as they were."""
    old, new, refusal = CHANGES[change]
    bundle.spec["process"]["env"] += ["HTTP_PROXY=x"]
    bundle.save()
    real = agent.node.directory / "spoils"  # stands behind the wrapper
    spoilt = f"s,{WANTED},REQUESTS_CA_BUNDLE=/evil," if change == "a value" else ""
    real.write_text(f'#!/bin/sh\n[ "$1" != create ] || sed -i \'{spoilt}\' {bundle.config}\nexec {RUNC} "$@"\n')
    real.chmod(0o755)
    file = edited_after_create(agent, POLICY.replace(old, new), str(real))
    assert refusal in Running(file if way == "warm" else agent.only_cold(file), bundle).refused()
    assert way == "warm" or reasons(agent) == ["absent"]
