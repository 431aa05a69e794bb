"""A pod's author overrides what the node reserves, with NRI in between: what the processes really get."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.node import Node

from e2e.cri.client import CriError, wait_for
from e2e.cri.fixtures import StartPod, one_runtime
from e2e.cri.hostile import NOT_UTF8, RESERVED, assert_no_annotation_steers_a_runtime, reserved_in
from e2e.cri.images import HOSTILE, PLAIN, layout, root_filesystem
from e2e.cri.node import Containerd
from e2e.nri.conftest import NRI_POLICY, StartPlugin, oldest

ENV = [
    ("NVIDIA_VISIBLE_DEVICES", "GPU-4"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("REQUESTS_CA_BUNDLE", "/tmp/evil"),
    ("TEXT", "a b"),
]
"""As kubelet sends it: the device plugin's value first, then the pod's; the image has its own before both."""

OVERRIDDEN = {"NVIDIA_VISIBLE_DEVICES": "all", "REQUESTS_CA_BUNDLE": "/tmp/evil"}


@one_runtime
def test_without_a_plugin_the_override_wins(start_pod: StartPod, evil: Path) -> None:
    """The other tests would prove nothing if it did not."""
    container = start_pod("bare").run(image=HOSTILE, env=ENV, mounts=[(str(evil), "/etc/ssl/certs")])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == OVERRIDDEN
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["evil.crt"]


@marks.claim("env", "nri")
@marks.claim("exec", "nri")
@marks.claim("mounts", "nri")
@pytest.mark.parametrize(
    ("containerd", "runtime", "paths"),
    [
        ("1.7", "runc", ["/etc/ssl", "/etc//ssl/./certs/"]),  # its NRI removes no mount
        ("2.1", "runc", ["/etc/ssl/certs"]),
        ("2.1", "crun", ["/etc/ssl", "/etc//ssl/./certs/"]),
    ],
    indirect=["containerd"],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_an_override_is_undone_in_the_container_and_in_exec(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node, evil: Path, paths: list[str]
) -> None:
    start_plugin()
    container = start_pod().run(image=HOSTILE, env=ENV, mounts=[(str(evil), path) for path in paths])
    for environ in (container.environ(), container.exec_environ()):
        assert reserved_in(environ) == RESERVED
        assert {"TEXT=a b", "PATH=/bin"} <= set(environ)
    for mounts in (container.mounts(), container.exec_mounts()):
        assert all("/ca" in mount.root and "ro" in mount.options for mount in mounts), mounts
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    event, *seen = [event for event in node.logged() if event.get("id") == container.id]
    assert (event["event"], event["adapter"]) == ("container.edited", "nri")
    assert (event["applied"], event["asked"]) == (False, True)
    # The hook has looked since. Before 2.0 it finds our own part where the pod's mount was, and puts the whole on top.
    assert [(event["adapter"], event["applied"], event["verified"]) for event in seen] in (
        [],
        [("hook", True, "container")],
    )
    assert [edit["name"] for event in seen for edit in event["edits"]] in ([], ["/etc/ssl"])
    assert event["container"]["namespace"] == "default"


def logged(node: Node, kind: str) -> list[dict[str, Any]]:
    """The events of a kind. The plugin writes one after its answer, which a busy machine sees first."""
    wait_for(lambda: any(event["event"] == kind for event in node.logged()), kind, lambda: str(node.logged()))
    return [event for event in node.logged() if event["event"] == kind]


@marks.claim("env", "nri")
@marks.claim("absent-env", "nri")
@one_runtime
def test_what_nri_cannot_correct_is_refused(start_pod: StartPod, start_plugin: StartPlugin, node: Node) -> None:
    """It replaces only the first of two entries of one name, and removes no env. No base_runtime_spec helps it here."""
    node.write_policy(NRI_POLICY + "  - {name: tls, env: [{name: PYTHONHTTPSVERIFY, absent: true}]}\n")
    start_plugin()
    pod = start_pod("bare")
    with pytest.raises(CriError) as error:
        pod.create(image=HOSTILE, env=ENV)
    assert "reassert: refused default/p/c: rule company-ca: env REQUESTS_CA_BUNDLE occurs more" in str(error.value)
    assert "rule gpu: env NVIDIA_VISIBLE_DEVICES occurs more than once" in str(error.value)
    [event] = logged(node, "container.denied")
    assert (event["applied"], event["level"]) == (False, "error")
    with pytest.raises(CriError, match="rule tls: env PYTHONHTTPSVERIFY must be absent and was set, and NRI cannot"):
        pod.create(name="tls", image=PLAIN, env=[("PYTHONHTTPSVERIFY", "0")])
    container = pod.run(name="once", image=PLAIN, env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == RESERVED


@marks.claim("allowed-env", "nri")
@one_runtime
def test_allowed_values_stay_others_are_replaced_or_refused(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node
) -> None:
    """What NRI can set is replaced; the container whose value would have to be removed is refused."""
    allowed = "[{name: LEVEL, oneOf: [low, high], else: low}, {name: DEBUG, oneOf: ['0']}]"
    node.write_policy(NRI_POLICY + f"  - {{name: allowed, env: {allowed}}}\n")
    start_plugin()
    pod = start_pod("bare")
    for name, given, wanted in (
        ("one", [("LEVEL", "high"), ("DEBUG", "0")], {"LEVEL=high", "DEBUG=0"}),
        ("two", [("LEVEL", "top"), ("LEVEL", "high")], {"LEVEL=high"}),
        ("three", [("LEVEL", "top")], {"LEVEL=low"}),
        ("four", [], set()),
    ):
        container = pod.run(name=name, image=PLAIN, env=given)
        for environ in (container.environ(), container.exec_environ()):
            assert {entry for entry in environ if entry.startswith(("LEVEL", "DEBUG"))} == wanted
    with pytest.raises(CriError, match="env DEBUG was set to a value that is not allowed, and NRI cannot remove env"):
        pod.create(name="five", image=PLAIN, env=[("DEBUG", "1")])
    with pytest.raises(CriError, match="env LEVEL occurs more than once"):
        pod.create(name="six", image=PLAIN, env=[("LEVEL", "high"), ("LEVEL", "top")])


@pytest.mark.parametrize("containerd", ["1.7", "2.1"], indirect=True)
@one_runtime
def test_env_that_is_not_utf8_gains_nothing(start_pod: StartPod, start_plugin: StartPlugin) -> None:
    start_plugin()
    pod = start_pod("bare")
    env = [("NVIDIA_VISIBLE_DEVICES", NOT_UTF8), ("REQUESTS_CA_BUNDLE", f"/tmp/evil{NOT_UTF8}")]
    container = pod.run(image=PLAIN, env=[*env, ("TEXT", NOT_UTF8)])
    assert reserved_in(container.environ()) == reserved_in(container.exec_environ()) == RESERVED


@marks.claim("mounts", "nri")
@marks.hole(
    "With NRI and runc 1.1, a pod's mount at `/proc/self/root/etc/ssl` lay over the reserved one",
    since="0.1.0",
    fixed="0.1.0",
    severity="high",
)
@oldest
@one_runtime
@pytest.mark.parametrize("path", ["/proc/self/root/etc/ssl", "/proc/1/root/etc/ssl/certs"])
def test_a_mount_through_a_process_does_not_land_on_ours(
    start_pod: StartPod, start_plugin: StartPlugin, evil: Path, path: str
) -> None:
    """runc 1.1, which comes with it, follows that link without an image's help, and the hook sees it."""
    start_plugin()
    try:
        container = start_pod().run(image=PLAIN, mounts=[(str(evil), path)])
    except CriError as error:
        print(error)
        return
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    mount = container.mounts()[-1]
    assert (mount.point, mount.options) == ("/etc/ssl", ("ro", "relatime"))


