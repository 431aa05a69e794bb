"""Install and uninstall where docker, podman and containerd have gVisor's runsc beside runc."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache

import marks
import pytest
from harness.tools import need

from e2e.cri.client import CriError
from e2e.cri.hostile import ENV as HOSTILE_ENV
from e2e.cri.hostile import OVERRIDDEN, RESERVED, reserved_in
from e2e.node.booted import BootedNode
from e2e.node.commands import ENV, SHOW, Engine, runsc_files
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, FORMATS, RUNC, Handler, containerd_config, handler_config
from e2e.node.files import differences
from e2e.node.wired import COMPANY, PACKAGED, Wirable, audited, package, with_program_and_images
from e2e.node.wired import FILES as CONTAINERD_FILES

ARGUMENTS = ["--platform=ptrace", "--network=none", "--ignore-cgroups"]
FILES = {**COMPANY, **runsc_files(ARGUMENTS, **{"storage-driver": "vfs"})}
TOPS = ("/etc", "/opt", "/usr/local")
MOUNTED = ("sh", "-c", f"{SHOW[-1]}; grep ' /etc/ssl ' /proc/mounts | cut -d ' ' -f 3,4 | cut -d , -f 1")
LEFT_ALONE = "/tmp/evil\ncerts\n"
CORRECTED = "/etc/ssl/certs/ca-certificates.crt\ncompany.crt\n9p ro\n"

pytestmark = pytest.mark.usefixtures("owner_of_null")


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with both engines and with runsc, which is one static program."""
    node = module_boot("bookworm", files=FILES, docker=True, images=False)
    return with_program_and_images(with_runsc(node), "docker", "podman")


def with_runsc(node: BootedNode) -> BootedNode:
    """The node, with the machine's runsc, and a script before it."""
    need(os.access("/usr/bin/runsc", os.X_OK), "runsc")
    shutil.copy("/usr/bin/runsc", node.directory / "runsc")
    node.run("install", str(node.directory / "runsc"), "/usr/bin/runsc")
    node.run("chmod", "755", "/usr/local/bin/runsc-here")
    return node


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_handler_of_runsc_is_wired_and_unwired(node: BootedNode, name: str) -> None:
    """`verify` tries a runsc of docker and of podman in test_today.py."""
    engine = Engine(node, name, "--runtime=runsc")
    before = node.snapshot(TOPS)
    assert engine.run("--rm", command=MOUNTED) == LEFT_ALONE
    said = engine.install("--no-probe")
    try:
        assert "runsc" in said
        assert engine.run("--rm", command=MOUNTED) == CORRECTED
        engine.run("--detach", "--name=stays", command=("sleep", "1000"))
        assert engine("exec", ENV, "stays", *MOUNTED) == CORRECTED
        assert audited(node)["stays"] == (name, "unknown")
        explained = node.run(PACKAGED, "explain", "stays").stdout
        assert "already what the policy wants. gVisor's kernel makes the mounts" in explained
        engine("rm", "--force", "stays")
    finally:
        engine.reassert("uninstall")
    assert differences(before, node.snapshot(TOPS)) == []
    assert engine.run("--rm", command=MOUNTED) == LEFT_ALONE


GVISOR = Handler("gvisor", 'BinaryName = "/usr/local/bin/runsc-here"', "untrusted pods", more="")


@pytest.fixture(scope="module")
def pods(module_boot: Boot) -> Callable[[str], BootedNode]:
    """The node of a suite, with containerd 1.7 or 2.1, whose runc.v2 shim calls runsc for one handler."""
    script = f"""#!/bin/sh
# As boot.sh has it for runc, where root may not lower oom_score_adj.
before=
for argument; do
  # The tests' pause waits for a FIFO, of which gVisor has none of an image.
  [ "$before" != --bundle ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/
    s:read forever [^"]*":exec /bin/busybox sleep 1000000":' "$argument/config.json"
  # The gofer that it makes for a pod's second container keeps the shim's pipe open, and the shim would wait for it.
  [ "$argument" != start ] || exec > /dev/null 2>&1
  # The process of each container is the sandbox's to this shim, which waits for its end.
  [ "$argument" != kill ] || {{ kill -KILL "$(cat "$bundle/init.pid")"; exit; }}
  [ "$before" != --log ] || bundle=${{argument%/*}}
  before=$argument
done
exec /usr/bin/runsc {" ".join(ARGUMENTS)} "$@"
"""
    files = {**CONTAINERD_FILES, "/usr/local/bin/runsc-here": script}

    @cache
    def of(suite: str) -> BootedNode:
        node = with_runsc(module_boot(suite, config=containerd_config(FORMATS[suite], (RUNC, GVISOR)), files=files))
        package(node)
        return node

    return of


