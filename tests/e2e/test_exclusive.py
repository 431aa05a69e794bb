"""Devices that no allocation of a container accounts for, on real runtimes: what the container itself finds and opens.

The devices are character and block nodes of numbers without a driver. Opening one says whether the device cgroup lets
the container: "No such device or address" if it does, "Operation not permitted" if not.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT, RUNTIMES
from harness.tools import need, run
from unit.kubelet import entry, write_checkpoint

from e2e.agent.support import Agent
from e2e.hostile_mounts import in_user_namespace
from e2e.runtimes import EACH, guarded, hook_entry, real_runtime
from e2e.stalled import stalling
from e2e.test_bounds import MEGABYTES
from hook.core.reserve.exclusive import EVERY_CONTAINERS_NUMBERS, PTYS

UID = "11111111-2222-3333-4444-555555555555"
MAJOR = 240
"""For local and experimental use (Linux, Documentation/admin-guide/devices.txt); no driver has it here."""

DENY_ALL = {"allow": False, "access": "rwm"}
ALLOW_ALL = {"allow": True, "access": "rwm"}

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: KUBELET}
  rules:
  - name: gpu
    deviceAllocations: {exclusive: ["/dev/gpu*", "NODE/gpu*", "NODE/dri/*"], devices: true}
    onConflict: CONFLICT
"""


