"""What dockerd says over its socket (Docker Engine API). The docker command need not be there."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from hook.node.errors import NodeError

SECONDS = 20.0


def get(path: str, address: str) -> Any:
    """The answer to a GET as data. `path`: without a version. `address`: of the unix socket. Raises NodeError."""
    connection = _Connection("localhost", timeout=SECONDS)
    connection.address = address
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        data = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NodeError(f"dockerd does not answer at {address}: {error}") from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise NodeError(f"dockerd at {address} answers {path} with: {data.get('message', answer.status)}")
    return data


class _Connection(http.client.HTTPConnection):
    address = ""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.address)
