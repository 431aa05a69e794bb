"""What can go wrong while a node is wired."""

from hook.base.errors import ReassertError


class NodeError(ReassertError):
    """Something on this node stands in the way. `outcome`: a line of its own about the state of the node, or ""."""

    def __init__(self, message: str, outcome: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
