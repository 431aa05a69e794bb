"""What each product holds of tests/hostile-pod: a test runs one product and writes its result, and expects nothing.

A result in which the first case is not held is not written: then nothing starts, and a refusal says nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from e2e import hostile_pod
from e2e.conftest import directory, node
from e2e.cri.client import Cri, CriError, wait_for
from e2e.cri.images import HOSTILE, PAUSE, write_images
from e2e.cri.node import GENERATIONS, NRI_GENERATIONS, Generation, Handler, running
from e2e.hostile_pod import policy, suite
from e2e.nri.conftest import second_line
from e2e.nri.plugin import Plugin
from e2e.runtimes import NEWER, hook_entry, real_runtime
from e2e.test_gvisor import OPTIONS, RUNSC
from harness.node import Node
from harness.paths import ROOTS, RUNTIMES
from harness.tools import need, run

from lab.peers.results import RESULTS

BIN = Path(os.environ.get("REASSERT_PEERS", "/nowhere"))
__all__ = ["directory", "node"]

HALF = ("--half", os.environ.get("REASSERT_PEERS_HALF", "hostile"))
HOOK = """\
#!/usr/bin/python3
import json, os, sys
arguments = sys.argv[1:]
if "create" in arguments:
    path = arguments[arguments.index("--bundle") + 1] + "/config.json"
    spec = json.load(open(path))
    spec.setdefault("hooks", {{}}).setdefault("createRuntime", []).append({hook})
    json.dump(spec, open(path, "w"))
