"""Install and uninstall with the real podman of Debian 12 (4.3): names of runtimes redirected, CDI, ordinary users."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import marks
import pytest
from harness.tools import cleaned

from e2e.cri.client import wait_for
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.files import differences
from e2e.node.wired import COMPANY, PACKAGED, audited, with_program_and_images

pytestmark = marks.promise(
    "Install wires every handler, tests it, and restarts no container; uninstall restores every byte"
)

DROP_IN = "/etc/containers/containers.conf.d/reassert.conf"
EVENTS = "/var/log/reassert/events.jsonl"
TOPS = ("/etc", "/opt", "/usr/local")
ENV = "--env=REQUESTS_CA_BUNDLE=/tmp/evil"
LIMITS = ("--network=host", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
SHOW = ("sh", "-c", "echo $REQUESTS_CA_BUNDLE; ls /etc/ssl")
LEFT_ALONE, CORRECTED = "/tmp/evil\ncerts\n", "/etc/ssl/certs/ca-certificates.crt\ncompany.crt\n"


class Podman:
    """The node's podman."""

    def __init__(self, node: BootedNode) -> None:
        self.node = node

    def __call__(self, *arguments: str, check: bool = True) -> str:
        done = self.node.run("podman", "--cgroup-manager=cgroupfs", *arguments, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def probe(self, *options: str, check: bool = True) -> str:
        """What a container's process sees of what is reserved. `options`: global ones, and after `run` its own."""
        at = options.index("run") if "run" in options else len(options)
        before, after = options[:at], options[at + 1 :]
        return self(*before, "run", "--rm", *LIMITS, ENV, *after, "--entrypoint=", HOSTILE, *SHOW, check=check)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on."""
        command = self.node.command("podman", "--cgroup-manager=cgroupfs", *arguments)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def start(self, name: str) -> None:
        """A container that stays."""
        self("run", "--detach", "--name", name, *LIMITS, ENV, HOSTILE)


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with podman and a policy."""
    return with_program_and_images(module_boot("bookworm", files=COMPANY, images=False), "podman")


def reassert(node: BootedNode, *arguments: str, check: bool = True) -> str:
    done = node.run(PACKAGED, *arguments, "--engine", "podman", check=check)
    return done.stdout + done.stderr


@pytest.fixture
def podman(node: BootedNode) -> Iterator[Podman]:
    """Without reassert, before and after."""
    podman = Podman(node)
    yield podman
    cleaned("podman's containers", lambda: podman("rm", "--all", "--force", "--time=0"))
    reassert(node, "uninstall")


def test_names_lead_to_dispatchers_and_back_for_every_container(podman: Podman) -> None:
    before = podman.node.snapshot(TOPS)
    assert podman.probe() == LEFT_ALONE
    podman.start("before")
    reassert(podman.node, "install", "--no-probe")
    podman.start("during")
    assert podman.probe() == CORRECTED
    assert podman.probe("--runtime=runc", "run") == CORRECTED
    assert podman("exec", ENV, "during", *SHOW) == CORRECTED
    assert podman("exec", "before", *SHOW) == LEFT_ALONE  # nothing was decided when it was made
    assert audited(podman.node) == {"before": ("podman", "drifted"), "during": ("podman", "in policy")}
    podman("restart", "--time=0", "before")
    assert podman("exec", "before", *SHOW) == CORRECTED
    assert "no file was changed" in reassert(podman.node, "install", "--no-probe")
    reassert(podman.node, "uninstall")
    assert differences(before, podman.node.snapshot(TOPS)) == []
    assert podman("exec", ENV, "during", *SHOW).startswith("/tmp/evil\n")
    podman("restart", "--time=0", "during")
    assert podman("exec", "during", *SHOW) == LEFT_ALONE
    podman("rm", "--force", "--time=0", "during")


@marks.claim("outage", "runtime")
def test_dispatcher_that_is_gone_stops_containers(podman: Podman) -> None:
    """podman would else take what it finds under the name in PATH."""
    reassert(podman.node, "install", "--no-probe")
    podman.node.path("/opt/reassert/reassert-podman-crun").unlink()
    said = podman.probe(check=False)
    assert f"Runtime path {DROP_IN} is not valid" in said
    assert "certs" not in said


def test_ordinary_users_containers_are_their_own(podman: Podman) -> None:
    """They read the same files, and neither the policy's store nor the event log."""
    node = podman.node
    home = "/home/u"
    places = " ".join(f"{home}/{path}" for path in ("run", "r/bin", "r/etc", "r/proc", "r/sys", "r/dev", "r/tmp"))
    node.run("sh", "-c", f"mkdir -p {places} && cp /bin/busybox {home}/r/bin && chown -R nobody: {home}")
    # A machine in a machine has parts of /proc hidden, and then the kernel lets no user mount another one.
    as_user = ["unshare", "--mount", "--propagation=shared", "sh", "-c", 'mount -t proc proc /proc; exec "$@"', "-"]
    as_user += ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--inh-caps=-all"]
    as_user += ["env", f"HOME={home}", f"XDG_RUNTIME_DIR={home}/run", "sh", "-c", 'cd; exec "$@"', "-"]
    user = [
        *as_user,
        "podman",
        "--cgroup-manager=cgroupfs",
        "--storage-driver=vfs",
        "run",
        "--rm",
        "--cgroups=disabled",
    ]
    user += [*LIMITS, ENV, "--rootfs", f"{home}/r", "/bin/busybox", "sh", "-c", SHOW[2].partition(";")[0]]
    reassert(node, "install", "--no-probe")
    assert node.run(*user).stdout == "/tmp/evil\n"
    assert podman.probe() == CORRECTED


def test_commands_that_run_keep_what_they_read(podman: Podman) -> None:
    """One that starts a container is waited for; for one that stays as long as its container a dispatcher does too."""
    node = podman.node
    before = node.snapshot(TOPS)
    reassert(node, "install", "--no-probe")
    options = ("run", "--rm", *LIMITS, ENV)
    node.run("touch", "/run/wait")
    # A hook that is somebody else's takes its time between podman's look at its files and its call of the runtime.
    hooks = node.path("/usr/share/containers/oci/hooks.d")
    hooks.mkdir(parents=True, exist_ok=True)
    hook = {
        "path": "/bin/sh",
        "args": ["sh", "-c", "touch /run/began; while [ -e /run/wait ]; do sleep 0.05; done; cat"],
    }
    entry = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["precreate"]}
    (hooks / "slow.json").write_text(json.dumps(entry))
    slow = podman.popen(*options, "--entrypoint=", HOSTILE, *SHOW)
    try:
        wait_for(node.path("/run/began").exists, "the hook")
        uninstall = subprocess.Popen(node.command(PACKAGED, "uninstall"), stdout=subprocess.PIPE, text=True)
        wait_for(lambda: not node.path(DROP_IN).exists(), "the drop-in's removal")
        node.path("/run/wait").unlink()
        assert slow.communicate(timeout=600)[0] == CORRECTED
    finally:
        (hooks / "slow.json").unlink()
    assert "still call" not in uninstall.communicate(timeout=600)[0]
    assert uninstall.returncode == 0
    assert differences(before, node.snapshot(TOPS)) == []


