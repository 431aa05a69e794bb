"""Mounts, devices and annotations that a device plugin set are put back; a pod's in their place, or beside them, go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.container import oci
from hook.core.container.oci import Mount
from hook.core.reserve.place_device import PlaceDevice
from unit.allocated import KubeletNode, ours, spec
from unit.support import bind

pytestmark = marks.promise("A container gets its own allocation from kubelet's checkpoint, or there is no decision")

MOUNTS = {"name": "mounts", "deviceAllocations": {"mounts": True}}
DEVICES = {"name": "devices", "deviceAllocations": {"devices": True}}
CLOSED = {"name": "closed", "mounts": [{"mountPath": "/run/ask", "absent": True}]}
NOTES = {"name": "notes", "annotations": [{"name": "cdi.k8s.io/*", "absent": True}]}
PLUGINS = {"destination": "/plugin", "type": "bind", "source": "/etc", "options": ["rbind", "rprivate", "ro"]}
"""As containerd writes what `plugin` answers."""
PLACED = {**PLUGINS, "options": ["rbind", "rprivate", "ro", "rro"]}
"""As reassert writes it."""


def plugin(container_path: str = "/plugin", host_path: str = "/etc", read_only: bool = True) -> dict[str, Any]:
    """A mount in a plugin's answer."""
    return {"container_path": container_path, "host_path": host_path, "read_only": read_only}


def destinations(mounts: list[Mount]) -> list[tuple[str, str]]:
    return [(mount.source, mount.destination) for mount in mounts]


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ([], ["/etc:/plugin"]),
        ([PLUGINS, bind("/a")], ["/pod:/a", "/etc:/plugin"]),
        ([PLUGINS, bind("/plugin")], ["/etc:/plugin"]),
        ([PLUGINS, bind("/plugin/")], ["/etc:/plugin"]),
        ([PLUGINS, bind("/plugin/below")], ["/etc:/plugin"]),
        ([{**PLUGINS, "options": ["rbind", "rprivate", "rw"]}], ["/etc:/plugin"]),
        ([{**PLUGINS, "source": "/evil"}], ["/etc:/plugin"]),
    ],
    ids=["missing", "there", "at", "respelled", "below", "writable", "source"],
)
def test_allocated_mount_is_the_last_thing_mounted_at_its_path(
    root_dir: Path, there: list[dict[str, object]], wanted: list[str]
) -> None:
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours(mounts=[plugin()]))
    mounts = node.correct(spec(mounts=there)).mounts
    assert [":".join(pair) for pair in destinations(mounts)] == wanted
    assert mounts[-1].oci == (PLUGINS if PLUGINS in there else PLACED)


@pytest.mark.parametrize("rule", [MOUNTS, {"name": "env", "deviceAllocations": {"env": True}}])
def test_writable_mounts_stay_writable_and_only_a_rule_for_mounts_puts_them_back(
    root_dir: Path, rule: dict[str, Any]
) -> None:
    node = KubeletNode(root_dir, rule)
    node.allocate(ours(mounts=[plugin(read_only=False)]))
    mounts = node.correct(spec()).mounts
    assert [mount.options for mount in mounts] == ([["rbind", "rprivate", "rw"]] if rule is MOUNTS else [])


@pytest.mark.parametrize(
    "options",
    [["rbind", "rprivate", "ro"], ["rbind", "ro", "rprivate"], ["ro", "rbind", "rprivate"]],
    ids=["containerd", "docker", "cri-o"],
)
def test_mount_as_an_engine_wrote_it_is_no_conflict_and_stays_as_it_is(root_dir: Path, options: list[str]) -> None:
    node = KubeletNode(root_dir, {**MOUNTS, "onConflict": "Deny"})
    node.allocate(ours(mounts=[plugin()]))
    mount = {**PLUGINS, "options": options}
    assert node.decide(spec(mounts=[mount])).is_empty()
    assert oci.objects(node.correct(spec(mounts=[mount, bind("/a")])).mounts) == [bind("/a"), mount]
    other = {**mount, "options": [*options, "noexec"]}
    for conflicting in (bind("/plugin"), other):
        complaint = "rule mounts: mount /plugin is reserved and /plugin was mounted"
        assert node.decide(spec(mounts=[mount, conflicting])).refusal() == complaint


