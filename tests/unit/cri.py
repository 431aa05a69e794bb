"""A CRI server of another implementation (grpclib), which knows one pod."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from unit.support import CONTAINERD

MESSAGES = vars(grpc.protos("e2e/cri/cri.proto"))
UID = CONTAINERD["io.kubernetes.cri.sandbox-uid"]
NAMESPACE = CONTAINERD["io.kubernetes.cri.sandbox-namespace"]
SANDBOX = CONTAINERD["io.kubernetes.cri.sandbox-id"]


class Engine:
    """A CRI server that a store names. `labels`: of its only pod. `uid`: the pod's.

    `asked`: the ids that it was asked about.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.socket = store / "cri.sock"
        self.labels = {"tier": "web", "io.kubernetes.pod.name": "p"}
        self.uid = UID
        self.asked: list[str] = []
        (self.store / "cri").mkdir(parents=True, exist_ok=True)
        (self.store / "cri/containerd").write_text(f"{self.socket}\n")
        self._loop = asyncio.new_event_loop()
        self._server: Any = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        ready.wait()

    def __mapping__(self) -> dict[str, Handler]:
        one = Cardinality.UNARY_UNARY
        service = "/runtime.v1.RuntimeService"
        return {
            f"{service}/{name}": Handler(function, one, MESSAGES[f"{name}Request"], MESSAGES[f"{name}Response"])
            for name, function in (("PodSandboxStatus", self._pod),)
        }

    async def _pod(self, stream: Any) -> None:
        request = await stream.recv_message()
        self.asked.append(request.pod_sandbox_id)
        if request.pod_sandbox_id != SANDBOX:
            raise GRPCError(Status.NOT_FOUND, "no such sandbox")
        answer = MESSAGES["PodSandboxStatusResponse"]()
        answer.status.metadata.uid = self.uid
        answer.status.metadata.namespace = NAMESPACE
        answer.status.labels.update(self.labels)
        await stream.send_message(answer)

    def _run(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self._server = Server([self])
            await self._server.start(path=str(self.socket))
            ready.set()
            await self._server.wait_closed()

        self._loop.run_until_complete(serve())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._thread.join()
        self._loop.close()
