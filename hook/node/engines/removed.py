"""An engine that was taken off the node while reassert was wired into it."""

from __future__ import annotations

from typing import Any, Self

from hook.node.engines.base import Base, Choice, Engine, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.probe.starter import Starter


class Removed(Engine[None]):
    """Nothing runs and nothing reads the files: they are put back, and that is all."""

    adapters: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = f"{name}, which is not installed any more,"

    @classmethod
    def installed(cls) -> bool:
        """It is not."""
        return False

    @classmethod
    def find(cls) -> Self:
        """It cannot be found. Raises NodeError."""
        raise NodeError("the engine is not installed on this node")

    def read(self) -> None:
        """Nothing is configured."""

    def handlers(self, now: None, notes: dict[str, Any]) -> list[Handler]:
        """None."""
        return []

    def wire(self, now: None, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """It cannot be wired. Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """A file that somebody edited stays as it is."""
        return content

    def check(self, now: None, wiring: Wiring) -> None:
        """Nothing reads the files."""

    def running(self) -> bool:
        """It does not."""
        return False

    def restart(self) -> None:
        """There is nothing to restart."""

    def starter(self, now: None) -> Starter:
        """Nothing can be started. Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")
