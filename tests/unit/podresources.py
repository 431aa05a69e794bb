"""kubelet's PodResources, by a gRPC server of another implementation (grpcio). It answers what a real one answered."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from hook.resident.protobuf import load
from unit.support import FIXTURES

MESSAGES = load(Path(__file__).with_name("podresources.proto"))
RECORDED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "kubelet/k1.36-dra/podresources.json").read_text())
"""By POD.CONTAINER.ATTEMPT of a real kubelet: `get`, and of some `list`, its answers while the container was created;
`cdi`, the CDI devices that it asked CRI for."""


def recorded(name: str) -> bytes:
    """kubelet's answer while a recorded container was created."""
    return base64.b64decode(RECORDED[name]["get"])


def answer(namespace: str, pod: str, containers: dict[str, list[str]]) -> bytes:
    """An answer with the names of the claims of each container."""
    listed = [
        {"name": name, "dynamic_resources": [{"claim_name": claim, "claim_namespace": namespace} for claim in claims]}
        for name, claims in containers.items()
    ]
    found = MESSAGES["GetPodResourcesResponse"]()
    found.pod_resources.name, found.pod_resources.namespace = pod, namespace
    found.pod_resources.containers.extend(MESSAGES["ContainerResources"](**one) for one in listed)
    return bytes(found.SerializeToString())


def listing(*answers: bytes) -> bytes:
    """An answer of List with the pods of these answers of Get."""
    found = MESSAGES["ListPodResourcesResponse"]()
    for each in answers:
        found.pod_resources.append(MESSAGES["GetPodResourcesResponse"].FromString(each).pod_resources)
    return bytes(found.SerializeToString())


class PodResources(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The socket below kubelet's root. `answers`: of Get, by pod. `asked`: the pods, in order.

    `listed`: the answer of List, which this kubelet does not know if it is None. `lists`: how often it was called.
    `has_get`: whether the feature gate KubeletPodResourcesGet is on.
    """

    def __init__(self, root: Path, *answers: bytes) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.listed: bytes | None = None
        self.lists = 0
        self.has_get = True
        self.socket = root / "pod-resources/kubelet.sock"
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        for each in answers:
            self.add(each)
        self._pool = ThreadPoolExecutor(1)
        self._server = grpc.server(self._pool, [self])
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        self.socket.chmod(0o755)

    def add(self, found: bytes) -> None:
        """Answer this from now on."""
        pod = MESSAGES["GetPodResourcesResponse"].FromString(found).pod_resources
        self.answers[f"{pod.namespace}/{pod.name}"] = found

    def service(self, details: Any) -> Any:
        """The method that is called, as grpc asks."""
        if details.method.endswith("Lister/List") and self.listed is not None:
            return grpc.unary_unary_rpc_method_handler(self._list)
        return grpc.unary_unary_rpc_method_handler(self._get) if details.method.endswith("Lister/Get") else None

    def _list(self, request: bytes, context: Any) -> bytes:
        self.lists += 1
        assert self.listed is not None
        return self.listed

    def _get(self, request: bytes, context: Any) -> bytes:
        asked = MESSAGES["GetPodResourcesRequest"].FromString(request)
        pod = f"{asked.pod_namespace}/{asked.pod_name}"
        self.asked.append(pod)
        if not self.has_get:
            context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        if pod not in self.answers:
            context.abort(grpc.StatusCode.UNKNOWN, f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found")
        return self.answers[pod]

    def close(self) -> None:
        """Let go of the socket."""
        self._server.stop(None).wait()
        self._pool.shutdown()


_BUSY = "00000604000000000000050000400000001a010500000001885f8b1d75d0620d263d4c4d656440889acac8b21234da8f0138"
"""SETTINGS, and the HEADERS of RESOURCE_EXHAUSTED without a text, as servers in Go write them (recorded of another
status)."""


@contextmanager
def busy(root: Path, then: bytes, times: int = 1) -> Iterator[list[bytes]]:
    """A kubelet that refuses some calls by its rate limit, and answers the next one. The calls that it gets."""
    calls: list[bytes] = []
    body = b"\0" + len(then).to_bytes(4, "big") + then
    answered = len(body).to_bytes(3, "big") + b"\0\1\0\0\0\1" + body
    path = root / "pod-resources/kubelet.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):  # the test is over
                for data in [*[bytes.fromhex(_BUSY)] * times, answered]:
                    peer, _ = listening.accept()
                    with peer:
                        calls.append(peer.recv(65536))
                        peer.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield calls
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
