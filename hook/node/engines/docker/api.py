"""A client of the Docker Engine API on dockerd's socket. The docker command need not be installed."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from hook.node.errors import NodeError

SECONDS = 20.0
"""The longest wait for an answer, in seconds."""

RELOAD_SECONDS = 10.0
"""The longest wait for a reload, in seconds. dockerd reports no failed reload, so this is the wait for one."""


class NotThere(NodeError):
    """dockerd answered 404: the object does not exist, or no longer."""


def get(path: str, address: str) -> Any:
    """Returns the JSON answer to a GET. `path`: without version. `address`: the socket. Raises NotThere, NodeError."""
    connection = _Connection("localhost")
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
        kind = NotThere if answer.status == http.client.NOT_FOUND else NodeError
        raise kind(f"dockerd at {address} answers {path} with: {data.get('message', answer.status)}")
    return data


def wait_for_reload(ask: Callable[[], None], address: str) -> None:
    """Calls `ask`, which requests a reload, and waits for dockerd's event of a reload. A failed reload has no event.

    Raises NodeError if dockerd does not answer.
    """
    connection = _Connection("localhost")
    connection.address = address
    events = quote(json.dumps({"type": ["daemon"], "event": ["reload"]}))
    try:
        connection.request("GET", f"/events?filters={events}")
        answer = connection.getresponse()
        ask()
        connection.sock.settimeout(RELOAD_SECONDS)
        answer.readline()
    except TimeoutError:
        return
    except (OSError, http.client.HTTPException) as error:
        raise NodeError(f"dockerd does not answer at {address}: {error}") from None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    address = ""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.address)
