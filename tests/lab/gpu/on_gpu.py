"""Containers of a node with NVIDIA GPUs, by NVIDIA's container toolkit behind reassert's wrapper, and by a real runc.

Each container has the driver's files, either from the toolkit or as a volume of the pod, and runs nvidia-smi: what it
lists is what the driver lets the container use.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from e2e.agent.support import Agent
from e2e.conftest import bundle, directory, node
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT, TOP
from harness.tools import need, run
from unit.kubelet import entry, write_checkpoint

__all__ = ["bundle", "directory", "node"]

BIN = Path(os.environ["REASSERT_TEST_NVIDIA"])
RUNC = shutil.which("runc") or "runc"
SMI = Path(shutil.which("nvidia-smi") or "nvidia-smi").resolve()
"""Also its path in a container."""
UID = "11111111-2222-3333-4444-555555555555"
"""Of every pod that `Bundle.pod` makes."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
RESOURCE = "nvidia.com/gpu"
PRESET = (TOP / "config/examples/gpu-lockdown.yaml").read_text()
ONLY_EXCLUSIVE = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  rules:
  - name: only-allocated-devices
    deviceAllocations: {exclusive: ["/dev/nvidia*", "/dev/dri/*", nvidia.com/gpu]}
"""
MODES = os.environ.get("REASSERT_TEST_NVIDIA_MODES", "cdi auto").split()
"""Of nvidia-container-runtime. `auto` makes a CDI specification at each start (`jit-cdi`)."""
CONFIG = """\
[nvidia-container-runtime]
mode = "{mode}"
debug = "{log}"
log-level = "debug"
runtimes = ["{runc}"]
[nvidia-container-runtime-hook]
path = "{bin}/nvidia-container-runtime-hook"
[nvidia-ctk]
path = "{bin}/nvidia-cdi-hook"
[nvidia-container-cli]
path = "{cli}"
"""
ALL_DEVICES = {"allow": True, "access": "rwm"}


@cache
def gpus() -> list[str]:
    """The UUIDs that the node's nvidia-smi lists."""
    return uuids(run("nvidia-smi", "-L").stdout)


def uuids(listed: str) -> list[str]:
    return re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)


@cache
def edits() -> dict[str, list[Any]]:
    """The container edits of the device `all` of nvidia-ctk's specification."""
    spec = json.loads(run(str(BIN / "nvidia-ctk"), "cdi", "generate", "--format=json").stdout)
    [device] = [device for device in spec["devices"] if device["name"] == "all"]
    both = (spec["containerEdits"], device["containerEdits"])
    return {
        name: [value for part in both for value in part.get(name) or ()] for name in ("deviceNodes", "hooks", "mounts")
    }


