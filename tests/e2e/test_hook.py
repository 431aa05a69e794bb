"""The OCI hook in config.json under the real runc and crun, without the wrapper: what the process sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import POLICY, WANTED, Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import run

from e2e.hostile_mounts import in_user_namespace
from e2e.runtimes import hook_entry
from hook.node.artifacts.specs import oci_hook

each_namespace = pytest.mark.parametrize("stage", ["createRuntime", "createContainer"])
"""A stage in the node's mount namespace, as prestart is too, and the one in the container's."""

ADAPTERS = "a hook cannot set env; the runtime wrapper (reassert runtime) or the NRI plugin can"


@pytest.fixture
def node(compiled_node: Node) -> Node:
    """All tests use the node of the module."""
    return compiled_node


def add_hook(bundle: Bundle, node: Node, stage: str, *flags: str) -> None:
    bundle.spec.setdefault("hooks", {}).setdefault(stage, []).append(hook_entry(node, stage, *flags))
    bundle.save()


def reason(node: Node, container: Running) -> str:
    """Why a hook refused the container: in its event, and in what an engine reads of the runtime.

    runc passes on what the hook says. crun does not, so it is said in crun's place, if crun is the hook's parent.
    """
    assert container.create() != 0
    run(container.runtime, "delete", "--force", container.id, check=False)
    event = node.logged()[-1]
    assert event["applied"] is False
    [problem] = event.get("denials") or event["errors"]
    message: str = problem["message"]
    if container.runtime.endswith("runc") or "createContainer" not in container.bundle.spec["hooks"]:
        assert message.replace('"', "") in container.output().replace("\\", "").replace('"', "")
    assert "Traceback" not in container.output()
    return message


def host(node: Node, bundle: Bundle) -> list[Any]:
    """What of the host a misled mount would change, of this test's own alone.

    Mounts in the machine's and in our namespace whose source or target is the test's, and its files.
    """
    places = (node.directory.name, bundle.directory.parents[1].name)  # above containerd's namespace
    seen: list[Any] = []
    for process in ("1", "self"):
        lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        seen.append([line for line in lines if any(place in line for place in places)])
    seen.append(sorted(str(path) for path in canary(bundle).rglob("*")))
    return seen


def canary(bundle: Bundle) -> Path:
    """A directory of the host to which a hostile image leads, with files that a misled mount would hide or add to."""
    directory = bundle.directory.parent / "canary"
    for name in ("there/certs", "elsewhere/ssl"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return directory


def sees_the_nodes_ca(container: Running) -> None:
    """The last mount at /etc/ssl is the node's directory, read-only, and nothing lies over it."""
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    mount = container.mounts("/etc/ssl")[-1]
    assert (mount.root.endswith("/ca"), mount.point, mount.options[0]) == (True, "/etc/ssl", "ro")
    assert (
        "Read-only"
        in run(container.runtime, "exec", container.id, "/bin/touch", "/etc/ssl/certs/x", check=False).stderr
    )


@marks.claim("mounts", "hook")
@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_the_hook_puts_the_mount_back_over_a_pods(real: str, stage: str, node: Node, bundle: Bundle) -> None:
    evil = bundle.directory / "evil"
    evil.mkdir()
    bundle.bind(evil, "/etc/ssl/certs", "ro")
    bundle.pod()
    add_hook(bundle, node, stage, "--mount-ca")
    before = host(node, bundle)
    with Running(real, bundle) as container:
        sees_the_nodes_ca(container)
        assert host(node, bundle) == before
    [event] = node.logged()
    assert (event["event"], event["adapter"], event["applied"]) == ("container.edited", "hook", True)