@marks.claim("env", "runtime", "nri")
@marks.claim("exec", "runtime", "nri")
@marks.claim("mounts", "runtime", "nri")
@marks.claim("unsafe-annotations", "nri")
@pytest.mark.parametrize(
    ("suite", "adapters"),
    [("forky", "runtime"), ("forky", "nri"), ("trixie", "nri,runtime")],
)
def test_a_pod_of_gvisor_under_containerd_gets_what_the_node_reserves(
    pods: Callable[[str], BootedNode], suite: str, adapters: str
) -> None:
    """With `nri` alone the second line, base_runtime_spec's hook, reads config.json."""
    node = Wirable(pods(suite), pods(suite).snapshot(), PACKAGED)
    evil = node.booted.directory / "evil"
    evil.mkdir(exist_ok=True)

    def seen(handler: str = "gvisor") -> tuple[dict[str, str], dict[str, str], str, str]:
        pod = node.hostile_pod(handler)
        try:
            # With both, NRI refuses a name that is there twice (docs/internals/nri.md).
            env = list(dict(HOSTILE_ENV).items()) if adapters == "nri,runtime" else HOSTILE_ENV
            container = pod.run(env=env, mounts=[(str(evil), "/etc/ssl")])
            first, executed = (container.exec("/bin/cat", f"/proc/{pid}/environ") for pid in ("1", "self"))
            [mount] = [row for row in container.exec("/bin/cat", "/proc/mounts").splitlines() if " /etc/ssl" in row]
            listed = container.exec("/bin/ls", "/etc/ssl").strip()
            return reserved_in(first.split("\0")), reserved_in(executed.split("\0")), listed, mount.split()[3][:2]
        finally:
            pod.remove()

    assert (seen()[0], seen()[3]) == (OVERRIDDEN, "rw")
    node.install("--adapter", adapters, "--no-probe")  # verify starts what the probes would
    try:
        wanted = {**OVERRIDDEN, **RESERVED}
        assert seen() == (wanted, wanted, "company.crt", "ro")
        assert seen("runc") == (wanted, wanted, "company.crt", "ro")
        if "," not in adapters:  # each alone
            found = node.verify()
            results = {name: handler["result"] for name, handler in found.items()}
            assert results == {"gvisor": "protected", "runc": "protected"}
            if adapters == "runtime":  # with reserved mounts, no start of gVisor is warm
                assert found["gvisor"]["starts"] == {"warm": "not tried", "cold": "protected"}
        if adapters == "nri":  # it is asked about no sandbox, where the annotation would count
            pod = node.booted.cri.run_pod("gvisor", annotations={"dev.gvisor.spec.mount.ca.type": "tmpfs"})
            with pytest.raises(CriError, match=r"dev\.gvisor\.spec\.mount\.ca\.type steers a runtime"):
                pod.create()
            pod.remove()
    finally:
        node.take_out()


@pytest.mark.parametrize("suite", ["forky"])
def test_the_file_of_gvisors_own_shim_gets_a_dispatcher_and_is_restored(
    pods: Callable[[str], BootedNode], suite: str
) -> None:
    """Debian has no containerd-shim-runsc-v1, so no pod is started: the file's edit and its way back are tried."""
    booted = pods(suite)
    path = booted.path("/etc/containerd/runsc.toml")
    theirs = '# gVisor\nbinary_name = "/usr/local/bin/runsc-here" # ours\n[runsc_config]\n  platform = "ptrace"\n'
    path.write_text(theirs)
    config = booted.path(CONFIG)
    before = config.read_text()
    shim = Handler("sandboxed", 'ConfigPath = "/etc/containerd/runsc.toml"', "gVisor", type="io.containerd.runsc.v1")
    config.write_text(before + handler_config(FORMATS[suite], shim))
    node = Wirable(booted, booted.snapshot(), PACKAGED)
    try:
        node.install("--no-probe")
        ours = theirs.replace("/usr/local/bin/runsc-here", "/opt/reassert/reassert-runsc-here")
        assert path.read_text() == ours
        assert "--hook /dev/null" in booted.path("/opt/reassert/reassert-runsc-here").read_text()
        assert node.status()[1]["sandboxed"] == ["runtime"]
        path.write_text(ours + "  debug = true\n")
        node.take_out()
        assert path.read_text() == theirs + "  debug = true\n"
        path.write_text(theirs)
        assert node.status()[1]["sandboxed"] == []
    finally:
        node.take_out()
        config.write_text(before)
        path.unlink()
