"""`reassert hook precreate`, run alone and called by the real podman: config.json from stdin to stdout.

The runtime wrapper under podman is tested here too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.runtimes import hook_entry
from e2e.support import POLICY, REASSERT, WANTED, Bundle, Node, need, run, scratch
from hook.core.policy import store
from hook.node.engines.base import Handler
from hook.node.probe.containers import ContainerStarter
from hook.node.probe.verify import examine

CRUN = "/usr/bin/crun"


def precreate(node: Node, config: str, *flags: str, status: int = 0) -> tuple[str, str]:
    """Standard output and standard error of the hook."""
    done = run(str(REASSERT), "hook", *flags, *node.options(), "precreate", input=config, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def node(compiled_node: Node) -> Node:
    """Here every test has the module's."""
    return compiled_node


def hostile_config(bundle: Bundle) -> str:
    """config.json of a container that sets what is reserved, with fields that nobody knows."""
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=/tmp/evil", "PYTHONHTTPSVERIFY=0", "OTHER=stays"]
    (bundle.directory / "certs").mkdir(exist_ok=True)
    bundle.bind(bundle.directory / "certs", "/etc/ssl/certs")
    bundle.spec["root"]["path"] = str(bundle.rootfs)  # as podman has it
    bundle.spec["x-unknown"] = {"a": [1.50, "é", None]}
    return json.dumps(bundle.spec, ensure_ascii=False, indent=3)


def test_env_and_mounts_are_corrected_and_everything_else_is_kept(node: Node, bundle: Bundle) -> None:
    text = hostile_config(bundle)
    output, errors = precreate(node, text)
    assert errors == ""
    corrected: dict[str, Any] = json.loads(output)
    assert corrected["process"].pop("env") == ["PATH=/bin", WANTED, "OTHER=stays"]
    mounts = corrected.pop("mounts")
    assert mounts[-1]["destination"] == "/etc/ssl"
    assert mounts[:-1] == bundle.spec["mounts"][:-1]
    bundle.spec["process"].pop("env")
    bundle.spec.pop("mounts")
    [hook] = corrected.pop("hooks")["createRuntime"]
    assert hook["args"][1:3] == ["hook", "--handed-on"]
    decision = json.loads(corrected.pop("annotations")["reassert/decision"])
    assert corrected == bundle.spec
    assert '"a": [\n         1.5,\n         "é",\n' in output
    assert node.logged() == [], "the hook writes it, after it has looked"
    assert (decision["event"]["event"], decision["event"]["adapter"]) == ("container.edited", "precreate")


def test_a_corrected_config_passes_byte_by_byte(node: Node, bundle: Bundle) -> None:
    once, _ = precreate(node, hostile_config(bundle))
    twice, _ = precreate(node, once)  # there is nothing left to be told
    assert {**json.loads(twice), "annotations": None} == {**json.loads(once), "annotations": None}
    assert precreate(node, twice) == (twice, "")
    assert node.logged() == []


def test_with_failure_policy_ignore_it_is_refused_all_the_same(node: Node) -> None:
    texts = ("", "garbage", "[]", '{"process": {"env": {}}}')
    node.compile(POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    for text in texts:
        output, errors = precreate(node, text, status=1)
        assert (output, errors.count("\n")) == ("", 1)
        assert "the config.json on stdin" in errors
    node.compile(POLICY.replace("spec:", "spec:\n  mode: Audit", 1))
    for text in texts:
        assert precreate(node, text)[0] == text
        assert node.logged()[-1]["event"] == "container.would-deny"


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


def hooked(podman: Podman, node: Node, stage: str = "precreate") -> None:
    """An oci-hooks 1.0.0 file for a stage; precreate is podman's (containers/common, oci-hooks.5.md)."""
    entry = {"version": "1.0.0", "hook": hook_entry(node, stage), "when": {"always": True}, "stages": [stage]}
    (podman.hooks / "reassert.json").write_text(json.dumps(entry))


def assert_corrected(output: str) -> None:
    lines = output.splitlines()
    assert WANTED in lines
    assert "OTHER=stays" in lines
    assert "REQUESTS_CA_BUNDLE=/tmp/evil" not in lines
    assert "company.crt" in lines
    [mount] = [line for line in lines if " /etc/ssl" in line]
    assert mount.split()[4:6] == ["/etc/ssl", "ro,relatime"]


def test_podmans_precreate_hook_corrects_the_container(podman: Podman, node: Node) -> None:
    hooked(podman, node)
    assert_corrected(podman("run", "--rm", *PODS_WISH, "--rootfs", str(podman.rootfs), *LOOK).stdout)
    [event] = node.logged()
    assert event["adapter"] == "precreate"


def test_podman_shows_a_refusal(podman: Podman, node: Node) -> None:
    node.compile(POLICY + "    onConflict: Deny\n")
    hooked(podman, node)
    done = podman("run", "--rm", *PODS_WISH, "--rootfs", str(podman.rootfs), *LOOK, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert node.logged()[-1]["event"] == "container.denied"


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


def test_verify_finds_that_precreate_does_not_reach_exec(podman: Podman, node: Node) -> None:
    hooked(podman, node)
    starter = ContainerStarter("podman", podman.command(), LIMITS)
    try:
        policy = store.load(str(node.policy), str(node.store))
        [finding], _ = examine([Handler("crun", CRUN, ())], policy, starter)
    finally:
        starter.close()
    assert podman("ps", "--all", "--quiet").stdout + podman("images", "--all", "--quiet").stdout == ""
    assert (finding.result, finding.executed) == ("not protected", "not protected")
    assert finding.saw[:2] == [
        "executed in it: env REQUESTS_CA_BUNDLE is reassert-verify-pod, "
        "the policy wants /etc/ssl/certs/ca-certificates.crt",
        "executed in it: env PYTHONHTTPSVERIFY is there, the policy wants it absent",
    ]
