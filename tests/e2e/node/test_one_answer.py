"""No two commands disagree about a booted node: with kata's handler, and with a container that docker started past it.

tests/unit/node/test_one_answer.py breaks a node in other ways.
"""

from __future__ import annotations

import json
from typing import Any

import marks
import pytest

from e2e.cri.hostile import ENV
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, RUNC, containerd_config
from e2e.node.wired import COMPANY, FILES, KATA, PACKAGED, package, with_program_and_images

pytestmark = marks.promise("No two commands disagree about a node", about="Node")

DOCKERS = [option for name, value in ENV for option in ("--env", f"{name}={value}")]


def said(node: BootedNode, *arguments: str) -> tuple[int, Any]:
    done = node.run(PACKAGED, *arguments, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout) if "json" in arguments else done.stdout


SAME = ("doctor",), ("node", "status")
"""Other names of `status --all` and of `status`."""


def errors(node: BootedNode, *more: tuple[str, ...]) -> tuple[int, set[str]]:
    """The exit status and the parts with an error, of which every command has the same. `more`: those asked too."""
    found: dict[str, tuple[int, set[str]]] = {}
    for command in (("status",), ("status", "--all"), *more):
        status, told = said(node, *command, "-o", "json")
        parts = {each["part"] for each in told["findings"] if each["severity"] == "error"}
        found[" ".join(command)] = status, parts
        assert told["exitStatus"] == status
    node.run(PACKAGED, "status", "--record")
    kept = json.loads(node.path("/var/lib/reassert/node.json").read_text())
    found["--record"] = found["status"][0], {each["part"] for each in kept["findings"] if each["severity"] == "error"}
    assert len({(status, *sorted(parts)) for status, parts in found.values()}) == 1, found
    reason = said(node, "status", "-o", "condition")[1].partition(" ")[0]
    assert (reason == "NotReady") == (found["status"][0] == 1)
    return found["status"]


def test_a_handler_that_cannot_be_wired_is_an_error_everywhere_until_it_is_accepted(module_boot: Boot) -> None:
    node = module_boot("forky", config=containerd_config(FORMATS["forky"], (RUNC, KATA)), files=FILES)
    package(node)
    node.wait_for_cri()
    done = node.run(PACKAGED, "install", "--engine", "containerd", "--no-probe")
    assert "WARNING: containerd: containers of kata start without reassert" in done.stdout
    assert errors(node, *SAME) == (1, {"handler/kata"})
    options = ("--engine", "containerd", "--except", "way/*", "--except", "warm/*", "--except", "rule/*")
    status, told = said(node, "verify", *options, "-o", "json")
    assert (status, [each["part"] for each in told["notTried"] if not each["accepted"]]) == (1, ["handler/kata"])
    assert errors(node) == (1, {"handler/kata"}), "once, though two commands found it"
    assert node.run(PACKAGED, "install", "--engine", "containerd", "--except", "handler/kata").returncode == 0
    assert errors(node) == (0, set())
    assert said(node, "verify", *options)[0] == 0
    assert errors(node) == (0, set())
    status, told = said(node, "status", "-o", "json")
    assert (status, told["verify"]["containerd"]["exitStatus"]) == (0, 0)
    assert "handler/kata" in told["verify"]["containerd"]["notTried"]


@pytest.fixture(scope="module")
def docker(module_boot: Boot) -> BootedNode:
    daemon = json.dumps({"runtimes": {"crun": {"path": "/usr/bin/crun"}}})
    files = {"/etc/docker/daemon.json": daemon, **COMPANY}
    return with_program_and_images(module_boot("bookworm", files=files, docker=True, images=False), "docker")


def test_a_container_that_docker_started_past_reassert_is_an_error_everywhere(docker: BootedNode) -> None:
    run = ("docker", "run", "--detach", "--network=host", *DOCKERS)
    docker.run(*run, "--name=before", HOSTILE)
    docker.run(PACKAGED, "install", "--engine", "docker", "--no-probe")
    assert errors(docker) == (1, {"handler/runc", "handler/buildkit"})
    accepted = ("--except", "handler/runc", "--except", "handler/buildkit")
    docker.run(PACKAGED, "install", "--engine", "docker", "--no-probe", *accepted)
    status, told = said(docker, "status", "-o", "json")
    assert (status, told["problems"]) == (4, [])
    assert any("created before the install: before" in text for text in told["remarks"]), told["remarks"]
    assert said(docker, "audit")[0] == 4, "the same as status"
    docker.run(*run, "--name=right", HOSTILE)
    assert errors(docker) == (4, set())
    docker.run(*run, "--name=past", "--runtime=runc", HOSTILE)
    status, told = said(docker, "status", "-o", "json")
    assert status == 4, "by a handler that was accepted by name"
    assert any("by handler runc, which is not wired: past" in text for text in told["remarks"]), told["remarks"]
    docker.run(PACKAGED, "install", "--engine", "docker", "--no-probe", "--except", "")
    assert errors(docker, *SAME) == (1, {"handler/runc", "handler/buildkit", "containers"})
    status, told = said(docker, "audit", "-o", "json")
    assert status == 1
    states = {
        each["title"]: (each["state"], {one["severity"] for one in each["differences"]}) for each in told["containers"]
    }
    assert states == {"before": ("drifted", {"warning"}), "past": ("drifted", {"error"}), "right": ("in policy", set())}
    docker.run("docker", "rm", "--force", "past")
    assert errors(docker) == (1, {"handler/runc", "handler/buildkit"}), "it has ended"