@pytest.mark.parametrize(("read_only", "allowed"), [(False, True), (True, False)])
def test_a_volume_above_a_plugins_writable_mount_stays(root_dir: Path, read_only: bool, allowed: bool) -> None:
    """HAMi's /tmp/vgpulock in a pod with an emptyDir at /tmp: what the container may write needs no protection."""
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours(mounts=[plugin("/tmp/vgpulock", read_only=read_only)]))
    mine = {**PLUGINS, "destination": "/tmp/vgpulock", "options": ["rbind", "rprivate", "ro" if read_only else "rw"]}
    target = spec(mounts=[bind("/tmp"), mine])
    if allowed:
        assert node.decide(target).is_empty()
        assert destinations(node.correct(spec(mounts=[bind("/tmp")])).mounts) == [
            ("/pod", "/tmp"),
            ("/etc", "/tmp/vgpulock"),
        ]
        shared = {**bind("/tmp"), "options": ["rbind", "rshared", "rw"]}
        assert "/tmp is a volume above" in node.decide(spec(mounts=[shared, mine])).refusal()
    else:
        assert "/tmp is a volume above the reserved mount /tmp/vgpulock" in node.decide(target).refusal()


def test_docker_leaves_rw_out(root_dir: Path) -> None:
    node = KubeletNode(root_dir, {**MOUNTS, "onConflict": "Deny"})
    node.allocate(ours(mounts=[plugin(read_only=False)]))
    assert node.decide(spec(mounts=[{**PLUGINS, "options": ["rbind", "rprivate"]}])).is_empty()
    assert node.decide(spec(mounts=[{**PLUGINS, "options": ["rbind", "rprivate", "ro"]}])).refusal()


@pytest.mark.parametrize("path", ["/dev/x", "/proc/driver/nvidia", "/sys/fs", "/dev", "/x/../dev/y", "//sys"])
def test_allocated_mounts_into_what_the_runtime_builds_are_left_alone(root_dir: Path, path: str) -> None:
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours(mounts=[plugin(path, "/srv"), plugin("/device")]))
    there = [bind(path, "/srv"), bind(path), bind("/device")]
    assert destinations(node.correct(spec(mounts=there)).mounts) == [
        ("/srv", path),
        ("/pod", path),
        ("/etc", "/device"),
    ]


def test_allocated_source_that_is_not_there_is_refused_by_name(root_dir: Path) -> None:
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours(mounts=[plugin(host_path=f"{root_dir}/gone")]))
    complaint = f"rule mounts: hostPath {root_dir}/gone for mount /plugin does not exist on this node"
    assert node.decide(spec()).refusal() == complaint


def test_two_that_want_different_mounts_at_one_path_are_both_named(root_dir: Path) -> None:
    node = KubeletNode(root_dir, {"name": "own", "mounts": [{"hostPath": "/usr", "mountPath": "/plugin"}]}, MOUNTS)
    node.allocate(ours(mounts=[plugin()]))
    assert node.decide(spec()).refusal() == "rule mounts: wants another mount at /plugin than rule own"
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours("1", mounts=[plugin()]), ours("2", resource="b/nic", mounts=[plugin(host_path="/usr")]))
    assert node.decide(spec()).refusal() == "rule mounts: wants another mount at /plugin than example.com/gpu 1"
    node.allocate(ours("1", mounts=[plugin()]), ours("2", resource="b/nic", mounts=[plugin()]))
    assert oci.objects(node.correct(spec()).mounts) == [PLACED]


def test_where_a_mount_comes_from_is_in_the_edit(root_dir: Path) -> None:
    node = KubeletNode(root_dir, MOUNTS)
    node.allocate(ours(mounts=[plugin()]))
    assert node.decide(spec()).edits[0].describe()["from"] == "example.com/gpu GPU-4"


# -- nothing mounted at all


@pytest.mark.parametrize("path", ["/run/ask", "/run/ask/all", "//run/./ask/0/", "run/ask"])
def test_nothing_is_mounted_where_a_rule_says_absent(root_dir: Path, path: str) -> None:
    there = [bind("/a"), bind(path), bind("/run"), bind("/run/asking")]
    node = KubeletNode(root_dir, CLOSED)
    assert oci.objects(node.correct(spec(mounts=there)).mounts) == [bind("/a"), bind("/run"), bind("/run/asking")]
    denied = KubeletNode(root_dir, {**CLOSED, "onConflict": "Deny"})
    assert denied.decide(spec(mounts=there)).refusal() == (
        f"rule closed: mount /run/ask is reserved and {path} was mounted"
    )
    assert denied.decide(spec(mounts=[bind("/run"), bind("/run/asking")])).is_empty()


@pytest.mark.parametrize("after", ["all", "0", "cdi/nvidia.com/gpu/all"])
def test_a_mount_beside_nvidias_path_asks_for_a_device_too(root_dir: Path, after: str) -> None:
    """Its runtime compares the beginning of the text of a destination."""
    asks = "/var/run/nvidia-container-devices"
    node = KubeletNode(root_dir, {"name": "closed", "mounts": [{"mountPath": asks, "absent": True}]})
    there = [bind(f"{asks}{after}", "/dev/null")]
    assert node.decide(spec(mounts=there)).refusal() == (
        f"rule closed: mount {asks}{after} asks NVIDIA's runtime for a device: it begins with {asks}"
    )
    assert node.decide(spec(mounts=[bind("/var/run/nvidia"), bind(f"{asks[:-1]}/all")])).is_empty()
    assert oci.objects(node.correct(spec(mounts=[bind(f"{asks}/{after}", "/dev/null")])).mounts) == []