def test_hooks_that_an_administrator_configured_stay(podman: Podman) -> None:
    node = podman.node
    hooks = node.path("/etc/hooks")
    hooks.mkdir()
    hook = {"path": "/bin/sh", "args": ["sh", "-c", "date > /run/hooked; cat"]}
    entry = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["precreate"]}
    (hooks / "theirs.json").write_text(json.dumps(entry))
    drop_ins = node.path("/etc/containers/containers.conf.d")
    drop_ins.mkdir(exist_ok=True)
    (drop_ins / "10-theirs.conf").write_text('[engine]\nhooks_dir = ["/etc/hooks"]\n')
    try:
        reassert(node, "install", "--no-probe")
        assert podman.probe() == CORRECTED
        assert node.path("/run/hooked").exists()
    finally:
        (drop_ins / "10-theirs.conf").unlink()


def test_runtime_that_the_default_names_by_its_path(podman: Podman) -> None:
    drop_ins = podman.node.path("/etc/containers/containers.conf.d")
    drop_ins.mkdir(exist_ok=True)
    (drop_ins / "10-theirs.conf").write_text('[engine]\nruntime = "/usr/sbin/runc"\n')
    try:
        reassert(podman.node, "install", "--no-probe")
        assert podman.probe() == CORRECTED
    finally:
        (drop_ins / "10-theirs.conf").unlink()


def test_file_that_is_read_later_and_says_otherwise_stops_the_install(podman: Podman) -> None:
    drop_ins = podman.node.path("/etc/containers/containers.conf.d")
    drop_ins.mkdir(exist_ok=True)
    (drop_ins / "zz.conf").write_text('[engine.runtimes]\ncrun = ["/usr/bin/crun"]\n')
    before = podman.node.snapshot(TOPS)
    try:
        said = reassert(podman.node, "install", "--no-probe", check=False)
        assert "zz.conf sets engine.runtimes.crun, and podman reads it after" in said
        assert differences(before, podman.node.snapshot(TOPS)) == []
    finally:
        (drop_ins / "zz.conf").unlink()


def test_cdi_device_carries_a_rule_to_who_asks_for_it(podman: Podman) -> None:
    reassert(podman.node, "install", "--no-probe", "--adapter=cdi")
    device = "--device=reassert.internal/rule=company-ca"
    assert podman.probe() == LEFT_ALONE
    assert podman.probe("run", device) == CORRECTED
    assert podman.probe("run", device, "--volume=/tmp:/etc/ssl") == CORRECTED
    assert not podman.node.path(EVENTS).exists() or "denied" not in podman.node.path(EVENTS).read_text()
    reassert(podman.node, "uninstall")
    assert "unresolvable CDI devices" in podman.probe("run", device, check=False)