HOSTILE = {
    "/etc/ssl to a directory that is there": ("etc/ssl", "CANARY/there"),
    "/etc/ssl out of the root": ("etc/ssl", "/../..CANARY/there"),
    "/etc/ssl relative, out of the root": ("etc/ssl", "../../../..CANARY/there"),
    "/etc/ssl to nowhere": ("etc/ssl", "CANARY/nowhere"),
    "/etc/ssl to itself": ("etc/ssl", "ssl"),
    "/etc/ssl through /proc": ("etc/ssl", "/proc/1/root/CANARY/there"),
    "/etc to another directory": ("etc", "CANARY/elsewhere"),
    "/etc to nowhere": ("etc", "CANARY/nowhere"),
}
"""What is a link in the image, and where it leads: into the image and, if it misleads, into a directory of the host."""


@marks.claim("links", "hook")
@each_namespace
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_never_leads_a_mount_to_the_host(
    real: str, stage: str, node: Node, bundle: Bundle, name: str
) -> None:
    link, target = HOSTILE[name]
    shutil.rmtree(bundle.rootfs / link)
    (bundle.rootfs / link).symlink_to(target.replace("CANARY", str(canary(bundle))))
    for place in ("there", "elsewhere"):
        (bundle.rootfs / str(canary(bundle)).lstrip("/") / place).mkdir(parents=True)
    add_hook(bundle, node, stage, "--mount-ca")
    before = host(node, bundle)
    container = Running(real, bundle)
    if container.create() == 0:
        run(real, "start", container.id)
        try:
            assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
            assert host(node, bundle) == before
        finally:
            run(real, "delete", "--force", container.id, check=False)
    else:
        assert re.match(r"/etc/ssl (in|cannot be reached inside) the image", reason(node, container))
    assert host(node, bundle) == before


@marks.claim("failure-policy", "hook")
@marks.hole("With `failurePolicy: Ignore`, a pod or an image that caused a failure kept its values")
def test_failure_policy_ignore_is_no_way_out_for_an_image(real: str, node: Node, bundle: Bundle) -> None:
    node.compile(POLICY.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    shutil.rmtree(bundle.rootfs / "etc/ssl")
    (bundle.rootfs / "etc/ssl").symlink_to("ssl")
    add_hook(bundle, node, "createRuntime", "--mount-ca")
    assert "/etc/ssl in the image cannot be reached: Too many levels of symbolic links" in reason(
        node, Running(real, bundle)
    )


@marks.hole(
    "With `failurePolicy: Ignore` and the hook, a mount of `allowBelow` behind more than 40 links started unchecked",
    since="0.2.0",
    fixed="0.3.0",
    severity="medium",
)
def test_nor_for_a_link_on_the_way_to_what_is_allowed_below(real: str, node: Node, bundle: Bundle) -> None:
    """runc follows 255 links, the kernel 40."""
    policy = POLICY.replace("readOnly: true}", "readOnly: true, allowBelow: [/etc/ssl/private]}")
    node.compile(policy.replace("spec:", "spec:\n  failurePolicy: Ignore", 1))
    (node.ca / "private").mkdir(exist_ok=True)
    for number in range(45):
        (bundle.rootfs / f"link{number}").symlink_to(f"/link{number + 1}" if number < 44 else "/srv")
    (bundle.rootfs / "srv").mkdir(exist_ok=True)
    (bundle.rootfs / "etc/ssl/private").symlink_to("/link0")
    (bundle.directory / "private").mkdir()
    bundle.bind(bundle.directory / "private", "/etc/ssl/private", "ro")
    add_hook(bundle, node, "createRuntime", "--mount-ca")
    container = Running(real, bundle)
    if "crun" in real and container.create():
        assert "reassert" not in container.output(), "crun follows 40 links"
        return
    assert "/etc/ssl/private, which allowBelow lets through, cannot be reached: Too many levels" in reason(
        node, container
    )


@marks.claim("mounts", "hook")
@each_namespace
def test_what_the_policy_allows_below_stays_on_top(real: str, stage: str, node: Node, bundle: Bundle) -> None:
    node.compile(POLICY.replace("readOnly: true}", "readOnly: true, allowBelow: [/etc/ssl/private]}"))
    for name in ("private", "certs"):
        (bundle.directory / name).mkdir()
        (bundle.directory / name / "pods").write_text("")
        bundle.bind(bundle.directory / name, f"/etc/ssl/{name}", "ro")
    (node.ca / "private").mkdir(exist_ok=True)
    add_hook(bundle, node, stage, "--mount-ca")
    with Running(real, bundle) as container:
        assert container.exec("/bin/ls", "/etc/ssl/private").split() == ["pods"]
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]


