"""The error of `reassert node`."""

from hook.core.base.errors import ReassertError


class NodeError(ReassertError):
    """A command of `reassert node` failed. `outcome`: a second line about the state of the node now, or ""."""

    def __init__(self, message: str, outcome: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