class Gpus:
    """A scratch node with NVIDIA's toolkit, and a pod's container that asks for every GPU."""

    agent: Agent | None = None
    """Whom the wrapper asks. It may leave a start to the wrapper, which is a cold one then, as without an agent."""

    def __init__(self, node: Node, bundle: Bundle, mode: str) -> None:
        self.node, self.bundle, self.mode = node, bundle, mode
        self.kubelet = node.directory / "kubelet"
        self.log = node.directory / "nvidia.log"
        self.asked = node.directory / "asked"
        """The arguments of each call of nvidia-container-cli."""
        cli = self._script("nvidia-container-cli", f'echo "$*" >> {self.asked}')
        config = node.directory / "nvidia-container-runtime/config.toml"
        config.parent.mkdir()
        config.write_text(CONFIG.format(mode=mode, log=self.log, runc=RUNC, bin=BIN, cli=cli))
        self.toolkit = self._script(
            "toolkit", f'export XDG_CONFIG_HOME={node.directory}\nexec {BIN}/nvidia-container-runtime "$@"'
        )
        self.policy(PRESET)
        for library in re.findall(r"(/\S+) \(", run("ldd", str(SMI)).stdout):
            copied = bundle.rootfs / library[1:]
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copied)
        (bundle.rootfs / "bin/mknod").symlink_to("busybox")
        bundle.pod("team-a", "web", "app")
        self.process = bundle.spec["process"]
        self.env("all")
        for kind in ("bounding", "effective", "permitted"):
            self.process["capabilities"][kind].append("CAP_MKNOD")
        self.linux = bundle.spec["linux"]
        self.linux["resources"]["devices"] = [{"allow": False, "access": "rwm"}]

    def _script(self, name: str, body: str) -> str:
        path = self.node.directory / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    def policy(self, text: str) -> None:
        """Compiled by the frozen program: a machine with a GPU need not have what compiles it elsewhere."""
        self.node.write_policy(text.replace("spec:\n", f"spec:\n  kubelet: {{root: {self.kubelet}}}\n", 1))
        run(str(REASSERT), "policy", "compile", "--policy", str(self.node.policy), "--store", str(self.node.store))

    def env(self, *values: str, **more: str) -> None:
        """The variable as often as it has values, in the order in which an engine writes them; and others."""
        others = [f"{name}={value}" for name, value in more.items()]
        self.process["env"] = [f"PATH={SMI.parent}:/bin", *others, *(f"{VISIBLE}={value}" for value in values)]

    def allocate(self, *ids: str, **answer: Any) -> None:
        """What a device plugin answered for the container."""
        write_checkpoint(self.kubelet, entry(UID, "app", *ids, resource=RESOURCE, **answer))

    def give_files(self) -> None:
        """The driver's files as volumes, with what makes them usable, and no device: nvidia-smi is always there."""
        for mount in edits()["mounts"]:
            self.bundle.bind(mount["hostPath"], mount["containerPath"], "ro")
        for hook in edits()["hooks"]:
            hooks = self.bundle.spec.setdefault("hooks", {}).setdefault(hook["hookName"], [])
            hooks.append({name: value for name, value in hook.items() if name != "hookName"})

    def give_nodes(self) -> None:
        """Every GPU as an engine gives devices: nodes, and cgroup rules."""
        for device in edits()["deviceNodes"]:
            status = os.stat(device.get("hostPath") or device["path"])
            number = {"type": "c", "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            added = {"path": device["path"], **number, "fileMode": stat.S_IMODE(status.st_mode), "uid": 0, "gid": 0}
            self.linux.setdefault("devices", []).append(added)
            self.linux["resources"]["devices"].append({"allow": True, **number, "access": "rwm"})

    def start(self, reassert: bool = True) -> Running:
        """The container, by the toolkit; without reassert it is what the pod's author wants."""
        self.bundle.save()
        return Running(self.wrapper() if reassert else self.toolkit, self.bundle)

    def wrapper(self) -> str:
        """What an engine executes as its runtime."""
        if self.agent is None:
            return self.node.dispatcher(self.toolkit)
        return self.agent.dispatcher(self.toolkit)

    def requested(self) -> list[str]:
        """What the toolkit says that the last container asked it for."""
        found = re.findall(r"(?:CDI modifier for devices:?|CDI modfier for devices) \[(.*?)\]", self.log.read_text())
        return str(found[-1]).replace('"', "").split() if found else []

    def refusal(self) -> str:
        """The line of a refused container."""
        return self.start().refused()

    def events(self) -> list[dict[str, Any]]:
        """Those about containers."""
        return [event for event in self.node.logged() if event["event"].startswith("container.")]

    def event(self) -> dict[str, Any]:
        """The only one."""
        [event] = self.events()
        print(json.dumps(event, indent=1))
        assert self.agent or event["start"] == "cold"
        return dict(event)


def in_container(container: Running, command: str) -> str:
    """Both outputs of a shell command in the container."""
    done = run(container.runtime, "exec", container.id, "/bin/sh", "-c", command, check=False)
    print(f"$ {command}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check_none(container: Running) -> None:
    """The container has no GPU, not by nvidia-smi, and not by a node that it makes itself."""
    assert "nvidia" not in in_container(container, "ls /dev")
    assert uuids(in_container(container, "nvidia-smi -L")) == []
    for number in ("195 0", "195 255"):
        opened = in_container(container, f"mknod /tmp/n c {number}; (exec 3<>/tmp/n && echo opened); rm /tmp/n")
        assert "Operation not permitted" in opened, opened
        assert "opened" not in opened, opened


def edited(event: dict[str, Any], name: str) -> dict[str, Any]:
    """The edit of a name in an event."""
    [found] = [edit for edit in event["edits"] if edit["name"] == name]
    return dict(found)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["cold", "warm"])
def machine(request: pytest.FixtureRequest, mode: str, node: Node, bundle: Bundle) -> Iterator[Gpus]:
    need(not Path("/var/lib/kubelet/device-plugins").exists(), "a node without kubelet, whose checkpoint would count")
    machine = Gpus(node, bundle, mode)
    if request.param == "warm":
        machine.agent = Agent(node)
        machine.agent.start()
    yield machine
    if machine.agent:
        machine.agent.stop()


def test_without_reassert_the_variable_gives_every_gpu(machine: Gpus) -> None:
    """Else the tests below show nothing."""
    machine.env(gpus()[0], "all")
    with machine.start(reassert=False) as container:
        assert uuids(in_container(container, "nvidia-smi -L")) == gpus()
    assert [name.partition("=")[2] for name in machine.requested()] == ["all"]


WANTED = {
    "all": ("all",),
    "index": ("0",),
    "cdi": ("nvidia.com/gpu=all",),
    "automatic": ("runtime.nvidia.com/gpu=all",),
    "twice": ("void", "all"),
}


@pytest.mark.parametrize("wanted", [*WANTED, "uuid", "legacy image"])
def test_without_an_allocation_it_is_void(machine: Gpus, wanted: str) -> None:
    """An image with CUDA_VERSION and without the variable gets every GPU of NVIDIA's toolkit."""
    values = WANTED.get(wanted, (gpus()[0],) if wanted == "uuid" else ())
    machine.env(*values, CUDA_VERSION="12.4")
    before = copy.deepcopy(machine.bundle.spec)
    with machine.start(reassert=False) as container:
        assert uuids(in_container(container, "nvidia-smi -L"))
    assert "nvidia-cdi-hook" in machine.bundle.config.read_text()
    machine.bundle.spec = before
    with machine.start() as container:
        assert [each for each in container.environ() if each.startswith(VISIBLE)] == [f"{VISIBLE}=void"]
        assert in_container(container, f"echo ${VISIBLE}") == "void\n"
        check_none(container)
    assert "nvidia-cdi-hook" not in machine.bundle.config.read_text()
    event = machine.event()
    assert (event["event"], event["container"]["pod"], event["applied"]) == ("container.edited", "web", True)
    assert event["verified"] == "container"
    assert edited(event, VISIBLE)["after"] == "void"


@pytest.mark.parametrize("values", ["honest", "all", "before"])
def test_the_device_plugins_gpu_and_no_other_request(machine: Gpus, values: str) -> None:
    """`deviceListStrategy: envvar`, the plugin's default: the answer has the UUID in env and nothing else."""
    gpu = gpus()[0]
    machine.allocate(gpu, envs={VISIBLE: gpu})
    machine.env(*{"honest": (gpu,), "all": (gpu, "all"), "before": ("all", gpu)}[values])
    with machine.start() as container:
        assert uuids(in_container(container, "nvidia-smi -L")) == [gpu]
        assert [name.partition("=")[2] for name in machine.requested()] == [gpu]
        in_container(container, "ls -lR /dev")  # nvidia-smi itself made nodes in /dev/nvidia-caps
        audited = run(str(REASSERT), "audit", *machine.node.options()[:4], container.id).stdout
        assert "1 containers: 1 in policy." in audited
    events = machine.events()
    assert [event["event"] for event in events] == ([] if values == "honest" else ["container.edited"])
    if events:
        assert edited(events[0], VISIBLE)["after"] == gpu


@pytest.mark.parametrize("strategy", ["envvar", "device-specs", "cdi-cri"])
def test_each_strategy_of_the_device_plugin_gives_its_gpu(machine: Gpus, strategy: str) -> None:
    """With `exclusive`, which lets no device through that the answer does not account for."""
    gpu = gpus()[0]
    if strategy == "envvar":
        machine.env(gpu)
        machine.allocate(gpu, envs={VISIBLE: gpu})
    elif strategy == "device-specs":
        machine.env(gpu)
        paths = [device["path"] for device in edits()["deviceNodes"] if "/dri/" not in device["path"]]
        machine.allocate(
            gpu,
            envs={VISIBLE: gpu},
            devices=[{"host_path": path, "container_path": path, "permissions": "rw"} for path in paths],
        )
        machine.give_nodes()
    else:  # the engine injects the device, and the toolkit is asked for nothing
        machine.allocate(gpu, cdi_devices=[{"name": f"{RESOURCE}={gpu}"}])
        machine.env("void")
        machine.give_files()
        machine.give_nodes()
    with machine.start() as container:
        assert uuids(in_container(container, "nvidia-smi -L")) == [gpu]
        for path in {device["path"] for device in edits()["deviceNodes"]}:
            assert in_container(container, f"exec 3<>{path} && echo opened") == "opened\n"
    assert [event["event"] for event in machine.events()] == []


@pytest.mark.parametrize("way", ["nodes", "privileged", "volumes", "hostPath of /dev"])
def test_exclusive_takes_what_was_not_allocated(machine: Gpus, way: str) -> None:
    """The container has the driver's files as volumes, and tries to have the devices past the variable."""
    machine.env("void")
    machine.give_files()
    if way in ("nodes", "privileged"):
        machine.give_nodes()
        if way == "privileged":
            machine.linux["resources"]["devices"] = [ALL_DEVICES]
    else:
        machine.linux["resources"]["devices"] = [ALL_DEVICES]
        paths = [device["path"] for device in edits()["deviceNodes"]]
        for path in paths if way == "volumes" else ["/dev"]:
            machine.bundle.bind(path, path)
    before = copy.deepcopy(machine.bundle.spec)
    with machine.start(reassert=False) as container:
        assert uuids(in_container(container, "nvidia-smi -L")) == gpus()
    machine.bundle.spec = before
    with machine.start() as container:
        check_none(container)
    event = machine.event()
    assert (event["event"], event["applied"]) == ("container.edited", True)
    assert [edit for edit in event["edits"] if edit["rule"] == "only-allocated-devices"]


@pytest.mark.parametrize("allocated", ["nothing", "another"])
def test_exclusive_alone_refuses_the_toolkits_gpu(machine: Gpus, allocated: str) -> None:
    """No rule is about env: the toolkit adds the devices behind reassert's wrapper, and the hook finds them."""
    machine.policy(ONLY_EXCLUSIVE)
    if allocated == "another":
        machine.allocate("GPU-0", envs={VISIBLE: "GPU-00000000-0000-0000-0000-000000000000"})
    refused = machine.refusal()
    print(refused)
    assert "/dev/nvidia" in refused
    event = machine.event()
    assert (event["event"], event["container"]["pod"]) == ("container.denied", "web")


def test_deny_refuses_before_the_toolkit_is_called(machine: Gpus) -> None:
    machine.policy(PRESET.replace("  - name: gpu\n", "  - name: gpu\n    onConflict: Deny\n"))
    refused = machine.refusal()
    print(refused)
    assert f"rule gpu: env {VISIBLE} is reserved" in refused
    event = machine.event()
    assert (event["event"], event["container"]["pod"]) == ("container.denied", "web")
    assert machine.requested() == []


def test_annotation_of_a_cdi_device_goes(machine: Gpus) -> None:
    """NVIDIA's runtime takes devices from annotations of config.json before the variable."""
    kind = "nvidia.com/gpu" if machine.mode == "cdi" else "runtime.nvidia.com/gpu"
    machine.bundle.pod("team-a", "web", "app", **{"cdi.k8s.io/mine": f"{kind}=all"})
    machine.env("void")
    before = copy.deepcopy(machine.bundle.spec)
    with machine.start(reassert=False) as container:
        assert uuids(in_container(container, "nvidia-smi -L")) == gpus()
    machine.bundle.spec = before
    with machine.start() as container:
        check_none(container)
    assert edited(machine.event(), "cdi.k8s.io/mine")["after"] is None


@pytest.mark.parametrize("mode", ["legacy"])
@pytest.mark.parametrize("allocated", [True, False])
def test_the_legacy_hook_asks_for_what_was_allocated(machine: Gpus, allocated: bool) -> None:
    """nvidia-container-runtime-hook reads config.json and calls nvidia-container-cli: here a script that records it."""
    gpu = gpus()[0]
    machine.env(gpu, "all")
    if allocated:
        machine.allocate(gpu, envs={VISIBLE: gpu})
    with machine.start():
        pass
    calls = machine.asked.read_text() if machine.asked.exists() else ""
    assert re.findall(r"--device=(\S+)", calls) == ([gpu] if allocated else [])
