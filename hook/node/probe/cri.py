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

from hook.core.base.errors import describe
from hook.node.errors import NodeError
from hook.resident.protobuf import load

SECONDS = 60.0
"""The longest wait for one call, in seconds. kubelet waits two minutes."""

CONTAINER, NODE = 1, 2
"""Values of CRI's NamespaceMode: a namespace of the container's own, and the node's."""

READY, EXITED = 0, 2
"""A value of CRI's PodSandboxState, and one of its ContainerState."""

_MESSAGES = load(Path(__file__).with_name("cri.proto"))
_T = TypeVar("_T")


class CallFailed(NodeError):
    """The engine answered a call with an error. The text is the engine's, as `kubectl describe pod` shows it."""


def message(name: str, **fields: Any) -> Any:
    """Returns a message of cri.proto. Nested messages may be dicts; None leaves a field unset."""
    return _MESSAGES[name](**fields)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays signals that would end this program until the block is left."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Cri:
    """A connection to a CRI socket, made at the first call. `socket`: absolute path, without a scheme."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: Channel | None = None

    def close(self) -> None:
        """Closes the connection."""
        if self._channel:
            self._channel.close()
        if self._loop:
            self._loop.close()

    def call(self, method: str, **fields: Any) -> Any:
        """Makes one call of the RuntimeService with these request fields. Raises CallFailed, NodeError."""
        return self.run(self.ask(method, **fields))

    def image(self, name: str) -> dict[str, Any] | None:
        """Returns the verbose information about an image, None if the node does not have it. Raises NodeError."""
        request = message("ImageStatusRequest", image={"image": name}, verbose=True)
        answer = self.run(self._unary("ImageService/ImageStatus", request, "ImageStatusResponse"))
        return information(answer) if answer.image.id else None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine that uses `ask`, and returns its result.

        Signals are delayed until it ends: a container that the engine is creating can be removed only afterwards.
        """
        self._loop = self._loop or asyncio.new_event_loop()
        with uninterrupted():
            return self._loop.run_until_complete(work)

    async def ask(self, method: str, **fields: Any) -> Any:
        """Makes one call, as `call` does, from a coroutine."""
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
    """Returns the object `info` of a verbose answer, which containerd and CRI-O both have; {} if there is none."""
    return parsed(answer, "info")


def parsed(answer: Any, name: str) -> dict[str, Any]:
    """Returns one JSON object of a verbose answer's `info`; {} if it is not an object."""
    try:
        found = json.loads(answer.info.get(name, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
