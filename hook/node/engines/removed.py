"""An engine that was taken off the node while reassert was wired into it."""

from __future__ import annotations

from typing import Any

from hook.node.engines.base import Base, Choice, Handler, Wiring
from hook.node.errors import NodeError
from hook.node.probe.starter import Starter
from hook.policy.model import Policy


class Removed:
    """Nothing runs and nothing reads the files: they are put back, and that is all."""

    adapters: tuple[str, ...] = ()
    service = ""
    verb = "restart"

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = f"{name}, which is not installed any more,"

    def handlers(self, notes: dict[str, Any]) -> list[Handler]:
        """None."""
        return []

    def wire(self, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """Cannot be wired. Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """A file that somebody edited stays as it is."""
        return content

    def preexisting(self, policy: Policy, hooked: bool) -> list[str]:
        """Nothing: its containers went with it."""
        return []

    def uninstall_notes(self, notes: dict[str, Any]) -> list[str]:
        """Nothing: its containers went with it."""
        return []

    def warnings(self) -> list[str]:
        """None."""
        return []

    def hints(self) -> list[str]:
        """None."""
        return []

    def check(self) -> None:
        """Nothing reads the files."""

    def running(self) -> bool:
        """It does not."""
        return False

    def restart(self) -> None:
        """Nothing to restart."""

    def starter(self) -> Starter:
        """Nothing can be started. Raises NodeError."""
        raise NodeError(f"{self.name} is not installed on this node")

    def users(self, path: str) -> int:
        """None."""
        return 0
