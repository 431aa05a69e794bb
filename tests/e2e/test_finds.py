"""What the differential fuzz (tests/reality) found: each test is one find, on every real runtime and adapter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.runtimes import guarded, real_runtime
from e2e.support import Bundle, Node, run
from e2e.test_mounts import DIRECTORY, WAYS, holds, in_user_namespace


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest, node: Node) -> tuple[str, str]:
    """A real runtime's path, and an adapter in front of it."""
    name, adapter = request.param
    return real_runtime(name, node.directory), adapter


@pytest.fixture
def below(node: Node) -> Iterator[Path]:
    """A file in what the node has mounted below the hostPath."""
    (node.ca / "below").mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(node.ca / "below"))
    (node.ca / "below/file").write_text("node\n")
    yield node.ca / "below/file"
    run("umount", "-l", str(node.ca / "below"))


@pytest.mark.parametrize("users", ["the node's users", "user namespace"])
def test_mounts_below_the_host_path_are_in_the_container(
    way: tuple[str, str],
    node: Node,
    bundle: Bundle,
    below: Path,
    users: str,
) -> None:
    """crun 1.8.1 leaves them out in a user namespace."""
    node.compile(DIRECTORY)
    if users == "user namespace":
        in_user_namespace(bundle)
        if way[1] == "createContainer":  # it cannot look from inside a user namespace
            assert holds(way, node, bundle) == "refused"
            return
    with guarded(way[1], way[0], node, bundle) as container:
        assert container.exec("/bin/cat", "/etc/ssl/below/file") == "node\n"
        assert os.access(below, os.W_OK)
        writes = "echo evil > /etc/ssl/below/file || echo refused"
        assert container.exec("/bin/sh", "-c", writes) == "refused\n"
        [event] = node.logged()
        assert (event["applied"], event["verified"]) == (True, "container")