def test_what_the_plugin_mounted_there_stays_and_allow_below_lets_through(root_dir: Path) -> None:
    rule = {"name": "closed", "mounts": [{**CLOSED["mounts"][0], "allowBelow": ["/run/ask/ok"]}], "onConflict": "Deny"}
    node = KubeletNode(root_dir, rule, MOUNTS)
    node.allocate(ours(mounts=[plugin("/run/ask/GPU-4", "/dev/null")]))
    allocated = {**PLUGINS, "destination": "/run/ask/GPU-4", "source": "/dev/null"}
    assert oci.objects(node.correct(spec(mounts=[allocated, bind("/run/ask/ok/x")])).mounts) == [
        allocated,
        bind("/run/ask/ok/x"),
    ]
    assert node.decide(spec(mounts=[allocated, bind("/run/ask/all", "/dev/null")])).refusal() == (
        "rule closed: mount /run/ask is reserved and /run/ask/all was mounted"
    )
    assert oci.objects(node.correct(spec(mounts=[allocated, bind("/run/ask/GPU-4", "/dev/zero")])).mounts) == [
        allocated
    ]


# -- devices

NULL = {"path": "/dev/gpu", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}
ALLOW = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}
DENY_ALL = {"allow": False, "access": "rwm"}
ZERO = {**NULL, "minor": 5}


def device(container_path: str = "/dev/gpu", host_path: str = "/dev/null", permissions: str = "rw") -> dict[str, Any]:
    """A device in a plugin's answer. /dev/null is the same node on every Linux."""
    return {"container_path": container_path, "host_path": host_path, "permissions": permissions}


@pytest.mark.parametrize("rules", [[DENY_ALL], [], [DENY_ALL, ALLOW]], ids=["denied", "no-rules", "allowed"])
@pytest.mark.parametrize("there", [[], [NULL], [ZERO], [ZERO, NULL], [{**NULL, "path": "/dev//gpu"}]])
def test_allocated_device_is_there_with_its_access(
    root_dir: Path, there: list[dict[str, object]], rules: list[dict[str, object]]
) -> None:
    node = KubeletNode(root_dir, DEVICES)
    node.allocate(ours(devices=[device()]))
    other = {**NULL, "path": "/dev/other"}
    corrected = node.correct(spec(devices=[other, *there], device_rules=rules))
    [found] = [each for each in corrected.devices if each.oci != other]
    assert found.number == ("c", 1, 3)
    assert oci.objects(corrected.device_rules) == ([DENY_ALL, ALLOW] if DENY_ALL in rules else [ALLOW])
    assert other in oci.objects(corrected.devices)


@pytest.mark.parametrize(
    ("rules", "granted"),
    [
        ([{"allow": True, "access": "rwm"}], True),
        ([{"allow": True}], True),
        ([DENY_ALL, {"allow": True, "type": "c", "access": "rw"}], True),
        ([DENY_ALL, {"allow": True, "type": "a", "major": -1, "minor": -1, "access": "rwm"}], True),
        ([DENY_ALL, {**ALLOW, "access": "r"}, {**ALLOW, "access": "w"}], True),
        ([ALLOW, DENY_ALL], False),
        ([DENY_ALL, {**ALLOW, "type": "b"}], False),
        ([DENY_ALL, {**ALLOW, "minor": 4}], False),
        ([DENY_ALL, {**ALLOW, "access": "r"}], False),
        ([ALLOW, {**ALLOW, "allow": False, "access": "w"}], False),
    ],
)
def test_access_is_granted_as_the_runtime_reads_the_rules(
    root_dir: Path, rules: list[dict[str, object]], granted: bool
) -> None:
    node = KubeletNode(root_dir, DEVICES)
    node.allocate(ours(devices=[device()]))
    assert node.decide(spec(devices=[NULL], device_rules=rules)).is_empty() == granted
    assert node.correct(spec(devices=[NULL], device_rules=rules)).device_rules == oci.device_rules(
        rules + [ALLOW] * (not granted)
    )


def test_same_node_twice_is_no_deviation(root_dir: Path) -> None:
    """A privileged container has every host device, and what was allocated once more."""
    node = KubeletNode(root_dir, {**DEVICES, "onConflict": "Deny"})
    node.allocate(ours(devices=[device("/dev/null")]))
    null = {**NULL, "path": "/dev/null"}
    assert node.decide(spec(devices=[null, null], device_rules=[{"allow": True, "access": "rwm"}])).is_empty()