os.execv({real!r}, [{real!r}, *arguments])
"""
"""A runtime with a hook, as an administrator or an engine adds it to each config.json."""


def built(name: str) -> str:
    """Path of a program that Debian does not have."""
    if not os.access(BIN / name, os.X_OK):
        pytest.skip(f"{BIN}/{name} is not there")
    return str(BIN / name)


def commit(name: str) -> str:
    """What NAME.commit beside a program of BIN says that it was built of."""
    path = BIN / f"{name}.commit"
    return f" of {path.read_text().strip()}" if path.exists() else ""


def version(*command: str) -> str:
    """The first line that a program says of its version."""
    done = run(*command, check=False)
    return (done.stdout or done.stderr).splitlines()[0].strip()


def keep(node: Node, name: str, product: str, command: str, *arguments: str, setup: str = "") -> None:
    """Run the suite, and write the result. `command`: what a reader types; `setup`: what the product was told."""
    status, _, output = suite(node, *HALF, *arguments)
    cases = {case["id"]: case for case in json.loads(output[: output.rindex("}") + 1])["cases"]}
    if HALF[1] == "hostile":
        assert cases["HP-001"]["result"] == "held", cases["HP-001"]
    path = RESULTS / f"{name}.json"
    old = json.loads(path.read_text())["cases"] if path.exists() else {}
    ids = {**old, **{key: case["result"] for key, case in cases.items()}}
    written = {"product": product, "date": time.strftime("%Y-%m-%d"), "command": command, "setup": setup}
    RESULTS.mkdir(exist_ok=True)
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(result)}" for key, result in sorted(ids.items()))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in written.items())
    path.write_text(f'{{\n{head} "cases": {{\n{rows}\n }}\n}}\n')
    assert status in (0, 1, 2)


def script(node: Node, name: str, text: str) -> str:
    """An executable script of the node."""
    path = node.directory / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


# OCI runtimes and wrappers


@pytest.mark.parametrize("name", [*RUNTIMES, *(name for name in NEWER if "forky" in name)])
def test_runtime(node: Node, name: str) -> None:
    real = real_runtime(name, node.directory)
    program = name.partition("-")[0]
    keep(node, name, version(real, "--version"), f"--runtime {RUNTIMES[program]}", "--runtime", real)


def test_runsc(node: Node) -> None:
    need(os.access(RUNSC, os.X_OK), "runsc")
    real = script(node, "runsc", f'#!/bin/sh\nexec {RUNSC} {OPTIONS} "$@"\n')
    setup = f'`exec runsc {OPTIONS} "$@"` as runsc.sh'
    keep(node, "runsc", version(RUNSC, "--version"), "--runtime ./runsc.sh", "--runtime", real, setup=setup)


def test_youki(node: Node) -> None:
    real = built("youki")
    keep(node, "youki", version(real, "--version"), "--runtime youki", "--runtime", real)


def test_nvidia(node: Node) -> None:
    real = built("nvidia-container-runtime")
    config = node.directory / "nvidia-container-runtime"
    config.mkdir()
    (config / "config.toml").write_text(
        f'[nvidia-container-runtime]\nmode = "cdi"\nlog-level = "error"\nruntimes = ["{RUNTIMES["runc"]}"]\n'
    )
    wrapper = script(node, "nvidia", f'#!/bin/sh\nexport XDG_CONFIG_HOME={node.directory}\nexec {real} "$@"\n')
    product = f"nvidia-container-runtime{commit('nvidia-container-runtime')}, {version(RUNTIMES['runc'], '--version')}"
    keep(node, "nvidia", product, "--runtime nvidia-container-runtime", "--runtime", wrapper, setup='mode = "cdi"')


def test_oci_interceptor(node: Node) -> None:
    real = built("oci-interceptor")
    force = " ".join(f"--oi-env-force {name}={value}" for name, value in WANTED.items())
    options = f"--oi-runtime-path {RUNTIMES['runc']} {force}"
    wrapper = script(node, "interceptor", f'#!/bin/sh\nexec {real} {options} "$@"\n')
    product = f"oci-interceptor {version(real, '--oi-version').split()[-1]}, {version(RUNTIMES['runc'], '--version')}"
    setup = f'`exec oci-interceptor {force} "$@"` as interceptor.sh'
    keep(node, "oci-interceptor", product, "--runtime ./interceptor.sh", "--runtime", wrapper, setup=setup)


WANTED = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": hostile_pod.BUNDLE}
POLICY = "a policy that reserves these"


@pytest.mark.parametrize("name", RUNTIMES)
def test_reassert_as_wrapper(node: Node, name: str) -> None:
    node.compile(policy(node))
    product = f"reassert, wrapper, {version(RUNTIMES[name], '--version')}"
    command = f"--runtime ./reassert-{name}"
    setup = f"{POLICY}; `reassert dispatcher --real {RUNTIMES[name]} > reassert-{name}`"
    keep(node, f"reassert-wrapper-{name}", product, command, "--runtime", node.dispatcher(RUNTIMES[name]), setup=setup)


def test_reassert_as_hook(node: Node) -> None:
    """Of mounts and devices: a hook cannot set env, and refuses each container that needs it."""
    text = policy(node)
    node.compile(text[: text.index("    env:")] + text[text.index("    mounts:") :])
    expected = json.loads(hostile_pod.expectation(node).read_text())
    path = node.directory / "mounts-and-devices.json"
    path.write_text(json.dumps({**expected, "env": {}}))
    hook = hook_entry(node, "createRuntime")
    wrapper = script(node, "hooked", HOOK.format(hook=repr(hook), real=RUNTIMES["runc"]))
    setup = f"{POLICY} without env; `hooked` adds `reassert hook createRuntime` to config.json, and executes runc"
    product = f"reassert, hook alone, {version(RUNTIMES['runc'], '--version')}"
    keep(node, "reassert-hook", product, "--runtime ./hooked", "--runtime", wrapper, "--expect", str(path), setup=setup)


# Engines


@contextmanager
def containerd(node: Node, generation: Generation, handler: Handler) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A running one: its version, and the suite's options for it."""
    with running(node, generation, [handler]) as engine:
        socket = str(engine.directory / "containerd.sock")
        said = run(*engine.root.command("containerd", "--version")).stdout.split()
        options = ("--cri", socket, "--handler", handler.name, "--image", HOSTILE)
        yield f"containerd {said[2]}", (*options, "--cgroup-parent", engine.cri.cgroup_parent)


