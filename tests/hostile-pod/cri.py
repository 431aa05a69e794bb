"""Containers of a CRI engine: a pod for each."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import grpc
from hostile_pod import MARKER, Broken, Refused

messages, services = grpc.protos_and_services("cri.proto")
SECONDS = 60


class Engine:
    """An engine's CRI socket. The pods share the node's network, so that no CNI is needed."""

    kind = "cri"

    def __init__(self, socket: str, image: str, handler: str, namespace: str, cgroup_parent: str) -> None:
        channel = grpc.insecure_channel(f"unix://{socket.removeprefix('unix://')}", [("grpc.enable_http_proxy", 0)])
        self.stub = services.RuntimeServiceStub(channel)
        images = services.ImageServiceStub(channel)
        self.image, self.handler, self.namespace, self.cgroup_parent = image, handler, namespace, cgroup_parent
        spec = messages.ImageSpec(image=image)
        if not self.call(images.ImageStatus, messages.ImageStatusRequest(image=spec)).image.id:
            raise Broken(f"the engine has no image {image}; pull it, for example with `crictl pull {image}`")

    @staticmethod
    def call(method: Any, request: Any) -> Any:
        """One call. Raises Broken."""
        try:
            return method(request, timeout=SECONDS)
        except grpc.RpcError as error:
            raise Broken(error.details()) from None

    def start(self, case: dict[str, Any], scratch: Path) -> Container:
        """Starts the container of a case in a pod of its own. Raises Refused, Broken."""
        uid = str(uuid.uuid4())
        host = messages.NamespaceOption(network=messages.NODE, pid=messages.CONTAINER)
        pod = messages.PodSandboxConfig(
            metadata=messages.PodSandboxMetadata(name=f"hostile-{uid[:8]}", uid=uid, namespace=self.namespace),
            log_directory=str(scratch / "logs"),
            annotations=case.get("annotations", {}),
            linux=messages.LinuxPodSandboxConfig(
                cgroup_parent=self.cgroup_parent,
                security_context=messages.LinuxSandboxSecurityContext(namespace_options=host),
            ),
        )
        request = messages.RunPodSandboxRequest(config=pod, runtime_handler=self.handler)
        container = Container(self, self.call(self.stub.RunPodSandbox, request).pod_sandbox_id)
        try:
            request = messages.CreateContainerRequest(
                pod_sandbox_id=container.pod, config=self._config(case, scratch, host), sandbox_config=pod
            )
            container.id = self.call(self.stub.CreateContainer, request).container_id
            self.call(self.stub.StartContainer, messages.StartContainerRequest(container_id=container.id))
        except Broken as error:
            container.remove()
            raise Refused(str(error)) from None
        return container

    def _config(self, case: dict[str, Any], scratch: Path, host: Any) -> Any:
        mounts = []
        for mount in case.get("mounts", []):
            source = mount.get("host") or str(scratch / "volumes" / mount["volume"])
            mounts.append(messages.Mount(host_path=source, container_path=mount["at"]))
        pairs = [entry.partition("=") for entry in [MARKER, *case.get("env", [])]]
        capabilities = messages.Capability(add_capabilities=case.get("capabilities", []))
        return messages.ContainerConfig(
            metadata=messages.ContainerMetadata(name="c"),
            image=messages.ImageSpec(image=self.image, user_specified_image=self.image),
            command=["sleep", "3600"],
            envs=[messages.KeyValue(key=name, value=value) for name, _, value in pairs],
            mounts=mounts,
            devices=[
                messages.Device(host_path=path, container_path=path, permissions="rw")
                for path in case.get("devices", [])
            ],
            annotations=case.get("annotations", {}),
            log_path="c.log",
            linux=messages.LinuxContainerConfig(
                security_context=messages.LinuxContainerSecurityContext(
                    namespace_options=host, capabilities=capabilities
                )
            ),
        )


class Container:
    """A pod and its container."""

    def __init__(self, engine: Engine, pod: str) -> None:
        self.engine = engine
        self.pod = pod
        self.id = ""

    def exec(self, *command: str, extra: dict[str, Any] | None = None) -> tuple[int, bytes, str]:
        """Exit status, output and errors of a command in it, as an exec probe runs one. Raises Broken."""
        request = messages.ExecSyncRequest(container_id=self.id, cmd=command, timeout=SECONDS)
        try:
            answer = self.engine.call(self.engine.stub.ExecSync, request)
        except Broken as error:  # what a runtime that cannot run the command says
            return 255, b"", str(error)
        return answer.exit_code, answer.stdout, answer.stderr.decode("utf-8", "replace")

    def remove(self) -> None:
        """Removes the pod with its container."""
        for method, kind in (("StopPodSandbox", "Stop"), ("RemovePodSandbox", "Remove")):
            request = getattr(messages, f"{kind}PodSandboxRequest")(pod_sandbox_id=self.pod)
            self.engine.call(getattr(self.engine.stub, method), request)
