"""Annotations that steer a runtime (hook.core.reserve.unsafe_annotations), on real runtimes and under podman."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import ROOTS, RUNTIMES
from harness.tools import need, run

from e2e.agent.conftest import agent  # noqa: F401  # a fixture
from e2e.agent.support import Agent
from e2e.runtimes import EACH, NEWER, WAYS, guarded, hook_entry, real_runtime
from e2e.test_podman import CRUN, Podman, podman, working_podman  # noqa: F401  # fixtures
from hook.core.reserve.unsafe_annotations import HARMLESS, PREFIXES

STREAMS = ("run.oci.hooks.stderr", "run.oci.hooks.stdout")
MOUNT = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  rules:
  - name: company-ca
    mounts: [{hostPath: CA, mountPath: /etc/ssl, readOnly: true}]
"""
"""Without env, which a hook alone would refuse the container for."""

BEFORE = [way for way in WAYS if way[1] == "wrapper"]
CRUNS = [name for name in EACH if name.startswith("crun")]
RUNCS = [name for name in EACH if name.startswith("runc")]


def profile(node: Node) -> Path:
    """A file that shells of the node read, as /etc/profile.d/x.sh."""
    return node.directory / "profile.d.sh"


def lead_through_a_volume(node: Node, bundle: Bundle) -> Path:
    """Code for a shell in a path that the hook's refusal quotes; returns what the code would make.

    Only the hook refuses it: the reserved path leads through a volume by a link of the image.
    """
    owned = node.directory / "OWNED"
    name = f"x;>{owned.name};#$(>{owned.name})`>{owned.name}`"
    (bundle.directory.parent / "volume/ssl").mkdir(parents=True)
    shutil.rmtree(bundle.rootfs / "etc")
    (bundle.rootfs / "etc").symlink_to(f"/{name}")
    (bundle.rootfs / name).mkdir()
    bundle.bind(bundle.directory.parent / "volume", f"/{name}")
    return owned


def is_code(text: str, owned: Path) -> bool:
    """Whether a shell that reads a text runs what the pod wrote."""
    subprocess.run(["sh", "-s"], input=text, cwd=owned.parent, text=True, capture_output=True, timeout=600, check=False)
    return owned.exists()


