"""How programs of the node are called."""

from __future__ import annotations

import pytest

from hook.node import systemd


def test_a_program_of_the_node_gets_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen program's libraries are not the node's, and a proxy or a DOCKER_HOST is nobody's business."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/reassert/lib")
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere")
    seen = dict(line.split("=", 1) for line in systemd.command(["env"]).stdout.splitlines())
    assert seen == {"PATH": systemd.PATH, "LC_ALL": "C.UTF-8"}
