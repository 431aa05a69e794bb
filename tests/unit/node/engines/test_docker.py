"""What the command line of dockerd forbids. How a real dockerd is wired and asked is tests/e2e/node/test_docker.py."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from hook.node.engines.base import RUNTIME, Choice
from hook.node.engines.docker import Docker
from hook.node.errors import NodeError
from unit.ownmachine import Machine
from unit.support import policy

ANSWERS = {
    "/containers/json?all=1": [{"Id": "a"}, {"Id": "gone"}, {"Id": "b"}],
    "/containers/a/json": {"Name": "/a", "HostConfig": {"Runtime": "reassert"}},
    "/containers/b/json": {"Name": "/b", "HostConfig": {"Runtime": "runc"}},
}


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the library's name
        found = ANSWERS.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found or {"message": "No such container"}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def daemon(machine: Machine) -> Iterator[Machine]:
    """dockerd runs, and has three containers, of which one goes while they are looked at."""
    machine.program("dockerd", "echo Docker version 24.0.1, build x")
    machine.daemon("docker.service", "dockerd", "-H", "fd://")
    with socketserver.UnixStreamServer("/run/docker.sock", Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield machine
        server.shutdown()
        thread.join()


def test_a_container_that_goes_while_all_are_looked_at_is_no_error(daemon: Machine) -> None:
    engine = Docker.find()
    [said] = engine.uninstall_notes(engine.read, {"created": "reassert"})
    assert said.startswith("1 container created with the runtime reassert")
    assert said.endswith(": a")


@pytest.mark.parametrize("flag", ["--add-runtime", "--default-runtime"])
def test_a_daemon_whose_command_line_says_it_too_is_left_alone(daemon: Machine, flag: str) -> None:
    """It would refuse the file, at its next start at the latest."""
    daemon.daemon("docker.service", "dockerd", "-H", "fd://", f"{flag}=crun")
    engine = Docker.find()
    with pytest.raises(NodeError, match=f"^dockerd was started with {flag}, and then refuses the same setting in "):
        engine.wire(engine.read(), Choice((RUNTIME,), None, "/opt/reassert/reassert", policy()), lambda _: None, {})
    assert not Path("/etc/docker").exists()
