"""Pods of a real API server and kubelet under cri-dockerd and dockerd of Debian (tests/lab/cri-dockerd/run.sh)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from e2e.cri.images import HOSTILE
from e2e.node.booted import BootedNode, booted
from e2e.node.test_dockershim import PLUGIN, VISIBLE
from e2e.node.wired import POLICY_FILE
from lab.cluster.cluster import Cluster, Object, control_plane
from lab.cri_dockerd import SOCKET, TYPES, files, start

from hook.resident.protobuf import load

MESSAGES = load(Path(__file__).with_name("device_plugin.proto"))
GPU = "nvidia.com/gpu"
TENANT, TEAM = "team-a", "team-b"
SUITES = ("bookworm", "sid")
"""docker 20.10, for cri-dockerd up to 0.4.3, and 28."""
SPDY = {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}
"""kubelet 1.36 translates a WebSocket itself, and wants a URL with a scheme for that: cri-dockerd's has none."""


class DevicePlugin(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """One GPU, registered with the kubelet whose directory of plugins this is."""

    def __init__(self, directory: Path) -> None:
        self._ended = Event()
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, [self])
        self._server.add_insecure_port(f"unix:{directory / 'fake.sock'}")
        self._server.start()
        request = MESSAGES["RegisterRequest"](version="v1beta1", endpoint="fake.sock", resource_name=GPU)
        with grpc.insecure_channel(f"unix:{directory / 'kubelet.sock'}") as channel:
            channel.unary_unary("/v1beta1.Registration/Register")(request.SerializeToString(), timeout=30)

    def service(self, details: Any) -> Any:
        """The method that is called, as grpc asks."""
        method = details.method.rpartition("/")[2]
        if method == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self._list)
        answers = {"GetDevicePluginOptions": lambda request, context: b"", "Allocate": self._allocate}
        return grpc.unary_unary_rpc_method_handler(answers[method]) if method in answers else None

    def _list(self, request: bytes, context: Any) -> Iterator[bytes]:
        device = MESSAGES["Device"](ID="GPU-7", health="Healthy")
        yield MESSAGES["ListAndWatchResponse"](devices=[device]).SerializeToString()
        self._ended.wait()

    def _allocate(self, request: bytes, context: Any) -> bytes:
        asked = MESSAGES["AllocateRequest"].FromString(request).container_requests
        made = [MESSAGES["ContainerAllocateResponse"](envs={VISIBLE: ",".join(each.devices_ids)}) for each in asked]
        return bytes(MESSAGES["AllocateResponse"](container_responses=made).SerializeToString())

    def close(self) -> None:
        """Let go of the socket."""
        self._ended.set()
        self._server.stop(None).wait()
        self._pool.shutdown()


@contextmanager
def docker_node(suite: str) -> Iterator[BootedNode]:
    """A node with dockerd, cri-dockerd and reassert."""
    with booted(suite, files=files(), docker=True, images=False) as node:
        start(node)
        yield node


