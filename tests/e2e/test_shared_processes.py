"""Containers that share their processes: what one can do to the reserved mounts of another, and `sharedProcesses`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.tools import run

from e2e.hostile_mounts import DIRECTORY, FILE, RESERVED
from e2e.runtimes import exchanging, guarded
from e2e.test_audit import seen

REFUSE = FILE + "    sharedProcesses: Refuse\n"
DETACH = f"b=/bin/busybox; $b rm /proc/$1/root{RESERVED} && $b cp /etc/passwd /proc/$1/root{RESERVED}"


def share(bundle: Bundle, path: str) -> Bundle:
    """Let the container of a bundle join a PID namespace, as containerd writes it; "": have the node's."""
    namespaces = [entry for entry in bundle.spec["linux"]["namespaces"] if entry["type"] != "pid"]
    bundle.spec["linux"]["namespaces"] = [*namespaces, *([{"type": "pid", "path": path}] if path else [])]
    return bundle


@pytest.fixture
def sandbox(pair: tuple[str, str], directory: Path) -> Iterator[str]:
    """The PID namespace of a pod's pause container, which no rule is for."""
    with Running(pair[0], Bundle(directory / "k8s.io" / "pause")) as pause:
        yield f"/proc/{pause.pid()}/ns/pid"


def test_sidecar_with_shared_processes_detaches_a_reserved_file(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, sandbox: str
) -> None:
    """No defect of a mount: unlink(2) of a mount point is EBUSY in the caller's own mount namespace alone."""
    node.compile(FILE)
    with guarded(pair[1], pair[0], node, share(bundle, sandbox)) as victim:
        assert victim.exec("/bin/cat", RESERVED) == "company\n"
        sidecar = share(Bundle(directory / "k8s.io" / "sidecar"), sandbox)
        with guarded(pair[1], pair[0], node, sidecar) as attacker:
            for name in attacker.exec("/bin/ls", "/proc").split():
                if name.isdigit():
                    attacker.exec("/bin/sh", "-c", f"{DETACH}; /bin/true", "sh", name)
        assert victim.exec("/bin/cat", RESERVED) != "company\n"


MOVE = (
    "b=/bin/busybox; cd /proc/$1/root/etc && $b mv ssl moved && $b mkdir -p ssl/certs && "
    "$b cp /etc/passwd ssl/certs/company.crt"
)


def test_sidecar_with_shared_processes_moves_a_reserved_directory(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, sandbox: str
) -> None:
    """The same with rename(2): the mount goes with the directory. `audit` sees it."""
    node.compile(DIRECTORY)
    bundle.pod()
    with guarded(pair[1], pair[0], node, share(bundle, sandbox)) as victim:
        sidecar = share(Bundle(directory / "k8s.io" / "sidecar"), sandbox)
        with guarded(pair[1], pair[0], node, sidecar) as attacker:
            for name in attacker.exec("/bin/ls", "/proc").split():
                if name.isdigit():
                    attacker.exec("/bin/sh", "-c", f"{MOVE}; /bin/true", "sh", name)
        assert victim.exec("/bin/cat", RESERVED) != "company\n"
        assert seen(node, victim)["state"] == "drifted"


@marks.claim("shared-processes", "runtime@wrapper", "hook@createRuntime")
@pytest.mark.parametrize("whose", ["the pod's", "the node's"])
def test_shared_processes_are_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, sandbox: str, whose: str
) -> None:
    node.compile(REFUSE)
    path = sandbox if whose == "the pod's" else ""
    container = guarded(pair[1], pair[0], node, share(bundle, path))
    assert container.create() != 0
    run(pair[0], "delete", "--force", container.id, check=False)
    shared = f"joins the PID namespace {path} of others" if path else "has the node's PID namespace"
    assert f"the container {shared}, and sharedProcesses is Refuse" in node.logged()[0]["denials"][0]["message"]
    [event] = node.logged()
    assert (event["event"], event["applied"]) == ("container.denied", False)
    assert [denial["rule"] for denial in event["denials"]] == ["company-ca"]


