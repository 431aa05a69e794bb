"""A runtime's side of an NRI connection, for tests, and a plugin on the other side."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hook.compile.in_force import refresh
from hook.nri import ttrpc
from hook.nri.creation import Decider
from hook.nri.plugin import SERVICE, Limits, Plugin
from hook.nri.report import Report
from hook.nri.request import Reply, Request
from hook.nri.ttrpc import PLUGIN, RUNTIME, frames
from hook.ops.metrics.prometheus import Metrics
from hook.resident.policy import Resident

REQUEST = ttrpc.get("CreateContainerRequest")
VALIDATE = ttrpc.get("ValidateContainerAdjustmentRequest")
RESPONSE = ttrpc.get("CreateContainerResponse")
KNOWN = "2.2.0"
"""The first version of containerd that asks about what all plugins want."""


def create_request(env: list[str], mounts: Sequence[dict[str, Any]] = (), **fields: Any) -> Any:
    """A CreateContainerRequest."""
    if mounts:
        fields["mounts"] = encoded("Mount", mounts)
    if "linux" in fields:
        linux = fields.pop("linux")
        devices = encoded("LinuxDevice", linux.get("devices", ()))
        rules = encoded("LinuxDeviceCgroup", linux.get("resources", {}).get("devices", ()))
        fields["linux"] = {"devices": devices, "resources": {"devices": rules}}
    pod = {"id": "pod", "name": "web-1", "namespace": "team-a", "uid": "1-2-3", **fields.pop("pod", {})}
    return REQUEST(pod=pod, container={"id": "c0", "pod_sandbox_id": "pod", "name": "app", "env": env, **fields})


def encoded(kind: str, objects: Sequence[dict[str, Any]]) -> list[bytes]:
    """Messages of one class, as a container lists them."""
    return [ttrpc.get(kind)(**fields).SerializeToString() for fields in objects]


class Peer:
    """The runtime."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(600)
        self._streams = ttrpc.Streams()
        self._arrived: list[tuple[int, ttrpc.Message]] = []
        self._stream = -1

    def receive(self) -> tuple[int, ttrpc.Message]:
        """The next message with its stream."""
        while not self._arrived:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._arrived += self._streams.feed(data)
        return self._arrived.pop(0)

    def send(self, method: str, argument: Any, service: str = SERVICE, timeout: float = 2.0) -> int:
        """Call the plugin and do not wait; the ttrpc stream of the call."""
        self._stream += 2
        call = ttrpc.get("Request")(
            service=service, method=method, payload=argument.SerializeToString(), timeout_nano=int(timeout * 1e9)
        )
        self.send_message(self._stream, call.SerializeToString())
        return self._stream

    def send_message(self, stream: int, payload: bytes, kind: int = 1) -> None:
        """A ttrpc message on the plugin's stream."""
        self.socket.sendall(frames(PLUGIN, struct.pack(">IIBB", len(payload), stream, kind, 0) + payload))

    def response(self) -> tuple[int, Any]:
        """The next response: its ttrpc stream and the Response."""
        stream, message = self.receive()
        assert stream == PLUGIN
        return message.stream, ttrpc.read_response(message)

    def call(self, method: str, argument: Any, **options: Any) -> Any:
        """Call the plugin and wait for the Response."""
        stream = self.send(method, argument, **options)
        answered, response = self.response()
        assert answered == stream
        return response

    def take_in(self, version: str = "2.1.9", config: str = "", nri: str = "", ends: bool = False) -> int:
        """What a runtime calls before it asks about containers; the events that the plugin subscribes to.

        `ends`: the runtime stops after the configuration.
        """
        stream, message = self.receive()
        request = ttrpc.read_request(message)
        assert (stream, request.service, request.method) == (
            RUNTIME,
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
        )
        registered = ttrpc.get("RegisterPluginRequest").FromString(request.payload)
        assert (registered.plugin_name, registered.plugin_idx) == ("reassert", "10")
        self.socket.sendall(frames(RUNTIME, struct.pack(">IIBB", 0, message.stream, 2, 0)))
        configure = ttrpc.get("ConfigureRequest")(
            runtime_name="containerd", runtime_version=version, config=config, NRI_version=nri
        )
        answer = ttrpc.get("ConfigureResponse").FromString(self.call("Configure", configure).payload)
        if not ends:
            self.call("Synchronize", ttrpc.get("SynchronizeRequest")())
        events: int = answer.events
        return events