@marks.claim("mounts", "nri")
@marks.claim("links", "nri")
@marks.claim("volumes-above", "nri")
@one_runtime
@pytest.mark.parametrize("target", ["/etc/ssl", "/etc/ssl/certs", "/etc"])
def test_second_line_finds_a_volume_that_a_link_of_another_volume_leads_over_ours(
    start_pod: StartPod, start_plugin: StartPlugin, node: Node, evil: Path, target: str
) -> None:
    """NRI sorts mounts: what is at /opt/x comes after what is at /etc/ssl. The text of the paths shows no conflict."""
    start_plugin()
    first = evil / "first"
    first.mkdir()
    (first / "x").symlink_to(target)
    mounts = [(str(first), "/opt"), (str(evil), "/opt/x")]
    if target != "/etc/ssl/certs":
        with pytest.raises(CriError):
            start_pod().run(image=PLAIN, mounts=mounts)
        refused = [event for event in node.logged() if event["event"] == "container.denied"]
        assert [event["adapter"] for event in refused] == ["hook"]
        assert "a volume above the reserved mount" in refused[0]["denials"][0]["message"]
        return
    container = start_pod().run(image=PLAIN, mounts=mounts)
    assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    [seen] = [event for event in node.logged() if event.get("id") == container.id and event["adapter"] == "hook"]
    assert (seen["event"], seen["applied"], seen["verified"]) == ("container.edited", True, "container")


