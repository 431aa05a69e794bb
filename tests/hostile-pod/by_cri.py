"""Containers of a CRI engine: a pod for each. The numbers are those of the fields in cri-api's runtime/v1/api.proto."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import unary
from base import MARKER, Broken, Refused

SECONDS = 60.0
NODE, CONTAINER = 2, 1
"""Of NamespaceMode. The pods share the node's network, so that no CNI is needed."""
KUBELETS = "io.kubernetes."
"""The prefix of kubelet's labels. CRI-O writes them into config.json, and there they alone say whose a container is."""


class Engine:
    """An engine's CRI socket."""

    kind = "cri"

    def __init__(self, socket: str, image: str, handler: str, namespace: str, cgroup_parent: str) -> None:
        self.socket = socket.removeprefix("unix://")
        self.image, self.handler, self.namespace, self.cgroup_parent = image, handler, namespace, cgroup_parent
        status = self.call("ImageService/ImageStatus", [(1, [(1, image)])])
        if not unary.decode(status.get(1, b"")).get(1):
            self.call("ImageService/PullImage", [(1, [(1, image)])])

    def close(self) -> None:
        """Nothing is left."""

    def call(self, method: str, request: unary.Message) -> dict[int, Any]:
        """One call. Raises Broken."""
        try:
            return unary.call(self.socket, f"/runtime.v1.{method}", request, SECONDS)
        except unary.CallError as error:
            raise Broken(str(error)) from None

    def start(self, case: dict[str, Any], scratch: Path) -> Container:
        """Starts the container of a case in a pod of its own. Raises Refused, Broken."""
        uid = str(uuid.uuid4())
        name = f"hostile-{uid[:8]}"
        namespaces: unary.Message = [(1, NODE), (2, CONTAINER)]
        own = {"name": name, "namespace": self.namespace, "uid": uid}
        labels = {f"{KUBELETS}pod.{key}": value for key, value in own.items()}
        pod: unary.Message = [
            (1, [(1, name), (2, uid), (3, self.namespace)]),
            (3, str(scratch / "logs")),
            (6, labels),
            (7, case.get("annotations", {})),
            (8, [(1, self.cgroup_parent), (2, [(1, namespaces)])]),
        ]
        run = self.call("RuntimeService/RunPodSandbox", [(1, pod), (2, self.handler)])
        container = Container(self, run[1].decode())
        config = [*self._config(case, scratch, namespaces), (9, {**labels, KUBELETS + "container.name": "c"})]
        try:
            made = self.call("RuntimeService/CreateContainer", [(1, container.pod), (2, config), (3, pod)])
            container.id = made[1].decode()
            self.call("RuntimeService/StartContainer", [(1, container.id)])
        except Broken as error:
            container.remove()
            raise Refused(str(error)) from None
        return container

    def _config(self, case: dict[str, Any], scratch: Path, namespaces: unary.Message) -> unary.Message:
        mounts = []
        for mount in case.get("mounts", []):
            source = mount.get("host") or str(scratch / "volumes" / mount["volume"])
            mounts.append([(1, mount["at"]), (2, source), (3, mount.get("readOnly", False))])
        pairs = [entry.partition("=") for entry in [MARKER, *case.get("env", [])]]
        security = [(1, [(1, case.get("capabilities", []))]), (2, case.get("privileged", False)), (3, namespaces)]
        return [
            (1, [(1, "c")]),
            (2, [(1, self.image), (18, self.image)]),
            (3, ["sleep", "3600"]),
            (6, [[(1, name), (2, value)] for name, _, value in pairs]),
            (7, mounts),
            (8, [[(1, path), (2, path), (3, "rw")] for path in case.get("devices", [])]),
            (10, case.get("annotations", {})),
            (11, "c.log"),
            (15, [(2, security)]),
        ]


class Container:
    """A pod and its container."""

    def __init__(self, engine: Engine, pod: str) -> None:
        self.engine = engine
        self.pod = pod
        self.id = ""

    def exec(self, *command: str, extra: dict[str, Any] | None = None) -> tuple[int, bytes, str]:
        """Exit status, output and errors of a command in it, as an exec probe runs one."""
        request = [(1, self.id), (2, list(command)), (3, int(SECONDS))]
        try:
            answer = self.engine.call("RuntimeService/ExecSync", request)
        except Broken as error:  # what a runtime that cannot run the command says
            return 255, b"", str(error)
        return answer.get(3, 0), answer.get(1, b""), answer.get(2, b"").decode("utf-8", "replace")

    def remove(self) -> None:
        """Removes the pod with its container."""
        for verb in ("Stop", "Remove"):
            self.engine.call(f"RuntimeService/{verb}PodSandbox", [(1, self.pod)])
