"""Install and uninstall with dockerd of Debian 12 (20.10): wired and unwired by a reload, containers run on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import marks
import pytest
from harness.tools import cleaned

from e2e.cri.client import wait_for
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.files import differences
from e2e.node.wired import PACKAGED, audited, with_program_and_images
from hook.node.engines.base import BYPASSES

pytestmark = marks.promise(
    "Install wires every handler, tests it, and restarts no container; uninstall restores every byte"
)

DAEMON_JSON = "/etc/docker/daemon.json"
ADMINISTRATORS = """{
    "log-level": "warn",
    "runtimes": {
        "crun": { "path": "/usr/bin/crun" },
        "crun-debug": { "path": "crun", "runtimeArgs": [ "--debug" ] }
    },
    "bridge": "none", "iptables": false, "ip-forward": false,
    "storage-driver": "vfs"
}
"""
"""daemon.json as an administrator wrote it, by hand."""

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
"""
TOPS = ("/etc", "/opt", "/usr/local")
ENV = "REQUESTS_CA_BUNDLE=/tmp/evil"
WANTED = "/etc/ssl/certs/ca-certificates.crt\n"
SHOW = ("sh", "-c", "echo $REQUESTS_CA_BUNDLE")


class Docker:
    """The node's docker, by its own command."""

    def __init__(self, node: BootedNode) -> None:
        self.node = node

    def __call__(self, *arguments: str, check: bool = True) -> str:
        done = self.node.run("docker", *arguments, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def probe(self, *options: str) -> str:
        """What a container's process sees of the reserved name."""
        return self(
            "run", "--rm", *options, "--network=host", "--env", ENV, "--entrypoint", SHOW[0], HOSTILE, *SHOW[1:]
        )

    def start(self, name: str, *options: str) -> None:
        """A container that stays."""
        self("run", "--detach", "--name", name, *options, "--network=host", "--env", ENV, HOSTILE)

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("info", "--format", "{{json .}}"))
        return found

    def runtimes(self) -> dict[str, str]:
        """Paths by name, but for dockerd's own aliases of runc, which 20.10 forgets at any reload."""
        return {name: entry["path"] for name, entry in self.info()["Runtimes"].items() if not name.startswith("io.")}

    def pid(self) -> str:
        return self.node.property("docker.service", "MainPID")


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with docker, a policy, and a daemon.json."""
    files = {DAEMON_JSON: ADMINISTRATORS, "/etc/reassert/policy.yaml": POLICY}
    return with_program_and_images(module_boot("bookworm", files=files, docker=True, images=False), "docker")


def reassert(node: BootedNode, *arguments: str, check: bool = True) -> str:
    cannot_be_wired = ("--except", "handler/runc", "--except", "handler/buildkit")
    accepted = cannot_be_wired if arguments[0] == "install" else ()
    done = node.run(PACKAGED, *arguments, *accepted, "--engine", "docker", check=check)
    return done.stdout + done.stderr


@pytest.fixture
def docker(node: BootedNode) -> Iterator[Docker]:
    """Without reassert, before and after."""
    docker = Docker(node)
    yield docker
    docker("rm", "--force", *docker("ps", "--all", "--quiet").split(), check=False)
    reassert(node, "uninstall", check=False)
    node.path(DAEMON_JSON).write_text(ADMINISTRATORS)
    node.run("systemctl", "kill", "--signal=HUP", "--kill-who=main", "docker")
    loaded = {"crun", "crun-debug"}
    cleaned("dockerd's runtimes", lambda: wait_for(lambda: loaded < {*docker.info()["Runtimes"]}, "dockerd's reload"))


def test_reload_wires_it_and_containers_run_on(docker: Docker) -> None:
    docker.start("before")
    assert docker.probe() == "/tmp/evil\n"
    was = docker.pid()
    said = reassert(docker.node, "install")
    assert "docker 20.10" in said
    assert (docker.pid(), docker("ps", "--format", "{{.Names}}")) == (was, "before\n")
    info = docker.info()
    assert info["DefaultRuntime"] == "reassert"
    assert info["Runtimes"]["reassert"]["path"] == "/opt/reassert/reassert-runc"
    assert info["Runtimes"]["crun"]["path"] == "/opt/reassert/reassert-crun"
    assert docker.probe() == WANTED
    assert docker.probe("--runtime=crun") == WANTED
    assert docker.probe("--runtime=crun-debug") == WANTED
    docker.start("during")
    assert docker("exec", "--env", ENV, "during", *SHOW) == WANTED
    assert audited(docker.node) == {"before": ("docker", "drifted"), "during": ("docker", "in policy")}
    assert docker.probe("--runtime=runc") == "/tmp/evil\n"
    [bypass] = [line for line in reassert(docker.node, "status", check=False).splitlines() if BYPASSES in line]
    assert bypass.split()[:6] == ["docker", "20.10.24", "runc", "-", "no", "-"], bypass
    docker("restart", "--time=0", "before")  # made with runc, which stays what it is


@marks.promise(
    "`status` and `install` go by what the engine has loaded, and a timer logs each handler that stops being wired"
)
@marks.hole("`status` was green where the engine had loaded other settings than its files")
def test_what_dockerd_has_not_loaded_is_not_wired(docker: Docker) -> None:
    """daemon.json as it was before install while dockerd reloads, then as install wrote it."""
    reassert(docker.node, "install", "--no-probe")
    path, status = docker.node.path(DAEMON_JSON), ("status", "--engine", "docker", "-o", "json")
    wired = path.read_text()
    path.write_text(json.dumps({**json.loads(ADMINISTRATORS), "default-runtime": "runc"}))
    docker.node.run("systemctl", "kill", "--signal=HUP", "--kill-who=main", "docker")
    wait_for(lambda: "reassert" not in docker.info()["Runtimes"], "dockerd's reload")
    path.write_text(wired)
    assert docker.probe() == "/tmp/evil\n"
    found = docker.node.run(PACKAGED, *status, check=False)
    said = [each for each in json.loads(found.stdout)["findings"] if each["severity"] == "error"]
    assert "handler/reassert" in {each["part"] for each in said}
    assert all("runs with other settings than its files say; the install reloads it" in each["text"] for each in said)
    assert (found.returncode, {each["remedy"] for each in said}) == (1, {"reassert install"})
    handlers = {each["name"]: each["wired"] for each in json.loads(found.stdout)["engines"]["docker"]["handlers"]}
    assert not any(handlers.values())
    assert "no file was changed" not in reassert(docker.node, "install", "--no-probe")
    assert docker.probe() == WANTED
    assert docker.node.run(PACKAGED, *status).returncode == 0


def test_uninstall_leaves_every_byte_and_every_container(docker: Docker) -> None:
    docker.start("before")
    before = docker.node.snapshot(TOPS)
    runtimes = docker.runtimes()
    reassert(docker.node, "install", "--no-probe")
    docker.start("during")
    pid = docker.pid()
    said = reassert(docker.node, "uninstall")
    assert "Note: 1 container created with the runtime reassert cannot be started again" in said
    assert said.splitlines()[0].endswith(": during")
    assert (docker.info()["DefaultRuntime"], docker.runtimes()) == ("runc", runtimes)
    assert docker.pid() == pid
    assert docker.probe() == "/tmp/evil\n"
    assert "/opt/reassert/reassert-runc: it stays" in said
    docker("exec", "during", "true")
    assert "reassert" in docker("restart", "--time=0", "during", check=False)
    docker("rm", "--force", "during")
    reassert(docker.node, "uninstall")
    assert differences(before, docker.node.snapshot(TOPS)) == []


def test_without_a_daemon_json_there_is_none_afterwards(docker: Docker) -> None:
    node = docker.node
    node.path(DAEMON_JSON).unlink()
    reassert(node, "install", "--no-probe")
    assert docker.info()["DefaultRuntime"] == "reassert"
    reassert(node, "uninstall")
    assert not node.path(DAEMON_JSON).exists()
    assert docker.info()["DefaultRuntime"] == "runc"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{\n  "bridge": "none",\n}', ":3:1: Expecting property name"),
        ('{"runtimes": {"reassert": {"path": "/usr/bin/crun"}}}', "has a runtime reassert that is not ours"),
    ],
)
def test_daemon_json_that_cannot_be_wired_stays_as_it_is(docker: Docker, text: str, complaint: str) -> None:
    file = docker.node.path(DAEMON_JSON)
    file.write_text(text)
    said = reassert(docker.node, "install", "--no-probe", check=False)
    assert complaint in said
    assert DAEMON_JSON in said
    assert "Traceback" not in said
    assert file.read_text() == text
    assert docker.info()["DefaultRuntime"] == "runc"


def test_what_dockerd_does_not_take_over_is_put_back(docker: Docker) -> None:
    """Its unit has -H, so dockerd refuses the whole file for its `hosts`; 20.10 cannot say so without a reload."""
    file = docker.node.path(DAEMON_JSON)
    file.write_text('{"hosts": ["unix:///run/another.sock"], ' + ADMINISTRATORS.lstrip("{"))
    before = docker.node.snapshot(TOPS)
    said = reassert(docker.node, "install", "--no-probe", check=False)
    assert "docker 20.10.24 did not apply the runtimes" in said
    assert "Everything is as it was before." in said, said.splitlines()
    assert differences(before, docker.node.snapshot(TOPS)) == []
    assert docker.info()["DefaultRuntime"] == "runc"


def test_named_runtime_only(docker: Docker) -> None:
    reassert(docker.node, "install", "--no-probe", "--runtime-class", "held")
    info = docker.info()
    assert info["DefaultRuntime"] == "runc"
    assert info["Runtimes"]["crun"]["path"] == "/usr/bin/crun"
    assert (docker.probe(), docker.probe("--runtime=held")) == ("/tmp/evil\n", WANTED)
    said = reassert(docker.node, "install", "--no-probe", "--runtime-class", "runc", check=False)
    assert "--runtime-class runc: dockerd reserves this name" in said


def test_later_edits_of_an_administrator_survive_uninstall(docker: Docker) -> None:
    file = docker.node.path(DAEMON_JSON)
    reassert(docker.node, "install", "--no-probe")
    edited = json.loads(file.read_text())
    edited["log-level"] = "error"
    edited["runtimes"]["crun-debug"]["path"] = "/usr/bin/crun"
    file.write_text(json.dumps(edited, indent=4))
    reassert(docker.node, "uninstall")
    wanted = json.loads(ADMINISTRATORS)
    wanted["log-level"] = "error"
    wanted["runtimes"]["crun-debug"]["path"] = "/usr/bin/crun"
    assert json.loads(file.read_text()) == wanted
    assert docker.info()["Runtimes"]["crun"]["path"] == "/usr/bin/crun"


def test_a_container_between_its_creation_and_its_start_outlives_uninstall(docker: Docker) -> None:
    """`docker run` creates one, with its runtime's name, and then starts it."""
    reassert(docker.node, "install", "--no-probe")
    docker("create", "--name", "new", "--network=host", "--env", ENV, HOSTILE)
    command = docker.node.command(PACKAGED, "uninstall", "--engine", "docker")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as uninstall:
        wait_for(lambda: docker.info()["DefaultRuntime"] == "runc", "the first reload")
        docker("start", "new")
        said, _ = uninstall.communicate(timeout=600)
    assert uninstall.returncode == 0, said
    assert set(docker.runtimes()) == {"runc", "crun", "crun-debug"}
    assert docker("exec", "--env", ENV, "new", *SHOW) == "/tmp/evil\n"


def test_containers_of_before_are_named(docker: Docker) -> None:
    docker("create", "--name", "before", "--network=host", "--env", ENV, HOSTILE)
    docker.start("crun", "--runtime=crun")
    past = "1 container created with dockerd's runc: each start bypasses reassert until the container is recreated"
    assert f"Note: {past}: before\n" in reassert(docker.node, "install", "--no-probe")
    found = json.loads(reassert(docker.node, "status", "--output=json", check=False))
    assert (found["problems"], f"docker: {past}: before" in found["remarks"]) == ([], True)
