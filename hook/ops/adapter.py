"""The adapter of commands that say what a policy does with a container, and change nothing."""

from __future__ import annotations

from hook.core.decide import Adapter
from hook.core.policy.model import Policy


class Command(Adapter):
    """A command that decides by a policy that it has. `name`: as the adapter in events, which it does not write."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy

    def policy(self) -> Policy:
        """The policy that the command was given, or has read."""
        return self._policy
