"""What a running node's mounts say about a container."""

from __future__ import annotations

from types import SimpleNamespace

from hook.inside.running import Node


def test_the_mounts_are_read_again_where_one_was_made_meanwhile() -> None:
    node = Node()
    node.table = {}  # all of them were made since
    places = node.places_for(SimpleNamespace(node_paths_of_reassert=("/etc/reassert/",)))  # type: ignore[arg-type]  # a Plan has more
    assert "/etc/reassert/" in {path for path, _, _ in places}
    assert node.table
