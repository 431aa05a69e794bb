"""`reassert agent --status`: ask the running agent what it has answered."""

from __future__ import annotations

import json
import socket
from typing import Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.text import printable
from hook.entry import protocol

_SECONDS = 5.0


def ask(path: str) -> dict[str, Any]:
    """The status of the agent at a socket. Raises ReassertError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(path)
            connection.send(protocol.STATUS)
            answer = connection.recv(protocol.LIMIT)
        found = json.loads(answer)
    except ValueError:
        raise ReassertError(f"{path}: an agent of another version, or no agent, listens there") from None
    except OSError as error:
        raise ReassertError(f"{path}: no agent answers: {describe(error)}") from None
    if not isinstance(found, dict):
        raise ReassertError(f"{path}: no agent listens there")
    return found


def show(path: str, output: str) -> int:
    """Print it. Raises ReassertError."""
    status = ask(path)
    if output == "json":
        print(json.dumps(status, indent=2))
        return 0
    warm, cold = status["warm"], status["cold"]
    rows = [
        ("agent", f"version {status['version']}, pid {status['pid']}, running for {status['seconds']:.0f} s"),
        ("policy", status["policy"]),
        ("memory", f"{status['memoryKiB'] / 1024:.1f} MiB"),
        ("NRI plugin", {None: "not in this process", True: "connected", False: "not connected"}[status["nri"]]),
        ("warm", f"{sum(warm.values())} ({', '.join(f'{name} {count}' for name, count in warm.items())})"),
        ("cold", f"{sum(cold.values())}{''.join(f', {name} {count}' for name, count in sorted(cold.items()))}"),
        ("dropped", str(status["dropped"])),
        ("in work", str(status["working"])),
    ]
    for name, value in rows:
        print(printable(f"{name:12}{value}"))
    return 0
