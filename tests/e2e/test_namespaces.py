"""What our processes do in a namespace of somebody else, and with what rights they look at a container.

A process that enters a container's mount namespace has the container's root as its `/`: whatever it loads by path there
is the image's. The frozen program's modules are files, so an image can have files of the same paths.
"""

from __future__ import annotations

import json
import os
import re
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT
from harness.tools import run

from e2e.agent.support import Agent
from e2e.cri.client import wait_for
from e2e.runtimes import guarded

pytestmark = marks.promise(
    "In a container's mount namespace nothing is loaded, run, or opened by a path, and what it controls is "
    "read without rights",
    about="In force",
)

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    deviceAllocations: {exclusive: ["/dev/nvidia?", "/dev/dri/*5"]}
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
"""
"""With an `exclusive` glob on a node that has no such device."""

CODE = "import posix\nposix.close(posix.open('/tmp/ran-as-root-of-the-node', posix.O_CREAT | posix.O_WRONLY))\n"
INSTALLED = """
place=$0 program=$1 scratch=$2
shift 2
mkdir -p "$scratch/above/reassert"
mount -t overlay overlay -o "lowerdir=$scratch/above:$place" "$place"
mount --bind "$program" "$place/reassert"
exec "$place/reassert/reassert" "$@"
"""
"""The program where a package, or the archive, installs it: in a mount namespace of its own."""


@pytest.fixture
def pod(node: Node, bundle: Bundle) -> Bundle:
    """Of a pod that makes a device whose name fits the glob."""
    node.compile(POLICY.replace("KUBELET", str(node.directory / "kubelet")))
    bundle.pod()
    (bundle.rootfs / "bin/mknod").symlink_to("busybox")
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", "mknod /dev/nvidia0 c 240 0; echo made; exec /bin/sleep 600"]
    for kind in bundle.spec["process"]["capabilities"].values():
        kind.append("CAP_MKNOD")
    return bundle


def plant(bundle: Bundle, places: list[Path]) -> Path:
    """Put code at each module's path of the frozen program into the image. Returns the file that the code makes."""
    lib = REASSERT.resolve().parent / "lib"
    header = MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)
    assert (lib / "hook/core/base/compare.pyc").read_bytes().startswith(MAGIC_NUMBER), (
        "this Python is the frozen program's"
    )
    evil = bundle.directory / "evil.pyc"
    evil.write_bytes(header + compile_code())
    for module in lib.rglob("*.pyc"):
        for place in places:
            there = bundle.rootfs / str(place / "lib" / module.relative_to(lib)).lstrip("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(evil, there)
    return bundle.rootfs / "tmp/ran-as-root-of-the-node"


def compile_code() -> bytes:
    import marshal

    return marshal.dumps(compile(CODE, "evil", "exec"))


@marks.cve("CVE-2026-41567, CVE-2026-41568, CVE-2026-42306")
@marks.hole(
    "`audit` and `doctor` ran code of a container's image as root of the node",
    since="0.3.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("place", ["dist", "/opt", "/usr/lib"])
def test_audit_runs_no_code_of_the_containers_image(node: Node, pod: Bundle, each: str, place: str) -> None:
    program = REASSERT.resolve().parent
    ran = plant(pod, [program if place == "dist" else Path(place) / "reassert"])
    with guarded("wrapper", each, node, pod) as container:
        container.wait_for("made")
        words = ["audit", "-o", "json", *node.options()[:4], container.id]
        if place == "dist":
            done = run(str(REASSERT), *words, check=False)
        else:
            done = run(
                "unshare",
                "--mount",
                "sh",
                "-ec",
                INSTALLED,
                place,
                str(program),
                str(node.directory),
                *words,
                check=False,
            )
        assert not ran.exists()
        assert done.returncode == 4, done.stderr
        [found] = json.loads(done.stdout)["containers"]
        messages = [difference["message"] for difference in found["differences"]]
        assert messages == ["not allocated: /dev/nvidia0 in the container is a device (c 240:0)"]


# Every system call between entering and leaving


HARMLESS = {"futex", "brk", "mmap", "munmap", "mremap", "madvise", "rt_sigreturn", "restart_syscall", "sched_yield"}
"""Calls for memory and locks."""

STRACE = ("strace", "--daemonize", "--follow-forks", "--output")


def has_ended(trace: str) -> bool:
    """Whether strace, which runs in the background, has written the end of the process that it began with."""
    pid = trace.partition(" ")[0]
    return bool(pid) and re.search(rf"^{pid} +\+\+\+ ", trace, re.MULTILINE) is not None


def inside(trace: Path) -> list[str]:
    """The system calls of each thread between its first and second setns(2), its third and fourth, and so on."""
    wait_for(lambda: has_ended(trace.read_text()), "the traced process ends")
    found, entered = [], set()
    for line in trace.read_text().splitlines():
        pid, call = re.fullmatch(r"(\d+) +(.*)", line).groups()  # type: ignore[union-attr]  # each line has one
        if call.startswith("setns("):
            assert "= -1" not in call, call
            entered ^= {pid}
        elif pid in entered and not call.startswith(("<...", "---", "+++")):
            found.append(call)
    assert not entered, "each thread has returned"
    return found


def check(calls: list[str], names: set[str]) -> None:
    """Each call is on a descriptor, or opens "/". `names`: of those that were made."""
    made = {call.partition("(")[0] for call in calls} - HARMLESS
    assert made == names
    for call in calls:
        name, _, arguments = call.partition("(")
        if name in HARMLESS or (name == "openat" and arguments.startswith('AT_FDCWD, "/", O_RDONLY|O_CLOEXEC|O_PATH|')):
            continue
        paths = re.findall(r'(\w+), "([^"]*)"', arguments)
        assert paths, call
        assert all(at.isdigit() and not path.startswith("/") for at, path in paths), call


@pytest.fixture
def trace(node: Node) -> Path:
    return node.directory / "trace"


def test_audit_in_a_containers_namespace_takes_two_descriptors(node: Node, pod: Bundle, real: str, trace: Path) -> None:
    with guarded("wrapper", real, node, pod) as container:
        container.wait_for("made")
        audit = [str(REASSERT), "audit", *node.options()[:4], container.id]
        assert run(*STRACE, str(trace), *audit, check=False).returncode == 4
    calls = inside(trace)
    check(calls, {"openat"})
    assert len([call for call in calls if call.startswith("openat")]) == 2


def test_audit_reads_what_a_container_controls_when_it_has_given_up_its_rights(
    node: Node, pod: Bundle, real: str, trace: Path
) -> None:
    with guarded("wrapper", real, node, pod) as container:
        container.wait_for("made")
        audit = [str(REASSERT), "audit", *node.options()[:4], container.id]
        assert run(*STRACE, str(trace), *audit, check=False).returncode == 4
    wait_for(lambda: has_ended(trace.read_text()), "the traced process ends")
    lines = [line.split(maxsplit=1) for line in trace.read_text().splitlines()]
    [worker] = {pid for pid, call in lines if call.startswith("setns(")}
    calls = [call for pid, call in lines if pid == worker]
    [filtered] = [at for at, call in enumerate(calls) if call.startswith("prctl(PR_SET_SECCOMP")]
    before, after = calls[:filtered], calls[filtered + 1 :]
    rights = [call.partition(", {")[2] for call in before if call.startswith("capset(")]
    enter = "1<<CAP_DAC_READ_SEARCH|1<<CAP_SYS_CHROOT|1<<CAP_SYS_PTRACE|1<<CAP_SYS_ADMIN"
    for given, wanted in zip(rights, (enter, "1<<CAP_DAC_READ_SEARCH"), strict=True):
        assert given.startswith(f"effective={wanted}, permitted={wanted}, inheritable=0}}) = 0")
    assert [at for at, call in enumerate(calls) if call.startswith("setns(")][-1] < filtered
    for name in ("environ", "mountinfo"):
        [call] = [call for call in before if f'"{name}"' in call]
        read = f"read({call.rpartition(' = ')[2]}, "
        assert not any(call.startswith(read) for call in before), "it is opened, and not read"
        assert any(call.startswith(read) for call in after)
    config = f'"{pod.config}"'
    assert any(config in call for call in after) and not any(config in call for call in before)
    assert not any(re.search("O_(WRONLY|RDWR|CREAT|TRUNC)", call) for call in after)
    refused = {call.partition("(")[0] for call in after if "EPERM" in call}
    assert refused == set(), "the filter lets everything through that an honest look needs"


def test_the_hook_in_a_containers_namespace_works_on_descriptors(
    node: Node, pod: Bundle, real: str, trace: Path
) -> None:
    """It places the mount, since no wrapper did, and another below it, which the policy lets through."""
    rule = f"{{hostPath: {node.ca}, mountPath: /etc/ssl, readOnly: true, allowBelow: [/etc/ssl/own]}}"
    policy = node.policy.read_text()
    node.compile(policy[: policy.index("    - {hostPath")] + f"    - {rule}\n")
    (node.ca / "own").mkdir()
    pod.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt")
    (pod.rootfs / "etc/ssl/own").mkdir()
    pod.bind(pod.rootfs / "tmp", "/etc/ssl/own")
    entry = {
        "path": "/usr/bin/strace",
        "args": [*STRACE, str(trace), str(REASSERT), "hook", *node.options(), "createRuntime"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    }
    pod.spec["hooks"] = {"createRuntime": [entry]}
    pod.save()
    with Running(real, pod) as container:
        assert [mount.point for mount in container.mounts()] == ["/etc/ssl/own", "/etc/ssl", "/etc/ssl/own"]
    check(inside(trace), {"openat", "open_tree", "move_mount"})


def test_a_thread_of_the_agent_in_a_containers_namespace_works_on_descriptors(
    node: Node, pod: Bundle, real: str, trace: Path
) -> None:
    """crun makes a file read-only after its hooks, so ours does it."""
    node.compile(
        f"{node.policy.read_text()}    - {{hostPath: {node.ca}/certs/company.crt, mountPath: /etc/company.crt}}\n"
    )
    agent = Agent(node)
    agent.start(*STRACE, str(trace))
    try:
        for _ in range(10):
            pod.save()
            with Running(agent.only_warm(agent.dispatcher(real), tries=30), pod) as container:
                container.runtime = real
                assert [mount.options[0] for mount in container.mounts()] == ["ro", "ro"]
            *_, event = [event for event in node.logged() if event["event"] == "container.edited"]
            if event["start"] == "warm":
                break  # else the hook did not wait for an agent that is traced on a loaded machine
    finally:
        agent.stop()
    check(inside(trace), {"openat", "mount_setattr"} if "crun" in real else {"openat"})
    assert (event["start"], event["verified"]) == ("warm", "container")