def long_env(size: int) -> list[tuple[str, str]]:
    """An override beside env of this many bytes."""
    return [*((f"LONG_{number}", "x" * 100_000) for number in range(size // 100_000)), *ENV]


@marks.hole(
    "A pod with more than 4 MiB of env disconnected the NRI plugin from containerd 1.7, and started unchanged",
    since="0.1.0",
    fixed="0.1.0",
    severity="high",
)
@oldest
@one_runtime
def test_more_env_than_nri_can_say_does_not_send_the_plugin_away(
    start_pod: StartPod, start_plugin: StartPlugin
) -> None:
    """containerd 1.7 sends more than ttrpc allows, and would go on without an answer. 2.1 refuses to send it."""
    plugin = start_plugin()
    pod = start_pod("bare")
    before = plugin.connections()
    with pytest.raises(CriError, match=r"message of \d+ bytes; the limit is"):
        pod.create(name="long", env=long_env(5_000_000))
    container = pod.run(name="next", env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    assert reserved_in(container.environ()) == RESERVED, plugin.said()
    assert plugin.connections() == before, plugin.said()


@marks.hole("A pod with more than 4 MiB of env disconnected the NRI plugin from containerd 1.7, and started unchanged")
@oldest
@one_runtime
def test_more_running_containers_than_nri_can_say_at_once_do_not_keep_the_plugin_away(
    start_pod: StartPod, start_plugin: StartPlugin
) -> None:
    """containerd 1.7 says it in one message of more than ttrpc allows. 2.1 says it in parts."""
    pod = start_pod("bare")
    for number in range(12):
        pod.create(name=f"long-{number}", env=long_env(500_000))
    start_plugin()
    names = map("c{}".format, count())

    def adjusted() -> bool:  # the first may come before the runtime has said it all
        container = pod.run(name=next(names), env=[("NVIDIA_VISIBLE_DEVICES", "all")])
        return reserved_in(container.environ()) == RESERVED

    wait_for(adjusted, "an adjusted container")


@marks.hole(
    "With NRI and containerd 1.7, an image with more than 16 MiB of ENV stopped all later starts until the "
    "plugin's restart",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@oldest
@one_runtime
def test_more_env_of_an_image_than_nri_can_send_at_all_holds_no_container_up(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd
) -> None:
    """containerd 1.7 then sends the beginning of the message, and nothing more on this connection."""
    name, image = "reassert.test/long:1", containerd.directory / "long.tar"
    env = [f"LONG_{number}={'x' * 100_000}" for number in range(180)]
    image.write_bytes(layout(name, env, root_filesystem(bare=False)))
    containerd.ctr("image", "import", str(image))
    image.unlink()
    plugin = start_plugin()
    pod, full = start_pod("bare"), start_pod("bare")
    for number in range(12):  # the list of all containers is as long
        full.create(name=f"long-{number}", env=long_env(1_500_000)[: -len(ENV)])
    try:
        long = pod.run(name="long", image=name)
    except CriError as error:
        assert "message too long" in str(error)
    else:  # the plugin ended the connection first, and containerd did not ask it
        assert long.output("exec /bin/busybox: argument list too long")

    def violations() -> int:
        return sum(line["event"] == "nri.violation" for line in plugin.said())

    wait_for(lambda: violations() > 1, "the end of a second connection", plugin.output.read_text)
    full.remove()
    plugin.wait_until_connected(2)
    container = pod.run(name="next", env=[("NVIDIA_VISIBLE_DEVICES", "all")])
    assert reserved_in(container.environ()) == RESERVED, plugin.said()


@marks.claim("unsafe-annotations", "nri")
@pytest.mark.parametrize("runtime", ["crun"])
def test_annotations_that_steer_a_runtime_do_not_arrive(
    start_pod: StartPod, start_plugin: StartPlugin, containerd: Containerd, node: Node, tmp_path: Path
) -> None:
    """NRI can remove them. Without the plugin, the hook that looks afterwards refuses the container for one."""
    with pytest.raises(CriError):
        start_pod("open").run(annotations={"krun.cpus": "1"})
    assert "annotation krun.cpus is not what the policy wants" in str(node.logged()[-1]["denials"])
    start_plugin()
    assert_no_annotation_steers_a_runtime(start_pod, containerd, tmp_path)
