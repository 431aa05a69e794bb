"""Pods under the real dockerd of Debian 12: what kubelet and dockerd alone write proves their namespace.

Debian has no dockershim and no cri-dockerd. These tests call dockerd as both do (cri-dockerd, core/sandbox_run.go and
container_create.go): with the same names, labels, binds, cgroup parents and files, in the same order. The config.json
that dockerd wrote for a real dockershim is tried too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import marks
import pytest
from harness.bundle import Bundle
from ruamel.yaml import YAML
from unit.kubelet import entry, write_checkpoint
from unit.support import FIXTURES, ROOT

from e2e.cri.images import HOSTILE, PAUSE
from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.wired import DAEMON, PACKAGED, POLICY_FILE, with_program_and_images

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
RECORDED = FIXTURES / "kubelet" / "k1.20-dockershim"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
LABEL = "io.kubernetes."


def example_policy() -> str:
    """The GPU rule of the policy at the top of docs/policy.md, and a rule by the pod's labels."""
    [block] = re.findall(r"```yaml\n(apiVersion.*?)```", (ROOT / "docs/policy.md").read_text(), re.DOTALL)
    policy = YAML(typ="safe").load(block)
    policy["spec"]["rules"] = [rule for rule in policy["spec"]["rules"] if rule["name"] == "gpu"]
    match = {"podSelector": {"matchLabels": {"tier": "web"}}, "ifUnknown": "Skip"}
    policy["spec"]["rules"].append({"name": "web", "match": match, "env": [{"name": "TIER", "value": "web"}]})
    return json.dumps(policy)


class Kubelet:
    """kubelet and dockershim, as far as docker sees them."""

    def __init__(self, node: BootedNode) -> None:
        self.node = node
        self.systemd = self.docker("info", "--format", "{{.CgroupDriver}}").strip() == "systemd"
        self.sandboxes: dict[str, str] = {}

    def docker(self, *arguments: str, check: bool = True) -> str:
        """Standard output of docker's own command."""
        return self.node.run("docker", *arguments, check=check).stdout

    def parent(self, uid: str) -> str:
        """The cgroup of a pod, as each driver of kubelet names it."""
        if self.systemd:
            return f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
        return f"/kubepods/besteffort/pod{uid}"

    def labels(self, pod: tuple[str, str, str], name: str, kind: str) -> list[str]:
        """kubelet's labels of a container."""
        namespace, pod_name, uid = pod
        pairs = {"pod.namespace": namespace, "pod.name": pod_name, "pod.uid": uid, "container.name": name}
        if kind == "container":
            pairs["sandbox.id"] = self.sandboxes.get(uid, "")
        pairs["docker.type"] = kind
        return [f"--label={LABEL}{key}={value}" for key, value in pairs.items()]

    def sandbox(self, pod: tuple[str, str, str], *labels: str) -> str:
        """RunPodSandbox: create, checkpoint, start. `labels`: the pod's, as options."""
        namespace, name, uid = pod
        self.node.path(f"/var/log/pods/{namespace}_{name}_{uid}").mkdir(parents=True)
        options = [f"--name=k8s_POD_{name}_{namespace}_{uid}_0", f"--cgroup-parent={self.parent(uid)}"]
        options += ["--network=host", "--ipc=shareable"]
        made = self.docker("create", *options, *labels, *self.labels(pod, "POD", "podsandbox"), PAUSE).strip()
        checkpoints = self.node.path("/var/lib/dockershim/sandbox")
        checkpoints.mkdir(parents=True, exist_ok=True)
        record = {"version": "v1", "name": name, "namespace": namespace, "data": {"host_network": True}, "checksum": 1}
        (checkpoints / made).write_text(json.dumps(record))
        self.docker("start", made)
        self.sandboxes[uid] = made
        return made

    def container(self, pod: tuple[str, str, str], name: str, *options: str, image: str = HOSTILE) -> str:
        """CreateContainer and StartContainer."""
        namespace, pod_name, uid = pod
        self.node.path(f"/var/log/pods/{namespace}_{pod_name}_{uid}/{name}").mkdir()
        log = f"/var/lib/kubelet/pods/{uid}/containers/{name}/0badcafe"
        self.node.path(log).parent.mkdir(parents=True)
        self.node.path(log).touch()
        of_sandbox = f"container:{self.sandboxes[uid]}"
        made = self.docker(
            *("create", f"--name=k8s_{name}_{pod_name}_{namespace}_{uid}_0", f"--cgroup-parent={self.parent(uid)}"),
            *(f"--network={of_sandbox}", f"--ipc={of_sandbox}", f"--volume={log}:/dev/termination-log"),
            *(*self.labels(pod, name, "container"), *options, image),
        ).strip()
        self.docker("start", made)
        return made

    def value(self, container: str, name: str = VISIBLE) -> str:
        """A name's value in the container's process and, the same, in an exec'ed one; "" without."""
        return self.node.value_in_docker(container, name)

    def events(self) -> list[dict[str, Any]]:
        """The events about containers since the last call."""
        return self.node.container_events()

    def forget(self) -> None:
        """No pod, no container."""
        self.docker("rm", "--force", *self.docker("ps", "--all", "--quiet").split(), check=False)
        self.node.run("rm", "-rf", "/var/log/pods", "/var/lib/dockershim", "/var/lib/kubelet/pods", "/srv/data")
        self.sandboxes.clear()
        self.events()


