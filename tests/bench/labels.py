"""A CRI server that answers at once with a pod's labels, for policies with a podSelector."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from harness.bundle import UID

from bench.node import NAMESPACE


class Engine:
    """The server, which a store names. `asked`: how often. It parses no request: there is one answer."""

    def __init__(self, store: Path) -> None:
        self.asked = 0
        path = store / "cri.sock"
        (store / "cri").mkdir(parents=True)
        (store / "cri/containerd").write_text(f"{path}\n")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(128)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        metadata = _field(1, b"app-1") + _field(2, UID.encode()) + _field(3, NAMESPACE.encode())
        labels = b"".join(_field(number, text.encode()) for number, text in enumerate(("app", "shop"), 1))
        answer = _field(1, _field(2, metadata) + _field(7, labels))
        body = b"\0" + len(answer).to_bytes(4, "big") + answer
        settings = b"\0\0\0\4\0\0\0\0\0"
        data = len(body).to_bytes(3, "big") + b"\0\1\0\0\0\1" + body  # DATA, END_STREAM, stream 1 (RFC 9113)
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(settings + data)
                self.asked += 1
                connection.recv(1)  # until the caller closes


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protobuf message, of at most 127."""
    return bytes((number << 3 | 2, len(content))) + content
