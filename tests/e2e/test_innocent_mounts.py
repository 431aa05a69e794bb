"""Containers that nobody can hold anything against start, with what is reserved, on every real runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import WANTED, Node
from harness.tools import run

from e2e.hostile_mounts import DIRECTORY, FILE, HEAD, RESERVED, in_user_namespace, link, terminal
from e2e.runtimes import EACH, Console, guarded, real_runtime

pytestmark = marks.promise(
    "A container that overrides nothing starts under each real runtime, with any image and mounts", about="Decision"
)

Way = tuple[str, str]


def starts(way: Way, node: Node, bundle: Bundle, path: str = RESERVED) -> None:
    """The container reads the node's file, and the event says what was done."""
    container = guarded(way[1], way[0], node, bundle)
    if bundle.spec["process"]["terminal"]:
        Console(bundle.directory / "sock")
        container.create_options = ["--console-socket", str(bundle.directory / "sock")]
    with container:
        both = ("/bin/sh", "-c", f"/bin/cat {path}; /bin/touch {path}")
        tried = run(container.runtime, "exec", container.id, *both, check=False)
        assert (tried.stdout, "Read-only" in tried.stderr) == ("company\n", True), tried.stderr
    [event] = node.logged()
    assert (event["event"], event["applied"], event["verified"]) == ("container.edited", True, "container")


@pytest.fixture(params=[name for name in EACH if name.startswith("crun")])
def crun(request: pytest.FixtureRequest, node: Node) -> str:
    """Every crun's path."""
    return real_runtime(request.param, node.directory)


def outside(way: Way) -> Way:
    """The hook in the node's mount namespace: with a user namespace it cannot look from the container's."""
    return (way[0], "createRuntime") if way[1] == "createContainer" else way


def created_there(container: Running, cwd: Path, *options: str) -> None:
    """The container is created and started, with `cwd` as the runtime's working directory."""
    command = [container.runtime, "create", *options, container.id]
    with (container.bundle.directory.parent / "output").open("w+") as output:
        status = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
        output.seek(0)
        assert status == 0, output.read()
    run(container.runtime, "start", container.id)


POLICIES = pytest.mark.parametrize("policy", [DIRECTORY, FILE], ids=["directory", "file"])


@POLICIES
@pytest.mark.parametrize("read_only", [False, True], ids=["", "read-only root"])
@pytest.mark.parametrize("tty", [False, True], ids=["", "terminal"])
def test_usual_pod_starts(way: Way, node: Node, bundle: Bundle, policy: str, read_only: bool, tty: bool) -> None:
    node.compile(policy)
    bundle.spec["root"]["readonly"] = read_only
    for name in ("config", "secret", "scratch"):
        (bundle.directory / name).mkdir()
    bundle.bind(bundle.directory / "config", "/etc/app", "ro")
    bundle.bind(bundle.directory / "secret", "/var/run/secrets/kubernetes.io/serviceaccount", "ro")
    bundle.bind(bundle.directory / "scratch", "/tmp")
    bundle.bind("/etc/hostname", "/etc/hostname", "ro")
    bundle.bind("/etc/hosts", "/etc/hosts")
    if tty:
        terminal(bundle)
    for place in ("etc/app", "var/run/secrets/kubernetes.io/serviceaccount"):
        (bundle.rootfs / place).mkdir(parents=True)
    for place in ("hosts", "hostname", "ssl/certs/company.crt"):
        (bundle.rootfs / "etc" / place).write_text("")
    starts(way, node, bundle)


@POLICIES
def test_pod_with_a_user_namespace_starts(way: Way, node: Node, bundle: Bundle, policy: str) -> None:
    node.compile(policy)
    (bundle.rootfs / "etc/ssl/certs/company.crt").write_text("")
    in_user_namespace(bundle)
    starts(outside(way), node, bundle)


