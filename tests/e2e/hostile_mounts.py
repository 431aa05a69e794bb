"""Shared by the tests of ways past a reserved mount: policies, hostile images, what a container reads in the end."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from e2e.runtimes import Console, guarded
from e2e.support import POLICY, Bundle, Node, need, run

HEAD = POLICY[: POLICY.index("    env:")]
DIRECTORY = HEAD + "    mounts: [{hostPath: CA, mountPath: /etc/ssl, readOnly: true}]\n"
FILE = HEAD + "    mounts: [{hostPath: CA/certs/company.crt, mountPath: /etc/ssl/certs/company.crt, readOnly: true}]\n"
RESERVED = "/etc/ssl/certs/company.crt"

READ = f"/bin/busybox head -c 64 {RESERVED}"
BEGIN, END = "begin of what was read\n", "end of what was read\n"
"""A runtime that creates a container may warn before, into the same file."""


def hostile_image(bundle: Bundle) -> Bundle:
    """An image with its own file at the reserved path, and the attacker's directory in it."""
    for place in ("etc/ssl/certs", "evil/certs", "evil/ssl/certs"):
        (bundle.rootfs / place).mkdir(parents=True, exist_ok=True)
        (bundle.rootfs / place / "company.crt").write_text("evil\n")
    return bundle


def volume(bundle: Bundle, name: str) -> Path:
    """A pod's directory on the node, with the attacker's files."""
    path = bundle.directory.parent / name
    shutil.copytree(bundle.rootfs / "evil", path)
    return path


def link(bundle: Bundle, path: str, target: str) -> None:
    """Make a path of the image a symbolic link."""
    there = bundle.rootfs / path.lstrip("/")
    if there.is_dir() and not there.is_symlink():
        shutil.rmtree(there)
    there.unlink(missing_ok=True)
    there.symlink_to(target)


def seen(way: tuple[str, str], node: Node, bundle: Bundle) -> str:
    """What the container's first process reads at the reserved path, or "refused" where it does not start.

    With a terminal, whose output nobody here reads, it is what a process of exec reads.
    """
    process = bundle.spec["process"]
    usual, tty = process["args"], process["terminal"]
    if not tty:
        process["args"] = ["/bin/sh", "-c", f"printf '{BEGIN}'; {READ}; printf '{END}'"]
    container = guarded(way[1], way[0], node, bundle)
    process["args"] = usual
    if tty:
        socket = container.bundle.directory / "console"
        Console(socket)
        container.create_options = ["--console-socket", str(socket)]
    try:
        if container.create() != 0:
            return "refused"
        run(container.runtime, "start", container.id)
        if tty:
            return run(container.runtime, "exec", container.id, *READ.split(), check=False).stdout
        deadline = time.monotonic() + 30
        while not (output := container.output()).endswith(END):
            assert time.monotonic() < deadline, output
            time.sleep(0.005)
        return output.partition(BEGIN)[2].removesuffix(END)
    finally:
        run(container.runtime, "delete", "--force", container.id, check=False)


def holds(way: tuple[str, str], node: Node, bundle: Bundle) -> str:
    """Start it. The reserved file or a refusal, the node untouched, and an event that is true."""
    before = [(path, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(node.ca.rglob("*"))]
    result = seen(way, node, bundle)
    assert result in ("company\n", "refused"), result
    after = [(path, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(node.ca.rglob("*"))]
    assert after == before
    assert [event["applied"] for event in node.logged()] in ([result != "refused"], [])
    return result


def cwd(bundle: Bundle) -> None:
    bundle.spec["process"]["cwd"] = "/evil"


def terminal(bundle: Bundle) -> None:
    bundle.spec["process"]["terminal"] = True


def in_user_namespace(bundle: Bundle) -> None:
    """As `hostUsers: false`: root in the container is uid 100000 of the node, and owns its root file system."""
    mapping = {"containerID": 0, "hostID": 100000, "size": 65536}
    bundle.spec["linux"].update(uidMappings=[mapping], gidMappings=[mapping])
    bundle.spec["linux"]["namespaces"].append({"type": "user"})
    for path in [bundle.rootfs, *bundle.rootfs.rglob("*")]:
        os.chown(path, 100000, 100000, follow_symlinks=False)
    possible = run("unshare", "-U", "true", check=False).returncode == 0
    need(possible, "user namespaces (user.max_user_namespaces, CONFIG_USER_NS)", installed=False)
