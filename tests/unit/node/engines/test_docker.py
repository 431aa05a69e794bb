"""What dockerd is told, and when, while it goes on starting containers."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.node import systemd
from hook.node.engines import docker
from hook.node.engines import dockerd as dockerapi
from hook.node.engines.base import RUNTIME, Choice
from hook.node.engines.docker import Docker
from hook.node.errors import NodeError
from unit.support import policy

DISPATCHER = '#!/bin/sh\n# written by reassert: a test\nexec /usr/sbin/runc "$@"\n'


class Daemon:
    """dockerd as it answers. `told`: its runtimes and default after each reload. `created`: at each
    look, what is not started yet. `containers`: runtimes by id, None for one that has gone."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.told: list[tuple[list[str], str]] = []
        self.runtimes: dict[str, Any] = {}
        self.default = "runc"
        self.created: list[list[dict[str, Any]]] = []
        self.containers: dict[str, str | None] = {}

    def reload(self, ask: Callable[[], None], address: str) -> None:
        values = json.loads(self.config.read_text())
        self.runtimes, self.default = values.get("runtimes", self.runtimes), values.get("default-runtime", self.default)
        self.told.append((sorted(self.runtimes), self.default))

    def get(self, path: str, address: str) -> Any:
        if path == "/info":
            return {"Runtimes": {"runc": {"path": "runc"}, **self.runtimes}, "DefaultRuntime": self.default}
        if "filters=" in path:
            return self.created.pop(0) if self.created else []
        if path.startswith("/containers/json"):
            return [{"Id": name} for name in self.containers]
        name = path.split("/")[2]
        if self.containers[name] is None:
            raise dockerapi.NotThere("No such container")
        return {"Name": f"/{name}", "HostConfig": {"Runtime": self.containers[name]}}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    daemon = Daemon(tmp_path / "daemon.json")
    monkeypatch.setattr(docker, "CONFIG", str(daemon.config))
    monkeypatch.setattr(docker, "_BEGINNING_SECONDS", 0.0)
    monkeypatch.setattr(dockerapi, "get", daemon.get)
    monkeypatch.setattr(dockerapi, "wait_for_reload", daemon.reload)
    said = subprocess.CompletedProcess([], 0, "Docker version 24.0.1, build x", "")
    monkeypatch.setattr(systemd, "command", lambda *_: said)
    monkeypatch.setattr(docker, "_pid", lambda: 1)
    return daemon


def test_a_runtime_of_ours_is_the_default_no_longer_before_it_goes(daemon: Daemon, tmp_path: Path) -> None:
    """Whoever has created a container with its name is about to start it."""
    path = tmp_path / "reassert-runc"
    path.write_text(DISPATCHER)
    daemon.runtimes = {"crun": {"path": "/usr/bin/crun"}, "reassert": {"path": str(path)}}
    daemon.default = "reassert"
    text = '{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}'
    daemon.config.write_text(text)
    old, new, newer = ({"Id": name, "Created": time.time() - age} for name, age in (("a", 60), ("b", 1), ("c", 0)))
    daemon.created = [[old, new], [old, new], [old, newer], [old], [old]]
    Docker.find().restart()
    assert daemon.told == [(["crun", "reassert"], "runc"), (["crun"], "runc")]
    assert daemon.created == [[old]]  # the second was waited for; not who came later, nor who may never be started
    assert daemon.config.read_text() == text


def test_a_container_that_goes_while_all_are_looked_at_is_no_error(daemon: Daemon) -> None:
    daemon.containers = {"a": "reassert", "gone": None, "b": "runc"}
    [said] = Docker.find().uninstall_notes(Docker.find().read, {"created": "reassert"})
    assert said.startswith("1 containers were created with the runtime reassert")
    assert said.endswith(": a")


@pytest.mark.parametrize("flag", ["--add-runtime", "--default-runtime"])
def test_a_daemon_whose_command_line_says_it_too_is_left_alone(
    daemon: Daemon, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse the file, at its next start at the latest."""
    monkeypatch.setattr(docker, "arguments_of", lambda _: ["dockerd", "-H", "fd://", f"{flag}=crun"])
    with pytest.raises(NodeError, match=f"^dockerd was started with {flag}, and then refuses the same setting in "):
        engine = Docker.find()
        engine.wire(engine.read(), Choice((RUNTIME,), None, "/opt/reassert/reassert", policy()), lambda _: None, {})
