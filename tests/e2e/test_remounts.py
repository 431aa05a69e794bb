"""A container with CAP_SYS_ADMIN, not privileged, makes its reserved mounts writable again: what can it then write?

The mounts are read-only, and `remount,bind,rw` takes that off. All containers of the node read the same files.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import run

from e2e.hostile_mounts import DIRECTORY
from e2e.runtimes import NEWER, WAYS, guarded, hook_entry, real_runtime
from e2e.test_audit import seen
from e2e.test_finds import mounts_on_the_node
from hook.core.linux.idmap import remountable

FILE = DIRECTORY.replace("hostPath: CA, mountPath: /etc/ssl,", "hostPath: CA/ca.crt, mountPath: /etc/ssl/ca.crt,")
RESERVED = {"directory": (DIRECTORY, "/etc/ssl"), "file": (FILE, "/etc/ssl/ca.crt")}

USUAL = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL"
"""The capabilities that containerd gives a container of a pod that asks for none."""

ATTACK = """\
b=/bin/busybox
$b mount -o remount,bind,rw none {at} && echo remounted
for file in /etc/ssl/ca.crt /etc/ssl/open.crt; do
    $b echo evil >> $file; $b chmod 666 $file; $b chown 1000 $file; $b touch -t 200001010000 $file
    $b truncate -s 0 $file; $b ln $file /etc/ssl/link; $b mv $file /etc/ssl/moved; $b rm -f $file