class SlowDecider(Decider):
    """One that waits for `go` with containers of this name, or with questions about adjustments (`asked`)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.slow, self.asked, self.go = "", False, threading.Event()

    def create(self, request: Request, pod: Any, container: Any) -> Reply:
        """As the others, later."""
        if container.name == self.slow:
            self.go.wait(120)
        return super().create(request, pod, container)

    def validate(self, request: Request, argument: Any) -> Reply:
        """As the others, later."""
        if self.asked:
            self.go.wait(120)
        return super().validate(request, argument)


class SlowReport(Report):
    """One whose lines wait for `go` once it is `slow`."""

    slow = False

    def __init__(self, *arguments: Any) -> None:
        self.go = threading.Event()
        super().__init__(*arguments)

    def line(self, text: str, settings: Sequence[Any] = ()) -> None:
        """As the others, later."""
        if self.slow:
            self.go.wait(60)
        super().line(text, settings)


class Running:
    """A plugin in a thread, its peer, and what it logged."""

    def __init__(self, directory: Path, policy: str, **limits: float) -> None:
        self.events = directory / "events.jsonl"
        self.policy = directory / "policy.yaml"
        self.policy.write_text(policy)
        self.metrics = Metrics()
        refresh(str(self.policy), str(directory / "store"))  # else by a child process
        self.resident = Resident(str(self.policy), str(directory / "store"))
        self.resident.get(60)
        self.report = SlowReport(str(self.events), self.metrics)
        self.decider = SlowDecider(self.resident, self.report)
        theirs, ours = socket.socketpair()
        self.plugin = Plugin(ours, self.decider, name="reassert", index="10", limits=Limits(**limits))  # type: ignore[arg-type]  # by name
        self.peer = Peer(theirs)
        self.thread = threading.Thread(target=self.plugin.run)
        self.thread.start()

    def create(self, env: list[str], **fields: Any) -> Any:
        """The Response about a container, once the plugin has told of it too, which it does after its answer."""
        response = self.peer.call("CreateContainer", create_request(env, **fields))
        self.peer.call("StateChange", ttrpc.get("Empty")())
        return response

    def validate(self, create: Any, **fields: Any) -> Any:
        """The ValidateContainerAdjustmentResponse about what all plugins make of a CreateContainerRequest."""
        request = VALIDATE(pod=create.pod, container=create.container, **fields)
        response = self.peer.call("ValidateContainerAdjustment", request)
        assert not response.status.code, response.status.message
        self.peer.call("StateChange", ttrpc.get("Empty")())
        return ttrpc.get("ValidateContainerAdjustmentResponse").FromString(response.payload)

    def logged(self) -> list[dict[str, Any]]:
        """The event log."""
        return [json.loads(line) for line in self.events.read_text().splitlines()] if self.events.exists() else []

    def ended(self) -> dict[str, Any]:
        """The last event, once the plugin has given the connection up."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.logged()[-1]

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample. The labels that the plugin always sets alike may be left out."""
        for label, same in (("adapter", "nri"), ("start", ""), ("cold", "")):
            if label in _LABELS.get(name, ()):
                labels.setdefault(label, same)
        value: float | None = self.metrics.registry.get_sample_value(name, labels)
        return value


_LABELS = {
    "reassert_containers_total": ("adapter", "start", "cold"),
    **dict.fromkeys(("reassert_probes_total", "reassert_edits_total", "reassert_refusals_total"), ("adapter",)),
}


def events_of(plugin: Running) -> list[dict[str, Any]]:
    """The events about containers."""
    return [event for event in plugin.logged() if event["event"].startswith("container.")]


def wait_until(condition: Callable[[], bool]) -> None:
    """Until something holds that another thread brings about."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running(
    directory: Path, policy: str, take_in: bool = True, version: str = "2.1.9", **limits: float
) -> Iterator[Running]:
    """A plugin that a runtime has taken in."""
    plugin = Running(directory, policy, **limits)
    try:
        if take_in:
            plugin.peer.take_in(version)
        yield plugin
    finally:
        plugin.decider.go.set()
        plugin.report.go.set()
        plugin.peer.socket.close()
        plugin.thread.join(60)
        plugin.decider.report.close(60)
