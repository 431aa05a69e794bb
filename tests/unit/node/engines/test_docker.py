"""What the command line of dockerd forbids. How a real dockerd is wired and asked is tests/e2e/node/test_docker.py."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import marks
import pytest

from hook.entry.dispatcher import DISPATCHER_MARK
from hook.node.change.files import State
from hook.node.engines.base import RUNTIME, Choice, Wiring
from hook.node.engines.docker import CONFIG, DROP_IN, Builder, Docker, DockerConfig
from hook.node.errors import NodeError
from unit.node.engines.table import Table
from unit.ownmachine import Machine
from unit.support import policy

pytestmark = marks.promise(
    "With any configuration of an engine, only the intended settings change, or install says why not"
)

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


def configured(values: dict[str, Any], *arguments: str, programs: tuple[str, ...] = ("runc", "crun")) -> DockerConfig:
    """A daemon.json, on a node with these programs in /usr/bin."""
    state = State(json.dumps(values).encode()) if values else None
    return DockerConfig.of(CONFIG, state, [*arguments], Table([f"/usr/bin/{name}" for name in programs]))


def wire(config: DockerConfig) -> Wiring:
    choice = Choice((RUNTIME,), None, "/opt/reassert/reassert", policy())
    return config.wire(choice, lambda _: config.state, {})


def test_a_runtime_that_is_not_installed_decides_about_nothing_else() -> None:
    """Six of eighteen public daemon.json files name one: they are written before nvidia's runtime is installed."""
    gone = {"nvidia": {"path": "/usr/bin/gone-runtime"}, "kata": {"path": "kata-gone"}}
    config = configured({"runtimes": {**gone, "crun": {"path": "/usr/bin/crun"}}})
    assert {handler.name: (handler.note, handler.is_installed) for handler in config.handlers({})} == {
        "runc": ("the default", True),
        "nvidia": ("not installed", False),
        "kata": ("not installed", False),
        "crun": ("", True),
    }
    wiring = wire(config)
    [(_, state)] = wiring.references
    assert state is not None
    runtimes = json.loads(state.content)["runtimes"]
    assert {name: runtimes[name] for name in gone} == gone
    assert runtimes["crun"]["path"].endswith("/reassert-crun")
    assert sum("not installed" in remark for remark in wiring.remarks) == 2


def test_a_default_runtime_that_is_not_installed_is_a_warning() -> None:
    values = {"runtimes": {"nvidia": {"path": "/usr/bin/gone-runtime"}}, "default-runtime": "nvidia"}
    assert configured(values).warnings() == [
        "the default runtime nvidia calls /usr/bin/gone-runtime, which is not installed"
    ]


@pytest.mark.parametrize("flag", ["--add-runtime", "--default-runtime"])
def test_a_daemon_whose_command_line_says_it_too_is_left_alone(flag: str) -> None:
    """It would refuse the file, at its next start at the latest."""
    with pytest.raises(NodeError, match=f"^dockerd was started with {flag}, and then refuses the same setting in "):
        wire(configured({}, "dockerd", "-H", "fd://", f"{flag}=crun"))


def test_an_edited_file_keeps_what_was_edited_and_loses_ours() -> None:
    config = configured({"debug": True})
    wiring = wire(config)
    [(path, state)] = wiring.references
    assert state is not None
    edited = json.dumps({**json.loads(state.content), "debug": False}).encode()
    left = DockerConfig.strip(path, edited, wiring.notes)
    assert left is not None
    assert json.loads(left) == {"debug": False}
    assert DockerConfig.strip(path, state.content.replace(b'"debug": true,', b""), wiring.notes) is None


DISPATCHER = "/opt/reassert/reassert-runc"


def building(builder: Builder, texts: dict[str, str] | None = None) -> DockerConfig:
    """A wired docker of which BuildKit is this."""
    dispatcher = f'#!/bin/sh\n{DISPATCHER_MARK}\nexec /usr/bin/runc "$@"\n'
    there = Table(["/usr/bin/runc", "/usr/bin/sysbox-runc"], {DISPATCHER: dispatcher, **(texts or {})})
    there.programs.add(DISPATCHER)
    values = {"runtimes": {"reassert": {"path": DISPATCHER}}, "default-runtime": "reassert"}
    return DockerConfig.of(CONFIG, State(json.dumps(values).encode()), ["dockerd"], there, builder)


NEW = Builder("runc", can_be_told=True, has_unit=True)
WRITTEN = f"# written by reassert; do not edit\n[Service]\nEnvironment=DOCKER_BUILDKIT_RUNC_COMMAND={DISPATCHER}\n"


@pytest.mark.parametrize(
    ("builder", "texts", "wired", "note", "remedy"),
    [
        (replace(NEW, calls=DISPATCHER), {}, ("runtime",), "RUN steps of docker build", ""),
        (replace(NEW, calls=""), {DROP_IN: WRITTEN}, ("runtime",), "RUN steps of docker build", ""),
        (NEW, {DROP_IN: WRITTEN}, (), "when it starts", "systemctl restart docker.service"),
        (NEW, {}, (), "RUN steps of docker build", ""),
        (replace(NEW, calls="sysbox-runc"), {}, (), "RUN steps of docker build", ""),
        (replace(NEW, has_unit=False), {}, (), "dockerd is no unit of systemd", ""),
        (replace(NEW, can_be_told=False), {}, (), "BuildKit calls runc itself before docker 26.0", ""),
    ],
)
def test_buildkit_is_wired_when_the_running_dockerd_calls_a_dispatcher(
    builder: Builder, texts: dict[str, str], wired: tuple[str, ...], note: str, remedy: str
) -> None:
    [handler] = [each for each in building(builder, texts).handlers({}) if each.name == "buildkit"]
    assert (handler.wired, handler.remedy) == (wired, remedy)
    assert note in handler.note


@pytest.mark.parametrize(
    ("builder", "dispatcher"),
    [
        (NEW, DISPATCHER),
        (replace(NEW, calls=DISPATCHER), DISPATCHER),
        (replace(NEW, calls="/opt/reassert/gone"), DISPATCHER),
        (replace(NEW, calls="sysbox-runc"), "/opt/reassert/reassert-sysbox-runc"),
    ],
)
def test_the_drop_in_has_a_dispatcher_for_what_buildkit_calls(builder: Builder, dispatcher: str) -> None:
    config = building(builder)
    wiring = config.wire(Choice((RUNTIME,), None, "/opt/reassert/reassert", policy()), lambda path: None, {})
    written = dict(wiring.references)[DROP_IN]
    assert written
    assert written.content.decode() == WRITTEN.replace(DISPATCHER, dispatcher)
    assert any("systemctl restart docker" in each for each in wiring.remarks) == (builder.calls != dispatcher)
    assert DockerConfig.strip(DROP_IN, b"[Service]\nNice=1\n", wiring.notes) is None


@pytest.mark.parametrize("builder", [replace(NEW, has_unit=False), replace(NEW, can_be_told=False)])
def test_where_buildkit_cannot_be_told_install_says_so(builder: Builder) -> None:
    wiring = wire(building(builder))
    assert DROP_IN not in dict(wiring.references)
    assert any("RUN steps of docker build with BuildKit bypass reassert" in remark for remark in wiring.remarks)


def test_one_runtime_of_its_own_leaves_builds_alone() -> None:
    config = building(NEW)
    choice = Choice((RUNTIME,), "sandbox", "/opt/reassert/reassert", policy())
    assert DROP_IN not in dict(config.wire(choice, lambda _: config.state, {}).references)