done
$b touch /etc/ssl/new; $b mkdir /etc/ssl/more; $b ln -s / /etc/ssl/symbolic
$b mount -t tmpfs none /tmp && $b mkdir /tmp/more && $b mount -o bind {at} /etc/pki && $b echo evil >> /etc/pki/ca.crt
$b cat /etc/ssl/ca.crt
"""


@pytest.fixture(params=[*WAYS, *((name, "createRuntime") for name in NEWER)], ids="-".join)
def pair(request: pytest.FixtureRequest, node: Node) -> tuple[str, str]:
    """Path of a real runtime, and an adapter in front of it: also the hook alone with each newer runtime."""
    name, adapter = request.param
    return real_runtime(name, node.directory), adapter


def administrator(bundle: Bundle) -> Bundle:
    """The bundle of a container with CAP_SYS_ADMIN beside the usual capabilities."""
    listed = [f"CAP_{name}" for name in (*USUAL.split(), "SYS_ADMIN")]
    bundle.spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), listed)
    return bundle


def ca(node: Node) -> Path:
    """The file that all containers of the node read. Another one beside it can be written by everybody."""
    (node.ca / "ca.crt").write_text("company\n")
    (node.ca / "open.crt").write_text("company\n")
    (node.ca / "open.crt").chmod(0o666)
    return node.ca / "ca.crt"


def files(directory: Path) -> list[object]:
    """Everything in a directory: owner, mode, time and content."""
    found: list[object] = []
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        content = path.read_text() if path.is_file() else ""
        found.append((str(path), status.st_uid, status.st_mode, status.st_nlink, status.st_mtime_ns, content))
    return found


@marks.claim("remount", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "CAP_SYS_ADMIN remounted a reserved mount and wrote the CA that all pods read",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("name", RESERVED)
def test_remounted_reserved_mount_cannot_be_written(
    pair: tuple[str, str], node: Node, bundle: Bundle, name: str
) -> None:
    policy, at = RESERVED[name]
    ca(node)
    before = files(node.ca)
    node.compile(policy)
    with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
        said = container.exec("/bin/sh", "-c", ATTACK.format(at=at))
        assert said.startswith("remounted\n") and said.endswith("company\n"), said
        assert files(node.ca) == before
        [event] = node.logged()
        assert (event["applied"], event["verified"]) == (True, "container")
        assert "remountable" not in event


IDMAPPING = [{"containerID": 0, "hostID": 0, "size": 65536}]


@marks.claim("remount", "hook@createRuntime")
@marks.hole(
    "With the hook alone, a container with CAP_SYS_ADMIN and an idmapped mount of the reserved hostPath wrote"
    " the node's file",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("at", ["/etc/ssl", "/etc/ssl/below"])
def test_mount_that_its_user_has_idmapped_cannot_be_written(
    pair: tuple[str, str], node: Node, bundle: Bundle, at: str
) -> None:
    """`podman run --volume …:ro,idmap`: root stays root there, and the kernel idmaps no mount twice."""
    ca(node)
    (node.ca / "below").mkdir()
    (bundle.directory.parent / "below").mkdir(parents=True)
    (bundle.directory.parent / "below/file").write_text("below\n")
    run("mount", "--bind", str(bundle.directory.parent / "below"), str(node.ca / "below"))
    try:
        before = files(node.ca)
        node.compile(DIRECTORY)
        bundle.bind(node.ca, "/etc/ssl", "ro", "rprivate")
        if at != "/etc/ssl":
            bundle.bind(node.ca / "below", at, "ro", "rprivate")
        bundle.spec["mounts"][-1].update(uidMappings=IDMAPPING, gidMappings=IDMAPPING)
        if "crun" in Path(pair[0]).name:  # runc needs no option, and before 1.2 knows none
            bundle.spec["mounts"][-1]["options"].append("idmap")
        with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
            below = "/bin/busybox mount -o remount,bind,rw none /etc/ssl/below; echo evil >> /etc/ssl/below/file"
            container.exec("/bin/sh", "-c", f"{below}; {ATTACK.format(at='/etc/ssl')}")
            assert container.exec("/bin/cat", "/etc/ssl/below/file") == "below\n"
            assert files(node.ca) == before
            assert not [event for event in node.logged() if "remountable" in event]
    finally:
        run("umount", "--lazy", str(node.ca / "below"))


@marks.hole(
    "In a user namespace with the node's ids (`podman run --uidmap`), CAP_SYS_ADMIN wrote the CA that all pods read",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("first", [0, 100_000])
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
def test_root_of_a_user_namespace_cannot_write_either(
    each: str, adapter: str, node: Node, bundle: Bundle, first: int
) -> None:
    """It has the ids of the node's users (`podman run --uidmap 0:0:65536`), or writes what everybody may write."""
    ca(node)
    before = files(node.ca)
    node.compile(DIRECTORY)
    mapping = [{"containerID": 0, "hostID": first, "size": 65536}]
    linux = administrator(bundle).spec["linux"]
    linux.update(uidMappings=mapping, gidMappings=mapping)
    linux["namespaces"].append({"type": "user"})
    run("chown", "--recursive", f"{first}:{first}", str(bundle.rootfs))
    with guarded(adapter, each, node, bundle) as container:
        said = container.exec("/bin/sh", "-c", ATTACK.format(at="/etc/ssl"))
        assert said.startswith("remounted\n") and said.endswith("company\n"), said
        assert files(node.ca) == before
        assert not any("remountable" in event for event in node.logged())


@marks.claim("remount", "runtime@wrapper", "hook@createRuntime")
def test_mounts_on_a_reserved_mount_stay_as_they_are(pair: tuple[str, str], node: Node, bundle: Bundle) -> None:
    """What the node has mounted below the hostPath is unwritable too; a volume keeps its own options."""
    ca(node)
    for name in ("below", "volume", "fixed"):
        (node.ca / name).mkdir()
        (bundle.directory.parent / name).mkdir(parents=True)
        (bundle.directory.parent / name / "file").write_text(name + "\n")
    run("mount", "--bind", str(bundle.directory.parent / "below"), str(node.ca / "below"))
    try:
        node.compile(DIRECTORY.replace("true}", "true, allowBelow: [/etc/ssl/volume, /etc/ssl/fixed]}"))
        bundle.bind(node.ca, "/etc/ssl", "ro", "rprivate")
        bundle.bind(bundle.directory.parent / "volume", "/etc/ssl/volume", "rprivate", "rw")
        bundle.bind(bundle.directory.parent / "fixed", "/etc/ssl/fixed", "rprivate", "ro")
        with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
            writes = "for name in volume fixed below; do /bin/busybox echo more >> /etc/ssl/$name/file; done; /bin/true"
            container.exec("/bin/sh", "-c", writes)
            remounts = "/bin/busybox mount -o remount,bind,rw none /etc/ssl/below; echo evil >> /etc/ssl/below/file"
            container.exec("/bin/sh", "-c", f"{remounts}; /bin/true")
            read = [container.exec("/bin/cat", f"/etc/ssl/{name}/file") for name in ("volume", "fixed", "below")]
            assert read == ["volume\nmore\n", "fixed\n", "below\n"]
    finally:
        run("umount", "--lazy", str(node.ca / "below"))


