"""What can go wrong while a node is wired."""

from hook.base.errors import ReassertError


class NodeError(ReassertError):
    """Something on this node stands in the way; the node is as it was unless the message says otherwise."""