@marks.claim("unsafe-annotations", "runtime@wrapper", "hook@createRuntime")
@marks.hole(
    "Under crun, an annotation `run.oci.hooks.stderr` wrote a text of the pod into any file of the node",
    since="0.1.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("annotation", STREAMS)
def test_no_message_reaches_the_file_that_an_annotation_names(
    way: tuple[str, str], node: Node, bundle: Bundle, annotation: str
) -> None:
    """crun opens it as root of the node, as standard error or standard output of our hook."""
    node.compile(MOUNT)
    owned = lead_through_a_volume(node, bundle)
    bundle.spec["annotations"] = {annotation: str(profile(node))}
    container = guarded(way[1], way[0], node, bundle)
    assert container.create() != 0
    said = container.output()
    assert "is a volume above the reserved mount /etc/ssl" in said or f"annotation {annotation}" in said
    assert not is_code(said, owned)
    if way[1] == "wrapper":
        assert not profile(node).exists()
    else:  # crun has made it by then
        assert not profile(node).exists() or profile(node).read_text() == ""


def with_its_loader(name: str, directory: Path) -> str:
    """A newer Debian's crun in the caller's mount namespace: the agent answers nobody in another one."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    root = ROOTS / NEWER[name][0]
    need((root / ".complete").exists(), f"{root} (tests/roots.sh)")
    loader = f"{root}/lib64/ld-linux-x86-64.so.2 --library-path {root}/usr/lib/x86_64-linux-gnu"
    script = directory / name
    script.write_text(f'#!/bin/sh\nexec {loader} {root}/{NEWER[name][1]} "$@"\n')
    script.chmod(0o755)
    return str(script)


@marks.claim("unsafe-annotations", "hook")
@pytest.mark.parametrize("name", CRUNS)
@pytest.mark.parametrize("annotated", [True, False])
def test_agent_writes_no_message_there_either(
    agent: Agent,  # noqa: F811  # that fixture
    bundle: Bundle,
    name: str,
    annotated: bool,
) -> None:
    """Front is the hook, alone; the agent tells it what to print, or prints it where the engine reads it."""
    node = agent.node
    node.compile(MOUNT.replace("mounts:", "env: [{name: A, value: b}]\n    mounts:"))
    path = agent.only_warm(agent.hook_file())
    entry = {**hook_entry(node, "createRuntime"), "path": path, "args": [path, "createRuntime"]}
    bundle.spec["hooks"] = {"createRuntime": [entry]}
    if annotated:
        bundle.spec["annotations"] = {STREAMS[0]: str(profile(node))}
    bundle.save()
    container = Running(with_its_loader(name, node.directory), bundle)
    assert container.create() != 0
    assert "reassert: refused" in container.output()
    assert "went cold" not in container.output()
    assert not annotated or profile(node).read_text() == ""
    assert node.logged()[-1]["start"] == "warm"


KEYS = {
    **{f"{start}x": "/x" for start in PREFIXES if start.endswith((".", "/"))},
    "run.oci.hooks.stderr": "/x",
    "run.oci.systemd.force_cgroup_v1": "/etc/ssl",
    "org.criu.config": "/x",
    "org.systemd.property.DeviceAllow": "[('/dev/null', 'rwm')]",
    "bundle": "/x",
    "bundle=/x": "y",
}
STAY = {key: "/sys/fs/cgroup" if key.endswith("v1") else "1" for key in HARMLESS} | {"bundled": "x", "run.ocix": "x"}


@marks.claim("unsafe-annotations", "runtime@wrapper")
@marks.cve("CVE-2025-24965")
@pytest.mark.parametrize("way", BEFORE, ids="-".join, indirect=True)
def test_annotations_that_steer_a_runtime_are_removed(way: tuple[str, str], node: Node, bundle: Bundle) -> None:
    node.compile(MOUNT)
    stay = {key: value for key, value in STAY.items() if "systemd" not in key and "keep_original" not in key}
    bundle.spec["annotations"] = KEYS | stay
    with guarded(way[1], way[0], node, bundle):
        annotations = bundle.saved()["annotations"]
        annotations.pop("reassert/decision")
        assert annotations == stay
        [event] = node.logged()
    assert {edit["name"] for edit in event["edits"] if edit["kind"] == "annotation"} == set(KEYS)


@marks.claim("unsafe-annotations", "hook")
@pytest.mark.parametrize("name", RUNTIMES)
def test_hook_alone_refuses_what_it_cannot_remove(node: Node, bundle: Bundle, name: str) -> None:
    node.compile(MOUNT)
    for key, value in KEYS.items():
        if key.startswith(("run.oci.hooks", "bundle")) or key.endswith("x"):
            bundle.spec["annotations"] = {key: value if "hooks" not in key else str(profile(node))}
            container = guarded("createRuntime", RUNTIMES[name], node, bundle)
            assert container.create() != 0
            run(container.runtime, "delete", "--force", container.id, check=False)
            assert node.logged()[-1]["event"] == "container.denied", key
            assert f"annotation {key} is not what the policy wants" in node.logged()[-1]["denials"][0]["message"]
    bundle.spec["annotations"] = {key: value for key, value in STAY.items() if "systemd" not in key}
    with guarded("createRuntime", RUNTIMES[name], node, bundle):
        pass


@marks.hole(
    "Without a rule, `run.oci.hooks.*` made crun create an empty file on the node",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
    found="fuzz",
)
@pytest.mark.parametrize("key", STREAMS)
def test_without_a_rule_too_crun_makes_no_file_for_the_hook_of_the_node(node: Node, bundle: Bundle, key: str) -> None:
    """An engine calls it for each container, and crun makes the file before that."""
    node.compile(MOUNT.replace("name: company-ca", "name: company-ca\n    match: {namespaces: [one]}"))
    bundle.pod(namespace="other", **{key: str(profile(node)), "run.oci.timens_offset": "0 1 0"})
    bundle.spec["hooks"] = {"createRuntime": [hook_entry(node, "createRuntime")]}
    with guarded("wrapper", CRUN, node, bundle):
        assert not profile(node).exists()
        left = bundle.saved()["annotations"]
        assert key not in left and "run.oci.timens_offset" in left


# What the runtimes themselves say


def program(name: str) -> Path:
    return Path(RUNTIMES[name]) if name in RUNTIMES else ROOTS / NEWER[name][0] / NEWER[name][1]


READ_BUT_SAY_NOTHING = re.compile(
    r"run\.oci\.crun\.|io\.kubernetes\.cri\.container-type$|io\.(bfq\.weight|max|github\..*|weight)$|"
    r"org\.(opencontainers|freedesktop)\.|com\.cyphar\."
)
"""What no annotation of a pod is read by: the output of `features`, files of cgroups, names of D-Bus, and an annotation
that containerd alone writes."""


@pytest.mark.parametrize("name", EACH)
def test_all_that_a_runtime_declares_unsafe_is_in_the_table(node: Node, name: str) -> None:
    """A runtime that learns another annotation fails here: `features`, and what crun's program has of such names."""
    done = run(real_runtime(name, node.directory), "features", check=False)
    declared = json.loads(done.stdout).get("potentiallyUnsafeConfigAnnotations", []) if not done.returncode else []
    if name.startswith("crun"):
        found = re.findall(
            rb"\0((?:run|io|org|com|krun|module)\.[a-z][A-Za-z0-9_./-]*)(?=\0)", program(name).read_bytes()
        )
        declared += [text.decode() for text in found]
        assert "run.oci.hooks.stderr" in declared
    unknown = [key for key in declared if not key.startswith(PREFIXES) and not READ_BUT_SAY_NOTHING.match(key)]
    assert unknown == []


# podman


@pytest.fixture
def image(podman: Podman, node: Node) -> Iterator[str]:  # noqa: F811  # that fixture
    """An image whose manifest asks crun for a file of the node, in the way of umoci(1)."""
    need(shutil.which("umoci") is not None, "umoci")
    layout = node.directory / "layout"
    run("umoci", "init", "--layout", str(layout))
    run("umoci", "new", "--image", f"{layout}:evil")
    run("umoci", "unpack", "--image", f"{layout}:evil", str(node.directory / "unpacked"))
    shutil.copytree(podman.rootfs, node.directory / "unpacked/rootfs", symlinks=True, dirs_exist_ok=True)
    run("umoci", "repack", "--image", f"{layout}:evil", str(node.directory / "unpacked"))
    notes = {STREAMS[0]: str(profile(node)), "bundle": "/x", "run.oci.seccomp.plugins": "/x.so"}
    more = [f"--manifest.annotation={key}={value}" for key, value in notes.items()]
    run("umoci", "config", "--image", f"{layout}:evil", *more)
    yield podman("pull", "--quiet", f"oci:{layout}:evil").stdout.strip()
    podman("rmi", "--all", "--force", check=False)


LOOK = ("/bin/cat", "/etc/ssl/certs/company.crt")


@marks.claim("unsafe-annotations", "runtime")
@marks.cve("CVE-2025-24965")
def test_podman_brings_the_annotations_of_an_image_and_none_arrives(
    podman: Podman,  # noqa: F811  # that fixture
    node: Node,
    image: str,
) -> None:
    node.compile(MOUNT)
    podman.configure(node.dispatcher(CRUN))
    assert podman("run", "--rm", image, *LOOK).stdout == "company\n"
    [event] = node.logged()
    removed = {edit["name"] for edit in event["edits"] if edit["kind"] == "annotation"}
    assert removed == {STREAMS[0], "bundle", "run.oci.seccomp.plugins"}
    assert not profile(node).exists()


def test_what_podman_itself_asks_a_runtime_for_is_left(podman: Podman, node: Node) -> None:  # noqa: F811  # that fixture
    """org.systemd.property.KillSignal and TimeoutStopUSec always; run.oci.keep_original_groups by --group-add."""
    node.compile(MOUNT)
    podman.configure(node.dispatcher(CRUN))
    options = ("--rm", "--group-add=keep-groups", "--stop-timeout=7")
    assert podman("run", *options, "--rootfs", str(podman.rootfs), *LOOK).stdout == "company\n"
    [event] = node.logged()
    assert [edit["kind"] for edit in event["edits"]] == ["mount"]


# bundle


ENV = MOUNT.replace("mounts: [{hostPath: CA, mountPath: /etc/ssl, readOnly: true}]", "env: [{name: CA, value: ours}]")


@marks.claim("unsafe-annotations", "runtime")
@marks.hole(
    "With runc, an annotation `bundle` let an `exec` go uncorrected", since="0.1.0", fixed="0.4.0", severity="high"
)
@pytest.mark.parametrize("name", RUNCS)
@pytest.mark.parametrize("key", ["bundle", "bundle=/elsewhere"])
def test_runc_execs_with_the_env_of_the_containers_own_bundle(
    node: Node, bundle: Bundle, directory: Path, name: str, key: str
) -> None:
    """`runc exec ID CMD` takes its env from the config.json of the first label `bundle=`, which an annotation makes."""
    node.compile(ENV)
    other = Bundle(directory / "other")
    other.spec["process"]["env"].append("CA=evil")
    other.save()
    bundle.spec["annotations"] = {key: str(other.directory)} if key == "bundle" else {f"bundle={other.directory}": "x"}
    bundle.save()
    with Running(node.dispatcher(real_runtime(name, node.directory)), bundle) as container:
        assert "CA=ours" in run(container.runtime, "exec", container.id, "/bin/env").stdout.splitlines()


@marks.claim("unsafe-annotations", "runtime")
@pytest.mark.parametrize("name", RUNCS)
def test_exec_of_an_earlier_container_with_another_bundle_is_refused(
    node: Node, bundle: Bundle, directory: Path, name: str
) -> None:
    """One that a version created which left the annotation there."""
    node.compile(ENV)
    other = Bundle(directory / "other")
    bundle.spec["annotations"] = {"bundle": str(other.directory)}
    bundle.save()
    real = real_runtime(name, node.directory)
    with Running(real, bundle) as container:
        done = run(node.dispatcher(real), "exec", container.id, "/bin/env", check=False)
        assert done.returncode == 255
        assert "an annotation names another bundle than the container's" in done.stderr