@marks.hole(
    "Wrapper and hook together refused a container with CAP_SYS_ADMIN if one reserved hostPath lay in another one",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
    found="fuzz",
)
def test_directories_in_each_other_start_with_two_adapters(node: Node, bundle: Bundle, real: str) -> None:
    """The wrapper and the hook both look: the second one finds mounts that the first one has replaced.

    That of CA is replaced after that of CA/certs, and covers it.
    """
    ca(node)
    (node.ca / "certs").mkdir(exist_ok=True)
    for name in ("ca.crt", "own.crt"):
        (node.ca / "certs" / name).write_text("below\n")
    more = (
        "CA/certs, mountPath: /etc/ssl/certs",
        "CA/ca.crt, mountPath: /etc/ssl/certs/own.crt",
        "CA, mountPath: /usr/share/ca",
    )
    node.compile(
        DIRECTORY.replace("true}", ", ".join(["true}", *(f"{{hostPath: {each}, readOnly: true}}" for each in more)]))
    )
    bundle.spec["hooks"] = {"createRuntime": [hook_entry(node, "createRuntime")]}
    with guarded("wrapper", real, node, administrator(bundle)) as container:
        paths = ("/etc/ssl/ca.crt", "/etc/ssl/certs/ca.crt", "/etc/ssl/certs/own.crt", "/usr/share/ca/certs/ca.crt")
        seen = [container.exec("/bin/cat", path) for path in paths]
        assert seen == ["company\n", "below\n", "company\n", "below\n"]