CRI = "--cri /run/containerd/containerd.sock --image example/hostile:1"
GENERATION = {**GENERATIONS, **NRI_GENERATIONS}


@pytest.mark.parametrize("name", GENERATION)
def test_containerd(node: Node, name: str) -> None:
    with containerd(node, GENERATION[name], Handler("runc", RUNTIMES["runc"])) as (said, options):
        keep(node, f"containerd-{name}", said, CRI, *options)


def test_reassert_under_containerd(node: Node) -> None:
    node.compile(policy(node))
    with containerd(node, GENERATION["1.6"], Handler("runc", node.dispatcher(RUNTIMES["runc"]))) as (said, options):
        keep(node, "reassert-containerd", f"reassert, wrapper, {said}", f"{CRI} --handler runc", *options, setup=POLICY)


def test_reassert_by_nri(node: Node) -> None:
    node.compile(policy(node))
    handler = Handler("runc", RUNTIMES["runc"], base_spec=second_line(node))
    with containerd(node, GENERATION["2.1"], handler) as (said, options):
        plugin = Plugin(node, node.directory / "containerd/nri.sock")
        try:
            keep(
                node, "reassert-nri", f"reassert, NRI and hook, {said}", f"{CRI} --handler runc", *options, setup=POLICY
            )
        finally:
            plugin.close()


def test_nri_samples(node: Node) -> None:
    programs = [built("nri-device-injector"), built("nri-ulimit-adjuster")]
    with (
        containerd(node, GENERATION["2.1"], Handler("runc", RUNTIMES["runc"])) as (said, options),
        ExitStack() as stack,
    ):
        for number, program in enumerate(programs):
            socket = str(node.directory / "containerd/nri.sock")
            command = [program, "-idx", f"{number + 10}", "-socket-path", socket, "-name", Path(program).name]
            child = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE))
            stack.callback(child.kill)
        keep(node, "nri-samples", f"NRI's device-injector and ulimit-adjuster{commit('nri')}, {said}", CRI, *options)


def test_podman(node: Node, directory: Path) -> None:
    need(shutil.which("podman") is not None, "podman")
    settings = directory / "containers.conf"
    settings.write_text(
        '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n'
        f'[engine]\nruntime = "crun"\n[engine.runtimes]\ncrun = ["{RUNTIMES["crun"]}"]\n'
    )
    stores = " ".join(f"--{kind} {directory}/{kind}" for kind in ("root", "runroot", "tmpdir"))
    podman = f"env CONTAINERS_CONF={settings} podman {stores} --storage-driver vfs --cgroup-manager cgroupfs"
    said = version("podman", "--version")
    keep(node, "podman", f"{said}, {version(RUNTIMES['crun'], '--version')}", "--docker podman", "--docker", podman)


@contextmanager
def dockerd(node: Node, runtime: str) -> Iterator[tuple[str, str]]:
    """Debian sid's docker in a root of its own: its version, and its command. `runtime`: of each container."""
    with running(node, Generation(ROOTS / "sid"), [Handler("runc", RUNTIMES["runc"])]) as engine:
        options = [f"--{kind}=/run/containerd/docker/{kind}" for kind in ("data-root", "exec-root", "pidfile")]
        options += [f"--containerd={engine.directory}/containerd.sock", f"--cgroup-parent={engine.cri.cgroup_parent}"]
        options += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        options += [f"--add-runtime=tried={runtime}", "--default-runtime=tried"]
        host = f"--host=unix://{engine.directory}/docker.sock"
        log = engine.directory / "dockerd.log"
        with (
            log.open("wb") as file,
            subprocess.Popen(engine.root.command("dockerd", host, *options), stdout=file, stderr=file) as daemon,
        ):
            docker = engine.root.command("docker", host)
            try:
                wait_for(lambda: run(*docker, "info", check=False).returncode == 0, "docker", log.read_text)
                yield version(*docker, "--version").partition(",")[0], " ".join(docker)
            finally:
                daemon.terminate()
                daemon.wait(60)


