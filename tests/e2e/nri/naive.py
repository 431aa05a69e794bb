"""An NRI plugin as one would first write it: it sets what the policy wants and asks no further."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cri.client import wait_for
from e2e.support import Node
from hook.adapters.nri import messages, ttrpc
from hook.adapters.nri.creation import Decider, Reply
from hook.adapters.nri.metrics import NoMetrics
from hook.adapters.nri.plugin import Plugin
from hook.adapters.nri.report import Report
from hook.adapters.nri.resident import Resident


class Naive(Decider):
    """Answers every container with the same env."""

    def __init__(self, node: Node, env: dict[str, str]) -> None:
        super().__init__(Resident(str(node.policy), str(node.store)), Report("/dev/null", NoMetrics()))
        self.env = env
        self.asked = threading.Event()

    def create(self, pod: Any, container: Any) -> Reply:
        self.asked.set()
        response = messages.get("CreateContainerResponse")()
        for name, value in self.env.items():
            response.adjust.env.add(key=name, value=value)
        return Reply(ttrpc.serialize(response), "", lambda: None)


@contextmanager
def naive_plugin(node: Node, nri: Path, env: dict[str, str]) -> Iterator[Naive]:
    """The plugin, connected."""
    decider = Naive(node, env)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(nri))
    plugin = Plugin(connection, decider, "naive", "10")
    thread = threading.Thread(target=plugin.run)
    thread.start()
    try:
        wait_for(plugin.configured.is_set, "the naive plugin's connection")
        yield decider
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        thread.join()
