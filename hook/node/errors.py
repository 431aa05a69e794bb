"""The error of the commands that look at a node or change it."""

from hook.core.base.errors import ReassertError


class NodeError(ReassertError):
    """The command failed. `outcome`: a second line about the state of the node now, or ""."""

    def __init__(self, message: str, outcome: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