@marks.claim("remount", "runtime@wrapper")
@marks.hole(
    "With `allowBelow`, two volumes at one path let CAP_SYS_ADMIN write to the node's file",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("second", ["/etc/ssl/./volume", "/etc/ssl/below"])
def test_volume_over_another_mount_on_the_reserved_one(
    pair: tuple[str, str], node: Node, bundle: Bundle, second: str
) -> None:
    """kubelet compares the text of two paths. The hidden mount does not keep the reserved one writable."""
    ca(node)
    for name in ("below", "volume"):
        (node.ca / name).mkdir()
        (bundle.directory.parent / name).mkdir(parents=True)
    (bundle.directory.parent / "volume/file").write_text("volume\n")
    run("mount", "-t", "tmpfs", "tmpfs", str(node.ca / "below"))
    try:
        before = files(node.ca)
        node.compile(DIRECTORY.replace("true}", "true, allowBelow: [/etc/ssl/volume, /etc/ssl/below]}"))
        bundle.bind(node.ca, "/etc/ssl", "ro", "rprivate")
        bundle.bind(bundle.directory.parent / "below", "/etc/ssl/volume", "rprivate")
        bundle.bind(bundle.directory.parent / "volume", second, "rprivate")
        with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
            said = container.exec("/bin/sh", "-c", ATTACK.format(at="/etc/ssl"))
            assert said.startswith("remounted\n") and said.endswith("company\n"), said
            assert files(node.ca) == before
            assert container.exec("/bin/cat", f"{second}/file") == "volume\n"
            assert not any("remountable" in event for event in node.logged())
    finally:
        run("umount", "--lazy", str(node.ca / "below"))


def test_event_says_what_a_container_without_edits_can_remount(node: Node, bundle: Bundle, real: str) -> None:
    secret(node.ca)
    node.compile(DIRECTORY)
    bundle.bind(node.ca, "/etc/ssl", "ro")
    with guarded("createRuntime", real, node, administrator(bundle)):
        [event] = node.logged()
        assert (event["event"], event["level"], event["edits"]) == ("container.remountable", "warning", [])
        assert event["remountable"] == ["/etc/ssl: " + f"{node.ca}/certs/key.pem can be read by its owner alone"]


@pytest.fixture
def users(node: Node) -> Iterator[str]:
    """A pid in a user namespace, with another one in it: a limit of namespaces there disturbs nobody else."""
    setup = "mount -t proc proc /proc; mount -t tmpfs tmpfs /run; echo ready; exec sleep 600"
    words = ["unshare", "--user", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    with subprocess.Popen([*words, "sh", "-c", f"read _; {setup}"], stdin=PIPE, stdout=PIPE, text=True) as outer:
        try:
            pid = child_of(outer.pid)
            for which in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{which}").write_text("0 0 1000000\n4294967294 4294967294 1\n")
            assert outer.stdin and outer.stdout
            print(file=outer.stdin, flush=True)
            assert outer.stdout.readline() == "ready\n"
            yield pid
        finally:
            outer.kill()


def child_of(pid: int) -> str:
    """The first child of a process."""
    for _ in range(50000):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"{pid} has no child")


USERS = {
    0: (True, "no user namespace can be made: No space left on device"),
    1: (False, "no space left on device"),
    9: (True, ""),
}
"""The limit of user namespaces where another process has one: whether a container starts then, and what is said."""


@marks.hole(
    "A container that used up all user namespaces let one with CAP_SYS_ADMIN write to the node's file",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("limit", USERS)
def test_container_starts_where_another_one_has_used_up_all_user_namespaces(
    node: Node, bundle: Bundle, users: str, limit: int
) -> None:
    """It would start with a mount that it can write through. A node that allows no such namespace is another matter."""
    starts, said = USERS[limit]
    node.compile(DIRECTORY.replace("spec:\n", "spec:\n  failurePolicy: Ignore\n"))
    spec = administrator(bundle).spec
    spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")]
    spec["mounts"] = [m for m in spec["mounts"] if m["type"] not in ("cgroup", "sysfs", "mqueue", "devpts")]
    for name in ("resources", "cgroupsPath"):
        spec["linux"].pop(name, None)
    bundle.save()
    inside = ["nsenter", "--target", users, "--user", "--mount", "--pid"]
    own = f"mount -t tmpfs -o mode=755 tmpfs {node.ca}; echo company > {node.ca}/ca.crt"
    run(*inside, "sh", "-c", own)  # a user namespace can idmap its own file systems only
    script = node.directory / "inside"
    script.write_text(f'#!/bin/sh\nexec {" ".join(inside)} {node.dispatcher(RUNTIMES["runc"])} "$@"\n')
    script.chmod(0o755)
    with subprocess.Popen([*inside, "unshare", "--user", "sh", "-c", "echo; sleep 600"], stdout=PIPE) as holder:
        try:
            assert holder.stdout and holder.stdout.readline()
            run(*inside, "sh", "-c", f"echo {limit} > /proc/sys/user/max_user_namespaces")
            container = Running(str(script), bundle)
            if starts:
                with container:
                    assert container.exec("/bin/cat", "/etc/ssl/ca.crt") == "company\n"
                    assert any("idmapped" in mount.options for mount in container.mounts()) is not bool(said)
            else:
                assert container.create() != 0, "it started"
            [event] = node.logged()
            assert said.lower() in str(event).lower()
            assert event["applied"] is starts and ("remountable" in event) is (limit == 0)
        finally:
            run("kill", "-9", users)  # and with it all that is in its pid namespace


def fifo(directory: Path) -> None:
    os.mkfifo(directory / "fifo")


def secret(directory: Path) -> None:
    (directory / "certs/key.pem").write_text("key\n")
    (directory / "certs/key.pem").chmod(0o600)


UNLIKE = {
    "secret": (secret, "can be read by its owner alone"),
    "fifo": (fifo, "is neither a file nor a directory"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_mount_that_would_read_differently_stays(way: tuple[str, str], node: Node, bundle: Bundle, name: str) -> None:
    """The event says that the container can remount it."""
    change, why = UNLIKE[name]
    change(node.ca)
    node.compile(DIRECTORY + "    env: [{name: A, value: b}]\n")
    bundle.spec["process"]["env"].append("A=b")
    with guarded(way[1], way[0], node, administrator(bundle)) as container:
        assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
        if name == "secret":
            assert container.exec("/bin/cat", "/etc/ssl/certs/key.pem") == "key\n"
        [event] = node.logged()
        [said] = event["remountable"]
        assert said.startswith("/etc/ssl: ") and said.endswith(why)


def test_mount_that_would_appear_on_the_node_stays(pair: tuple[str, str], node: Node, bundle: Bundle) -> None:
    """mountPropagation: Bidirectional. Kubernetes lets only privileged containers have it."""
    run("mount", "--bind", str(node.ca), str(node.ca))
    try:
        run("mount", "--make-shared", str(node.ca))
        node.compile(DIRECTORY)
        bundle.spec["linux"]["rootfsPropagation"] = "rshared"
        bundle.bind(node.ca, "/data", "rshared")
        with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
            assert container.exec("/bin/cat", "/etc/ssl/certs/company.crt") == "company\n"
            assert len(mounts_on_the_node(node)) == 1
            [event] = node.logged()
            assert event["applied"] and event["remountable"]
    finally:
        run("umount", "--recursive", "--lazy", str(node.ca))


def test_writable_reserved_mount_stays_writable(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    node.compile(DIRECTORY.replace("readOnly: true", "readOnly: false"))
    with guarded(way[1], way[0], node, administrator(bundle)) as container:
        container.exec("/bin/sh", "-c", "echo written > /etc/ssl/new")
        assert (node.ca / "new").read_text() == "written\n"


def test_container_without_the_capability_keeps_the_runtimes_mount(
    way: tuple[str, str], node: Node, bundle: Bundle
) -> None:
    ca(node)
    node.compile(DIRECTORY)
    with guarded(way[1], way[0], node, bundle) as container:
        assert all("idmapped" not in mount.options for mount in container.mounts())


def test_audit_finds_nothing_wrong_with_a_replaced_mount(pair: tuple[str, str], node: Node, bundle: Bundle) -> None:
    ca(node)
    node.compile(DIRECTORY)
    with guarded(pair[1], pair[0], node, administrator(bundle)) as container:
        assert any("idmapped" in mount.options for mount in container.mounts())
        assert seen(node, container)["state"] == "in policy"


BARE = """\
import ctypes, os
call = ctypes.CDLL(None).syscall
call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long]
take_off = (ctypes.c_uint64 * 4)(0, 0x100000 | 1, 0, 0)  # MOUNT_ATTR_IDMAP, MOUNT_ATTR_RDONLY
tree = call(467, -100, b"/etc/ssl", os.O_CLOEXEC | 1, take_off, 32)  # open_tree_attr(2), OPEN_TREE_CLONE
if tree >= 0:
    open(f"/proc/self/fd/{tree}/ca.crt", "a").write("evil")
"""


def test_verify_says_what_a_container_that_knows_the_kernel_can_write_to(real: str, node: Node, bundle: Bundle) -> None:
    """From Linux 6.15 on the mapping can be taken off; the page of what is not guaranteed says so."""
    file = ca(node)
    node.compile(DIRECTORY)
    said = remountable(str(node.ca))
    for name in ("usr", "lib", "lib64"):
        bundle.bind(f"/{name}", f"/{name}", "ro")
    with guarded("wrapper", real, node, administrator(bundle)) as container:
        container.exec("/usr/bin/python3", "-c", BARE)
    assert (file.read_text() == "company\n") is (said == "")
    assert said in ("", "open_tree_attr(2) of this kernel takes the mapping off")
