"""`restore` of checkpoints that criu has really made. What every runtime's restore is refused for: test_verbs.py.

criu is that of build/roots/forky. Debian builds crun without criu before trixie, and needs libcriu2 for it.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import marks
import pytest
from harness import proc
from harness.bundle import Bundle
from harness.node import POLICY, WANTED, Node
from harness.tools import run

from e2e.runtimes import criu, hook_entry, real_runtime
from e2e.test_podman import Podman, podman, working_podman  # noqa: F401  # fixtures
from hook.core.base.text import WHERE_TO_LOOK

EACH = ("runc", "runc-trixie", "runc-forky", "crun-forky")
EVIL = "REQUESTS_CA_BUNDLE=/tmp/evil"
NOTHING = POLICY.replace("[kube-system]", "[default]")
SANDBOX = POLICY.replace("{namespaces: [kube-system]}", "{containerTypes: [sandbox]}")
IMAGE = POLICY.replace("- name: company-ca\n", "- name: company-ca\n    match: {images: [example.org/*]}\n")
REASON = "a restored container has the env and mounts of its checkpoint, which reassert cannot correct"


@pytest.fixture(autouse=True)
def path(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """criu in PATH."""
    monkeypatch.setenv("PATH", f"{criu(node.directory).parent}:/usr/sbin:/usr/bin:/sbin:/bin")


def quiet(bundle: Bundle, *command: str) -> tuple[int, str]:
    """Exit status and standard error. The process of a `create` gets no file of the node: criu could not restore it."""
    said = bundle.directory / "said"
    with said.open("w") as stderr:
        output = subprocess.DEVNULL if "create" in command else stderr
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            timeout=600,
            check=False,
            cwd=bundle.directory,
        )
    return done.returncode, said.read_text()


def files(bundle: Bundle, runtime: str) -> list[str]:
    """Where a checkpoint is. Without cgroups: where a machine has v1 and v2, criu would copy all of the v2 tree."""
    image = ["--image-path", f"{bundle.directory}/image", "--work-path", str(bundle.directory)]
    return [*image, "--manage-cgroups-mode", "ignore"] if "crun" in runtime else image


@pytest.fixture(params=EACH)
def real(request: pytest.FixtureRequest, node: Node, bundle: Bundle) -> str:
    """A runtime, and in the bundle a checkpoint of a container with env of its own."""
    real = real_runtime(request.param, node.directory)
    bundle.pod()
    linux = bundle.spec["linux"]
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]  # needs no iptables then
    name = "t-" + uuid.uuid4().hex[:12]
    linux["cgroupsPath"] = f"/{name}"
    settings = node.directory / "criu.conf"
    settings.write_text("manage-cgroups=ignore\n")  # no option of runc before 1.2
    bundle.spec["annotations"]["org.criu.config"] = str(settings)
    bundle.spec["process"]["env"].append(EVIL)
    bundle.save()
    for line in (
        ["create", "--bundle", str(bundle.directory), name],
        ["start", name],
        ["checkpoint", *files(bundle, real), name],
    ):
        status, said = quiet(bundle, real, *line)
        assert status == 0, f"{line}: {said[-2000:]}"
    bundle.spec["process"]["env"][-1] = WANTED
    bundle.save()
    return real


@contextmanager
def restored(runtime: str, bundle: Bundle) -> Iterator[tuple[str, list[str]]]:
    """What a restore says, and the env of the process that it makes: [] without one."""
    name, pid_file = "t-" + uuid.uuid4().hex[:12], bundle.directory / "pid"
    pid_file.unlink(missing_ok=True)
    where = ["--bundle", str(bundle.directory), "--pid-file", str(pid_file), *files(bundle, runtime)]
    status, said = quiet(bundle, runtime, "restore", *where, "--detach", name)
    try:
        yield said, [] if status else proc.read_environ(Path(f"/proc/{pid_file.read_text()}"))
    finally:
        run(runtime, "delete", "--force", name, check=False)


@marks.claim("restore", "runtime")
@marks.cve("CVE-2026-53492")
@marks.hole("`restore` started a container with the env and mounts of its checkpoint, under crun without an event")
def test_wrapper_refuses_the_restore_of_a_real_checkpoint(node: Node, bundle: Bundle, real: str) -> None:
    with restored(real, bundle) as (said, environ):
        assert EVIL in environ and WANTED not in environ, said
    wrapper = node.dispatcher(real)
    node.compile()
    with restored(wrapper, bundle) as (said, environ):
        assert (environ, said) == ([], f"reassert: refused default/p/c: rule company-ca: {REASON}{WHERE_TO_LOOK}\n")
    assert [event["event"] for event in node.logged()] == ["container.denied"]
    node.compile(NOTHING)
    with restored(wrapper, bundle) as (said, environ):
        assert EVIL in environ, said
    assert len(node.logged()) == 1


@marks.claim("restore", "hook")
def test_hook_refuses_it_under_runc_and_crun_calls_no_hook(node: Node, bundle: Bundle, real: str) -> None:
    node.compile()
    bundle.spec["hooks"] = {"createRuntime": [hook_entry(node, "createRuntime")]}
    bundle.save()
    with restored(real, bundle) as (said, environ):
        if "crun" in real:
            assert (EVIL in environ, node.logged()) == (True, [])
        else:
            assert (environ, REASON in said) == ([], True), said
            assert [event["event"] for event in node.logged()] == ["container.denied"]


@marks.hole(
    "Under CRI-O, a checkpoint that called itself a sandbox, or another image, was restored with its own env "
    "and mounts",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("policy", [SANDBOX, IMAGE], ids=["sandbox", "image"])
def test_under_cri_o_a_checkpoint_cannot_say_what_it_is(node: Node, bundle: Bundle, real: str, policy: str) -> None:
    """CRI-O writes the checkpoint's annotations over its own, and kubelet's labels over both."""
    labels = {"pod.namespace": "default", "pod.name": "p", "pod.uid": "1-2", "container.name": "c"}
    forged = {
        "cri-o.ContainerType": "sandbox" if policy == SANDBOX else "container",
        "cri-o.Image": "example.com/other:1",
    }
    bundle.spec["annotations"] |= {f"io.kubernetes.{key}": value for key, value in {**forged, **labels}.items()}
    bundle.spec["linux"]["cgroupsPath"] = f"/crio-{'0' * 64}"
    bundle.save()
    node.compile(policy)
    with restored(node.dispatcher(real), bundle) as (said, environ):
        assert (environ, said) == ([], f"reassert: refused default/p/c: rule company-ca: {REASON}{WHERE_TO_LOOK}\n")
    assert [event["event"] for event in node.logged()] == ["container.denied"]
    if "crun" not in real:  # which calls no hook
        bundle.spec["hooks"] = {"createRuntime": [hook_entry(node, "createRuntime")]}
        bundle.save()
        with restored(real, bundle) as (said, environ):
            assert (environ, REASON in said) == ([], True), said


STAND_IN = """#!/bin/sh
case " $* " in
*" checkpoint "*)
  for word; do
    case $last in
    --image-path) mkdir -p "$word" && touch "$word/inventory.img" ;;
    --work-path) touch "$word/dump.log" ;;
    esac
    last=$word
  done
  exec /usr/bin/crun kill "$last" KILL
  ;;
