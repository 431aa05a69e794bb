"""The runtime wrapper under the real podman."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.node import POLICY, WANTED, Node
from harness.tools import need, run, scratch

CRUN = "/usr/bin/crun"


@pytest.fixture
def node(compiled_node: Node) -> Node:
    """Here every test has the module's."""
    return compiled_node


LIMITS = ("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
"""Options that `podman run` needs on a machine without CAP_SYS_RESOURCE and cgroup delegation."""


class Podman:
    """The real podman with storage of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rootfs = Bundle(directory / "bundle").rootfs
        self.hooks = directory / "hooks"
        self.hooks.mkdir()
        self.settings = directory / "containers.conf"
        self.configure(CRUN)

    def configure(self, crun: str) -> None:
        """containers.conf(5): what podman runs as crun. Other names do not go with `--cgroups=disabled`."""
        self.settings.write_text(f'[engine]\nruntime = "crun"\n[engine.runtimes]\ncrun = ["{crun}"]\n')

    def command(self) -> tuple[str, ...]:
        """Its command line, with global options."""
        options = [f"--{name}={self.directory / name}" for name in ("root", "runroot", "tmpdir")]
        options += ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", f"--hooks-dir={self.hooks}"]
        return "env", f"CONTAINERS_CONF={self.settings}", "podman", *options

    def __call__(self, verb: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A podman command."""
        limits = ("--network=host", *LIMITS) if verb == "run" else ()
        return run(*self.command(), verb, *limits, *arguments, check=check, cwd="/")


@pytest.fixture(scope="module")
def working_podman() -> Iterator[Podman]:
    """A podman that works on this machine without reassert."""
    directory = scratch()
    podman = Podman(directory)
    need(shutil.which("podman") is not None, "podman")
    done = podman("run", "--rm", "--rootfs", str(podman.rootfs), "/bin/true", check=False)
    need(done.returncode == 0, f"what podman wants to run a container: {done.stderr}", installed=False)
    yield podman
    deadline = time.monotonic() + 10
    while directory.exists():  # podman's cleanup of the last container goes on behind its back
        shutil.rmtree(directory, ignore_errors=time.monotonic() < deadline)


@pytest.fixture
def podman(working_podman: Podman) -> Iterator[Podman]:
    yield working_podman
    working_podman.configure(CRUN)
    for file in working_podman.hooks.iterdir():
        file.unlink()


PODS_WISH = ("--env=REQUESTS_CA_BUNDLE=/tmp/evil", "--env=OTHER=stays", "--volume=/usr/share:/etc/ssl/certs")
LOOK = ("/bin/sh", "-c", "env; ls /etc/ssl/certs; grep ' /etc/ssl' /proc/self/mountinfo")


def assert_corrected(output: str) -> None:
    lines = output.splitlines()
    assert WANTED in lines
    assert "OTHER=stays" in lines
    assert "REQUESTS_CA_BUNDLE=/tmp/evil" not in lines
    assert "company.crt" in lines
    [mount] = [line for line in lines if " /etc/ssl" in line]
    assert mount.split()[4:6] == ["/etc/ssl", "ro,relatime"]


def test_podman_shows_a_refusal(podman: Podman, node: Node) -> None:
    node.compile(POLICY + "    onConflict: Deny\n")
    podman.configure(node.dispatcher(CRUN))
    done = podman("run", "--rm", *PODS_WISH, "--rootfs", str(podman.rootfs), *LOOK, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "reassert: refused" in done.stderr
    assert node.logged()[-1]["event"] == "container.denied"


@marks.claim("env", "runtime")
@marks.claim("mounts", "runtime")
def test_podman_over_the_wrapper_corrects_run_and_exec(podman: Podman, node: Node) -> None:
    podman.configure(node.dispatcher(CRUN))
    name = "over-the-wrapper"
    podman("run", "--detach", "--name", name, *PODS_WISH, "--rootfs", str(podman.rootfs), "/bin/sleep", "60")
    try:
        assert_corrected(podman("exec", name, *LOOK).stdout)
        assert_corrected(podman("exec", "--env=REQUESTS_CA_BUNDLE=/tmp/evil", name, *LOOK).stdout)
    finally:
        podman("rm", "--force", "--time=0", name, check=False)
    [event] = node.logged()
    assert event["adapter"] == "runtime"


@marks.claim("exclusion", "runtime")
@marks.hole("An image's annotations (podman) or docker's `--cgroup-parent` made a container an excluded sandbox")
@pytest.mark.parametrize("manager", ["libpod", "cri-o"])
def test_annotations_of_podmans_user_or_image_exclude_nothing(podman: Podman, node: Node, manager: str) -> None:
    """Podman copies those of an image's manifest to where --annotation goes, and keeps an io.container.manager."""
    node.compile(POLICY.replace("[kube-system]", "[kube-system], containerTypes: [sandbox]"))
    podman.configure(node.dispatcher(CRUN))
    said = {
        "io.container.manager": manager,
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.pod.namespace": "kube-system",
    }
    notes = [f"--annotation={key}={value}" for key, value in said.items()]
    assert_corrected(podman("run", "--rm", *notes, *PODS_WISH, "--rootfs", str(podman.rootfs), *LOOK).stdout)
    [event] = node.logged()
    assert event["event"] == "container.edited"


@marks.claim("exclusion", "runtime")
def test_podmans_infra_container_starts_with_what_is_reserved(podman: Podman, node: Node) -> None:
    """It is no sandbox to `exclude`: only its annotations say so, and any image has those."""
    node.compile(POLICY.replace("[kube-system]", "[kube-system], containerTypes: [sandbox]"))
    archive = node.directory / "infra.tar"
    run("tar", "-C", str(podman.rootfs), "-cf", str(archive), ".")
    podman("import", str(archive), "infra:1")
    podman.configure(node.dispatcher(CRUN))
    with podman.settings.open("a") as file:
        file.write('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n')
    infra = ("--share=ipc", "--infra-image=localhost/infra:1", "--infra-command=/bin/sleep 60")
    try:
        podman("pod", "create", "--name=with-infra", *infra)
        podman("pod", "start", "with-infra")
        [state] = podman("ps", "--filter=pod=with-infra", "--format={{.State}}").stdout.splitlines()
        assert state.startswith(("Up", "running"))
    finally:
        podman("pod", "rm", "--force", "--time=0", "with-infra", check=False)
        podman("rmi", "--force", "localhost/infra:1", check=False)
    [event] = node.logged()
    assert event["event"] == "container.edited"
