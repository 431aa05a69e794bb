"""The commands of a node on a real CRI-O (tests/lab/crio/run.sh), with crun as the default, and runc."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.cri.client import Container, Cri, CriError
from e2e.cri.hostile import ENV, OVERRIDDEN, reserved_in
from e2e.cri.images import PAUSE, write_images
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot, boot, module_boot
from e2e.node.files import differences
from e2e.node.wired import FILES, POLICY, POLICY_FILE, PROGRAM
from harness.paths import TOP
from harness.tools import run

__all__ = ["boot", "module_boot"]

OURS = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": "/etc/ssl/certs/ca-certificates.crt"}
SOCKET = "/run/crio/crio.sock"
DEFAULTS = "/etc/default/crio"
UNIT = """\
[Service]
Type=notify
NotifyAccess=all
KillMode=process
Delegate=yes
EnvironmentFile=-/etc/default/crio
ExecStart=/bin/sh -c 'set -- /usr/local/bin/crio --disable-hostport-mapping --listen /run/crio/crio.sock $OPTIONS; \\
  [ ! -L /run/cgroup1.namespace ] || set -- nsenter --mount=/run/cgroup1.namespace "$@"; exec "$@"'
"""
CONFIG = f"""\
[crio]
log_dir = "/run/crio-logs"
[crio.api]
listen = "/run/crio/not-this-one.sock"
[crio.image]
pause_image = "{PAUSE}"
signature_policy = "/etc/containers/policy.json"
[crio.network]
network_dir = "/etc/cni/net.d"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "/usr/local/bin/pinns"
default_runtime = "crun"
default_sysctls = []
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "/run/runc"
[crio.runtime.runtimes.stored]
runtime_path = "/usr/bin/crun"
runtime_root = "/run/crun"
platform_runtime_paths = {{ "linux/amd64" = "/usr/bin/crun" }}
"""
TEAM_RULE = """\
  - name: team
    match: {namespaces: [default], ifUnknown: Skip}
    env: [{name: TEAM, value: a}]
"""
"""Covers the probes only if CRI-O can tell their namespace."""

LABELS = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {containerTypes: [sandbox, init, ephemeral]}
  rules:
  - name: web
    match: {podSelector: {matchLabels: {tier: web}}}
    env: [{name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}]
  - name: preset
    match: {podSelector: {matchLabels: {tier: db}}, ifUnknown: Skip}
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]
"""


@pytest.fixture(scope="module")
def crio(module_boot: Boot) -> BootedNode:
    files = {
        **FILES,
        POLICY_FILE: POLICY + TEAM_RULE,
        "/etc/systemd/system/crio.service": UNIT,
        "/etc/crio/crio.conf.d/10-test.conf": CONFIG,
        DEFAULTS: "OPTIONS=\n",
        "/etc/containers/policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
    }
    node = module_boot("trixie", files=files, images=False)
    for program in ("CRIO", "PINNS"):
        shutil.copy(os.environ[f"REASSERT_TEST_{program}"], node.path(f"/usr/local/bin/{program.lower()}"))
    for program in ("podman", "conmon"):
        borrow(node, program)
    for archive in write_images(node.directory):
        node.run("podman", "load", "--quiet", "--input", str(archive))
    node.run("systemctl", "disable", "--now", "containerd")
    assert node.run("systemctl", "start", "crio", check=False).returncode == 0, node.trouble()
    node.cri = Cri(node.path(SOCKET), "", node.directory / "pods")
    node.wait_for_cri()
    return node


def borrow(node: BootedNode, program: str) -> None:
    """A program of bookworm's root with its libraries: trixie's root has no podman, and bookworm's crun is too old."""
    root = TOP / "build/roots/bookworm"
    shutil.copy(root / "usr/bin" / program, node.path(f"/usr/local/bin/{program}"))
    listed = run("chroot", str(root), "ldd", f"/usr/bin/{program}").stdout
    for library in re.findall(r"=> /lib/(\S+)", listed):
        if not node.path(f"/usr/lib/{library}").exists():
            shutil.copy(root / "usr/lib" / library, node.path("/usr/local/lib"))
    node.run("ldconfig")


class OnCrio:
    """The commands, for CRI-O."""

    def __init__(self, booted: BootedNode) -> None:
        self.booted = booted
        self.before = booted.snapshot()

    def node(self, verb: str, *arguments: str, status: int = 0) -> str:
        """Both streams of `reassert VERB`."""
        done = self.booted.run(PROGRAM, verb, "--engine", "crio", *arguments, check=False, timeout=600)
        assert done.returncode == status, f"{verb}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def wired(self) -> dict[str, list[str]]:
        """The adapters of each handler."""
        found: dict[str, Any] = json.loads(self.node("status", "-o", "json"))
        assert found["problems"] == []
        return {handler["name"]: handler["wired"] for handler in found["engines"]["crio"]["handlers"]}

    def hostile(
        self,
        handler: str,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        kubelet: dict[str, str] | None = None,
    ) -> Container:
        """A running container that overrides what is reserved. `kubelet`: its annotations; the others: its pod's."""
        pod = self.booted.cri.run_pod(handler, labels=labels, annotations=annotations)
        try:
            return pod.run(env=ENV, mounts=[("/tmp", "/etc/ssl")], annotations=kubelet)
        except CriError:
            pod.remove()
            raise

    def is_untouched(self) -> None:
        """Nothing is different from before, and CRI-O runs."""
        assert differences(self.before, self.booted.snapshot()) == []
        assert self.booted.property("crio", "ActiveState") == "active"