@marks.claim("env", "hook")
@marks.claim("absent-env", "hook")
@pytest.mark.parametrize(
    ("real", "stage"),
    [(RUNTIMES["runc"], "createRuntime"), (RUNTIMES["crun"], "createContainer")],
    ids=["runc-createRuntime", "crun-createContainer"],
)
def test_the_hook_refuses_wrong_env_and_says_who_can_set_it(real: str, stage: str, node: Node, bundle: Bundle) -> None:
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/tmp/evil")
    add_hook(bundle, node, stage, "--inject-env")
    message = reason(node, Running(real, bundle))
    assert message == f"env REQUESTS_CA_BUNDLE is not what the policy wants, and {ADAPTERS}"


@each_namespace
def test_behind_the_wrapper_the_hook_finds_everything_in_place(
    runtime: str, stage: str, node: Node, bundle: Bundle
) -> None:
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/tmp/evil")
    bundle.pod()
    add_hook(bundle, node, stage)
    with Running(runtime, bundle) as container:
        assert WANTED in container.environ()
        assert len(container.mounts("/etc/ssl")) == 1
        sees_the_nodes_ca(container)
    assert [event["adapter"] for event in node.logged()] == ["runtime"]


@marks.claim("mounts", "hook")
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_the_hook_works_with_a_user_namespace(real: str, stage: str, node: Node, bundle: Bundle) -> None:
    in_user_namespace(bundle)
    evil = bundle.directory / "evil"
    evil.mkdir()
    bundle.bind(evil, "/etc/ssl/certs", "ro")
    bundle.spec["process"]["env"].append(WANTED)
    add_hook(bundle, node, stage)
    before = host(node, bundle)
    with Running(real, bundle) as container:
        assert container.exec("/bin/cat", "/proc/self/uid_map").split() == ["0", "100000", "65536"]
        sees_the_nodes_ca(container)
        assert host(node, bundle) == before


def call(node: Node, stage: str, state: object, *flags: str) -> subprocess.CompletedProcess[str]:
    """The hook by itself, with an OCI state on stdin."""
    return run(str(REASSERT), "hook", *flags, *node.options(), stage, input=json.dumps(state), check=False)


def test_poststop_needs_no_bundle(node: Node) -> None:
    done = call(node, "poststop", {"ociVersion": "1.0.2", "id": "x", "status": "stopped", "bundle": "/nowhere"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_state_without_a_running_process_is_refused_in_one_line(node: Node, bundle: Bundle) -> None:
    before = host(node, bundle)
    for pid in (None, 0, -1, 2**40, "1", os.getpid()):
        done = call(node, "createRuntime", {"id": "x", "bundle": str(bundle.directory), "pid": pid}, "--mount-ca")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert any(clue in done.stderr for clue in ("pid", f"/proc/{2**40}", "no mount namespace of its own"))
        assert node.logged()[-1]["event"] == "container.error"
    assert host(node, bundle) == before


def test_link_of_an_entry_is_followed_once(node: Node, bundle: Bundle, directory: Path) -> None:
    """The installer's link. The bootloader executes itself again: it may lead to another version by then."""
    (directory / "reassert").symlink_to(REASSERT)
    entry = oci_hook(str(directory / "reassert"))
    entry["args"][2:2] = node.options()
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle.directory), "pid": os.getpid()})
    env = dict(variable.split("=", 1) for variable in entry["env"])
    trace = ("strace", "-f", "-e", "trace=execve", entry["path"], *entry["args"][1:])
    done = run(*trace, input=state, env=env, check=False)
    assert "REQUESTS_CA_BUNDLE is not what the policy wants" in done.stderr
    assert re.findall(r'execve\("([^"]+)"', done.stderr) == [entry["path"], str(REASSERT.resolve())]
