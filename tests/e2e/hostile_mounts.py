"""Shared by the tests of ways past a reserved mount: policies, hostile images, what a container reads in the end."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from harness.bundle import Bundle
from harness.node import POLICY, Node
from harness.tools import need, run

from e2e.runtimes import Console, guarded

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
        deadline = time.monotonic() + 600
        while not (output := container.output()).endswith(END):
            assert time.monotonic() < deadline, output
            time.sleep(0.005)
        return output.partition(BEGIN)[2].removesuffix(END)
    finally:
        run(container.runtime, "delete", "--force", container.id, check=False)


def holds(way: tuple[str, str], node: Node, bundle: Bundle, *refusals: str) -> None:
    """Start it. The node is untouched, and the event is true.

    `refusals`: it is refused for one of them (`assert_refused`); none: it starts, and reads the reserved file.
    """
    before = [(path, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(node.ca.rglob("*"))]
    result = seen(way, node, bundle)
    assert result == ("refused" if refusals else "company\n"), why(node, bundle)
    after = [(path, path.stat().st_mode, path.stat().st_mtime_ns) for path in sorted(node.ca.rglob("*"))]
    assert after == before
    if refusals:
        assert_refused(node, bundle, *refusals)
    else:
        assert [event["applied"] for event in node.logged()] == [True]


def why(node: Node, bundle: Bundle) -> str:
    """Why the container was refused: rule and message of each denial, or what the runtime says where it refused."""
    denials = [denial for event in node.logged() for denial in event.get("denials", [])]
    return "\n".join(f"{denial['rule']}: {denial['message']}" for denial in denials) or (
        (bundle.directory / "output").read_text()
    )


def assert_refused(node: Node, bundle: Bundle, *refusals: str) -> None:
    """By a rule of the policy, or by the runtime, for one of these reasons: "RULE: MESSAGE", or a part of either."""
    assert any(reason in why(node, bundle) for reason in refusals), why(node, bundle)
    assert [event["applied"] for event in node.logged()] in ([False], [])


IN_PROC = ("Invalid cross-device link", "too many levels of symbolic links")
"""How crun, and runc since 1.3, refuse a path that leads into procfs."""

NOT_INSIDE = ("configure the hook for the stage createRuntime", "error executing hook")
"""createContainer with a user namespace, with runc, and with crun, which does not say why a hook failed."""


def above(at: str, path: str = "") -> str:
    """The refusal of a pod's volume that is above a reserved mount."""
    return f"company-ca: mount {at} is a volume above the reserved mount {path}"


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
