"""The lists of `nodePaths` (hook.core.reserve.node_paths) beside a node with containerd, docker and reassert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import marks
import pytest
from harness.tools import run

from e2e.cri.images import PLAIN
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import FORMATS, RUNC, containerd_config
from e2e.node.wired import POLICY, POLICY_FILE, PROGRAM
from hook.core.reserve.node_paths import ENGINE_PATHS, REASSERT_PATHS, reaches

FILES = {POLICY_FILE: POLICY, "/etc/company-ca/company.crt": "company\n"}

NOT_ENGINES = {
    "/run/dbus/": "of the system: node-exporter and others ask systemd there, and polkit says who may do what",
    "/run/reassert/": "reassert's own",
    "/run/systemd/": "of the system: whoever is root there is root of the node without an engine (docs/security.md)",
    "/run/udev/": "of the system",
    "/var/lib/kubelet/device-plugins/": "each device plugin has it; what it allocates is kubelet's record",
    "/var/lib/kubelet/plugins/": "each CSI driver has it",
    "/var/lib/kubelet/plugins_registry/": "each CSI driver has it",
    "/var/lib/kubelet/pod-resources/": "it only lists what containers have",
}
"""What listens on nodes and starts no container: a volume of it is not reported."""

NOT_OWN = {
    "/bin/sh": "programs of the system",
    "/dev/": "devices",
    "/etc/company-ca": "what a rule takes from the node",
    "/etc/containerd/": "the engine's (ENGINES)",
    "/etc/docker/": "the engine's (ENGINES)",
    "/etc/ld.so": "of the system: each program reads it",
    "/etc/localtime": "of the system",
    "/lib": "libraries of the system",
    "/proc": "of the kernel",
    "/run/cgroup1": "of these tests",
    "/run/containerd/": "a container's bundle",
    "/run/runc": "the runtime's record of a container",
    "/run/systemd/": "of the system: the notification of a service",
    "/sys/": "of the kernel",
    "/trial": "the bundle of this test",
    "/usr/bin/": "programs of the system: sh, nsenter",
    "/usr/lib": "libraries of the system",
    "/usr/sbin/runc": "the real runtime",
    "/var/log/journal": "of the system",
}
"""What a start and the agent open, and units execute, that is no file of reassert."""


NOT_WRITTEN = {
    "/etc/systemd/system/multi-user.target.wants/": "who writes there enables any unit",
    "/etc/systemd/system/sockets.target.wants/": "who writes there enables any unit",
    "/etc/systemd/system/timers.target.wants/": "who writes there enables any unit",
    "/etc/containerd/": "the engine's (ENGINES)",
    "/etc/docker/": "the engine's (ENGINES)",
    "/run/": "records and sockets of what runs, see the other tests",
    "/var/lib/containerd/": "the engine's",
    "/var/lib/docker/": "the engine's",
    "/var/lib/systemd/": "of the system",
    "/var/log/": "of the system, unless it is reassert's",
}
"""What was written since the install, that is no file of reassert."""


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> Iterator[BootedNode]:
    """With a running pod, dockerd, and reassert's units."""
    booted = module_boot("bookworm", config=containerd_config(FORMATS["bookworm"], (RUNC,)), files=FILES, docker=True)
    booted.run("touch", "/before")
    booted.run(PROGRAM, "install", "--engine", "containerd", "--no-probe")
    pod = booted.cri.run_pod("runc")
    try:
        pod.run(image=PLAIN)
        yield booted
    finally:
        pod.remove()


def unlisted(paths: Iterable[str], listed: Iterable[str], reasons: Iterable[str]) -> list[str]:
    """Those that neither a list nor a reason has."""
    others = tuple(reasons)
    return sorted(
        {path for path in paths if not any(reaches(path, each) for each in listed) and not path.startswith(others)}
    )


