"""A small CRI client: pods and containers as kubelet asks for them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from harness import proc
from harness.tools import cleaned

from e2e.cri.images import PLAIN

messages, services = grpc.protos_and_services("e2e/cri/cri.proto")
"""Made from the .proto when the tests start; the path counts from tests/, which pytest puts on sys.path."""

SECONDS = 600
"""How long one call may take."""

Pairs = Iterable[tuple[str, str]]


class CriError(Exception):
    """A call that the engine answered with an error: the text that `kubectl describe pod` shows."""


class Cri:
    """A container engine's CRI socket. `cgroup_parent`: where all pods go; `logs`: where containers' output goes."""

    def __init__(self, socket: Path, cgroup_parent: str, logs: Path) -> None:
        self.cgroup_parent = cgroup_parent
        self.logs = logs
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)
        self.runtime = services.RuntimeServiceStub(self._channel)
        self.images = services.ImageServiceStub(self._channel)

    def close(self) -> None:
        """Let go of the socket."""
        self._channel.close()

    def version(self) -> str:
        """Name and version of the engine. Raises CriError while it is not up."""
        answer = call(self.runtime.Version, messages.VersionRequest())
        return f"{answer.runtime_name} {answer.runtime_version}"

    def has_image(self, name: str) -> bool:
        """Whether the engine knows an image."""
        spec = messages.ImageSpec(image=name)
        return bool(call(self.images.ImageStatus, messages.ImageStatusRequest(image=spec)).image.id)

    def run_pod(
        self,
        handler: str,
        namespace: str = "default",
        name: str = "p",
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        privileged: bool = False,
        share_processes: bool = False,
    ) -> Pod:
        """Start a pod's sandbox under a runtime handler, on the host's network. Raises CriError.

        `privileged`: it may have privileged containers, and shares the host's pids. `share_processes`:
        shareProcessNamespace.
        """
        uid = str(uuid.uuid4())
        config = messages.PodSandboxConfig(
            metadata=messages.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            log_directory=str(self.logs / uid),
            annotations=annotations or {},
            labels=labels or {},
            linux=messages.LinuxPodSandboxConfig(
                cgroup_parent=self.cgroup_parent,
                security_context=messages.LinuxSandboxSecurityContext(
                    namespace_options=namespaces(privileged, share_processes), privileged=privileged
                ),
            ),
        )
        request = messages.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return Pod(self, call(self.runtime.RunPodSandbox, request).pod_sandbox_id, config)


@dataclass
class Pod:
    """A running pod."""

    cri: Cri
    id: str
    config: Any
    removed: bool = False

    def create(
        self,
        name: str = "c",
        image: str = PLAIN,
        env: Pairs = (),
        mounts: Pairs = (),
        devices: Pairs = (),
        command: Iterable[str] = (),
        annotations: dict[str, str] | None = None,
        tty: bool = False,
        cdi: Iterable[str] = (),
        capabilities: Iterable[str] = (),
    ) -> Container:
        """Create a container. `mounts` and `devices`: (host path, container path). Raises CriError.

        `capabilities`: those that are added, without CAP_. It shares its processes if the pod does.
        """
        pid = self.config.linux.security_context.namespace_options.pid
        of = self.config.metadata
        config = messages.ContainerConfig(
            labels={"io.kubernetes.pod.uid": of.uid, "io.kubernetes.pod.namespace": of.namespace},  # kubelet's
            metadata=messages.ContainerMetadata(name=name),
            image=messages.ImageSpec(image=image, user_specified_image=image),
            command=command,
            envs=key_values(env),
            mounts=[messages.Mount(host_path=host, container_path=path) for host, path in mounts],
            devices=[messages.Device(host_path=host, container_path=path, permissions="rw") for host, path in devices],
            annotations=annotations or {},
            log_path=f"{name}.log",
            tty=tty,
            CDI_devices=[messages.CDIDevice(name=device) for device in cdi],
            linux=messages.LinuxContainerConfig(
                security_context=messages.LinuxContainerSecurityContext(
                    namespace_options=namespaces(share_processes=pid == messages.POD),
                    capabilities=messages.Capability(add_capabilities=capabilities),
                )
            ),
        )
        return self.make(config)

    def make(self, config: Any) -> Container:
        """Create a container from its whole configuration, a `messages.ContainerConfig`. Raises CriError."""
        request = messages.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        created = call(self.cri.runtime.CreateContainer, request)
        return Container(self.cri, created.container_id, Path(self.config.log_directory) / config.log_path)

    def run(self, **container: Any) -> Container:
        """Create and start a container; takes what `create` takes. Raises CriError."""
        created = self.create(**container)
        created.start()
        return created

    def remove(self) -> None:
        """Stop and remove the pod with all its containers (`cleaned`); once is enough."""
        if not self.removed:
            self.removed = cleaned(f"pod {self.id}", self._remove)

    def _remove(self) -> None:
        call(self.cri.runtime.StopPodSandbox, messages.StopPodSandboxRequest(pod_sandbox_id=self.id))
        call(self.cri.runtime.RemovePodSandbox, messages.RemovePodSandboxRequest(pod_sandbox_id=self.id))


@dataclass
class Container:
    """A container of a pod."""

    cri: Cri
    id: str
    log: Path

    def start(self) -> None:
        """Start it. Raises CriError."""
        call(self.cri.runtime.StartContainer, messages.StartContainerRequest(container_id=self.id))

    def update(self, cpu_shares: int) -> None:
        """Change its resources, as kubelet does for a resize in place. Raises CriError."""
        linux = messages.LinuxContainerResources(cpu_shares=cpu_shares)
        request = messages.UpdateContainerResourcesRequest(container_id=self.id, linux=linux)
        call(self.cri.runtime.UpdateContainerResources, request)

    def checkpoint(self, archive: str) -> None:
        """Write a checkpoint of it to a file of the node, as kubelet's checkpoint API does. Raises CriError."""
        request = messages.CheckpointContainerRequest(container_id=self.id, location=archive)
        call(self.cri.runtime.CheckpointContainer, request)

    def remove(self) -> None:
        """Stop and remove it (`cleaned`)."""
        cleaned(f"container {self.id}", self._remove)

    def _remove(self) -> None:
        call(self.cri.runtime.StopContainer, messages.StopContainerRequest(container_id=self.id, timeout=0))
        call(self.cri.runtime.RemoveContainer, messages.RemoveContainerRequest(container_id=self.id))

    def exec(self, *command: str) -> str:
        """Standard output of a command in it, as an exec probe runs one. Raises CriError."""
        request = messages.ExecSyncRequest(container_id=self.id, cmd=command, timeout=SECONDS)
        answer = call(self.cri.runtime.ExecSync, request)
        assert answer.exit_code == 0, f"{command}: {answer.exit_code}: {answer.stderr.decode()}"
        output: str = answer.stdout.decode()
        return output

    def environ(self) -> list[str]:
        """The environment of its first process."""
        # Not readable while the runtime has not become the program yet.
        return started_environ(lambda: self.exec("/bin/sh", "-c", "cat /proc/1/environ 2>/dev/null || true"))

    def exec_environ(self) -> list[str]:
        """The environment that an exec'd process itself has."""
        return proc.environ(self.exec("/bin/cat", "/proc/self/environ"))

    def mounts(self, below: str = "/etc/ssl") -> list[proc.Mount]:
        """What its first process sees at or below a path."""
        return proc.mounts(self.exec("/bin/cat", "/proc/1/mountinfo"), below)

    def exec_mounts(self, below: str = "/etc/ssl") -> list[proc.Mount]:
        """What an exec'd process itself sees at or below a path."""
        return proc.mounts(self.exec("/bin/cat", "/proc/self/mountinfo"), below)

    def output(self, last: str) -> list[str]:
        """Its own output from the CRI log, once the line `last` is there."""
        wait_for(lambda: last in self._output(), repr(last), lambda: str(self._output()))
        return self._output()

    def _output(self) -> list[str]:
        # time, stream, F or P, text (kubelet's log format, "CRI logging design")
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split(" ", 3)[3].rstrip("\r") for line in lines]


