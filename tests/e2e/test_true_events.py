"""Where something fails that reassert does, the log holds one event, and it is true: for each adapter."""

from __future__ import annotations

import json
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, Node
from harness.tools import run

from e2e.hostile_mounts import DIRECTORY
from e2e.runtimes import guarded

pytestmark = marks.promise(
    "Where a write or a mount fails, the log holds one event, and it is true", about="Events and metrics"
)

ENV = POLICY[: POLICY.index("    mounts:")]


def only_event(node: Node) -> tuple[str, bool, str]:
    """Kind, whether it was applied, and what failed."""
    [event] = node.logged()
    [problem] = event.get("denials") or event["errors"]
    return event["event"], event["applied"], problem["message"]


def not_started(container: Running) -> None:
    assert container.create() != 0
    run(container.runtime, "delete", "--force", container.id, check=False)


@marks.hole(
    "The event log said `applied: true` after a failed mount, a failed write or a full disk",
    since="0.1.0",
    fixed="0.2.0",
    severity="low",
)
@pytest.mark.parametrize("policy", [ENV, DIRECTORY], ids=["env", "mounts"])
@pytest.mark.parametrize("how", ["full disk", "read-only"])
def test_wrapper_cannot_write_config_json(real: str, node: Node, directory: Path, policy: str, how: str) -> None:
    node.compile(policy)
    (directory / "bundle").mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory / "bundle"))
    try:
        bundle = Bundle(directory / "bundle/k8s.io/b")
        if how == "read-only":
            run("mount", "-o", "remount,ro", str(directory / "bundle"))
        else:
            with pytest.raises(OSError, match="No space"), open(directory / "bundle/full", "wb", 0) as full:
                while True:
                    full.write(b"x" * 512)
        container, before = Running(node.dispatcher(real), bundle), bundle.config.read_bytes()
        done = run(container.runtime, "create", "--bundle", str(bundle.directory), container.id, check=False)
        assert done.returncode == 1
        assert bundle.config.read_bytes() == before
        assert [path.name for path in bundle.directory.iterdir() if "reassert" in path.name] == []
    finally:
        run("umount", "-l", str(directory / "bundle"))
    kind, applied, message = only_event(node)
    assert (kind, applied) == ("container.denied" if how == "read-only" else "container.error", False), message
    assert ("Read-only file system" if how == "read-only" else "No space left on device") in message


ADAPTERS = ("wrapper", "createRuntime", "createContainer")


@marks.hole("The event log said `applied: true` after a failed mount, a failed write or a full disk")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_runtimes_own_mount_fails(each: str, node: Node, bundle: Bundle, adapter: str) -> None:
    """No container, and nobody says that there is one: whoever hands the event on does not log it itself."""
    node.compile(DIRECTORY)
    bundle.bind("/does/not/exist", "/data")
    not_started(guarded(adapter, each, node, bundle))
    assert node.logged() == []


@pytest.mark.parametrize("adapter", ["createRuntime", "createContainer"])
def test_hook_cannot_make_the_place_for_a_mount(each: str, node: Node, bundle: Bundle, adapter: str) -> None:
    """Here a file of the image stands where a directory is missing."""
    node.compile(DIRECTORY.replace("/etc/ssl", "/etc/passwd/ssl"))
    not_started(guarded(adapter, each, node, bundle))
    assert only_event(node)[:2] == ("container.denied", False)
    assert json.dumps(node.logged()).count("Not a directory") == 1


def test_event_log_on_a_full_disk_stops_nobody(each: str, node: Node, bundle: Bundle) -> None:
    node.compile(DIRECTORY)
    node.events.parent.mkdir(exist_ok=True)
    node.events.symlink_to("/dev/full")
    with guarded("wrapper", each, node, bundle) as container:
        assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
