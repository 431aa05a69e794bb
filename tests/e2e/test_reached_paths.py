"""Ways to files of reassert or of an engine that a list of paths, or the text of a path, does not show: `nodePaths`."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.tools import run

from e2e.agent.support import Agent
from e2e.runtimes import EACH, exchanging, guarded, real_runtime
from e2e.test_node_paths import ENV, refused, with_env

ID = "0a" * 32
SANDBOX = "/containerd/io.containerd.grpc.v1.cri/sandboxes"
FORMS = {
    "kubelet's volume": "KUBELET/pods/0a/volumes/kubernetes.io~empty-dir/v",
    "kubelet's CSI volume": "KUBELET/pods/0a/volumes/kubernetes.io~csi/v/mount",
    "a file of kubelet for a container": "KUBELET/pods/0a/containers/app/1234",
    "kubelet's hosts": "KUBELET/pods/0a/etc-hosts",
    "containerd's sandbox": f"/var/lib{SANDBOX}/UNIQUE/hostname",
    "containerd's shm": f"/run{SANDBOX}/UNIQUE/shm",
    "a volume of containerd": "/var/lib/containerd/io.containerd.grpc.v1.cri/containers/UNIQUE/volumes/v",
    "k3s' sandbox": f"/var/lib/rancher/k3s/agent{SANDBOX}/UNIQUE/hosts",
    "k3s' shm": f"/run/k3s{SANDBOX}/UNIQUE/shm",
    "docker's file": "/var/lib/docker/containers/UNIQUE/hostname",
    "docker's shm": "/var/lib/docker/containers/UNIQUE/mounts/shm",
    "podman's file": "/run/containers/storage/overlay-containers/UNIQUE/userdata/hosts",
    "podman's file in its root": "/var/lib/containers/storage/overlay-containers/UNIQUE/userdata/hosts",
}
"""What kubelet and engines make for a container. Whoever writes above one of them can put something else there."""


@contextmanager
def made(path: str) -> Iterator[Path]:
    """A directory of the machine, for one test. The last of these tests removes what was not there before."""
    target = Path(path)
    with open("/var/lib/reassert-tests/made", "a+") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        missing = [each for each in (target, *target.parents) if not each.exists()]
        users.writelines(f"{each}\n" for each in missing)
        users.flush()
        target.mkdir(parents=True, exist_ok=True)
        try:
            yield target
        finally:
            with suppress(BlockingIOError):  # others use them
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                users.seek(0)
                for line in sorted({*users.read().split()}, key=len, reverse=True):
                    with suppress(OSError):
                        Path(line).rmdir()
                users.truncate(0)


@pytest.fixture
def form(request: pytest.FixtureRequest, node: Node, directory: Path) -> Iterator[Path]:
    """A path with the form of one of FORMS, at which nothing is. Its directory is there."""
    path = Path(FORMS[request.param].replace("KUBELET", f"{directory}/kubelet").replace("UNIQUE", directory.name))
    node.compile(f"{ENV}  kubelet: {{root: {directory}/kubelet}}\n")
    with made(str(path.parent)):
        yield path
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            run("umount", str(path), check=False)
            path.rmdir()


def assert_unwritten(pair: tuple[str, str], node: Node, bundle: Bundle, of: Path, at: str = "/mnt") -> None:
    """A container changes nothing in a directory of the node, nor in its policy.yaml, and its event says why."""
    (of / "policy.yaml").touch()
    was = sorted(of.iterdir()), (of / "policy.yaml").read_bytes()
    script = f"echo '# written' >> {at}/policy.yaml; /bin/touch {at}/written; echo tried"
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", script]
    container = guarded(pair[1], pair[0], node, bundle)
    if container.create() == 0:
        run(pair[0], "start", container.id)
        container.wait_for("tried")
    run(pair[0], "delete", "--force", container.id, check=False)
    assert (sorted(of.iterdir()), (of / "policy.yaml").read_bytes()) == was
    [event] = node.logged()
    assert at in str(event)


@marks.claim("own-files", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "A link at a path with the form of kubelet's or an engine's own files, made by a container with a "
    "writable volume above it, hid a writable volume of the policy",
    since="0.1.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("how", ["a link", "a bind mount", "an exchange"])
@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_the_form_of_a_path_hides_no_volume(
    pair: tuple[str, str], node: Node, bundle: Bundle, form: Path, how: str
) -> None:
    """A container with a writable volume above made a link to the policy there, and another one mounts it."""
    real, adapter = pair
    if how == "a link":
        form.symlink_to(node.policy.parent)
    else:
        form.mkdir()
        if how == "a bind mount":
            run("mount", "--bind", str(node.policy.parent), str(form))
        else:
            real = exchanging(real, node, form, str(node.policy.parent))
    with_env(bundle, pair).bind(form, "/mnt")
    assert_unwritten((real, adapter), node, bundle, node.policy.parent)


@marks.hole(
    "A link at a path with the form of kubelet's or an engine's own files, made by a container with a "
    "writable volume above it, hid a writable volume of the policy"
)
def test_the_agent_looks_too(real: str, node: Node, bundle: Bundle, directory: Path) -> None:
    volume = directory / "kubelet/pods/0a/volumes/kubernetes.io~empty-dir/v"
    volume.parent.mkdir(parents=True)
    volume.symlink_to(node.policy.parent)
    node.compile(f"{ENV}  kubelet: {{root: {directory}/kubelet}}\n")
    agent = Agent(node)
    agent.start()
    try:
        bundle.bind(volume, "/mnt")
        bundle.save()
        container = Running(agent.only_warm(agent.dispatcher(real), tries=30), bundle)
        assert container.create() != 0
        run(real, "delete", "--force", container.id, check=False)
        [event] = [event for event in node.logged() if event["event"].startswith("container.")]
        assert (event["event"], event["start"]) == ("container.denied", "warm")
        assert f"reaches {node.policy} of reassert" in event["denials"][0]["message"]
    finally:
        agent.stop()


def test_what_kubelet_makes_for_a_container_starts(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path
) -> None:
    """No event either: each pod has these."""
    pods = directory / "kubelet/pods/0a"
    (pods / "volumes/kubernetes.io~empty-dir/v").mkdir(parents=True)
    (pods / "etc-hosts").write_text("127.0.0.1 localhost\n")
    node.compile(f"{ENV}  nodePaths: {{engine: Refuse}}\n  kubelet: {{root: {directory}/kubelet}}\n")
    bundle.spec["process"]["env"].append("CA=x")
    (bundle.rootfs / "etc/hosts").touch()
    bundle.bind(pods / "etc-hosts", "/etc/hosts")
    bundle.bind(pods / "volumes/kubernetes.io~empty-dir/v", "/data")
    with made(f"/run/k0s{SANDBOX}/{directory.name}/shm") as shm:
        bundle.bind(shm, "/dev/shm")
        with guarded(pair[1], pair[0], node, bundle) as container:
            assert "localhost" in container.exec("/bin/cat", "/etc/hosts")
    assert node.logged() == []


@marks.hole(
    "With `nodePaths.engine: Refuse`, a read-only volume of /run/containerd/s, where containerd's shims "
    "listen, executed a program of the pod as root of the node",
    since="0.4.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/run/containerd/s", "/run/containerd/s"),
        ("/run/docker/containerd", "/run/docker"),
        ("/run/k3s/containerd/s", "/run/k3s/containerd/s"),
        ("/run/k0s/containerd.sock", "/run/k0s/containerd.sock"),
    ],
)
def test_a_socket_beside_the_engines_own_is_reported_or_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, source: str, said: str
) -> None:
    """A shim answers anybody of uid 0, and executes what a client names. A link to its directory is seen as well."""
    with made(source) as there:
        (directory / "link").symlink_to(there)
        for at in (there, directory / "link"):
            bundle.spec["mounts"] = [mount for mount in bundle.spec["mounts"] if mount["destination"] != "/mnt"]
            bundle.spec["process"]["env"] = ["PATH=/bin", "CA=x"]
            bundle.bind(at, "/mnt", "ro")
            node.compile(ENV)
            with guarded(pair[1], pair[0], node, bundle):
                pass
            [event] = node.logged()
            assert (event["event"], event["nodePaths"]) == ("container.node-paths", [f"/mnt: {said}"])
            node.events.unlink()
            node.compile(ENV + "  nodePaths: {engine: Refuse}\n")
            why = f"the volume /mnt reaches {said} of the engine, and nodePaths.engine is Refuse"
            assert refused(pair, node, bundle).startswith(why)
            node.events.unlink()


@marks.hole(
    "A writable volume of the chart's /var/lib/reassert-kubernetes, of /usr/local/bin or of install's staging"
    " directory replaced a program that root of the node executes",
    since="0.1.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("/var/lib/reassert-kubernetes", "/var/lib/reassert-kubernetes"),
        ("/usr/local/bin/reassert", "/usr/local/bin"),
        ("/opt/.reassert.reassert-aside", "/opt/.reassert.reassert-aside"),
    ],
)
def test_what_root_executes_elsewhere_is_reasserts_own(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, own: str, source: str
) -> None:
    """The chart's directory, the command of units and administrators, and where `install` prepares a program."""
    node.compile(ENV)
    with made(source) as there:
        (directory / "link").symlink_to(there)
        with_env(bundle, pair).bind(directory / "link", "/mnt")
        assert f"the volume /mnt can be written and reaches {own} of reassert" in refused(pair, node, bundle)