def key_values(env: Pairs) -> list[Any]:
    """Env as CRI has it. A value with surrogate escapes (`os.fsdecode`) is not UTF-8."""
    return [messages.KeyValue(key=key, value=os.fsencode(value)) for key, value in env]


def call(method: Callable[..., Any], request: Any) -> Any:
    """A unary call. Raises CriError."""
    try:
        return method(request, timeout=SECONDS)
    except grpc.RpcError as error:
        raise CriError(error.details()) from None


def wait_for(condition: Callable[[], bool], what: str, why: Callable[[], str] = str, seconds: int = 600) -> None:
    """Wait until something holds. `why`: what to show if it never does."""
    began = time.monotonic()
    deadline = began + seconds
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"{what}: not within {seconds} s: {why()}"
        time.sleep(min(1, max(0.02, 2 * (now - began))))  # a command takes CPU time from what it waits for
        began = time.monotonic()


def started_environ(read: Callable[[], str]) -> list[str]:
    """Entries of a container's environ, once its program runs: `start` returns while the runtime may still be it."""
    wait_for(lambda: "PATH=/bin" in proc.environ(read()), "the PATH of every image of the tests", read)
    return proc.environ(read())


def namespaces(host_pid: bool = False, share_processes: bool = False) -> Any:
    """The namespaces of every pod of the tests: the node's network, since nobody sets up another."""
    own = messages.POD if share_processes else messages.CONTAINER
    return messages.NamespaceOption(network=messages.NODE, pid=messages.NODE if host_pid else own)
