"""docs/sandboxes.md: containers whose only way out is a real proxy that intercepts TLS, under docker and podman."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import marks
import pytest

from e2e.cri.images import PLAIN, write_images
from e2e.sandboxes.outside import PASSWORD, PORTS, url
from e2e.sandboxes.world import CLIENTS, HOSTILE, HOSTILE_ENV, PROXY_NAMES, WHOLE, World, world
from e2e.trust.images import answers

pytestmark = marks.promise(
    "With the example of an egress proxy, clients in containers of docker and podman use a real intercepting "
    "proxy and trust its CA alone, in a hostile image and job too",
    about="Trust store",
)

RUNTIMES = [("docker", ""), ("podman", "crun")]
if WHOLE:
    RUNTIMES += [("docker", "crun"), ("podman", "runc"), ("docker", "runsc"), ("podman", "runsc")]


@pytest.fixture(scope="module")
def before() -> Iterator[World]:
    """Not wired."""
    with world() as made:
        yield made


@pytest.fixture(scope="module")
def wired(before: World) -> World:
    before.wire()
    return before


def tried(world: World, engine: str, runtime: str, *options: str, **more: str) -> dict[str, dict[str, bool]]:
    """By client: with which proxies it trusts the server."""
    done = world.container(engine, runtime, *options, **more)
    print(done.stdout, done.stderr)  # pytest shows it if the test fails
    assert "\ndone\n" in done.stdout, done.stderr
    assert "past: curl: (7) " in done.stdout
    found = answers(done.stdout)
    return {f"{client['name']} {client['version']}": found[str(number)] for number, client in enumerate(CLIENTS)}


def expected(trusts: Callable[[dict[str, Any]], Iterable[str]]) -> dict[str, dict[str, bool]]:
    """The same where each client trusts the server with some proxies, and those that cannot use one with none."""
    found = {}
    for client in CLIENTS:
        trusted = () if client["through"].startswith("no") else trusts(client)
        found[f"{client['name']} {client['version']}"] = {name: name in trusted for name in PORTS}
    return found


def test_without_it_clients_trust_what_the_image_does(before: World) -> None:
    """dockerd's own runc is never wired (docs/engines.md)."""
    proxy = [f"--env={name}={url('proxy')}" for name in PROXY_NAMES]
    found = tried(before, "docker", "runc", *proxy, "--env=NODE_USE_ENV_PROXY=1")
    assert found == expected(lambda client: () if client.get("roots") else ("attacker", "public"))


@pytest.mark.parametrize(("engine", "runtime"), RUNTIMES)
def test_hostile_image_and_job_trust_the_proxy_alone(engine: str, runtime: str, wired: World) -> None:
    options = [f"--env={each}" for each in HOSTILE_ENV]
    options += [f"--env={name}={url('attacker')}" for name in PROXY_NAMES]
    options += ["--env=NO_PROXY=*", "--tmpfs=/etc/ssl/certs"]
    found = tried(wired, engine, runtime, *options, image=HOSTILE)
    assert found == expected(lambda _: ["proxy"])
    [event] = wired.events()
    assert {"HTTPS_PROXY", "NODE_EXTRA_CA_CERTS"} < {edit["name"] for edit in event["edits"]}
    assert PASSWORD not in json.dumps(event)


if WHOLE:
    DOCKERFILE = f"FROM {PLAIN}\nRUN echo proxy=$HTTPS_PROXY; ls /etc/ssl/certs\n"
    COMPOSE = f"""
version: "2.4"
services:
  job: {{image: "{PLAIN}", network_mode: host, entrypoint: [sh, -c, "echo proxy=$$HTTPS_PROXY; ls /etc/ssl/certs"]}}
"""

    @pytest.fixture(scope="module")
    def project(wired: World) -> World:
        """A directory with a Dockerfile and a file of docker-compose."""
        directory = wired.node.path("/root/project")
        directory.mkdir()
        (directory / "Dockerfile").write_text(DOCKERFILE)
        (directory / "docker-compose.yml").write_text(COMPOSE)
        for archive in write_images(wired.node.directory):
            for engine in ("docker", "podman"):
                wired.node.run(engine, "load", "--input", str(archive))
        return wired

    @pytest.mark.parametrize(
        ("command", "reached"),
        [
            ("docker build --no-cache --network=host .", True),
            ("DOCKER_BUILDKIT=1 docker build --no-cache --progress=plain --network=host . 2>&1", False),
            ("podman --cgroup-manager=cgroupfs build --no-cache --network=host .", True),
            ("podman --cgroup-manager=cgroupfs build --no-cache --network=host --isolation=oci .", True),
            ("docker-compose up", True),
        ],
    )
    def test_builds_and_compose(command: str, reached: bool, project: World) -> None:
        done = project.node.run("sh", "-c", f"cd /root/project && {command}")
        assert (f"proxy={url('proxy')}" in done.stdout, "added.pem" in done.stdout) == (reached, reached), done
