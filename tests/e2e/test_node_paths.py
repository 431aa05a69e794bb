"""Containers whose volumes reach reassert's own files, or an engine's: `nodePaths`."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.node import Node
from harness.paths import REASSERT
from harness.tools import cleaned, run

from e2e.hostile_mounts import FILE
from e2e.runtimes import EACH, guarded, real_runtime
from e2e.test_audit import seen
from hook.core.reserve.edits import SHOWN

ENV = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - {name: ca, env: [{name: CA, value: x}]}\n"
"""A policy that reserves nothing that anything but config.json shows."""

UNMATCHED = ENV.replace("name: ca, env", 'name: ca, match: {namespaces: ["other"]}, env')
REPORT = ENV + "  nodePaths: {reassert: Report}\n"


@pytest.fixture
def ways(node: Node, directory: Path) -> Iterator[dict[str, Path]]:
    """Sources of volumes that reach the policy file, by how."""
    own = node.policy
    subpath, nested, link = directory / "subpath", directory / "nested", directory / "link"
    subpath.mkdir()
    (nested / "below").mkdir(parents=True)
    link.symlink_to(own.parent)
    run("mount", "--bind", str(own.parent), str(subpath))
    run("mount", "--bind", str(own.parent), str(nested / "below"))
    yield {"file": own, "directory": own.parent, "link": link, "subPath": subpath, "below a volume": nested}
    for mounted in (subpath, nested / "below"):
        cleaned(str(mounted), lambda mounted=mounted: run("umount", str(mounted)))  # type: ignore[misc]  # a loop's variable


WAYS = ("file", "directory", "link", "subPath", "below a volume")


def refused(pair: tuple[str, str], node: Node, bundle: Bundle) -> str:
    """Why a container must not start."""
    container = guarded(pair[1], pair[0], node, bundle)
    assert container.create() != 0, "it was created"
    run(pair[0], "delete", "--force", container.id, check=False)
    [event] = node.logged()
    assert (event["event"], event["applied"]) == ("container.denied", False)
    message: str = event["denials"][0]["message"]
    return message


def with_env(bundle: Bundle, pair: tuple[str, str]) -> Bundle:
    """The hook alone cannot set env: there the container has it already."""
    if pair[1] != "wrapper":
        bundle.spec["process"]["env"].append("CA=x")
    return bundle


@marks.claim("own-files", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "A writable hostPath of /etc/reassert, or of a directory above it, switched reassert off",
    since="0.1.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("how", WAYS)
def test_volume_in_which_the_policy_can_be_written_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], how: str
) -> None:
    node.compile(ENV)
    with_env(bundle, pair).bind(ways[how], "/mnt")
    at = "at /mnt/below " if how == "below a volume" else ""
    assert refused(pair, node, bundle).startswith(
        f"the volume /mnt can be written {at}and reaches {node.policy} of reassert, and nodePaths.reassert is Refuse: "
    )


@marks.hole(
    "Under crun, a mount in a read-only volume of reassert's own files made a file of any name there, such as"
    " one that holds the policy back",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@marks.hole(
    "A device in a read-only volume of reassert's own files (`volumeDevices`) made a file of any name there, "
    "such as one that holds the policy back",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("what", ["a volume", "a device"])
def test_volume_in_a_read_only_one_makes_no_file_among_them(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, what: str
) -> None:
    """crun makes the mount point, or the device, before it makes the volume read-only, and runc refuses."""
    node.compile(ENV)
    (directory / "data").mkdir()
    program = Path(REASSERT).resolve().parent
    made = program / f"made-{directory.name}"
    with_env(bundle, pair).bind(program, "/mnt", "ro")
    if what == "a volume":
        bundle.bind(directory / "data", f"/mnt/{made.name}")
    else:
        bundle.spec["linux"]["devices"] = [{"path": f"/mnt/{made.name}", "type": "c", "major": 1, "minor": 3}]
    container = guarded(pair[1], pair[0], node, bundle)
    try:
        assert container.create() != 0, "it was created"
        if pair[1] == "wrapper":  # the hook comes after the mounts
            assert f"the volume /mnt has /mnt/{made.name} in it, which a runtime makes there" in container.output()
            assert not made.exists()
    finally:
        run(pair[0], "delete", "--force", container.id, check=False)
        if made.is_dir():
            made.rmdir()
        made.unlink(missing_ok=True)


@marks.hole(
    "In a user namespace (`hostUsers: false`), CAP_SYS_ADMIN made a pod's read-only volume of /etc/reassert "
    "writable, and wrote the policy",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("first", [0, 100_000])
def test_read_only_volume_that_root_of_a_user_namespace_can_remount_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], first: int
) -> None:
    """With `hostUsers: false`, kubelet's volumes are idmapped: root there owns the node's files in them.

    Also a container without CAP_SYS_ADMIN: another one of the pod can have it, and enter this one's mount namespace.
    """
    node.compile(ENV)
    with_env(bundle, pair).bind(ways["directory"], "/mnt", "ro")
    mapping = [{"containerID": 0, "hostID": first, "size": 65536}]
    linux = bundle.spec["linux"]
    linux.update(uidMappings=mapping, gidMappings=mapping)
    linux["namespaces"].append({"type": "user"})
    run("chown", "--recursive", f"{first}:{first}", str(bundle.rootfs))
    assert "/mnt can be written and reaches " in refused(pair, node, bundle)


@marks.hole(
    "A volume with reassert's own files was let through if a removed env name was its path in the container",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
def test_env_that_is_named_as_the_volume_is_mounted_hides_it_not(
    node: Node, bundle: Bundle, ways: dict[str, Path]
) -> None:
    runtime = real_runtime(EACH[0], node.directory)
    node.compile(ENV.replace("name: CA, value: x", 'name: "*_PROXY", absent: true'))
    bundle.bind(ways["directory"], "/mnt_PROXY")
    bundle.spec["process"]["env"].append("/mnt_PROXY=x")
    assert "nodePaths.reassert is Refuse" in refused((runtime, "wrapper"), node, bundle)


@marks.claim("own-files", "runtime@wrapper", "hook@createRuntime")
def test_the_class_holds_without_a_rule_that_matches(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path]
) -> None:
    node.compile(UNMATCHED)
    bundle.spec["annotations"] = {"io.kubernetes.cri.container-type": "container"}
    with_env(bundle, pair).bind(ways["link"], "/mnt")
    assert "nodePaths.reassert is Refuse" in refused(pair, node, bundle)


def test_volume_beside_them_and_one_that_is_read_only_start_and_no_event_is_written(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], directory: Path
) -> None:
    node.compile(ENV)
    (directory / "data").mkdir()
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(directory / "data", "/data")
    bundle.bind(ways["subPath"], "/mnt", "ro")
    bundle.bind(ways["link"], "/link", "ro")
    with guarded(pair[1], pair[0], node, bundle) as container:
        assert "policy.yaml" in container.exec("/bin/ls", "/mnt")
    assert node.logged() == []


def test_report_names_the_volume_and_starts_the_container(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path]
) -> None:
    node.compile(REPORT)
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(ways["subPath"], "/mnt")
    with guarded(pair[1], pair[0], node, bundle):
        pass
    [event] = node.logged()
    assert (event["event"], event["level"], event["edits"]) == ("container.node-paths", "warning", [])
    assert event["nodePaths"] == [f"/mnt: {node.policy}"]


def test_audit_names_a_running_container_that_reaches_them(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path]
) -> None:
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(ways["subPath"], "/mnt")
    node.compile(REPORT)
    with guarded(pair[1], pair[0], node, bundle) as container:
        found = seen(node, container)
        assert (found["state"], found["reaches"]) == ("in policy", (f"/mnt: {node.policy}",))
        node.compile(ENV)
        found = seen(node, container)
        assert (found["state"], found["differences"]) == ("in policy", ()), "it runs on, as after an upgrade"
        [said] = found["next_start"]
        assert said.startswith("refused: the volume /mnt can be written and reaches ")
        node.compile(ENV.replace("spec:\n", "spec:\n  mode: Audit\n"))
        assert seen(node, container)["next_start"] == (f"would be {said}",)


@pytest.fixture
def engine() -> Iterator[Path]:
    """NRI's directory, which each engine may have. On a machine without it the last of these tests removes it again."""
    path = Path("/run/nri")
    with open("/var/lib/reassert-tests/run-nri", "w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        path.mkdir(exist_ok=True)
        yield path
        with suppress(OSError):  # others use it, or it has an engine's socket
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rmdir()


@pytest.mark.parametrize(("source", "at"), [("/run/nri", "/mnt"), ("/var/run/nri", "/mnt"), ("/run", "/mnt")])
def test_read_only_volume_with_an_engines_socket_is_reported_or_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, engine: Path, source: str, at: str
) -> None:
    node.compile(ENV)
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(source, at, "ro")
    with guarded(pair[1], pair[0], node, bundle):
        pass
    [event] = node.logged()
    assert event["event"] == "container.node-paths"
    assert any(one.startswith(f"{at}: /run/") for one in event["nodePaths"]), event["nodePaths"]
    node.events.unlink()
    node.compile(ENV + "  nodePaths: {engine: Refuse}\n")
    assert "of the engine, and nodePaths.engine is Refuse" in refused(pair, node, bundle)