PLUGIN = ("kube-system", "nvidia-device-plugin-x7k2p", "0a1b2c3d-1111-2222-3333-444455556666")
TENANT = ("team-a", "train-0", "5e6f7a8b-1111-2222-3333-444455556666")
OTHER = ("team-b", "train-1", "9c0d1e2f-1111-2222-3333-444455556666")
TENANTS = (TENANT, OTHER)


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    files = {**DAEMON, POLICY_FILE: example_policy()}
    node = with_program_and_images(module_boot("bookworm", files=files, docker=True, images=False), "docker")
    node.run(PACKAGED, "install", "--engine", "docker", "--no-probe")
    allocated = entry(TENANT[2], "train", "GPU-7", resource="nvidia.com/gpu", envs={VISIBLE: "GPU-7"})
    write_checkpoint(node.path("/var/lib/kubelet"), allocated)
    return node


@pytest.fixture
def kubelet(node: BootedNode) -> Iterator[Kubelet]:
    kubelet = Kubelet(node)
    yield kubelet
    kubelet.forget()


@marks.hole(
    "Under docker with kubelet, `exclude.namespaces` never held: NVIDIA's device plugin got `void`",
    since="0.1.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_device_plugins_own_pod_keeps_all_and_a_tenants_gets_its_allocation(kubelet: Kubelet, start: str) -> None:
    units = ("reassert-agent.socket", "reassert-agent.service")
    kubelet.node.run("systemctl", "stop" if start == "cold" else "start", *units)
    try:
        kubelet.sandbox(PLUGIN)
        assert kubelet.value(kubelet.container(PLUGIN, "nvidia-device-plugin-ctr")) == "all"
        assert kubelet.events() == [], "excluded, and the sandbox by its type"
        kubelet.sandbox(TENANT, "--label=tier=web")
        train = kubelet.container(TENANT, "train", f"--env={VISIBLE}=all")
        assert (kubelet.value(train), kubelet.value(train, "TIER")) == ("GPU-7", "web")
        kubelet.sandbox(OTHER)
        image = kubelet.docker("commit", "--change=LABEL tier=web", train).strip()
        other = kubelet.container(OTHER, "train", f"--env={VISIBLE}=all", image=image)
        assert (kubelet.value(other), kubelet.value(other, "TIER")) == ("void", ""), "an image's label"
    finally:
        kubelet.node.run("systemctl", "start", *units)
    events = kubelet.events()
    assert [(event["event"], event["start"]) for event in events] == [("container.edited", start)] * 2
    keys = ("namespace", "pod", "uid", "container")
    assert [event["container"] for event in events] == [
        dict(zip(keys, (*pod, "train"), strict=True)) for pod in TENANTS
    ]
    audit = json.loads(kubelet.node.run(PACKAGED, "audit", "-o", "json", check=False).stdout)["containers"]
    assert {(each["title"], each["state"]) for each in audit if each["state"] != "exempt"} == {
        ("team-a/train-0/train", "in policy"),
        ("team-b/train-1/train", "in policy"),
    }
    assert "kube-system/nvidia-device-plugin-x7k2p/nvidia-device-plugin-ctr" in [each["title"] for each in audit]


LIKE_ITS_CONTAINER = "all that the API takes: name, labels, cgroup parent, namespaces"
WAYS = (LIKE_ITS_CONTAINER, "like its sandbox", "LABEL of an image", "a directory like kubelet's", "--volumes-from")


@marks.claim("exclusion", "runtime")
@marks.hole(
    "A docker user got a pod's devices by `--cgroup-parent` and `--volumes-from`",
    since="0.1.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("of", [PLUGIN, TENANT], ids=["kube-system", "tenant"])
@pytest.mark.parametrize("way", WAYS)
def test_no_user_of_docker_and_no_image_gets_into_a_pod(kubelet: Kubelet, way: str, of: tuple[str, str, str]) -> None:
    """A user who can mount kubelet's own directory is root."""
    name = "nvidia-device-plugin-ctr" if of == PLUGIN else "train"
    kubelet.sandbox(of)
    victim = kubelet.container(of, name)
    kubelet.events()
    kind = "podsandbox" if way == "like its sandbox" else "container"
    labels, image = kubelet.labels(of, name, kind), HOSTILE
    options = [f"--cgroup-parent={kubelet.parent(of[2])}", f"--network=container:{kubelet.sandboxes[of[2]]}"]
    options += [f"--name=k8s_{name}_{of[1]}_{of[0]}_{of[2]}_1"]
    if way == "LABEL of an image":
        changes = [f"--change=LABEL {label.removeprefix('--label=')}" for label in labels]
        labels, image = [], kubelet.docker("commit", *changes, victim).strip()
    elif way == "a directory like kubelet's":
        log = f"/srv/data/pods/{of[2]}/containers/{name}/0badcafe"
        kubelet.node.path(log).parent.mkdir(parents=True)
        kubelet.node.path(log).touch()
        options += [f"--volume={log}:/dev/termination-log"]
    elif way == "--volumes-from":
        options += [f"--volumes-from={victim}"]
    run = ("run", "--detach", *options, *labels, f"--env={VISIBLE}=all", image)
    assert kubelet.value(kubelet.docker(*run).strip()) == "void"
    [event] = kubelet.events()
    assert (event["event"], event["container"]) == ("container.edited", {})


@marks.hole("Under docker with kubelet, `exclude.namespaces` never held: NVIDIA's device plugin got `void`")
@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_recorded_bundle_of_dockershim(kubelet: Kubelet, namespace: str) -> None:
    """The static pod victim-labnode, as kubelet 1.20 and docker 20.10 made it; once as if in kube-system."""
    node = kubelet.node
    spec = json.loads((RECORDED / "config.victim.evil.json").read_text())
    container_id = spec["linux"]["cgroupsPath"].rpartition("/")[2]
    uid = "79a3cc685b68dbeb0caaea052c524305"
    pod = {"namespace": namespace, "pod": "victim-labnode", "uid": uid, "container": "evil"}
    saved = node.path(CHECKPOINT).read_text()
    node.path(CHECKPOINT).write_text((RECORDED / "checkpoint.json").read_text())
    record = f"/var/lib/docker/containers/{container_id}"
    node.path(record).mkdir(mode=0o710)
    node.path(f"{record}/hostconfig.json").write_text((RECORDED / "hostconfig.victim.evil.json").read_text())
    node.path(f"/var/log/pods/{namespace}_victim-labnode_{uid}/evil").mkdir(parents=True)
    scratch = Bundle(node.directory / namespace)
    node.run("mkdir", "-p", spec["root"]["path"])
    node.run("cp", "-rT", str(scratch.rootfs), spec["root"]["path"])
    for mount in spec["mounts"]:
        if mount["type"] == "bind" and not node.path(mount["source"]).exists():
            node.run("mkdir", "-p", mount["source"].rpartition("/")[0])
            node.run(*(("mkdir",) if mount["source"].endswith("shm") else ("touch",)), mount["source"])
    spec["linux"]["namespaces"] = [{"type": kind} for kind in ("mount", "pid")]  # its sandbox is gone
    bundle = f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{container_id}"
    node.path(bundle).mkdir(parents=True, exist_ok=True)
    node.path(bundle + "/config.json").write_text(json.dumps(spec))
    real = "/opt/reassert/reassert-runc"
    explained = json.loads(node.run(PACKAGED, "explain", bundle + "/config.json", "-o", "json").stdout)["container"]
    assert {key: explained[key] for key in pod} == pod
    try:
        node.run("sh", "-c", f"exec {real} create --bundle {bundle} {container_id} > /run/out 2>&1 < /dev/null")
        node.run(real, "start", container_id)
        values = node.run(real, "exec", container_id, "/bin/sh", "-c", f"echo ${VISIBLE}").stdout.split()
    finally:
        node.run(real, "delete", "--force", container_id, check=False)
        node.run("rm", "-rf", bundle, record)
        node.path(CHECKPOINT).write_text(saved)
    assert values == (["all"] if namespace == "kube-system" else ["GPU-gpu-0"])
    assert [event["container"] for event in kubelet.events()] == ([] if namespace == "kube-system" else [pod])