def test_another_node_at_an_allocated_path_is_a_conflict(root_dir: Path) -> None:
    node = KubeletNode(root_dir, {**DEVICES, "onConflict": "Deny"})
    node.allocate(ours(devices=[device()]))
    for there in ([ZERO], [NULL, ZERO], [{**NULL, "type": "b"}], [{**ZERO, "path": "/dev/./gpu"}]):
        complaint = "rule devices: device /dev/gpu is allocated and another node was put there"
        assert node.decide(spec(devices=there)).refusal() == complaint
    for harmless in ([], [NULL]):
        decided = node.decide(spec(devices=harmless))
        assert (decided.refusal(), [edit.kind for edit in decided.edits]) == ("", ["device"])


def test_the_allocated_node_stays_as_the_engine_wrote_it_when_another_one_goes(root_dir: Path) -> None:
    """A device plugin's answer has no owner; an engine that runs pods as another user writes one."""
    node = KubeletNode(root_dir, DEVICES)
    node.allocate(ours(devices=[device()]))
    written = {**NULL, "fileMode": 0o640, "uid": 7, "gid": 8}
    for there in ([written, ZERO], [ZERO, written], [written, written, ZERO]):
        assert oci.objects(node.correct(spec(devices=there)).devices) == [written]


@pytest.mark.users  # as the node's root sees /dev/null
def test_node_is_looked_up_as_the_engine_does(root_dir: Path) -> None:
    """Links are followed; a directory of devices is the engine's to expand; what is gone is refused."""
    (root_dir / "link").symlink_to("/dev/null")
    node = KubeletNode(root_dir, DEVICES)
    node.allocate(ours(devices=[device(host_path=f"{root_dir}/link"), device("/dev/dir", str(root_dir))]))
    null = os.stat("/dev/null")
    wanted = {**NULL, "fileMode": null.st_mode & 0o777, "uid": null.st_uid, "gid": null.st_gid}
    assert oci.objects(node.correct(spec()).devices) == [wanted]
    node.allocate(ours(devices=[device(host_path=f"{root_dir}/gone")]))
    complaint = f"rule devices: allocated device {root_dir}/gone does not exist on this node"
    assert node.decide(spec()).refusal() == complaint


def test_two_resources_may_share_a_device_but_not_a_path(root_dir: Path) -> None:
    node = KubeletNode(root_dir, DEVICES)
    for one, other, access in (("r", "w", "rw"), ("rw", "", "rwm"), ("mr", "r", "rm")):
        node.allocate(
            ours(devices=[device(permissions=one)]), ours(resource="b/x", devices=[device(permissions=other)])
        )
        assert node.correct(spec(device_rules=[DENY_ALL])).device_rules[1].oci["access"] == access
    node.allocate(ours("1", devices=[device()]), ours("2", resource="b/x", devices=[device(host_path="/dev/zero")]))
    assert node.decide(spec()).refusal() == "rule devices: b/x 2 and example.com/gpu 1 differ in /dev/gpu"


def test_device_edit_says_where_it_comes_from(root_dir: Path) -> None:
    node = KubeletNode(root_dir, DEVICES)
    node.allocate(ours(devices=[device()]))
    [edit] = node.decide(spec(devices=[ZERO])).edits
    assert isinstance(edit, PlaceDevice)
    described = edit.describe()
    assert (described["kind"], described["name"], described["from"]) == ("device", "/dev/gpu", "example.com/gpu GPU-4")
    assert described["before"] == [ZERO]


# -- annotations


@pytest.mark.parametrize("value", ["v/gpu=all", "", "v/gpu=4 "])
def test_annotation_that_no_plugin_set_goes_away(root_dir: Path, value: str) -> None:
    node = KubeletNode(root_dir, NOTES)
    node.allocate(ours(annotations={"cdi.k8s.io/gpu": "v/gpu=4", "free": "1"}))
    there = {"cdi.k8s.io/gpu": value, "cdi.k8s.io/more": "v/gpu=4", "cdi.k8s.iox/y": "z", "own": "1"}
    assert node.correct(spec(annotations=there)).annotations == {"cdi.k8s.iox/y": "z", "own": "1"}
    denied = KubeletNode(root_dir, {**NOTES, "onConflict": "Deny"})
    complaint = "rule notes: annotation cdi.k8s.io/gpu must be absent and was set"
    assert complaint in denied.decide(spec(annotations=there)).refusal()


def test_annotation_that_a_plugin_set_stays(root_dir: Path) -> None:
    node = KubeletNode(root_dir, {**NOTES, "onConflict": "Deny"})
    node.allocate(ours(annotations={"cdi.k8s.io/gpu": "v/gpu=4"}))
    assert node.decide(spec(annotations={"cdi.k8s.io/gpu": "v/gpu=4"})).is_empty()
    assert node.decide(spec()).is_empty()  # whether an engine copies it is the engine's affair