ALONE = REFUSE.partition("    mounts:")[0] + "    sharedProcesses: Refuse\n"


@pytest.fixture
def procfs(directory: Path) -> Iterator[Path]:
    """The node's procfs below a directory of the node, as kubelet mounts it for `hostPath: /` with `subPath: proc`."""
    (directory / "node/proc").mkdir(parents=True)
    run("mount", "--bind", "/proc", str(directory / "node/proc"))
    yield directory / "node"
    run("umount", "--lazy", str(directory / "node/proc"))


@marks.claim("shared-proc-volumes", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "With `sharedProcesses: Refuse`, a hostPath of /proc still took a reserved file away from another container",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@marks.hole(
    "With `sharedProcesses: Refuse`, a volume of the node's /proc/PID/fd took a reserved file away from "
    "another container",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("policy", [REFUSE, ALONE], ids=["with mounts", "alone"])
@pytest.mark.parametrize("source", ["/proc", "/proc/1", "/proc/1/fd", "/proc/1/ns", "/", "subPath", "above"])
def test_volume_of_the_nodes_proc_is_refused_as_sharing(
    pair: tuple[str, str], node: Node, bundle: Bundle, procfs: Path, source: str, policy: str
) -> None:
    """/proc/PID/root of others is in it, also where the volume is read-only."""
    node.compile(policy)
    source = {"subPath": f"{procfs}/proc", "above": str(procfs)}.get(source, source)
    bundle.bind(source, "/host", "ro", *(["rslave"] if source == "/" else []))
    container = guarded(pair[1], pair[0], node, bundle)
    assert container.create() != 0
    run(pair[0], "delete", "--force", container.id, check=False)
    [event] = node.logged()
    assert (event["event"], event["applied"]) == ("container.denied", False)
    message = event["denials"][0]["message"]
    assert "/host" in message
    assert message.endswith("and sharedProcesses is Refuse")


@pytest.mark.parametrize("how", ["a link", "a bind mount", "an exchange"])
@pytest.mark.parametrize("below", ["", "/fd", "/task", "/ns"])
def test_no_link_and_no_mount_hides_the_nodes_processes(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, below: str, how: str
) -> None:
    """The exchange happens after the decision, as of a hostPath that an engine has resolved.

    Nobody mounts what root, cwd and the entries of fd lead to: it is in another mount namespace (mount(2), EINVAL).
    """
    real, adapter = pair
    source, target = directory / "source", f"/proc/1{below}"
    node.compile(REFUSE)
    if how == "a link":
        source.symlink_to(target)
    else:
        source.mkdir()
        if how == "a bind mount":
            run("mount", "--bind", target, str(source))
        else:
            real = exchanging(real, node, source, target)
    bundle.bind(source, "/host", "ro")
    try:
        container = guarded(adapter, real, node, bundle)
        assert container.create() != 0
        run(real, "delete", "--force", container.id, check=False)
        assert "sharedProcesses is Refuse" in node.logged()[0]["denials"][0]["message"]
    finally:
        if how == "a bind mount":
            run("umount", "--lazy", str(source))


@pytest.mark.parametrize(("source", "has"), [("/proc/sys/net", "core"), ("/proc/net", "unix")])
def test_volume_of_the_nodes_settings_in_proc_is_let_through(
    pair: tuple[str, str], node: Node, bundle: Bundle, source: str, has: str
) -> None:
    node.compile(REFUSE)
    bundle.bind(source, "/host", "ro")
    container = guarded(pair[1], pair[0], node, bundle)
    with container:
        assert has in container.exec("/bin/ls", "/host")


def test_audit_names_a_running_container_that_shares_its_processes(
    pair: tuple[str, str], node: Node, bundle: Bundle, sandbox: str
) -> None:
    node.compile(FILE)
    with guarded(pair[1], pair[0], node, share(bundle, sandbox)) as container:
        node.compile(REFUSE)
        [difference] = seen(node, container)["differences"]
        assert difference["kind"] == "sharedProcesses"
        assert difference["message"].endswith(f"{sandbox} of others, and sharedProcesses is Refuse")
