"""An NRI plugin as one would first write it: it sets what the policy wants and asks no further."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.node import Node

from e2e.cri.client import wait_for
from hook.core.decide import Case
from hook.nri import ttrpc
from hook.nri.creation import Decider, Question
from hook.nri.plugin import Plugin
from hook.nri.report import Report
from hook.nri.request import Reply, Request
from hook.resident.metrics import NoMetrics
from hook.resident.policy import Resident

Adjust = Callable[[Any, Any, Any], None]
"""Given the pod, the container and the ContainerAdjustment of the answer, which it fills."""


class Naive(Decider):
    """Answers every container with an adjustment, and looks at none of the others'."""

    def __init__(self, node: Node, adjust: Adjust) -> None:
        super().__init__(Resident(str(node.policy), str(node.store)), Report("/dev/null", NoMetrics()))
        self.adjust = adjust
        self.asked = threading.Event()

    def create(self, request: Request, pod: Any, container: Any) -> Reply:
        self.asked.set()
        response = ttrpc.get("CreateContainerResponse")()
        self.adjust(pod, container, response.adjust)
        reply = Reply(Case(Question(self.resident), container.id))
        reply.payload = ttrpc.serialize(response)
        return reply

    def validate(self, request: Request, asked: Any) -> Reply:
        return Reply(Case(Question(self.resident), asked.container.id))


def setting(env: dict[str, str], again: bool = False) -> Adjust:
    """Sets env; with `again`, takes the names from the plugin before first, as NRI wants it."""

    def adjust(pod: Any, container: Any, made: Any) -> None:
        for name, value in env.items():
            if again:
                made.env.add(key=f"-{name}")
            made.env.add(key=name, value=value)

    return adjust


@contextmanager
def naive_plugin(node: Node, nri: Path, adjust: Adjust, index: str = "10") -> Iterator[Naive]:
    """The plugin, connected."""
    decider = Naive(node, adjust)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(nri))
    plugin = Plugin(connection, decider, name="naive", index=index)
    thread = threading.Thread(target=plugin.run)
    thread.start()
    try:
        wait_for(plugin.connected.is_set, "the naive plugin's connection")
        yield decider
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        thread.join()
