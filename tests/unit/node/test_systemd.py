"""How programs of the node are called."""

from __future__ import annotations

import subprocess

import pytest

from hook.node import systemd


def test_a_program_of_the_node_gets_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen program's libraries are not the node's, and a proxy or a DOCKER_HOST is nobody's business."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/reassert/lib")
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere")
    seen = dict(line.split("=", 1) for line in systemd.command(["env"]).stdout.splitlines())
    assert seen == {"PATH": systemd.PATH, "LC_ALL": "C.UTF-8"}


def test_an_engine_is_restarted_whatever_its_start_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restart that puts everything back comes soon after the one that failed."""
    called: list[tuple[str, ...]] = []

    def systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        called.append(arguments)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(systemd, "_systemctl", systemctl)
    systemd.restart("containerd.service")
    assert called == [("reset-failed", "containerd.service"), ("restart", "containerd.service")]