*" restore "*)
  echo "$*" >> LOG
  exit 1
  ;;
esac
exec /usr/bin/crun "$@"
"""
"""crun, as podman sees one that is built with criu. What it is asked to restore is written down."""


@marks.claim("restore", "runtime")
@pytest.mark.parametrize("rules", ["reserved", "none"])
def test_podman_cannot_import_a_checkpoint_where_something_is_reserved(
    podman: Podman,  # noqa: F811  # that fixture
    node: Node,
    rules: str,
) -> None:
    log, real, archive = node.directory / "log.txt", node.directory / "crun", node.directory / "x.tar"
    real.write_text(STAND_IN.replace("LOG", str(log)))
    real.chmod(0o755)
    podman.configure(str(real))
    image = node.directory / "image.tar"
    run("tar", "-C", str(podman.rootfs), "-cf", str(image), ".")
    podman("import", str(image), "image:1")
    node.compile(POLICY if rules == "reserved" else POLICY.partition("  rules:")[0] + "  rules: []\n")
    try:
        podman("run", "--detach", "--name=v", f"--env={EVIL}", "localhost/image:1", "/bin/sleep", "60")
        podman("container", "checkpoint", "--compress=none", f"--export={archive}", "v")
        podman("rm", "--force", "--time=0", "v")
        podman.configure(node.dispatcher(str(real)))
        done = podman("container", "restore", f"--import={archive}", "--name=w", check=False)
        assert done.returncode != 0
        assert (REASON in done.stderr, log.exists()) == ((True, False) if rules == "reserved" else (False, True))
    finally:
        podman("rm", "--all", "--force", "--time=0", check=False)
        podman("rmi", "--force", "localhost/image:1", check=False)