@marks.hole(
    "With a rule in Audit mode and `nodePaths.engine: Refuse`, 65 volumes that were only tried hid one with "
    "an engine's socket",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@marks.hole(
    "With a rule in Audit mode, the event of a refused container with 64 volumes that were only tried left "
    "out why it was refused",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
def test_volumes_that_are_only_on_trial_hide_none_that_is_refused(
    node: Node, bundle: Bundle, ways: dict[str, Path], engine: Path
) -> None:
    """A rule in Audit mode has nodePaths.reassert tried, unless the file gives it."""
    node.compile(ENV + "  - {name: t, mode: Audit, env: [{name: T, value: x}]}\n  nodePaths: {engine: Refuse}\n")
    runtime = real_runtime(EACH[0], node.directory)
    for number in range(SHOWN + 2):
        bundle.bind(ways["directory"], f"/tried/{number:03}")
    bundle.bind("/run", "/z", "ro", "rbind")
    container = guarded("wrapper", runtime, node, bundle)
    assert "of the engine, and nodePaths.engine is Refuse" in container.refused()
    [event] = node.logged()
    assert event["event"] == "container.denied"
    [why] = [denial["message"] for denial in event["denials"] if denial.get("mode") != "Audit"]
    assert why.startswith("the volume /z reaches "), "what is tried leaves no room for it"


def test_excluded_container_keeps_its_volume(node: Node, bundle: Bundle, ways: dict[str, Path]) -> None:
    node.compile(ENV + "  exclude: {containerTypes: [container]}\n")
    runtime = real_runtime(EACH[0], node.directory)
    bundle.bind(ways["directory"], "/mnt")
    refusal = guarded("wrapper", runtime, node, bundle).refused()
    assert "nodePaths.reassert" in refusal, "no engine says what it is, so it is not excluded"


def test_audit_mode_says_what_enforce_mode_would_refuse(node: Node, bundle: Bundle, ways: dict[str, Path]) -> None:
    node.compile(ENV.replace("spec:\n", "spec:\n  mode: Audit\n"))
    bundle.bind(ways["directory"], "/mnt")
    with guarded("wrapper", real_runtime(EACH[0], node.directory), node, bundle) as container:
        assert "policy.yaml" in container.exec("/bin/ls", "/mnt")
    [event] = node.logged()
    assert event["event"] == "container.would-deny"
    assert "nodePaths.reassert is Refuse" in event["denials"][0]["message"]


def test_reserved_mount_is_not_judged(node: Node, bundle: Bundle, ways: dict[str, Path]) -> None:
    """The policy's author chose it."""
    rule = FILE.partition("    mounts:")[0]
    node.compile(f"{rule}    mounts: [{{hostPath: {node.policy.parent}, mountPath: /mnt, readOnly: false}}]\n")
    with guarded("wrapper", real_runtime(EACH[0], node.directory), node, bundle) as container:
        assert "policy.yaml" in container.exec("/bin/ls", "/mnt")


ATTACK = "echo '# written' >> {}/policy.yaml; /bin/true"


@pytest.mark.parametrize("how", ["allowBelow", "a link of the image beside a read-only volume", "the node's root"])
def test_policy_stays_as_it_is(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], directory: Path, how: str
) -> None:
    """Refused, or read-only: what a container is allowed elsewhere lets nothing through here."""
    (directory / "data/mine").mkdir(parents=True)
    node.compile(ENV)
    with_env(bundle, pair)
    at = "/a"
    if how == "allowBelow":
        at = "/res/mine"
        mount = f"{{hostPath: {directory}/data, mountPath: /res, allowBelow: [/res/mine]}}"
        node.compile(f"{ENV}  - {{name: data, mounts: [{mount}]}}\n")
    elif how == "the node's root":
        at = "/a/etc"
        (bundle.rootfs / "a").symlink_to("/")
        bundle.spec["mounts"].insert(0, {"destination": "/a", "type": "bind", "source": str(node.policy.parent.parent)})
        bundle.spec["mounts"][0]["options"] = ["rbind"]
    else:
        (bundle.rootfs / "mnt").mkdir()
        (bundle.rootfs / "a").symlink_to("/mnt")
        bundle.bind(directory / "data", "/mnt", "ro")
    if how != "the node's root":
        bundle.bind(ways["link"], at)
    was = node.policy.read_bytes()
    bundle.spec["process"]["args"] = ["/bin/sh", "-c", ATTACK.format(at)]
    bundle.save()
    container = guarded(pair[1], pair[0], node, bundle)
    if container.create() == 0:
        run(pair[0], "start", container.id, check=False)
        for _ in range(10000):
            state = run(pair[0], "state", container.id, check=False)
            if '"stopped"' in state.stdout or state.returncode:
                break
            time.sleep(0.05)
    run(pair[0], "delete", "--force", container.id, check=False)
    assert node.policy.read_bytes() == was


def test_paths_below_a_containers_own_volumes_are_looked_at(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], directory: Path
) -> None:
    """A hostPath may lead through a link that another container made in its emptyDir."""
    volume = directory / "kubelet/pods/0a/volumes/kubernetes.io~empty-dir/v"
    volume.mkdir(parents=True)
    (volume / "link").symlink_to(ways["directory"])
    node.compile(f"{ENV}  kubelet: {{root: {directory}/kubelet}}\n")
    with_env(bundle, pair).bind(volume / "link", "/mnt")
    assert "nodePaths.reassert is Refuse" in refused(pair, node, bundle)


