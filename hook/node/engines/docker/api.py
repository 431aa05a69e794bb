"""What dockerd says over its socket (Docker Engine API). The docker command need not be there."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from hook.node.errors import NodeError

SECONDS = 20.0
"""How long an answer may take."""

RELOAD_SECONDS = 10.0
"""How long a reload may take. One that fails is never heard of, so this is how long that is waited for."""


class NotThere(NodeError):
    """What was asked for is not there, or no longer."""


def get(path: str, address: str) -> Any:
    """The answer to a GET as data. `path`: without a version. `address`: of the socket. Raises NotThere, NodeError."""
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
    """Ask for a reload and wait until dockerd has done it: it makes an event of that, and none of a failure.

    Raises NodeError where it does not answer at all.
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