def test_pod_with_a_user_namespace_and_a_device_starts(each: str, node: Node, bundle: Bundle) -> None:
    """The state of crun says the bundle "/" there, and no option need name it: the runtime's cwd is the bundle."""
    node.compile(DIRECTORY)
    in_user_namespace(bundle)
    bundle.spec["linux"]["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 438}]
    starts((each, "createRuntime"), node, bundle)
    node.events.unlink()
    container = guarded("wrapper", each, node, bundle)
    created_there(container, bundle.directory)
    assert container.exec("/bin/cat", RESERVED) == "company\n"
    assert [event["verified"] for event in node.logged()] == ["container"]
    run(container.runtime, "delete", "--force", container.id)


@pytest.mark.parametrize("given", ["config.json", "other/config.json"])
def test_config_option_of_crun_names_the_file_that_is_corrected(
    crun: str, node: Node, bundle: Bundle, given: str
) -> None:
    """crun looks for exactly `config.json` in the bundle, for any other relative path from its cwd."""
    node.compile(DIRECTORY)
    container = guarded("wrapper", crun, node, bundle)
    (bundle.directory / "other").mkdir()
    cwd = bundle.directory
    if given == bundle.config.name:
        cwd = bundle.directory / "other"
        shutil.copy(bundle.config, cwd)
        before = bundle.config.read_text()
    else:
        bundle.config.rename(bundle.directory / given)
    created_there(container, cwd, "--bundle", str(bundle.directory), "--config", given)
    assert container.exec("/bin/cat", RESERVED) == "company\n"
    assert [event["verified"] for event in node.logged()] == ["container"]
    assert given != bundle.config.name or (cwd / given).read_text() == before
    run(container.runtime, "delete", "--force", container.id)


@marks.claim("exec", "runtime")
@marks.hole(
    "An exec in a container of crun that was created with --config, from a bundle with a config.json too, kept its env",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
def test_exec_is_decided_by_the_config_json_that_crun_took(crun: str, node: Node, bundle: Bundle) -> None:
    """Its state names the bundle alone. crun keeps a copy of the file beside it, which its own exec reads."""
    node.compile()
    other = bundle.directory / "other.json"
    shutil.copy(bundle.config, other)
    container = guarded("wrapper", crun, node, bundle)
    created_there(container, bundle.directory, "--bundle", str(bundle.directory), "--config", str(other))
    assert WANTED in container.environ()
    assert WANTED in container.exec("/bin/env", options=("--env", "REQUESTS_CA_BUNDLE=/evil")).splitlines()
    run(container.runtime, "delete", "--force", container.id)


def test_bundle_may_be_moved_after_a_start(each: str, node: Node, bundle: Bundle) -> None:
    """config.json has the hook entry of the first start, which names the old place."""
    node.compile(DIRECTORY)
    with guarded("wrapper", each, node, bundle):
        pass
    moved = Running(node.dispatcher(each), bundle)
    created_there(moved, bundle.directory.rename(bundle.directory.with_name("elsewhere")))
    assert moved.exec("/bin/cat", RESERVED) == "company\n"
    run(moved.runtime, "delete", "--force", moved.id)


def test_privileged_container_starts(way: Way, node: Node, bundle: Bundle) -> None:
    node.compile(DIRECTORY)
    capabilities = ["CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"]
    bundle.spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    for member in ("maskedPaths", "readonlyPaths", "seccomp"):
        bundle.spec["linux"].pop(member, None)
    bundle.spec["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
    bundle.bind("/dev", "/dev", "rslave")
    terminal(bundle)
    starts(way, node, bundle)


@POLICIES
def test_image_without_the_path_starts(way: Way, node: Node, bundle: Bundle, policy: str) -> None:
    node.compile(policy)
    shutil.rmtree(bundle.rootfs / "etc")
    starts(way, node, bundle)


IMAGES = {
    "Fedora": ("/etc/ssl/certs", "../pki/tls/certs", "/etc/ssl/certs/company.crt"),
    "a link to a file": ("/etc/ssl/certs/company.crt", "/usr/share/ca/bundle", "/etc/ssl/certs/company.crt"),
    "Alpine": ("/etc/ssl/cert.pem", "certs/company.crt", "/etc/ssl/cert.pem"),
    "Amazon": ("/etc/ssl/certs/company.crt", "../../pki/ca-trust/extracted/pem/tls-ca-bundle.pem", RESERVED),
    "usr merged": ("/etc/ssl", "/usr/lib/ssl", RESERVED),
    "two links": ("/etc/ssl/certs", "/etc/pki/tls/one", RESERVED),
    "var run": ("/var/run", "/run", "/var/run/ca/company.crt"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_image_whose_path_is_a_link_starts(way: Way, node: Node, bundle: Bundle, name: str) -> None:
    at, target, reserved = IMAGES[name]
    node.compile(HEAD + f"    mounts: [{{hostPath: {node.ca}/certs/company.crt, mountPath: {reserved}}}]\n")
    for place in ("etc/pki/tls/certs", "etc/pki/ca-trust/extracted/pem", "usr/share/ca", "usr/lib/ssl/certs", "run"):
        (bundle.rootfs / place).mkdir(parents=True, exist_ok=True)
    (bundle.rootfs / "var").mkdir()
    (bundle.rootfs / "etc/pki/tls/one").symlink_to("certs")
    for place in ("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "usr/share/ca/bundle", RESERVED[1:]):
        (bundle.rootfs / place).write_text("image\n")
    link(bundle, at, target)
    starts(way, node, bundle, reserved)


def mounted(kind: str, node: Node, bundle: Bundle) -> list[str]:
    """Put the node's directory of CA files on another file system; commands that undo it."""
    ca, new = node.ca, node.directory / "new"
    new.mkdir()
    if kind == "symbolic link":
        ca.rename(node.directory / "real")
        ca.symlink_to(node.directory / "real")
        return []
    if kind == "tmpfs":
        run("mount", "-t", "tmpfs", "tmpfs", str(new))
    elif kind == "overlay":
        lower, upper = node.directory / "base", node.directory / "tmpfs"
        shutil.copytree(ca, lower)
        upper.mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", str(upper))
        (upper / "up").mkdir()
        (upper / "work").mkdir()
        options = f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/work"
        run("mount", "-t", "overlay", "-o", options, "overlay", str(new))
        run("mount", "--bind", str(new), str(ca))
        return [str(ca), str(new), str(upper)]
    shutil.copytree(ca, new, dirs_exist_ok=True)
    run("mount", "--bind", str(new), str(ca))
    if kind == "submounts":
        for name in ("a b", "c\\d"):
            (ca / name).mkdir()
            run("mount", "-t", "tmpfs", "tmpfs", str(ca / name))
        return [str(ca / "a b"), str(ca / "c\\d"), str(ca)]
    return [str(ca), str(new)] if kind == "tmpfs" else [str(ca)]


@POLICIES
@pytest.mark.parametrize("kind", ["symbolic link", "bind mount", "tmpfs", "overlay", "submounts"])
def test_host_path_may_be(way: Way, node: Node, bundle: Bundle, kind: str, policy: str) -> None:
    node.compile(policy)
    undo = mounted(kind, node, bundle)
    (bundle.rootfs / "etc/ssl/certs/company.crt").write_text("")
    try:
        starts(way, node, bundle)
    finally:
        for path in undo:
            run("umount", "-l", path)


def test_reserved_mount_in_a_reserved_mount_starts(way: Way, node: Node, bundle: Bundle) -> None:
    inner = f"{{hostPath: {node.ca}/certs/company.crt, mountPath: /etc/ssl/certs/other.crt}}"
    node.compile(DIRECTORY.replace("mounts: [", f"mounts: [{inner}, "))
    (node.ca / "certs/other.crt").write_text("")
    starts(way, node, bundle, "/etc/ssl/certs/other.crt")


def test_overlay_root_starts(way: Way, node: Node, bundle: Bundle) -> None:
    """As engines make it: the root is an overlay mount."""
    node.compile(DIRECTORY)
    base = bundle.directory / "base"
    bundle.rootfs.rename(base)
    bundle.rootfs.mkdir()
    scratch = Path(bundle.directory / "tmpfs")
    scratch.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(scratch))
    for name in ("up", "work"):
        (scratch / name).mkdir()
    options = f"lowerdir={base},upperdir={scratch}/up,workdir={scratch}/work"
    run("mount", "-t", "overlay", "-o", options, "overlay", str(bundle.rootfs))
    try:
        starts(way, node, bundle)
    finally:
        run("umount", "-l", str(bundle.rootfs))
        run("umount", "-l", str(scratch))
    assert os.listdir(bundle.rootfs) == []