def test_docker(node: Node) -> None:
    with dockerd(node, RUNTIMES["runc"]) as (said, docker):
        keep(node, "docker", said, "--docker docker", "--docker", docker)


def test_reassert_under_docker(node: Node) -> None:
    node.compile(policy(node))
    with dockerd(node, node.dispatcher(RUNTIMES["runc"])) as (said, docker):
        keep(node, "reassert-docker", f"reassert, wrapper, {said}", "--docker docker", "--docker", docker, setup=POLICY)


CRIO = """\
[crio]
root = "{here}/root"
runroot = "/run/crio-tried"
log_dir = "{here}/logs"
storage_driver = "vfs"
version_file = "{here}/version"
version_file_persist = ""
clean_shutdown_file = ""
[crio.api]
listen = "{here}/crio.sock"
stream_address = "127.0.0.1"
[crio.image]
pause_image = "{pause}"
signature_policy = "{here}/policy.json"
[crio.network]
network_dir = "{here}/cni"
plugin_dirs = ["{here}/cni"]
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{here}/pinns"
namespaces_dir = "{here}/namespaces"
container_exits_dir = "{here}/exits"
container_attach_socket_dir = "{here}/attach"
default_runtime = "tried"
default_sysctls = []
[crio.runtime.runtimes.tried]
runtime_path = "{runtime}"
runtime_root = "/run/tried"
monitor_path = "/usr/bin/conmon"
"""


@contextmanager
def crio(node: Node, runtime: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """CRI-O, with Debian 12's conmon: its version, and the suite's options for it. `runtime`: of each container."""
    programs = {name: built(name) for name in ("crio", "pinns")}
    with running(node, GENERATIONS["1.6"], []) as engine:
        here = engine.directory / "crio"
        (here / "cni").mkdir(parents=True)
        for name, program in programs.items():
            shutil.copy(program, here / name)
        (here / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        config = here / "crio.conf"
        config.write_text(CRIO.format(here=here, pause=PAUSE, runtime=runtime))
        store = f"--root={here}/root --runroot=/run/crio-tried --storage-driver=vfs".split()
        for archive in write_images(here):
            run(*engine.root.command("podman", *store, "load", "--quiet", "--input", str(archive)))
        command = engine.root.command(
            str(here / "crio"), "--config", str(config), "--config-dir", "", "--disable-hostport-mapping"
        )
        log = here / "crio.log"
        cri = Cri(here / "crio.sock", engine.cri.cgroup_parent, node.directory / "crio-pods")
        with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as daemon:
            try:
                wait_for(lambda: answers(cri, daemon), "crio", log.read_text)
                options = ("--cri", str(here / "crio.sock"), "--image", HOSTILE)
                said = version(str(here / "crio"), "--version").replace("crio version", "CRI-O")
                yield f"{said}{commit('crio')}", (*options, "--cgroup-parent", engine.cri.cgroup_parent)
            finally:
                cri.close()
                daemon.terminate()
                daemon.wait(60)


def answers(cri: Cri, daemon: subprocess.Popen[bytes]) -> bool:
    """Whether a daemon, which runs, answers."""
    assert daemon.poll() is None
    try:
        return bool(cri.version())
    except CriError:
        return False


CRIO_COMMAND = CRI.replace("containerd/containerd", "crio/crio")


def test_crio(node: Node) -> None:
    with crio(node, RUNTIMES["runc"]) as (said, options):
        keep(node, "crio", f"{said}, {version(RUNTIMES['runc'], '--version')}", CRIO_COMMAND, *options)


def test_reassert_under_crio(node: Node) -> None:
    node.compile(policy(node))
    with crio(node, node.dispatcher(RUNTIMES["runc"])) as (said, options):
        keep(node, "reassert-crio", f"reassert, wrapper, {said}", CRIO_COMMAND, *options, setup=POLICY)