@marks.hole(
    "With `nodePaths.engine: Refuse`, a read-only volume of /run/containerd/s, where containerd's shims "
    "listen, executed a program of the pod as root of the node"
)
def test_each_socket_that_listens_is_an_engines_or_has_a_reason(node: BootedNode) -> None:
    lines = [line.split() for line in node.run("cat", "/proc/net/unix").stdout.splitlines()[1:]]
    listening = {fields[7] for fields in lines if len(fields) > 7 and int(fields[3], 16) & 0x10000}
    paths = {re.sub("^/var/run/", "/run/", path) for path in listening if path.startswith("/")}
    shims = [path for path in paths if path.startswith("/run/containerd/s/")]
    assert shims, "the pod's shim listens"
    assert {"/run/containerd/containerd.sock", "/run/docker.sock", "/run/reassert/agent/agent.sock"} <= paths
    assert unlisted(paths, ENGINE_PATHS, NOT_ENGINES) == []


def test_what_install_writes_is_reasserts_own(node: BootedNode) -> None:
    tops = ("/etc", "/opt", "/root", "/run", "/srv", "/usr", "/var")
    written = node.run("find", *tops, "-xdev", "-newercm", "/before", "-not", "-type", "d").stdout.splitlines()
    assert "/opt/reassert/start" in written
    assert unlisted(written, REASSERT_PATHS, NOT_WRITTEN) == []


@marks.hole(
    "A writable volume of the chart's /var/lib/reassert-kubernetes, of /usr/local/bin or of install's staging"
    " directory replaced a program that root of the node executes"
)
def test_what_units_and_dispatchers_execute_is_reasserts_own(node: BootedNode) -> None:
    units = node.run("sh", "-c", "cd /etc/systemd/system && ls -d reassert-*.service").stdout.split()
    assert "reassert-agent.service" in units
    texts = [node.run("cat", f"/etc/systemd/system/{unit}").stdout for unit in units]
    words = [line.partition("=")[2] for text in texts for line in text.splitlines() if line.startswith("Exec")]
    scripts = [
        node.run("cat", path).stdout for path in node.run("sh", "-c", "ls /opt/reassert/reassert-*").stdout.split()
    ]
    words += [
        line for script in [*scripts, node.run("cat", "/opt/reassert/start").stdout] for line in script.splitlines()
    ]
    paths = {path for line in words for path in re.findall(r"(?<![\w.:/])/[\w./-]+", line)}
    assert {"/opt/reassert/start", "/opt/reassert/front"} <= paths
    assert unlisted(paths, REASSERT_PATHS, NOT_OWN) == []


def test_what_the_agent_has_open_is_reasserts_own(node: BootedNode) -> None:
    pid = node.property("reassert-agent.service", "MainPID")
    opened = node.run(
        "find", f"/proc/{pid}/fd", f"/proc/{pid}/exe", f"/proc/{pid}/map_files", "-printf", "%l\\n"
    ).stdout
    paths = {path.removesuffix(" (deleted)") for path in opened.splitlines() if path.startswith("/")}
    assert any(path.startswith("/opt/reassert/") for path in paths)
    assert unlisted(paths, REASSERT_PATHS, NOT_OWN) == []


def test_what_a_start_opens_is_reasserts_own(node: BootedNode) -> None:
    """A cold one, which opens what a warm one does and the program."""
    trace = node.directory / "trace"
    spec = {"ociVersion": "1.0.2", "root": {"path": "r"}, "process": {"args": ["sh"], "cwd": "/", "env": ["A=1"]}}
    node.run("mkdir", "-p", "/trial/r")
    node.path("/trial/config.json").write_text(json.dumps(spec))
    dispatcher = node.run("sed", "s|^# socket: .*|# socket: /nonexistent|", "/opt/reassert/reassert-runc").stdout
    node.path("/trial/reassert-runc").write_text(dispatcher)
    node.run("chmod", "755", "/trial/reassert-runc")
    create = node.command("/trial/reassert-runc", "create", "--bundle", "/trial", "trial")
    run("strace", "-f", "-z", "-e", "trace=open,openat,openat2,execve", "-o", str(trace), *create, check=False)
    after = trace.read_text().partition('execve("/trial/reassert-runc"')[2]
    paths = set(re.findall(r'"(/[^"]*)"', after.partition('execve("/usr/sbin/runc"')[0]))
    assert {"/opt/reassert/start", "/trial/config.json"} <= paths, after
    assert unlisted(paths, REASSERT_PATHS, NOT_OWN) == []