@marks.hole(
    "With the hook alone and `volumesAbove: Allow`, a writable volume of the policy at a reserved path stayed"
    " below the reserved mount, and CAP_SYS_ADMIN of a user namespace unmounted that",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("first", [None, 0], ids=["the node's users", "a user namespace"])
@pytest.mark.parametrize("how", ["directory", "link"])
@pytest.mark.parametrize("name", EACH)
def test_a_volume_below_a_reserved_mount_is_judged_where_a_hook_cannot_remove_it(
    name: str, node: Node, bundle: Bundle, directory: Path, how: str, first: int | None
) -> None:
    """CAP_SYS_ADMIN unmounts what lies above."""
    node.compile(
        "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: ca\n    mounts:\n"
        f"    - {{hostPath: {node.ca}, mountPath: /etc/ssl, readOnly: true, volumesAbove: Allow}}\n"
    )
    (directory / "link").symlink_to(node.policy.parent)
    bundle.bind(node.policy.parent if how == "directory" else directory / "link", "/etc/ssl")
    if first is not None:
        mapping = [{"containerID": 0, "hostID": first, "size": 65536}]
        bundle.spec["linux"].update(uidMappings=mapping, gidMappings=mapping)
        bundle.spec["linux"]["namespaces"].append({"type": "user"})
    message = refused((real_runtime(name, node.directory), "createRuntime"), node, bundle)
    assert message.startswith(f"the volume /etc/ssl can be written and reaches {node.policy} of reassert")


@marks.hole(
    "On a node whose /etc is an overlay, a writable volume of its upper directory wrote the policy",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("what", ["upper", "above the upper", "work", "lower", "the overlay itself"])
def test_directories_of_an_overlay_that_holds_the_policy_are_reasserts_own(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, what: str
) -> None:
    """As /etc on a node with overlayroot. The mount table has another device for what the overlay shows."""
    media = directory / "media"
    upper, work, lower, etc = media / "up per", media / "work", directory / "lower", directory / "etc"
    for each in (upper, work, lower, etc):
        each.mkdir(parents=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "overlay", "-o", options, str(etc))
    try:
        node.policy = etc / "policy.yaml"
        node.compile(ENV)
        sources = {"upper": upper, "above the upper": media, "work": work, "lower": lower, "the overlay itself": etc}
        with_env(bundle, pair).bind(sources[what], "/mnt")
        assert "the volume /mnt can be written and reaches " in refused(pair, node, bundle)
        node.events.unlink()
        (directory / "beside").mkdir()
        bundle.spec["mounts"][-1]["source"] = str(directory / "beside")
        bundle.spec["process"]["env"] = ["PATH=/bin", "CA=x"]
        with guarded(pair[1], pair[0], node, bundle):
            pass
        assert node.logged() == []
    finally:
        run("umount", str(etc))


def test_a_mount_over_another_at_the_same_point_refuses_only_who_reaches_it(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path
) -> None:
    """As where systemd's .automount unit has mounted: autofs is below the file system."""
    etc, beside = directory / "etc", directory / "beside"
    etc.mkdir()
    beside.mkdir()
    for _ in range(2):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(etc))
    try:
        node.policy = etc / "policy.yaml"
        node.compile(ENV)
        bundle.spec["process"]["env"] = ["PATH=/bin", "CA=x"]
        bundle.bind(beside, "/mnt")
        with guarded(pair[1], pair[0], node, bundle):
            pass
        assert node.logged() == []
        bundle.spec["mounts"][-1]["source"] = str(etc)
        assert "the volume /mnt can be written and reaches " in refused(pair, node, bundle)
    finally:
        for _ in range(2):
            run("umount", str(etc))


def test_reserved_mount_from_reasserts_own_files_is_not_judged_by_the_hook_alone(
    real: str, node: Node, bundle: Bundle
) -> None:
    """The policy's author chose it, also a mount of the node below its source. Another one of the same files is not."""
    below = node.policy.parent / "below"
    below.mkdir()
    run("mount", "--bind", str(node.ca), str(below))
    try:
        node.compile(
            "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: own\n    mounts:\n"
            f"    - {{hostPath: {node.policy.parent}, mountPath: /mnt, readOnly: false}}\n"
        )
        bundle.spec["mounts"].append(
            {"destination": "/mnt", "type": "bind", "source": str(node.policy.parent), "options": ["rbind", "rslave"]}
        )
        with guarded("createRuntime", real, node, bundle) as container:
            assert "policy.yaml" in container.exec("/bin/ls", "/mnt")
        bundle.bind(node.policy.parent, "/other")
        assert "the volume /other can be written" in refused((real, "createRuntime"), node, bundle)
    finally:
        run("umount", str(below))


def test_config_json_of_an_env_policy_has_the_hook(real: str, node: Node, bundle: Bundle) -> None:
    """Whatever a path looks like: only the mounts that a runtime has made tell what it leads to."""
    node.compile(ENV)
    bundle.bind("/var/lib/kubelet/pods/0a/etc-hosts", "/etc/hosts")
    bundle.save()
    Running(node.dispatcher("/bin/true"), bundle).create()
    assert json.loads(bundle.config.read_text())["hooks"]["createRuntime"]