class Docked:
    """A cluster of one node with docker."""

    def __init__(self, cluster: Cluster, node: BootedNode) -> None:
        self.cluster, self.node, self.name = cluster, node, node.suite

    def run(self, namespace: str, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Create a pod, and wait until it runs."""
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
                "spec": {
                    "nodeName": self.name,
                    "hostNetwork": True,  # for an address, cri-dockerd calls programs that the node does not have
                    "dnsPolicy": "Default",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"operator": "Exists"}],
                    **spec,
                },
            }
        )
        self.cluster.wait(lambda: self._is_ready(namespace, name), f"pod {name}")

    def _is_ready(self, namespace: str, name: str) -> bool:
        status = self.cluster.get("pod", name, namespace=namespace)["status"]
        assert status.get("phase") != "Failed", status
        return "True" in [each["status"] for each in status.get("conditions", []) if each["type"] == "Ready"]

    def value(self, namespace: str, pod: str, container: str, name: str = VISIBLE) -> str:
        """A name's value in the container's process and, the same, in those of both execs; "" without."""
        of = {"pod.namespace": namespace, "pod.name": pod, "container.name": container}
        labels = [f"--filter=label=io.kubernetes.{key}={text}" for key, text in of.items()]
        (found,) = self.node.run("docker", "ps", "--quiet", *labels).stdout.split()
        value = self.node.value_in_docker(found, name)
        where = ("exec", pod, "--namespace", namespace, f"--container={container}", "--")
        assert self.cluster.kubectl(*where, "sh", "-c", f"echo ${name}", env=SPDY).strip() == value
        return value

    def events(self) -> list[tuple[str, str, str]]:
        """The events about containers since the last call: event, start, namespace and name."""
        return [
            (each["event"], each["start"], f"{each['container']['namespace']}/{each['container']['container']}")
            for each in self.node.container_events()
        ]

    def forget(self) -> None:
        """No pod, no container."""
        self.cluster.kubectl("delete", "pods", "--all", "--all-namespaces", "--wait")
        self.events()


def container(name: str, **more: Any) -> Object:
    """Its image and its author both want all GPUs."""
    wants = [{"name": VISIBLE, "value": "all"}]
    return {"name": name, "image": HOSTILE, "imagePullPolicy": "Never", "env": wants, **more}


@pytest.fixture(scope="module", params=SUITES)
def module_docked(request: pytest.FixtureRequest) -> Iterator[Docked]:
    with control_plane(controllers="") as cluster, docker_node(request.param) as node:
        for name in (PLUGIN[0], TENANT, TEAM):
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, account)
        cluster.add(node, runtime=f"unix://{SOCKET}")
        yield Docked(cluster, node)
        node.run("systemctl", "stop", "kubelet")


@pytest.fixture
def docked(module_docked: Docked) -> Iterator[Docked]:
    yield module_docked
    module_docked.forget()


@pytest.fixture(scope="module")
def gpu(module_docked: Docked) -> Iterator[DevicePlugin]:
    cluster, name = module_docked.cluster, module_docked.name
    directory = module_docked.node.path("/var/lib/kubelet/device-plugins")
    cluster.wait((directory / "kubelet.sock").exists, "kubelet's socket for plugins")
    plugin = DevicePlugin(directory)
    cluster.wait(lambda: cluster.get("node", name)["status"].get("allocatable", {}).get(GPU) == "1", "the GPU")
    yield plugin
    plugin.close()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_device_plugins_own_pod_keeps_all_and_a_tenants_gets_its_allocation(docked: Docked, start: str) -> None:
    """By the namespace, the GPU rule and a rule for the pod's labels; the sandboxes are left alone."""
    units = ("reassert-agent.socket", "reassert-agent.service")
    docked.node.run("systemctl", "stop" if start == "cold" else "start", *units)
    try:
        docked.run(PLUGIN[0], f"plugin-{start}", containers=[container("nvidia-device-plugin-ctr")])
        assert docked.value(PLUGIN[0], f"plugin-{start}", "nvidia-device-plugin-ctr") == "all"
        assert docked.events() == [], "excluded, and the sandbox by its type"
        train = container("train", resources={"limits": {GPU: "1"}})
        docked.run(TENANT, f"train-{start}", {"tier": "web"}, containers=[train, container("beside")])
        assert docked.value(TENANT, f"train-{start}", "train") == "GPU-7"
        assert docked.value(TENANT, f"train-{start}", "beside") == "void"
        assert {docked.value(TENANT, f"train-{start}", name, "TIER") for name in ("train", "beside")} == {"web"}
        docked.run(TEAM, f"other-{start}", containers=[container("train")])
        assert (
            docked.value(TEAM, f"other-{start}", "train"),
            docked.value(TEAM, f"other-{start}", "train", "TIER"),
        ) == ("void", "")
    finally:
        docked.node.run("systemctl", "start", *units)
    of = (f"{TENANT}/train", f"{TENANT}/beside", f"{TEAM}/train")
    assert docked.events() == [("container.edited", start, each) for each in of]


def test_kubelets_podresources_tells_the_types(docked: Docked) -> None:
    """An init container, a sidecar, an app container, and one that `kubectl debug` adds."""
    policy = docked.node.path(POLICY_FILE)
    before = policy.read_text()
    policy.write_text(TYPES)
    try:
        shown = ["/bin/busybox", "sh", "-c", f"echo ${VISIBLE}"]
        inits = [container("init", command=shown), container("sidecar", restartPolicy="Always")]
        docked.run(TENANT, "typed", initContainers=inits, containers=[container("app")])
        logs = docked.cluster.kubectl("logs", "typed", "--namespace", TENANT, "--container=init")
        assert logs.split() == ["none"]
        assert [docked.value(TENANT, "typed", name) for name in ("sidecar", "app")] == ["void", "void"]
        debug = ("debug", "typed", "--namespace", TENANT, f"--image={HOSTILE}", "--image-pull-policy=Never")
        docked.cluster.kubectl(
            *debug, "--container=debug", f"--env={VISIBLE}=all", "--", "/bin/busybox", "sleep", "1000"
        )

        def runs() -> bool:
            found = docked.cluster.get("pod", "typed", namespace=TENANT)["status"]
            return any("running" in each["state"] for each in found.get("ephemeralContainerStatuses", []))

        docked.cluster.wait(runs, "the ephemeral container")
        assert docked.value(TENANT, "typed", "debug") == "none"
    finally:
        policy.write_text(before)
