"""An engine that was removed from the node while reassert was wired into it."""

from __future__ import annotations

from typing import Any, Self

from hook.node.engines.base import Base, Choice, Engine, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.probe.starter import Starter


class Removed(Engine[None]):
    """A stand-in for the missing engine: an uninstall restores its files and restarts nothing."""

    adapters: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = f"{name}, which is not installed any more,"

    @classmethod
    def installed(cls) -> bool:
        """Returns False."""
        return False

    @classmethod
    def find(cls) -> Self:
        """Raises NodeError."""
        raise NodeError("the engine is not installed on this node")

    def read(self) -> None:
        """Returns None: there is no configuration."""

    def handlers(self, now: None, notes: dict[str, Any]) -> list[Handler]:
        """Returns no handlers."""
        return []

    def wire(self, now: None, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns the content: an edited file stays as it is."""
        return content

    def check(self, now: None, wiring: Wiring) -> None:
        """Checks nothing: no program reads the files."""

    def running(self) -> bool:
        """Returns False."""
        return False

    def restart(self) -> None:
        """Does nothing."""

    def starter(self, now: None) -> Starter:
        """Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")
