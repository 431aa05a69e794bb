"""A shim of containerd in the place of a VM runtime's: it records what it is handed, and starts nothing.

containerd starts a shim for each pod by its runtime type, `io.containerd.NAME.v2`, and gives it the bundle with
config.json. What the shim makes of that is its own affair: Kata's starts a virtual machine and calls no OCI runtime.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hook.nri.ttrpc import UNIMPLEMENTED, UNKNOWN, Assembler, Message, answer, read_request, refusal, serialize
from hook.resident.protobuf import load

RUNTIME_TYPE = "io.containerd.recorder.v2"
PROGRAM = "containerd-shim-recorder-v2"
"""What containerd looks for in PATH, for this runtime type."""

_SCRIPT = """\
#!/bin/sh
# containerd calls it with its own options and an action. One process serves all pods: `start` says where it listens.
case "$*" in
*start) echo "unix://{socket}" ;;
*delete) ;;
*) exit 1 ;; # containerd 2's question about features
esac
"""

_MESSAGES = load(Path(__file__).with_name("task.proto"))
_CREATED, _RUNNING, _STOPPED = 1, 2, 3
_PID = 1
"""Of each process that it claims to have started: there is a process of this number in containerd's namespace."""


class Process:
    """What the shim was handed for a container, or for an exec in it (`spec` is the OCI process then)."""

    def __init__(self, spec: dict[str, Any], output: tuple[str, ...] = (), rootfs: int = 0) -> None:
        self.spec = spec
        self.rootfs = rootfs
        """How many mounts make its root file system. A shim mounts them itself."""
        self.output = output
        self.status = _CREATED
        self.ended = threading.Event()

    def environ(self) -> list[str]:
        """The entries of the environment in the spec."""
        found: list[str] = self.spec.get("process", self.spec)["env"]
        return found

    def mounts(self, below: str) -> list[tuple[str, str, list[str]]]:
        """(source, destination, options) of the spec's mounts at or below a path, in their order."""
        return [
            (each["source"], each["destination"], each["options"])
            for each in self.spec["mounts"]
            if each["destination"] == below or each["destination"].startswith(below + "/")
        ]

    def end(self) -> None:
        """What waits for its end goes on."""
        self.status = _STOPPED
        self.ended.set()


class Recorder:
    """The shim's service: containerd's Task, version 2, over ttrpc. `containers`: by id, the pods' own among them."""

    def __init__(self, path: Path, program: Path) -> None:
        self.containers: dict[str, Process] = {}
        self.execs: list[Process] = []
        self._processes: dict[tuple[str, str], Process] = {}
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        program.write_text(_SCRIPT.format(socket=path))
        program.chmod(0o755)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        assembler, lock = Assembler(), threading.Lock()
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                for message in assembler.feed(data):  # `Wait` holds up no other request
                    threading.Thread(target=self._answer, args=(connection, lock, message), daemon=True).start()

    def _answer(self, connection: socket.socket, lock: threading.Lock, message: Message) -> None:
        request = read_request(message)
        method = getattr(self, "_on_" + request.method.lower(), None)
        try:
            if method is None:
                reply = refusal(message.stream, UNIMPLEMENTED, f"{request.method}: not recorded")
            else:
                reply = answer(message.stream, serialize(method(request.payload)))
        except Exception as error:
            reply = refusal(message.stream, UNKNOWN, repr(error))
        with suppress(OSError), lock:
            connection.sendall(reply)

    def _of(self, payload: bytes) -> Process:
        asked = _MESSAGES["ProcessRequest"].FromString(payload)
        return self._processes[asked.id, asked.exec_id]

    def _on_create(self, payload: bytes) -> Any:
        asked = _MESSAGES["CreateTaskRequest"].FromString(payload)
        spec = json.loads((Path(asked.bundle) / "config.json").read_bytes())
        self.containers[asked.id] = self._processes[asked.id, ""] = Process(spec, rootfs=len(asked.rootfs))
        return _MESSAGES["PidResponse"](pid=_PID)

    def _on_exec(self, payload: bytes) -> Any:
        asked = _MESSAGES["ExecProcessRequest"].FromString(payload)
        output = tuple(path for path in (asked.stdout, asked.stderr) if path)
        process = self._processes[asked.id, asked.exec_id] = Process(json.loads(asked.spec.value), output)
        self.execs.append(process)
        return _MESSAGES["ProcessRequest"]()

    def _on_start(self, payload: bytes) -> Any:
        process = self._of(payload)
        process.status = _RUNNING
        for path in process.output:  # containerd waits for the end of an exec's output
            Path(path).open("wb").close()
        if process in self.execs:
            process.end()
        return _MESSAGES["PidResponse"](pid=_PID)

    def _on_wait(self, payload: bytes) -> Any:
        self._of(payload).ended.wait()
        return _MESSAGES["WaitResponse"](exited_at=_now())

    def _on_kill(self, payload: bytes) -> Any:
        self._of(payload).end()
        return _MESSAGES["ProcessRequest"]()

    def _on_state(self, payload: bytes) -> Any:
        asked = _MESSAGES["ProcessRequest"].FromString(payload)
        status = self._of(payload).status
        return _MESSAGES["StateResponse"](id=asked.id, exec_id=asked.exec_id, pid=_PID, status=status)

    def _on_delete(self, payload: bytes) -> Any:
        asked = _MESSAGES["ProcessRequest"].FromString(payload)
        self._processes.pop((asked.id, asked.exec_id)).end()
        return _MESSAGES["DeleteResponse"](pid=_PID, exited_at=_now())

    def _on_connect(self, _: bytes) -> Any:
        return _MESSAGES["ConnectResponse"](shim_pid=_PID, task_pid=_PID)

    def _on_shutdown(self, _: bytes) -> Any:
        return _MESSAGES["ProcessRequest"]()


def _now() -> Any:
    return _MESSAGES["Timestamp"](seconds=int(time.time()))