@pytest.fixture
def on(crio: BootedNode) -> Iterator[OnCrio]:
    found = OnCrio(crio)
    yield found
    if crio.path("/var/lib/reassert").exists():
        found.node("uninstall")


@pytest.mark.parametrize("adapter", ["runtime", "hook", "nri", "runtime,hook,nri"])
def test_in_proved_and_out_again(on: OnCrio, adapter: str) -> None:
    said = on.node("install", "--adapter", adapter)
    assert "is wired (" in said
    wanted = {name for part in adapter.split(",") for name in ([part, "hook"] if part == "nri" else [part])}
    assert {frozenset(adapters) for adapters in on.wired().values()} == {frozenset(wanted)}
    on.node("verify", *(["--except", "exec/*"] if adapter == "hook" else []))
    for handler in ("crun", "runc"):
        if adapter == "hook":
            with pytest.raises(CriError, match="reassert: refused"):  # with crun, too
                on.hostile(handler)
        else:
            container = on.hostile(handler)
            assert reserved_in(container.environ()) == {**OVERRIDDEN, **OURS}
            assert reserved_in(container.exec_environ()) == {**OVERRIDDEN, **OURS}
    on.booted.run("systemctl", "restart", "crio")
    on.booted.wait_for_cri()
    assert "no engine restarted" in on.node("install")
    on.node("uninstall")
    on.is_untouched()


@pytest.fixture
def by_label(on: OnCrio) -> Iterator[OnCrio]:
    policy = on.booted.path(POLICY_FILE)
    before = policy.read_bytes()
    policy.write_text(LABELS)
    on.node("install", "--adapter", "runtime")
    yield on
    on.node("uninstall")
    policy.write_bytes(before)


def test_a_rule_applies_to_the_pods_with_its_labels(by_label: OnCrio) -> None:
    bundle = {"REQUESTS_CA_BUNDLE": OURS["REQUESTS_CA_BUNDLE"]}
    for handler in ("crun", "runc"):
        for tier, gets in (("web", bundle), ("db", {"NVIDIA_VISIBLE_DEVICES": "void"}), ("other", {})):
            container = by_label.hostile(handler, {"tier": tier})
            assert reserved_in(container.environ()) == {**OVERRIDDEN, **gets}
            assert reserved_in(container.exec_environ()) == {**OVERRIDDEN, **gets}


def test_the_type_of_an_app_container_is_unknown_without_kubelet(by_label: OnCrio) -> None:
    """Annotations, which CRI-O copies, say nothing."""
    init = {"io.kubernetes.container.type": "init"}
    forged = {**init, "io.kubernetes.cri-o.Annotations": json.dumps(init)}
    container = by_label.hostile("crun", {"tier": "web"}, forged)
    assert reserved_in(container.environ()) == {**OVERRIDDEN, "REQUESTS_CA_BUNDLE": OURS["REQUESTS_CA_BUNDLE"]}


def test_exec_in_an_old_container_after_uninstall(on: OnCrio) -> None:
    """CRI-O stores a path of platform_runtime_paths with the container: the dispatcher stays, and calls crun alone."""
    on.node("install", "--adapter", "runtime")
    stored, plain = on.hostile("stored"), on.hostile("runc")
    said = on.node("uninstall")
    assert "/opt/reassert/reassert-crun: it stays and only calls /usr/bin/crun" in said
    for container in (stored, plain):
        assert reserved_in(container.environ()) == {**OVERRIDDEN, **OURS}
        assert reserved_in(container.exec_environ()) == OVERRIDDEN  # as CRI-O stored it: nothing corrects it any more
        container.remove()
    on.node("uninstall")
    on.is_untouched()


def test_a_hook_that_stops_crio_stops_the_install(on: OnCrio) -> None:
    hook = on.booted.path("/usr/share/containers/oci/hooks.d/podmans.json")
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text(
        '{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["precreate"]}'
    )
    said = on.node("install", "--adapter", "runtime,hook", status=1)
    hook.unlink()
    assert "runs and would not start again" in said
    assert on.booted.property("crio", "ActiveState") == "active"


def test_what_crio_was_told_on_its_command_line_counts(on: OnCrio) -> None:
    on.booted.path(DEFAULTS).write_text("OPTIONS=--hooks-dir=/etc/mine\n")
    on.booted.path("/etc/mine").mkdir(exist_ok=True)
    on.booted.run("systemctl", "restart", "crio")
    on.booted.wait_for_cri()
    said = on.node("install", "--adapter", "hook", status=1)
    assert "an option or variable for hooks_dir" in said
    on.node("install", "--adapter", "runtime")  # which needs no hooks_dir
    on.node("uninstall")
    on.booted.path(DEFAULTS).write_text("OPTIONS=\n")
    on.booted.path("/etc/mine").rmdir()
    on.booted.run("systemctl", "restart", "crio")
