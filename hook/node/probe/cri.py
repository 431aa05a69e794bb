"""A client of the Kubernetes Container Runtime Interface, for containerd's and CRI-O's socket."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from hook.base.errors import describe
from hook.base.protobuf import load
from hook.node.errors import NodeError

SECONDS = 60.0
"""How long one call may take. kubelet gives an engine two minutes."""

CONTAINER, NODE = 1, 2
"""Of CRI's NamespaceMode: a namespace of the container's own, and the node's."""

_MESSAGES = load(Path(__file__).with_name("cri.proto"))
_T = TypeVar("_T")


class CallFailed(NodeError):
    """The engine answered a call with an error: its words, as `kubectl describe pod` shows them."""


def message(name: str, **fields: Any) -> Any:
    """A message of cri.proto; messages within it as dicts or as they are, None for a field that is not set."""
    return _MESSAGES[name](**fields)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that would end this program come afterwards."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Cri:
    """A connection. `socket`: absolute path, without a scheme. Connects at the first call."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: Channel | None = None

    def close(self) -> None:
        """Let go of the socket."""
        if self._channel:
            self._channel.close()
        if self._loop:
            self._loop.close()

    def call(self, method: str, **fields: Any) -> Any:
        """One call of the RuntimeService, with the fields of its request. Raises CallFailed, NodeError."""
        return self.run(self.ask(method, **fields))

    def image(self, name: str) -> dict[str, Any] | None:
        """What the engine knows of an image, as its verbose answer has it; None: not there. Raises NodeError."""
        request = message("ImageStatusRequest", image={"image": name}, verbose=True)
        answer = self.run(self._unary("ImageService/ImageStatus", request, "ImageStatusResponse"))
        return information(answer) if answer.image.id else None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a coroutine that uses `ask`.

        A signal waits with it: what the engine is just making can only be removed once it is made.
        """
        self._loop = self._loop or asyncio.new_event_loop()
        with uninterrupted():
            return self._loop.run_until_complete(work)

    async def ask(self, method: str, **fields: Any) -> Any:
        """`call` for coroutines."""
        response = f"{method}Response" if f"{method}Response" in _MESSAGES else "Empty"
        return await self._unary(f"RuntimeService/{method}", message(f"{method}Request", **fields), response)

    async def _unary(self, method: str, request: Any, response: str) -> Any:
        if self._channel is None:
            self._channel = Channel(path=self.socket)
        call = UnaryUnaryMethod(self._channel, f"/runtime.v1.{method}", type(request), _MESSAGES[response])
        try:
            return await call(request, timeout=SECONDS)
        except GRPCError as error:
            raise CallFailed(error.message or error.status.name) from None
        except TimeoutError:
            raise NodeError(f"{self.socket}: no answer to {method.partition('/')[2]} within {SECONDS:.0f} s") from None
        except (StreamTerminatedError, OSError) as error:
            reason = describe(error) if isinstance(error, OSError) else str(error)
            raise NodeError(f"{self.socket}: {reason}; does the engine run?") from None


def information(answer: Any) -> dict[str, Any]:
    """What a verbose answer says beyond its fields, as containerd and CRI-O both do; {} where it is nothing."""
    return parsed(answer, "info")


def parsed(answer: Any, name: str) -> dict[str, Any]:
    """One JSON object of a verbose answer's `info`; {} where it is none."""
    try:
        found = json.loads(answer.info.get(name, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