def test_read_only_volume_at_a_link_of_the_image_starts(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path]
) -> None:
    """As /mnt of an ostree image, which is a link to var/mnt."""
    node.compile(ENV)
    (bundle.rootfs / "var/mnt").mkdir(parents=True)
    (bundle.rootfs / "mnt").symlink_to("var/mnt")
    bundle.spec["process"]["env"].append("CA=x")
    bundle.bind(ways["directory"], "/mnt/policy", "ro")
    with guarded(pair[1], pair[0], node, bundle) as container:
        assert "policy.yaml" in container.exec("/bin/ls", "/mnt/policy")
        [mount] = container.mounts("/var/mnt/policy")
        assert "ro" in mount.options


def test_overlay_that_is_written_to_the_policys_directory_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, ways: dict[str, Path], directory: Path
) -> None:
    """As podman's `-v LOWER:/mnt:O,upperdir=…` writes it."""
    (directory / "lower").mkdir()
    (directory / "work").mkdir()
    node.compile(ENV)
    options = [f"lowerdir={directory}/lower", f"upperdir={ways['directory']}", f"workdir={directory}/work"]
    with_env(bundle, pair).spec["mounts"].append(
        {"destination": "/mnt", "type": "overlay", "source": "overlay", "options": options}
    )
    assert "nodePaths.reassert is Refuse" in refused(pair, node, bundle)


@pytest.mark.parametrize("on_the_way", ["a link", "a mount point"])
def test_directory_in_which_the_policy_can_be_replaced_is_refused(
    pair: tuple[str, str], node: Node, bundle: Bundle, directory: Path, on_the_way: str
) -> None:
    above, real = directory / "above", node.policy.parent
    (above / "conf").mkdir(parents=True)
    if on_the_way == "a link":
        (above / "conf").rmdir()
        (above / "conf").symlink_to(real)
    else:
        run("mount", "--bind", str(real), str(above / "conf"))
    node.policy = above / "conf/policy.yaml"
    (directory / "way").symlink_to(above)
    try:
        node.compile(ENV)
        mount = {"destination": "/mnt", "type": "bind", "source": str(directory / "way"), "options": ["bind"]}
        with_env(bundle, pair).spec["mounts"].append(mount)
        assert "nodePaths.reassert is Refuse" in refused(pair, node, bundle)
    finally:
        run("umount", str(above / "conf"), check=False)