class Machine:
    """A scratch node with three GPUs and another device, and a container of which kubelet allocated it gpu1."""

    def __init__(self, node: Node, bundle: Bundle) -> None:
        self.node = node
        self.bundle = bundle
        self.dev = node.directory / "dev"
        (self.dev / "dri").mkdir(parents=True)
        for name, minor in (("gpu0", 0), ("gpu1", 1), ("dri/card0", 2), ("other", 9)):
            os.mknod(self.dev / name, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
        os.mknod(self.dev / "gpu-disk", stat.S_IFBLK | 0o666, os.makedev(MAJOR, 0))
        self.kubelet = node.directory / "kubelet"
        self.policy("Override")
        device = {"host_path": f"{self.dev}/gpu1", "container_path": "/dev/gpu1", "permissions": "rw"}
        write_checkpoint(self.kubelet, entry(UID, "c", "GPU-1", devices=[device]))
        bundle.pod()
        (bundle.rootfs / "bin/mknod").symlink_to("busybox")
        process = bundle.spec["process"]
        for kind in ("bounding", "effective", "permitted"):
            process["capabilities"][kind].append("CAP_MKNOD")
        self.devices: list[dict[str, Any]] = bundle.spec["linux"].setdefault("devices", [])
        self.rules: list[dict[str, Any]] = [DENY_ALL]
        bundle.spec["linux"]["resources"]["devices"] = self.rules

    def policy(self, conflict: str) -> None:
        text = POLICY.replace("KUBELET", str(self.kubelet)).replace("NODE", str(self.dev)).replace("CONFLICT", conflict)
        self.node.compile(text)

    def give(self, path: str, minor: int, kind: str = "c") -> None:
        """A device as an engine writes it: the node, and a cgroup rule."""
        number = {"type": kind, "major": MAJOR, "minor": minor}
        self.devices.append({"path": path, **number, "fileMode": 0o666, "uid": 0, "gid": 0})
        self.rules.append({"allow": True, **number, "access": "rwm"})

    def opens(self, container: Running, path: str, kind: str = "c", minor: int | None = None) -> str:
        """What a process of the container gets that opens a device; with a number it makes the node first."""
        make = "" if minor is None else f"mknod {path} {kind} {MAJOR} {minor} && "
        command = [container.runtime, "exec", container.id, "/bin/sh", "-c", f"{make}exec cat {path}"]
        lines = run(*command, check=False).stderr.splitlines()  # runc 1.3.6 warns there of capabilities
        return next((line.rpartition(": ")[2] for line in lines if line.startswith(("cat: ", "mknod: "))), "")

    def check(self, container: Running) -> None:
        """It has the device that it was allocated, and no other one, not even by a node that it makes itself."""
        assert self.opens(container, "/dev/gpu1") == "No such device or address"
        assert self.opens(container, "/dev/try0", minor=0) == "Operation not permitted"
        assert self.opens(container, "/dev/try2", minor=2) == "Operation not permitted"
        assert self.opens(container, "/dev/tryb", kind="b", minor=0) == "Operation not permitted"
        assert self.opens(container, "/dev/null") == ""

    def dropped(self) -> list[str]:
        """What the events say was taken out."""
        return [e["name"] for event in self.node.logged() for e in event["edits"] if e["after"] is None]


@pytest.fixture
def machine(node: Node, bundle: Bundle) -> Iterator[Machine]:
    yield Machine(node, bundle)


def start(machine: Machine, real: str) -> Running:
    return guarded("wrapper", real, machine.node, machine.bundle)


def files(container: Running, path: str) -> list[str]:
    return container.exec("/bin/ls", path).split()


@marks.hole(
    "With `exclusive`, a link in /dev to a file system that hangs stopped all starts",
    since="0.3.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("link", ["gpu9", "dri"])
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_link_to_a_volume_that_does_not_answer_holds_no_start_up(machine: Machine, link: str, way: str) -> None:
    """Made in /dev by a container with a hostPath there; in the place of a node, and of a directory of nodes."""
    if link == "dri":
        machine.dev.joinpath(link, "card0").unlink()
        machine.dev.joinpath(link).rmdir()
    machine.give("/dev/gpu0", 0)
    machine.give("/dev/gpu1", 1)
    machine.bundle.save()
    agent = Agent(machine.node)
    if way == "warm":
        agent.start()
    runtime = (agent.dispatcher if way == "warm" else machine.node.dispatcher)(RUNTIMES["runc"])
    try:
        with stalling(machine.node.directory) as volume:
            machine.dev.joinpath(link).symlink_to(volume.path)
            volume.stall()
            with Running(runtime, machine.bundle) as container:
                assert not volume.gave_up()
                volume.answer()
                machine.check(container)
        assert machine.node.logged()[-1].get("start", "cold") == way
    finally:
        if agent.process:
            agent.stop()


@marks.claim("exclusive", "runtime")
def test_only_the_allocated_device_is_left(machine: Machine, real: str) -> None:
    for minor, path in ((0, "/dev/gpu0"), (1, "/dev/gpu1"), (2, "/dev/renamed"), (9, "/dev/other")):
        machine.give(path, minor)
    machine.give("/dev/gpu7", 77)  # a number that the node has no node of, under a name that is closed
    with start(machine, real) as container:
        machine.check(container)
        assert not {"gpu0", "renamed", "gpu7"} & set(files(container, "/dev"))
        assert machine.opens(container, "/dev/other") == "No such device or address"
        assert machine.opens(container, "/dev/try7", minor=77) == "Operation not permitted"
    assert machine.dropped() == ["/dev/gpu0", "/dev/renamed", "/dev/gpu7", "linux.resources.devices"]
    [event] = machine.node.logged()
    assert (event["applied"], event["verified"]) == (True, "container")


@marks.claim("exclusive", "runtime")
def test_a_privileged_pod_gets_every_device_but_those(machine: Machine, each: str) -> None:
    """containerd gives it the node's devices, and one rule that allows all."""
    for minor, path in ((0, "/dev/gpu0"), (1, "/dev/gpu1"), (2, "/dev/dri/card0"), (9, "/dev/other")):
        machine.give(path, minor)
    machine.rules[:] = [ALLOW_ALL]
    with start(machine, each) as container:
        machine.check(container)
        assert "gpu0" not in files(container, "/dev")
        assert machine.opens(container, "/dev/other") == "No such device or address"
        assert machine.opens(container, "/dev/try8", minor=8) == "No such device or address"


@marks.cve("CVE-2025-47291")
def test_a_pods_container_outside_its_cgroup_has_no_other_device(machine: Machine, each: str) -> None:
    """CVE-2025-47291: containerd 2.0 put containers of pods with a user namespace where those of no pod are."""
    for minor, path in ((0, "/dev/gpu0"), (1, "/dev/gpu1")):
        machine.give(path, minor)
    machine.bundle.spec["linux"]["cgroupsPath"] = f"/k8s.io/{machine.node.directory.name}"
    with start(machine, each) as container:
        assert f"/k8s.io/{machine.node.directory.name}" in Path(f"/proc/{container.pid()}/cgroup").read_text()
        machine.check(container)
        assert "gpu0" not in files(container, "/dev")


@marks.claim("exclusive", "runtime")
@pytest.mark.parametrize("rules", [[], [DENY_ALL, {"allow": True, "type": "c", "major": MAJOR, "access": "rwm"}]])
def test_cgroup_rules_for_many_devices(machine: Machine, real: str, rules: list[dict[str, Any]]) -> None:
    """No rule at all (crun then allows everything), and one for a whole major number, of which nothing can be taken."""
    machine.give("/dev/gpu1", 1)
    machine.give("/dev/other", 9)
    machine.rules[:] = rules
    with start(machine, real) as container:
        machine.check(container)
        if rules:
            assert machine.opens(container, "/dev/other") == "No such device or address"


@marks.claim("exclusive", "runtime")
@marks.hole(
    "`exclusive: [/dev/net/tun]` was logged as applied, and every container could open it",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("each", EACH)
def test_what_a_runtime_lets_every_container_open_no_rule_says_it_closes(machine: Machine, each: str) -> None:
    """A runtime puts rules of its own behind those of config.json: a container with CAP_MKNOD opens these devices."""
    machine.bundle.save()
    with Running(real_runtime(each, machine.node.directory), machine.bundle) as container:
        free = {(kind, major, minor) for kind, major, minor, access in cgroup_rules(container) if {*access} & {*"rw"}}
        assert ("c", 1, 3) in free
        assert {(k, major, minor) for k, major, minor in free if major not in PTYS} <= EVERY_CONTAINERS_NUMBERS
        tun = run(container.runtime, "exec", container.id, "/bin/sh", "-c", TUN, check=False).stdout
    assert (tun == "opened\n") == (("c", 10, 200) in free)
    machine.node.write_policy(machine.node.policy.read_text().replace('"/dev/gpu*"', "/dev/net/tun"))
    checked = run(REASSERT, "policy", "check", machine.node.policy, check=False)
    assert "'/dev/net/tun': runtimes let every container use this device" in checked.stdout + checked.stderr


TUN = "mknod /dev/try c 10 200 && exec 3<>/dev/try && echo opened"


def cgroup_rules(container: Running) -> list[tuple[str, int, int, str]]:
    """What the kernel lets a container do on cgroup v1; -1: any number."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{container.pid()}/cgroup").read_text().splitlines()]
    path = next((path for _, controllers, path in groups if controllers == "devices"), None)
    need(path is not None, "cgroup v1 with its devices controller, which lists its rules")
    lines = Path(f"/sys/fs/cgroup/devices{path}/devices.list").read_text().splitlines()
    found = []
    for kind, numbers, access in map(str.split, lines):
        major, minor = (-1 if number == "*" else int(number) for number in numbers.split(":"))
        found.append((kind, major, minor, access))
    return found


@marks.claim("exclusive", "runtime")
@marks.hole(
    "With `exclusive` under crun, `podman run --cgroups=disabled` opened each device",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime", "agent"])
@pytest.mark.parametrize("name", [name for name in EACH if "crun" in name])
def test_a_container_without_a_cgroup_is_refused(machine: Machine, name: str, adapter: str) -> None:
    """`podman run --cgroups=disabled` has crun make none, so no rule closes a device."""
    real = real_runtime(name, machine.node.directory)
    machine.give("/dev/gpu1", 1)
    container = guarded(adapter.replace("agent", "wrapper"), real, machine.node, machine.bundle)
    agent = Agent(machine.node)
    if adapter == "agent":
        agent.start()
        container.runtime = agent.only_warm(agent.dispatcher(real), tries=30)
    container.options = ("--cgroup-manager=disabled",)
    try:
        assert "the container has no cgroup (--cgroup-manager=disabled)" in refusal(machine, container)
    finally:
        if agent.process:
            agent.stop()


@pytest.fixture
def cgroups(machine: Machine) -> Iterator[Path]:
    """Of cgroup v1, in a directory with the devices controller mounted in it, as /sys/fs/cgroup is."""
    devices = Path("/sys/fs/cgroup/devices")
    need((devices / "cgroup.procs").exists(), "cgroup v1, in which any process of root can go to any cgroup")
    above = machine.node.directory / "cgroups"
    (above / "devices").mkdir(parents=True)
    run("mount", "--bind", str(devices), str(above / "devices"))
    yield above
    run("umount", "--lazy", str(above / "devices"))


LEAVE = "echo 0 > /cgroups/{}cgroup.procs; mknod /dev/left c 240 0; exec cat /dev/left"


@marks.claim("exclusive", "runtime")
@marks.hole(
    "With `exclusive`, a container with a writable hostPath of /sys/fs/cgroup left its cgroup, and opened "
    "each device (cgroup v1)",
    since="0.3.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("options", [[], ["ro"]], ids=["rw", "ro"])
@pytest.mark.parametrize("below", ["", "devices/"])
def test_volume_of_cgroups_lets_no_process_go_to_another_one(
    machine: Machine, pair: tuple[str, str], cgroups: Path, below: str, options: list[str]
) -> None:
    """A process of root that writes there is in a cgroup without rules. `ro` is kubelet's: not of what is below it."""
    machine.give("/dev/gpu1", 1)
    machine.bundle.bind(cgroups if below else cgroups / "devices", "/cgroups", *options)
    container = guarded(pair[1], pair[0], machine.node, machine.bundle)
    if not options:
        told = refusal(machine, container)
        assert f"the volume /cgroups{'/devices' if below else ''} can be written, and has cgroups in which" in told
        return
    with container:
        command = [container.runtime, "exec", container.id, "/bin/sh", "-c", LEAVE.format(below)]
        assert "/dev/left': Operation not permitted" in run(*command, check=False).stderr
        machine.check(container)


def with_version_2(machine: Machine, name: str, at: str, then: str) -> str:
    """The path of a runtime in a mount namespace with cgroup v2 at a path. `then`: commands of sh before it runs."""
    script = machine.node.directory / f"version2-{name}"
    real = real_runtime(name, machine.node.directory)
    mount = f"if mountpoint -q {at}; then umount --lazy {at}; fi; mount -t cgroup2 cgroup2 {at}"
    body = f'{mount} && {then} exec {real} "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c '{body}' {name} \"$@\"\n")
    script.chmod(0o755)
    return str(script)


@marks.hole(
    "With `exclusive` and cgroup v2, clone3(2) left the cgroup by a read-only mount of cgroups (`docker run "
    "--cgroupns=host`), and opened each device",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("case", ["read-only", "writable", "its own", "CAP_SYS_ADMIN"])
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
@pytest.mark.parametrize("name", ["runc", "crun-trixie"])
def test_all_cgroups_of_version_2_are_no_way_out(machine: Machine, name: str, adapter: str, case: str) -> None:
    """`docker run --cgroupns=host`: clone3(2) goes to each cgroup whose directory a process can open, also read-only.

    A privileged container has them, and with CAP_SYS_ADMIN it could mount them.
    """
    machine.give("/dev/gpu1", 1)
    spec = machine.bundle.spec
    namespaces = [each for each in spec["linux"]["namespaces"] if each["type"] != "cgroup"]
    spec["linux"]["namespaces"] = [*namespaces, *([{"type": "cgroup"}] if case == "its own" else [])]
    [mount] = [each for each in spec["mounts"] if each["type"] == "cgroup"]
    if case in ("writable", "CAP_SYS_ADMIN"):
        mount["options"].remove("ro")
    for kind in ("bounding", "effective", "permitted") if case == "CAP_SYS_ADMIN" else ():
        spec["process"]["capabilities"][kind].append(case)
    real = with_version_2(machine, name, "/sys/fs/cgroup", "")
    container = guarded(adapter, real, machine.node, machine.bundle)
    if case in ("read-only", "writable"):
        told = "the volume /sys/fs/cgroup need not be written (clone3(2)), and has cgroups in which"
        assert told in refusal(machine, container)
        return
    with container:
        assert [mount.options[0] for mount in container.mounts("/sys/fs/cgroup")] == [
            "ro" if case == "its own" else "rw"
        ]


@marks.hole(
    "With `exclusive` and cgroup v1, a volume of the engine's own cgroup counted as the container's, which "
    "then opened each device",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("name", ["runc", "crun-trixie"])
def test_a_cgroup_of_the_engine_in_another_hierarchy_is_not_the_containers_own(
    machine: Machine, cgroups: Path, name: str
) -> None:
    """As under systemd with cgroup v1: /system.slice/containerd.service, where runtimes leave it in version 2."""
    machine.give("/dev/gpu1", 1)
    version2, engine = machine.node.directory / "version2", cgroups / "devices" / machine.node.directory.name
    version2.mkdir()
    engine.mkdir()
    own = f"{version2}/{engine.name}"
    join = f"mkdir -p {own} && echo $$ > {own}/cgroup.procs && umount {version2} &&"
    machine.bundle.bind(engine, "/engine")
    container = guarded("wrapper", with_version_2(machine, name, str(version2), join), machine.node, machine.bundle)
    try:
        assert "the volume /engine can be written, and has cgroups in which" in refusal(machine, container)
    finally:
        engine.rmdir()
        run("unshare", "--mount", "sh", "-c", f"mount -t cgroup2 cgroup2 {version2} && rmdir {own}", check=False)


def test_volume_of_cgroups_without_rules_for_devices_stays_writable(
    machine: Machine, pair: tuple[str, str], cgroups: Path
) -> None:
    """podman mounts the hierarchy of systemd into a container with systemd, on cgroup v1."""
    machine.give("/dev/gpu1", 1)
    (cgroups.parent / "freezer").mkdir()
    machine.bundle.bind(cgroups.parent / "freezer", "/cgroups")
    run("mount", "--bind", "/sys/fs/cgroup/freezer", str(cgroups.parent / "freezer"))
    try:
        with guarded(pair[1], pair[0], machine.node, machine.bundle) as container:
            assert "rw" in container.mounts("/cgroups")[0].options
    finally:
        run("umount", str(cgroups.parent / "freezer"))


@marks.claim("exclusive", "runtime")
def test_volume_devices(machine: Machine, real: str) -> None:
    """A block volume is the pod author's to name: a volume of a closed disk, and a path of a closed name."""
    machine.give("/dev/gpu1", 1)
    machine.give("/dev/xvda", 0, "b")
    machine.give(f"{machine.dev}/gpu-data", 50, "b")
    machine.give("/dev/xvdb", 51, "b")
    with start(machine, real) as container:
        machine.check(container)
        assert not {"xvda", "gpu-data"} & set(files(container, "/dev"))
        assert machine.opens(container, "/dev/xvdb") == "No such device or address"


@marks.claim("exclusive", "runtime")
def test_host_path_of_dev(machine: Machine, real: str) -> None:
    """Of /dev, of a directory in it, by a symbolic link, and of a directory above it."""
    (machine.node.directory / "link").symlink_to("dev")
    (machine.node.directory / "data").mkdir()
    machine.give("/dev/gpu1", 1)
    places = {"/host": "dev", "/dri": "dev/dri", "/by-link": "link", "/above": "."}
    for place, source in {**places, "/data": "data"}.items():
        (machine.bundle.rootfs / place[1:]).mkdir()
        machine.bundle.bind(machine.node.directory / source, place)
    with start(machine, real) as container:
        machine.check(container)
        assert [files(container, place) for place in places] == [[], [], [], []]
        assert container.mounts("/data")
    assert machine.dropped() == list(places)


@marks.claim("exclusive", "runtime")
def test_mount_of_one_node(machine: Machine, real: str) -> None:
    machine.give("/dev/gpu1", 1)
    for target in ("/dev/gpu0", "/dev/anything", "/opt/gpu"):
        machine.bundle.bind(machine.dev / "gpu0", target)
    machine.bundle.bind(machine.dev / "other", "/opt/other")
    machine.bundle.bind(machine.dev / "gpu1", "/opt/mine")
    with start(machine, real) as container:
        machine.check(container)
        assert not {"gpu0", "anything"} & set(files(container, "/dev"))
        assert [mount.point for mount in container.mounts("/opt")] == ["/opt/other", "/opt/mine"]


HOOK = """#!/bin/sh
pid=$(tr -d ' \\n' | grep -o '"pid":[0-9]*' | cut -d: -f2)
exec nsenter --target $pid --mount -- COMMAND
"""


def inject(machine: Machine, *commands: str) -> None:
    """A prestart hook of the pod's, as NVIDIA's is one, that runs commands in the container's mount namespace."""
    script = machine.node.directory / "injector"
    command = " && ".join(commands).replace("ROOTFS", str(machine.bundle.rootfs))
    script.write_text(HOOK.replace("COMMAND", f"sh -c '{command}'"))
    script.chmod(0o755)
    machine.bundle.spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=void")
    environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    machine.bundle.spec["hooks"] = {"prestart": [{"path": str(script), "env": environment}]}


def refusal(machine: Machine, container: Running) -> str:
    """What the event says of a container that does not start."""
    assert container.create() != 0
    run(container.runtime, "delete", "--force", container.id, check=False)
    event = machine.node.logged()[-1]
    assert event["applied"] is False
    return json.dumps(event)


@marks.claim("exclusive", "runtime")
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("adapter", ["wrapper", "createRuntime"])
def test_a_node_that_is_there_all_the_same(machine: Machine, real: str, adapter: str, closed: bool) -> None:
    """NVIDIA_VISIBLE_DEVICES is void, config.json has no device, and a prestart hook makes one all the same."""
    nodes = {"gpu0": 0, "renamed": 2, "gpu7": 77} if closed else {"other": 9}
    if adapter == "createRuntime":  # the wrapper places the allocated one itself
        nodes["gpu1"] = 1
    inject(machine, *(f"mknod ROOTFS/dev/{name} c {MAJOR} {minor}" for name, minor in nodes.items()))
    if adapter != "wrapper":  # the node allows the allocated device without placing it: what is left to do is a look
        machine.node.compile(machine.node.policy.read_text().replace(", devices: true", ""))
    container = guarded(adapter, real, machine.node, machine.bundle)
    if closed:
        told = refusal(machine, container)
        refused = [name for name in nodes if f"/dev/{name} in the container is" in told]
        assert refused == [name for name in nodes if (name, adapter) != ("gpu1", "createRuntime")]
    else:
        with container:
            assert set(nodes) <= set(files(container, "/dev"))


@marks.claim("exclusive", "runtime")
@pytest.mark.parametrize("closed", [True, False])
def test_a_mount_that_is_there_all_the_same(machine: Machine, real: str, closed: bool) -> None:
    (machine.node.directory / "data").mkdir()
    sources = ["dev", "dev/dri", ".", "dev/gpu0"] if closed else ["dev/other", "data"]
    commands = []
    for number, source in enumerate(sources):
        path, place = machine.node.directory / source, machine.bundle.rootfs / f"host{number}"
        place.mkdir() if path.is_dir() else place.touch()
        commands.append(f"mount --bind {path} ROOTFS/host{number}")
    inject(machine, *commands)
    container = start(machine, real)
    if closed:
        told = refusal(machine, container)
        assert [source for n, source in enumerate(sources) if f"/host{n} in the container is" not in told] == []
    else:
        with container:
            assert container.mounts("/host0")
            assert container.mounts("/host1")


def swapped(machine: Machine, real: str, path: str) -> Running:
    """The pod swaps a symbolic link in a volume, which is mounted at a path, when the decision has been made."""
    (machine.node.directory / "link").symlink_to("data")
    (machine.node.directory / "data").mkdir()
    machine.bundle.bind(machine.node.directory / "link", path)
    script = machine.node.directory / "runtime"
    swap = f"ln -sfn {machine.dev} {machine.node.directory}/link"
    script.write_text(f'#!/bin/sh\n[ "$1" != create ] || {swap}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return guarded("wrapper", str(script), machine.node, machine.bundle)


@marks.claim("exclusive", "runtime")
def test_a_path_that_leads_elsewhere_by_the_time_of_the_mount(machine: Machine, real: str) -> None:
    assert "mount /host from" in refusal(machine, swapped(machine, real, "/host"))


@marks.hole(
    "With `exclusive` under crun, a mount at a path of more than 4 KiB kept its devices",
    since="0.3.0",
    fixed="0.3.0",
    severity="medium",
)
def test_a_mount_at_a_path_of_more_than_4_kib_counts(machine: Machine) -> None:
    """crun makes it, behind a link of the image; open(2) with the whole path fails. The pod swaps its link back."""
    deep = "/".join(["x" * 200] * 15)
    (machine.bundle.rootfs / deep).mkdir(parents=True)
    (machine.bundle.rootfs / "s").symlink_to("/" + deep)
    inject(machine, f"ln -sfn data {machine.node.directory}/link")
    container = swapped(machine, RUNTIMES["crun"], "/s/" + "/".join(["y" * 200] * 10))
    assert "cannot be looked at: openat2: File name too long" in refusal(machine, container)


@marks.claim("exclusive", "hook")
def test_the_hook_alone_refuses_what_it_cannot_take_out(machine: Machine, real: str) -> None:
    machine.give("/dev/gpu0", 0)
    bundle = machine.bundle
    bundle.save()
    config = bundle.saved()
    config["hooks"] = {"createRuntime": [hook_entry(machine.node, "createRuntime")]}
    bundle.config.write_text(json.dumps(config))
    assert "device /dev/gpu0 (c 240:0) is in the container" in refusal(machine, Running(real, bundle))


@pytest.mark.parametrize("injected", [False, True])
def test_the_resident_agent_decides_and_looks_the_same(machine: Machine, real: str, injected: bool) -> None:
    machine.give("/dev/gpu0", 0)
    machine.rules.append(ALLOW_ALL)
    if injected:
        inject(machine, f"mknod ROOTFS/dev/gpu2 c {MAJOR} 2")
    machine.bundle.save()
    agent = Agent(machine.node)
    agent.start()
    try:
        container = Running(agent.only_warm(agent.dispatcher(real), tries=30), machine.bundle)
        if injected:
            assert "/dev/gpu2 in the container is" in refusal(machine, container)
        else:
            assert container.create() == 0
            cold = Running(real, machine.bundle)  # `start` and `exec` are the real runtime's affair
            cold.id = container.id
            run(real, "start", cold.id)
            machine.check(cold)
            assert machine.node.logged()[-1]["verified"] == "container"
    finally:
        agent.stop()
        run(real, "delete", "--force", container.id, check=False)


@pytest.mark.parametrize("injected", [False, True])
def test_with_a_user_namespace(machine: Machine, real: str, injected: bool) -> None:
    """There runtimes mount the node's devices instead of making nodes."""
    in_user_namespace(machine.bundle)
    machine.node.compile(machine.node.policy.read_text().replace(", devices: true", ""))  # the node has no /dev/gpu1
    machine.give("/dev/gpu0", 0)
    if injected:
        (machine.bundle.rootfs / "host").touch()
        inject(machine, f"mount --bind {machine.dev}/gpu0 ROOTFS/host")
        assert "/host in the container is" in refusal(machine, start(machine, real))
        return
    with start(machine, real) as container:
        assert container.exec("/bin/cat", "/proc/self/uid_map").split() == ["0", "100000", "65536"]
        assert "gpu0" not in files(container, "/dev")


@marks.claim("bounded", "runtime@runtime")
@marks.hole("Many cgroup rules and devices cost 910 MiB of memory", since="0.3.0", fixed="0.4.0", severity="low")
def test_rules_for_many_devices_do_not_multiply_with_devices(machine: Machine) -> None:
    """Each of the container's devices gets one rule, however many rules for all of them there were."""
    many = 1_000
    for number in range(many):
        machine.devices.append({"path": f"/dev/d{number}", "type": "c", "major": MAJOR + 1, "minor": number})
        machine.rules.append({"allow": True, "type": "c", "access": "rwm"})
    machine.bundle.save()
    config = machine.bundle.config
    size = config.stat().st_size
    command = [str(REASSERT), "runtime", "--real", "/bin/true", *machine.node.options(), "--"]
    command += ["create", "--bundle", str(machine.bundle.directory), "x"]
    done = run("/usr/bin/time", "--quiet", "--format", "%M", *command, cwd=machine.bundle.directory)
    assert int(done.stderr) / 1024 < MEGABYTES
    assert config.stat().st_size < 2 * size
    rules = json.loads(config.read_text())["linux"]["resources"]["devices"]
    ours = [rule["minor"] for rule in rules if rule.get("major") == MAJOR + 1]
    assert ours == list(range(many))
    assert len(rules) == 1 + many + 1  # the rule against all, and the allocated device
