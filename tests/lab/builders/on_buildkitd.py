"""A real buildkitd (tests/lab/builders/run.sh) of the node, with the wrapper as `[worker.oci] binary`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.conftest import node
from e2e.cri.client import wait_for
from e2e.node.test_builds import base, steps
from harness import proc
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import run

__all__ = ["node"]

PROGRAMS = Path(os.environ["REASSERT_TEST_BUILDERS"])
FROM = "FROM scratch\nADD base.tar /\nENV REQUESTS_CA_BUNDLE=/tmp/evil\n"
SHOW = "RUN echo ca=$REQUESTS_CA_BUNDLE; ls /etc/ssl; cat /etc/ssl/certs/company.crt\n"
WANTED = {"ca=/etc/ssl/certs/ca-certificates.crt", "certs", "company"}


class Buildkit:
    """The daemon, and builds by its client."""

    def __init__(self, node: Node) -> None:
        self.node, self.directory = node, node.directory / "buildkit"
        self.root, self.context = self.directory / "root", self.directory / "context"
        self.context.mkdir(parents=True)
        (self.context / "base.tar").write_bytes(base("etc"))
        (self.directory / "secret").write_text("hidden\n")
        self.address = f"unix://{self.directory}/sock"
        self.config = self.directory / "buildkitd.toml"
        runtime = node.dispatcher(RUNTIMES["runc"])
        self.config.write_text(
            f'root = "{self.root}"\n[grpc]\naddress = ["{self.address}"]\n[worker.containerd]\nenabled = false\n'
            f'[worker.oci]\nbinary = "{runtime}"\nsnapshotter = "native"\ngc = false\n'
        )

    def line(self, dockerfile: str, *options: str) -> list[str]:
        (self.context / "Dockerfile").write_text(dockerfile)
        return [
            *(str(PROGRAMS / "buildctl"), "--addr", self.address, "build", "--progress=plain", "--no-cache"),
            *("--frontend=dockerfile.v0", f"--local=context={self.context}", f"--local=dockerfile={self.context}"),
            *("--opt=force-network-mode=host", "--allow=network.host", *options),
        ]

    def build(self, dockerfile: str, *options: str) -> set[str]:
        """The lines that it prints, without the step's number and seconds."""
        done = subprocess.run(self.line(dockerfile, *options), capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return {line.split(" ", 2)[-1] for line in said.splitlines()}

    def traces(self) -> set[str]:
        """Mounts below its directory, containers of runc, and bundles."""
        points = [mount.point for mount in proc.read_mounts(below=str(self.directory))]
        containers = run("runc", "list", "--quiet").stdout.split()
        bundles = [str(path) for path in (self.root / "runc-native/executor").glob("*/")]
        return {*points, *containers, *bundles}


@pytest.fixture
def buildkit(node: Node) -> Iterator[Buildkit]:
    node.compile()
    made = Buildkit(node)
    line = [str(PROGRAMS / "buildkitd"), "--config", str(made.config), "--allow-insecure-entitlement=network.host"]
    with (made.directory / "log").open("w") as log, subprocess.Popen(line, stdout=log, stderr=log) as daemon:
        debug = [str(PROGRAMS / "buildctl"), "--addr", made.address, "debug", "workers"]
        wait_for(lambda: not run(*debug, check=False).returncode, "buildkitd", (made.directory / "log").read_text)
        yield made
        daemon.terminate()


def test_a_run_step_has_the_nodes_values_and_a_secret(buildkit: Buildkit) -> None:
    secret = "RUN --mount=type=secret,id=token cat /run/secrets/token\n"
    said = buildkit.build(FROM + SHOW + secret, f"--secret=id=token,src={buildkit.directory}/secret")
    assert {*WANTED, "hidden"} <= said


def test_the_image_has_nothing_of_them(buildkit: Buildkit) -> None:
    out = buildkit.directory / "out"
    buildkit.build(FROM + SHOW + "RUN echo made > /made\n", f"--output=type=local,dest={out}")
    assert (out / "made").exists()
    assert not (out / "etc/ssl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_cancelled_build_leaves_nothing(buildkit: Buildkit, number: int) -> None:
    assert buildkit.build(FROM + SHOW) >= WANTED
    before, token = buildkit.traces(), f"step-of-{buildkit.node.directory.name}"
    with subprocess.Popen(
        buildkit.line(f"{FROM}RUN sleep 1000; : {token}\n"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as client:
        wait_for(lambda: bool(steps(token)), "the step begins", lambda: f"the build: {client.poll()}")
        client.send_signal(number)
        client.wait(60)
    wait_for(lambda: not steps(token), "the step ends")
    wait_for(lambda: buildkit.traces() == before, "nothing is left", lambda: str(buildkit.traces() ^ before))
    assert buildkit.build(FROM + SHOW) >= WANTED
